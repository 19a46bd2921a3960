//! Conway's Game of Life on a torus: cells look at all eight neighbors, so corners travel, too; the interior is computed meanwhile.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use anyhow::{Result, ensure};
use clap::Parser;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis};
use rma::Comm;
use rma_examples::launch::{Ranks, extents};
use rma_examples::{npy, picture, random};
use rma_halo::{Decomposition, Field, Halo, Layout, Mode};
use std::path::PathBuf;
use std::time::Instant;

/// Let a random board live on a torus, over ranks that exchange the rims of their blocks, and compare with one rank alone
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ranks: Ranks,
    /// Rows and columns of the board
    #[arg(long, default_value = "96,64", value_parser = extents::<usize, 2>)]
    cells: [usize; 2],
    /// Ranks in each dimension, and so how many; without it the grid that exchanges least
    #[arg(long, value_parser = extents::<u32, 2>)]
    grid: Option<[u32; 2]>,
    /// Generations
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Which random board to begin with
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a picture of the board, before and after
    #[arg(long, value_name = "FILE.png", value_parser = picture::file)]
    picture: Option<PathBuf>,
    /// Write initial.npy and final.npy, the whole board before and after
    #[arg(long, value_name = "DIR", value_parser = npy::folder)]
    dump: Option<PathBuf>,
    /// Print what the exchange does
    #[arg(long)]
    explain: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    options.ranks.of_grid(options.grid).launch(|comm| life(comm, &options))
}

/// One generation of the cells of `next`, from those of `board`, which reaches one cell further on every side.
fn step(board: ArrayView2<'_, u8>, mut next: ArrayViewMut2<'_, u8>) {
    let row = |row: usize| board.index_axis_move(Axis(0), row).to_slice().expect("bug: a row with gaps").windows(3);
    for (at, mut next) in next.outer_iter_mut().enumerate() {
        for (((above, here), below), next) in row(at).zip(row(at + 1)).zip(row(at + 2)).zip(&mut next) {
            let alive: u8 = [above, here, below].into_iter().flatten().sum();
            // Three with the cell itself: two neighbors of a living one, or three of a dead one.
            *next = u8::from(alive == 3 || alive == 4 && here[1] == 1);
        }
    }
}

/// All generations: the interior while the rims of the blocks travel, then the rim. The last one is in the field returned.
fn evolve(
    comm: &Comm,
    torus: &Decomposition<2>,
    steps: usize,
    first: impl Fn([usize; 2]) -> u8,
    explain: bool,
) -> Result<Field<u8, 2>> {
    let field = || Field::<u8, 2>::new(comm, torus, Layout::ghosts(1));
    let halo = |field| Halo::of(comm).field(field).mode(Mode::Corners).commit();
    let (mut board, mut next) = (field()?, field()?);
    let (mut exchange, mut next_exchange) = (halo(&board)?, halo(&next)?);
    if explain && comm.rank().0 == 0 {
        println!("{}", exchange.explain());
    }
    board.fill_with(first)?;
    let inner = board.interior();
    let rim = board.rim();
    for _ in 0..steps {
        let flight = exchange.start()?;
        step(board.owned()?.view(), inner.of_mut(&mut next.owned_mut()?.view_mut()));
        {
            let arrived = flight.wait()?;
            let (padded, mut owned) = (arrived.padded(&board)?, next.owned_mut()?);
            for part in &rim {
                step(board.around(part).of(&padded.view()), part.of_mut(&mut owned.view_mut()));
            }
        }
        std::mem::swap(&mut board, &mut next);
        std::mem::swap(&mut exchange, &mut next_exchange);
    }
    Ok(board)
}

/// The same by the rules, cell by cell, on one rank.
fn evolve_alone(mut board: Array2<u8>, steps: usize) -> Array2<u8> {
    let (rows, columns) = board.dim();
    for _ in 0..steps {
        board = Array2::from_shape_fn((rows, columns), |(row, column)| {
            let around = (0..9usize).filter(|&place| place != 4);
            let neighbor = |place| board[[(row + rows - 1 + place / 3) % rows, (column + columns - 1 + place % 3) % columns]];
            matches!((board[[row, column]], around.map(neighbor).sum()), (1, 2) | (_, 3)).into()
        });
    }
    board
}

