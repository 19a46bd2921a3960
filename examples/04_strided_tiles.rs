//! Tiles of a matrix exchange their rims: rows are contiguous, columns are strided, and neither is packed.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use rma::{Comm, Rank, Result};

/// The tile of a rank without its rim, and with it.
const ROWS: usize = 6;
const COLUMNS: usize = 8;
const PITCH: usize = COLUMNS + 2;
const CELL: usize = size_of::<u32>();

/// Where a cell of a tile begins, in bytes; row 0 and column 0 belong to the rim.
const fn at(row: usize, column: usize) -> usize {
    (row * PITCH + column) * CELL
}

/// What stands in a cell of a rank before the exchange, so that everyone can tell what must arrive.
fn value(rank: u32, row: usize, column: usize) -> u32 {
    rank * 10_000 + row as u32 * 100 + column as u32
}

fn main() -> Result<()> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    Comm::launch(4, |comm| {
        let (me, size) = (comm.rank().0, comm.size());
        // A grid of ranks, as square as their number allows, closed to a torus.
        let grid_rows = (1..=size).filter(|r| size.is_multiple_of(*r) && r * r <= size).max().unwrap_or(1);
        let grid_columns = size / grid_rows;
        let (row, column) = (me / grid_columns, me % grid_columns);
        let rank_at = |row: u32, column: u32| Rank(row % grid_rows * grid_columns + column % grid_columns);
        let up = rank_at(row + grid_rows - 1, column);
        let down = rank_at(row + 1, column);
        let left = rank_at(row, column + grid_columns - 1);
        let right = rank_at(row, column + 1);

        let tile = comm.window_alloc(at(ROWS + 2, 0))?;
        {
            let mut cells = tile.write::<u32>(..)?;
            for (row, column) in (1..=ROWS).flat_map(|row| (1..=COLUMNS).map(move |column| (row, column))) {
                cells[row * PITCH + column] = value(me, row, column);
            }
        }

        // Source and destination are the same window: the rim of one tile receives the inner edge of another.
        let row_of = |to, from, target| comm.declare_write(&tile, at(to, 1), &tile, at(from, 1), COLUMNS * CELL, target);
        let column_of = |to, from, target| {
            let first = comm.declare_write(&tile, at(1, to), &tile, at(1, from), CELL, target)?;
            first.blocks(ROWS, PITCH * CELL, PITCH * CELL)
        };
        let mut queue = comm.queue_alloc(&tile)?;
        queue.push(&row_of(ROWS + 1, 1, up)?)?.push(&row_of(0, ROWS, down)?)?;
        queue.push(&column_of(COLUMNS + 1, 1, left)?)?.push(&column_of(0, COLUMNS, right)?)?;
        for neighbor in [up, down, left, right] {
            queue.add_origin(neighbor)?;
        }
        let mut queue = queue.commit()?;

        let flight = queue.start()?;
        // The interior is free while the rims travel: nothing in flight reads or writes it.
        let interior = tile.read::<u32>(at(2, 2)..at(2, COLUMNS))?;
        let inner_sum: u32 = interior.iter().sum();
        drop(interior);
        let arrived = flight.wait()?;

        let cells = arrived.read::<u32>(&tile, ..)?;
        for column in 1..=COLUMNS {
            assert_eq!(cells[column], value(up.0, ROWS, column));
            assert_eq!(cells[(ROWS + 1) * PITCH + column], value(down.0, 1, column));
        }
        for row in 1..=ROWS {
            assert_eq!(cells[row * PITCH], value(left.0, row, COLUMNS));
            assert_eq!(cells[row * PITCH + COLUMNS + 1], value(right.0, row, 1));
        }
        println!(
            "rank {me} at ({row}, {column}) of {grid_rows} x {grid_columns}: all four rims are right, row 2 inside sums to {inner_sum}"
        );
        Ok(())
    })
}
