//! A chain of copies and strides on emulated PEACH2 boards: what commit makes of it, and when each put is under way on its channel.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use rma::{Comm, Config, Rail, Rank, Result};

/// A matrix of numbers, by rows.
const ROWS: usize = 64;
const COLUMNS: usize = 48;
const NUMBER: usize = size_of::<u32>();
const ROW_BYTES: usize = COLUMNS * NUMBER;

fn main() -> Result<()> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    let (mut config, place) = Config::from_env()?;
    // Any backend that RMA_BACKEND names runs this program; only these boards have a time of their own.
    config.backend.get_or_insert_with(|| rma_peach2::NAME.into());
    match place {
        Some(place) => exchange(&Comm::join(&place, config)?),
        None => Comm::threads_with(4, config, |comm| exchange(&comm))?.into_iter().collect(),
    }
}

fn exchange(comm: &Comm) -> Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let (east, west) = (Rank((me + 1) % size), Rank((me + size - 1) % size));
    let (matrix, ghosts) = (comm.window_alloc(ROWS * ROW_BYTES)?, comm.window_alloc(2 * ROWS * NUMBER + 2 * ROW_BYTES)?);
    matrix.write::<u32>(..)?.iter_mut().zip(0..).for_each(|(number, at)| *number = me << 16 | at);

    // The last column to the east and the first to the west, each gathered; then the first and the last row to the east.
    let column = |from: usize, to: usize, target: Rank| {
        comm.declare_write(&ghosts, to * ROWS * NUMBER, &matrix, from * NUMBER, NUMBER, target)?.blocks(ROWS, ROW_BYTES, NUMBER)
    };
    let row = |from: usize, to: usize| {
        comm.declare_write(&ghosts, 2 * ROWS * NUMBER + to * ROW_BYTES, &matrix, from * ROW_BYTES, ROW_BYTES, east)
    };
    let mut queue = comm.queue_alloc(&ghosts)?;
    let last = comm.rails() - 1;
    queue.push(&column(COLUMNS - 1, 0, east)?.rail(Rail(0))?)?;
    queue.push(&column(0, 1, west)?.rail(Rail(last))?)?;
    queue.push(&row(0, 0)?.rail(Rail(0))?)?.push(&row(ROWS - 1, 1)?.rail(Rail(0))?)?;
    queue.add_origin(west)?.add_origin(east)?;
    let mut queue = queue.commit()?;
    if me == 0 {
        println!("committed\n{}\n", queue.explain());
    }

    let arrived = queue.start()?.wait()?;
    let (span, now) = (arrived.virtual_span(), comm.virtual_now());
    let received = arrived.read::<u32>(&ghosts, ..)?;
    let at = |row: usize, column: usize| (row * COLUMNS + column) as u32;
    for row in 0..ROWS {
        assert_eq!(received[row], west.0 << 16 | at(row, COLUMNS - 1), "the last column of the board in the west");
        assert_eq!(received[ROWS + row], east.0 << 16 | at(row, 0), "the first column of the board in the east");
    }
    for column in 0..COLUMNS {
        assert_eq!(received[2 * ROWS + column], west.0 << 16 | at(0, column), "the first row of the board in the west");
        assert_eq!(received[2 * ROWS + COLUMNS + column], west.0 << 16 | at(ROWS - 1, column), "its last row");
    }
    drop(received);
    drop(arrived);
    if me == 0 {
        println!("after an epoch\n{}", queue.explain());
        if let (Some(span), Some(now)) = (span, now) {
            println!("it took {:?} of virtual time; the clock of this board is at {now:?}", span.duration());
        }
    }
    Ok(())
}