/// Creatures of known fate: they go through their shapes and begin again, a glider one cell further down and to the right.
const GLIDER: &[&str] = &[".O../..O./OOO.", "..../O.O./.OO./.O..", "..../..O./O.O./.OO.", "..../.O../..OO/.OO."];
const BLINKER: &[&str] = &[".../OOO/...", ".O./.O./.O."];
const STILL: [&[&str]; 5] = [&["OO/OO"], &[".OO./O..O/.OO."], &[".OO./O..O/.O.O/..O."], &["OO./O.O/.O."], &[".O./O.O/.O."]];
const CREATURES: [&[&str]; 7] = [GLIDER, BLINKER, STILL[0], STILL[1], STILL[2], STILL[3], STILL[4]];

/// How far apart creatures stand.
const APART: usize = 16;

/// A board of creatures after some generations. They stand across the seam of the torus and across whatever cuts it in multiples of `APART`.
fn creatures(cells: [usize; 2], steps: usize) -> Array2<u8> {
    let mut board = Array2::zeros(cells);
    let [rows, columns] = cells;
    let places = (0..rows).step_by(APART).flat_map(|row| (0..columns).step_by(APART).map(move |column| (row, column)));
    for ((row, column), shapes) in places.zip(CREATURES.into_iter().cycle()) {
        let moved = if shapes == GLIDER { steps / shapes.len() } else { 0 };
        for (down, line) in shapes[steps % shapes.len()].split('/').enumerate() {
            for (right, _) in line.match_indices('O') {
                board[[(row + rows - 1 + moved + down) % rows, (column + columns - 1 + moved + right) % columns]] = 1;
            }
        }
    }
    board
}

/// Lets creatures live on a board of their own, whose blocks meet where creatures stand.
fn check_creatures(comm: &Comm, grid: [u32; 2]) -> Result<()> {
    let cells = grid.map(|ranks| APART * 3usize.next_multiple_of(ranks as usize));
    let torus = Decomposition::with_grid(cells, grid)?.periodic([true; 2]);
    let first = creatures(cells, 0);
    for steps in [1, 2, 3, 4, 32] {
        if let Some(last) = evolve(comm, &torus, steps, |at| first[at], false)?.gather(comm, 0)? {
            let wrong = differences(&last, &creatures(cells, steps));
            ensure!(wrong == 0, "{wrong} cells of still lifes, blinkers and gliders are wrong after {steps} steps");
        }
    }
    Ok(())
}

fn differences(board: &Array2<u8>, other: &Array2<u8>) -> usize {
    board.iter().zip(other).filter(|(cell, other)| cell != other).count()
}

fn life(comm: &Comm, options: &Options) -> Result<()> {
    let torus = match options.grid {
        Some(grid) => Decomposition::with_grid(options.cells, grid)?,
        None => Decomposition::new(options.cells, comm.size())?,
    };
    let torus = torus.periodic([true; 2]);
    let initial =
        |[row, column]: [usize; 2]| u8::from(random::bits(options.seed, row * options.cells[1] + column).is_multiple_of(3));
    let begun = Instant::now();
    let board = evolve(comm, &torus, options.steps, initial, options.explain)?;
    let seconds = begun.elapsed().as_secs_f64();
    let last = board.gather(comm, 0)?;
    check_creatures(comm, torus.grid())?;
    let Some(last) = last else { return Ok(()) };

    let first = Array2::from_shape_fn(options.cells, |(row, column)| initial([row, column]));
    if let Some(dir) = &options.dump {
        for (name, board) in [("initial", &first), ("final", &last)] {
            npy::write(dir, name, board.shape(), board.as_slice().unwrap_or_default())?;
        }
    }
    if let Some(path) = &options.picture {
        let [first, last] = [&first, &last].map(|board| board.mapv(f64::from));
        picture::write(path, &[first.view(), last.view()])?;
    }
    let wrong = differences(&last, &evolve_alone(first, options.steps));
    ensure!(wrong == 0, "{wrong} cells are not as on one rank alone after {} steps", options.steps);
    println!(
        "{:?} cells on a grid of {:?} ranks: {} steps in {seconds:.3} s; {} alive, each cell as on one rank alone; still lifes, blinkers and \
         gliders across all borders are well",
        options.cells,
        torus.grid(),
        options.steps,
        last.iter().filter(|&&cell| cell == 1).count()
    );
    Ok(())
}
