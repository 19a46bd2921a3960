//! The heat equation on a periodic box: u += alpha * (the sum of the six neighbors - 6 u), its interior computed while ghosts travel.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use anyhow::{Result, ensure};
use clap::Parser;
use ndarray::{Array3, ArrayView3, ArrayViewMut3, s};
use rma::Comm;
use rma_examples::launch::{Ranks, extents};
use rma_examples::{npy, picture};
use rma_halo::{Decomposition, Field, Halo, Layout};
use std::f64::consts::TAU;
use std::path::PathBuf;
use std::time::Instant;

/// Let heat spread in a periodic box, over ranks that exchange the faces of their blocks, and compare with the exact solution
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ranks: Ranks,
    /// Cells in each dimension
    #[arg(long, default_value = "64,48,32", value_parser = extents::<usize, 3>)]
    cells: [usize; 3],
    /// Ranks in each dimension, and so how many; without it the grid that exchanges least
    #[arg(long, value_parser = extents::<u32, 3>)]
    grid: Option<[u32; 3]>,
    /// Steps in time
    #[arg(long, default_value_t = 100)]
    steps: u32,
    /// Conductivity times step over the square of a cell's length; stable up to 1/6
    #[arg(long, default_value_t = 0.1)]
    alpha: f64,
    /// Write a picture of the middle slice, before and after
    #[arg(long, value_name = "FILE.png", value_parser = picture::file)]
    picture: Option<PathBuf>,
    /// Write initial.npy and final.npy, the whole field before and after
    #[arg(long, value_name = "DIR", value_parser = npy::folder)]
    dump: Option<PathBuf>,
    /// Print what the exchange does
    #[arg(long)]
    explain: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    options.ranks.of_grid(options.grid).launch(|comm| heat(comm, &options))
}

/// One step of the cells of `next`, from those of `u`, which reaches one cell further on every side.
fn step(u: ArrayView3<'_, f64>, mut next: ArrayViewMut3<'_, f64>, alpha: f64) {
    for (x, mut plane) in next.outer_iter_mut().enumerate() {
        for (y, mut row) in plane.outer_iter_mut().enumerate() {
            let [here, below, above, left, right] =
                [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)].map(|(dx, dy)| u.slice(s![x + dx, y + dy, ..]));
            for (z, next) in row.iter_mut().enumerate() {
                let neighbors = below[z + 1] + above[z + 1] + left[z + 1] + right[z + 1] + here[z] + here[z + 2];
                *next = here[z + 1] + alpha * (neighbors - 6.0 * here[z + 1]);
            }
        }
    }
}

/// All steps: the interior while the faces of the blocks travel, then the rim. What is computed last is in the field returned.
fn spread(comm: &Comm, cells: &Decomposition<3>, options: &Options) -> Result<Field<f64, 3>> {
    let field = || Field::<f64, 3>::new(comm, cells, Layout::ghosts(1));
    let (mut u, mut next) = (field()?, field()?);
    let (mut halo, mut next_halo) = (Halo::of(comm).field(&u).commit()?, Halo::of(comm).field(&next).commit()?);
    if options.explain && comm.rank().0 == 0 {
        println!("{}", halo.explain());
    }
    halo.verify(comm)?;
    u.fill_with(|at| exact(options, at, 0))?;
    let inner = u.interior();
    let rim = u.rim();
    for _ in 0..options.steps {
        let flight = halo.start()?;
        step(u.owned()?.view(), inner.of_mut(&mut next.owned_mut()?.view_mut()), options.alpha);
        {
            let arrived = flight.wait()?;
            let (padded, mut owned) = (arrived.padded(&u)?, next.owned_mut()?);
            for part in &rim {
                step(u.around(part).of(&padded.view()), part.of_mut(&mut owned.view_mut()), options.alpha);
            }
        }
        std::mem::swap(&mut u, &mut next);
        std::mem::swap(&mut halo, &mut next_halo);
    }
    Ok(u)
}

/// Waves, each of which fades by the same factor in every step: (how often it goes up and down in each dimension, how high it is).
const WAVES: [([usize; 3], f64); 4] = [([1, 1, 0], 1.0), ([2, 1, 1], 0.6), ([0, 3, 1], 0.4), ([5, 4, 2], 0.3)];

/// The exact solution of the difference equation after some steps.
fn exact(options: &Options, at: [usize; 3], steps: u32) -> f64 {
    let wave = |&(waves, height): &([usize; 3], f64)| {
        let turn = |d: usize| TAU * waves[d] as f64 / options.cells[d] as f64;
        let fading = 1.0 + 2.0 * options.alpha * (0..3).map(|d| turn(d).cos() - 1.0).sum::<f64>();
        height * fading.powi(steps as i32) * (0..3).map(|d| (turn(d) * at[d] as f64).cos()).product::<f64>()
    };
    WAVES.iter().map(wave).sum()
}

fn heat(comm: &Comm, options: &Options) -> Result<()> {
    ensure!((0.0..=1.0 / 6.0).contains(&options.alpha), "--alpha {} is not stable; use 0 to 1/6", options.alpha);
    let cells = match options.grid {
        Some(grid) => Decomposition::with_grid(options.cells, grid)?,
        None => Decomposition::new(options.cells, comm.size())?,
    };
    let cells = cells.periodic([true; 3]);
    let begun = Instant::now();
    let heat = spread(comm, &cells, options)?;
    let seconds = begun.elapsed().as_secs_f64();
    let Some(last) = heat.gather(comm, 0)? else { return Ok(()) };

    let error = last.indexed_iter().map(|((x, y, z), u)| (u - exact(options, [x, y, z], options.steps)).abs()).fold(0.0, f64::max);
    println!(
        "{:?} cells on a grid of {:?} ranks: {} steps in {seconds:.3} s; largest difference from the exact solution {error:.1e}",
        cells.cells(),
        cells.grid(),
        options.steps
    );
    let first = Array3::from_shape_fn(last.dim(), |(x, y, z)| exact(options, [x, y, z], 0));
    if let Some(dir) = &options.dump {
        for (name, field) in [("initial", &first), ("final", &last)] {
            npy::write(dir, name, field.shape(), field.as_slice().unwrap_or_default())?;
        }
    }
    if let Some(path) = &options.picture {
        let middle = cells.cells()[2] / 2;
        picture::write(path, &[first.slice(s![.., .., middle]), last.slice(s![.., .., middle])])?;
    }
    ensure!(error < 1e-11, "the heat did not spread as it should: {error:e} beside the exact solution");
    Ok(())
}
