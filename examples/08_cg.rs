//! Conjugate gradients on a periodic lattice of four dimensions, (8 + mass^2) x - the sum of x over the eight neighbors = b: what the
//! paper on PEACH2 measured (P3). The operator is applied to the interior while ghosts travel; every iteration takes two sums over all ranks.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use anyhow::{Context, Result, ensure};
use clap::Parser;
use ndarray::{Array4, ArrayView2, ArrayView4, ArrayViewMut4, Axis, Zip, s};
use rma::Comm;
use rma_examples::clock::{Moment, Span};
use rma_examples::launch::{Ranks, extents, is_launched};
use rma_examples::{npy, random, sum::Sum};
use rma_halo::{Block, Decomposition, Field, Halo, Layout};
use std::path::PathBuf;
use std::time::Duration;

/// Solve a lattice equation by conjugate gradients, over ranks that exchange the faces of their blocks, and check the solution
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ranks: Ranks,
    /// Sites in each dimension, the last one densest in memory: t,z,y,x, or one number for all four
    #[arg(long, default_value = "8", value_parser = lattice)]
    lattice: [usize; 4],
    /// Ranks in each dimension, t,z,y,x, and so how many
    #[arg(long, value_parser = extents::<u32, 4>)]
    grid: Option<[u32; 4]>,
    /// Ranks over the last two dimensions, x and y: NX times NY ranks. Without it or a grid the split that is closest to a square
    #[arg(long, value_name = "NX,NY", value_parser = extents::<u32, 2>, conflicts_with_all = ["grid", "ranks"])]
    split: Option<[u32; 2]>,
    /// Several splits, one after the other (2,1 2,2 or '2,1;2,2'), and a table of what each takes
    #[arg(long, value_name = "NX,NY", num_args = 1.., value_delimiter = ';', value_parser = extents::<u32, 2>, conflicts_with_all = ["grid", "ranks", "split", "dump"])]
    splits: Vec<[u32; 2]>,
    /// What makes the equation solvable: the more, the fewer iterations
    #[arg(long, default_value_t = 0.1)]
    mass: f64,
    /// How small the residual is to be, compared with the source
    #[arg(long, default_value = "1e-10")]
    tolerance: f64,
    /// After how many iterations to give up
    #[arg(long, default_value_t = 10_000)]
    max_iterations: u32,
    /// Which random source b, between -1 and 1
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write source.npy and solution.npy: b and x on the whole lattice
    #[arg(long, value_name = "DIR", value_parser = npy::folder)]
    dump: Option<PathBuf>,
    /// Print what the exchange does
    #[arg(long)]
    explain: bool,
}

/// Lattices of up to so many sites are solved once more by one rank alone.
const SITES_ALONE: usize = 1 << 16;

fn lattice(text: &str) -> Result<[usize; 4], String> {
    text.parse().map(|extent| [extent; 4]).or_else(|_| extents(text).map_err(|what| format!("one whole number, or {what}")))
}

impl Options {
    fn diagonal(&self) -> f64 {
        8.0 + self.mass * self.mass
    }

    fn source(&self, [t, z, y, x]: [usize; 4]) -> f64 {
        let [_, depth, height, width] = self.lattice;
        random::from_minus_one_to_one(self.seed, ((t * depth + z) * height + y) * width + x)
    }

    /// The blocks of the ranks.
    fn decomposition(&self, ranks: u32, split: Option<[u32; 2]>) -> Result<Decomposition<4>> {
        let [.., height, width] = self.lattice;
        let divisors = (1..=ranks).filter(|ny| ranks.is_multiple_of(*ny)).map(|ny| [ranks / ny, ny]);
        let fitting = divisors.filter(|[nx, ny]| *nx as usize <= width && *ny as usize <= height);
        let split = split.or_else(|| fitting.min_by_key(|[nx, ny]| nx + ny));
        let blocks = match (self.grid, split) {
            (Some(grid), _) => Decomposition::with_grid(self.lattice, grid),
            (None, Some([nx, ny])) => Decomposition::with_grid(self.lattice, [1, 1, ny, nx]),
            (None, None) => Decomposition::new(self.lattice, ranks),
        };
        Ok(blocks?.periodic([true; 4]))
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let Options { mass, tolerance, .. } = options;
    ensure!(
        (1e-6..=1e6).contains(&mass),
        "--mass {mass:e} leaves the equation without a solution that numbers can tell; use 1e-6 to 1e6"
    );
    ensure!((1e-14..1.0).contains(&tolerance), "--tolerance {tolerance:e} is out of reach; use 1e-14 to 1");
    if options.splits.is_empty() {
        return match options.split {
            Some(split) => ranks_of(&options, split)?.launch(|comm| report(comm, &options)),
            None => options.ranks.of_grid(options.grid).launch(|comm| report(comm, &options)),
        };
    }
    ensure!(
        !is_launched()?,
        "--splits starts ranks as threads by itself; under a launcher, start the program once for each --split"
    );
    println!("{:?}, mass {mass}; us for an iteration on rank 0, and on an emulated device where there is one", options.lattice);
    println!(" split  bytes to a neighbor  iterations  residual  |     all  ghosts    sums  | emulated  ghosts    sums");
    options.splits.iter().try_for_each(|&split| ranks_of(&options, split)?.launch(|comm| row(comm, &options, split)))
}

/// As many ranks as a split has.
fn ranks_of(options: &Options, [nx, ny]: [u32; 2]) -> Result<Ranks> {
    let ranks = nx.checked_mul(ny).filter(|ranks| (1..=Ranks::MOST).contains(ranks));
    let ranks = ranks.with_context(|| format!("a split of {nx},{ny} is not for 1 to {} ranks; use other numbers", Ranks::MOST))?;
    Ok(Ranks { ranks: Some(ranks), ..options.ranks.clone() })
}

/// The operator, and the field that it is applied to.
struct Laplacian<'a> {
    comm: &'a Comm,
    field: Field<f64, 4>,
    halo: Halo<4>,
    diagonal: f64,
    inner: Block<4>,
    rim: Vec<Block<4>>,
    /// How long ghosts have kept this rank from computing.
    ghosts: Span,
}

impl<'a> Laplacian<'a> {
    fn new(comm: &'a Comm, blocks: &Decomposition<4>, diagonal: f64) -> Result<Self> {
        let field = Field::new(comm, blocks, Layout::ghosts(1))?;
        let mut halo = Halo::of(comm).field(&field).commit()?;
        halo.verify(comm)?;
        let (inner, rim) = (field.interior(), field.rim());
        Ok(Self { comm, field, halo, diagonal, inner, rim, ghosts: Span::default() })
    }

    /// What the operator makes of the field: in the interior while ghosts travel, then in the rim.
    fn apply(&mut self, result: &mut Array4<f64>) -> Result<()> {
        let begun = Moment::now(self.comm);
        let flight = self.halo.start()?;
        self.ghosts += begun.elapsed();
        apply(self.field.owned()?.view(), self.inner.of_mut(result), self.diagonal);
        let computed = Moment::now(self.comm);
        let arrived = flight.wait()?;
        self.ghosts += computed.elapsed();
        let padded = arrived.padded(&self.field)?;
        for part in &self.rim {
            apply(self.field.around(part).of(&padded.view()), part.of_mut(result), self.diagonal);
        }
        Ok(())
    }
}

/// What the operator makes of `v`, which reaches one site further on every side.
fn apply(v: ArrayView4<'_, f64>, mut result: ArrayViewMut4<'_, f64>, diagonal: f64) {
    if result.is_empty() {
        return; // a block without an interior, of which `v` does not reach as far
    }
    for (t, mut volume) in result.outer_iter_mut().enumerate() {
        for (z, mut plane) in volume.outer_iter_mut().enumerate() {
            let [here, earlier, later, below, above] =
                [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)].map(|(dt, dz)| v.slice_move(s![t + dt, z + dz, .., ..]));
            for (y, result) in plane.rows_mut().into_iter().enumerate() {
                let result = result.into_slice().expect("bug: a row with gaps");
                let width = result.len();
                let [center, earlier, later, below, above, left, right] =
                    [(here, 1), (earlier, 1), (later, 1), (below, 1), (above, 1), (here, 0), (here, 2)]
                        .map(|(plane, dy)| &row_of(plane, y + dy)[..width + 2]);
                for x in 0..width {
                    let across = earlier[x + 1] + later[x + 1] + below[x + 1] + above[x + 1] + left[x + 1] + right[x + 1];
                    result[x] = diagonal * center[x + 1] - (across + center[x] + center[x + 2]);
                }
            }
        }
    }
}

fn row_of<'a>(plane: ArrayView2<'a, f64>, y: usize) -> &'a [f64] {
    plane.index_axis_move(Axis(0), y).to_slice().expect("bug: a row with gaps")
}

/// A sum over all ranks, and how long it has kept this one from computing.
struct Total {
    sum: Sum<1>,
    time: Span,
}

impl Total {
    fn of(&mut self, comm: &Comm, part: f64) -> Result<f64> {
        let begun = Moment::now(comm);
        let [total] = self.sum.of([part])?;
        self.time += begun.elapsed();
        Ok(total)
    }
}

/// This rank's part of the solution, and what it took.
struct Solution {
    x: Array4<f64>,
    iterations: u32,
    /// Of the source less what the operator makes of `x`, compared with the source.
    residual: f64,
    /// An iteration, and of it what ghosts and sums took.
    time: Span,
    ghosts: Span,
    sums: Span,
}

fn solve(a: &mut Laplacian<'_>, b: &Array4<f64>, options: &Options) -> Result<Solution> {
    let (comm, mut total) = (a.comm, Total { sum: Sum::new(a.comm)?, time: Span::default() });
    let (mut x, mut r, mut ap) = (Array4::zeros(b.dim()), b.clone(), Array4::zeros(b.dim()));
    a.field.owned_mut()?.view_mut().assign(b);
    let source = total.of(comm, dot(b.view(), b.view()))?;
    let (mut rr, mut iterations) = (source, 0);
    (a.ghosts, total.time) = (Span::default(), Span::default());
    let begun = Moment::now(comm);
    while rr > options.tolerance.powi(2) * source {
        let reached = (rr / source).sqrt();
        ensure!(
            iterations < options.max_iterations,
            "the residual is {reached:.1e} of the source after {iterations} iterations; use more --max-iterations or a larger --tolerance"
        );
        a.apply(&mut ap)?;
        let p = a.field.owned()?;
        let alpha = rr / total.of(comm, dot(p.view(), ap.view()))?;
        x.scaled_add(alpha, &p.view());
        r.scaled_add(-alpha, &ap);
        drop(p);
        let before = rr;
        rr = total.of(comm, dot(r.view(), r.view()))?;
        let beta = rr / before;
        Zip::from(a.field.owned_mut()?.view_mut()).and(&r).for_each(|p, r| *p = r + beta * *p);
        iterations += 1;
    }
    let [time, ghosts, sums] = [begun.elapsed(), a.ghosts, total.time].map(|time| time / iterations.max(1));
    a.field.owned_mut()?.view_mut().assign(&x);
    a.apply(&mut ap)?;
    let rest = b - &ap;
    let residual = (total.of(comm, dot(rest.view(), rest.view()))? / source).sqrt();
    let tolerance = options.tolerance;
    ensure!(
        residual < 10.0 * tolerance,
        "the residual is {residual:.1e} of the source where {tolerance:.1e} was to be reached; rounding may not allow more: use a larger \
         --tolerance or --mass"
    );
    Ok(Solution { x, iterations, residual, time, ghosts, sums })
}

fn dot(v: ArrayView4<'_, f64>, w: ArrayView4<'_, f64>) -> f64 {
    Zip::from(v).and(w).fold(0.0, |sum, v, w| sum + v * w)
}

/// Solves the equation over a split, and gives the solution with what it was solved by.
fn run<'a>(comm: &'a Comm, options: &Options, blocks: &Decomposition<4>) -> Result<(Solution, Laplacian<'a>)> {
    let mut a = Laplacian::new(comm, blocks, options.diagonal())?;
    if options.explain && comm.rank().0 == 0 {
        println!("{}", a.halo.explain());
    }
    let start = a.field.block().start;
    let b = Array4::from_shape_fn(a.field.block().len, |(t, z, y, x)| {
        options.source([start[0] + t, start[1] + z, start[2] + y, start[3] + x])
    });
    Ok((solve(&mut a, &b, options)?, a))
}

/// A single run in full.
fn report(comm: &Comm, options: &Options) -> Result<()> {
    let blocks = options.decomposition(comm.size(), options.split)?;
    let (solution, a) = run(comm, options, &blocks)?;
    if comm.rank().0 == 0 {
        println!(
            "{:?} sites on a grid of {:?} ranks, mass {}: {} iterations to a residual of {:.1e}",
            options.lattice,
            blocks.grid(),
            options.mass,
            solution.iterations,
            solution.residual
        );
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let Solution { time, ghosts, sums, .. } = solution;
        println!(
            "an iteration takes {:.1} us on rank 0, of it communication {:.1}: ghosts, as far as the interior does not hide them, {:.1}, and \
             two sums {:.1}",
            us(time.real),
            us(ghosts.real + sums.real),
            us(ghosts.real),
            us(sums.real)
        );
        if let (Some(time), Some(ghosts), Some(sums)) = (time.emulated, ghosts.emulated, sums.emulated) {
            println!(
                "on the emulated device, where computing takes no time and hides nothing, {:.3} us: ghosts {:.3}, sums {:.3}",
                us(time),
                us(ghosts),
                us(sums)
            );
        }
    }
    if options.dump.is_none() && options.lattice.iter().product::<usize>() > SITES_ALONE {
        return Ok(());
    }
    a.field.owned_mut()?.view_mut().assign(&solution.x);
    let Some(x) = a.field.gather(comm, 0)? else { return Ok(()) };
    let b = Array4::from_shape_fn(options.lattice, |(t, z, y, x)| options.source([t, z, y, x]));
    if let Some(dir) = &options.dump {
        for (name, field) in [("source", &b), ("solution", &x)] {
            npy::write(dir, name, field.shape(), field.as_slice().unwrap_or_default())?;
        }
    }
    if x.len() <= SITES_ALONE {
        let alone = solve_alone(&b, options.diagonal(), solution.iterations);
        let largest = alone.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let error = (&x - &alone).iter().fold(0.0, |largest: f64, x| largest.max(x.abs())) / largest;
        println!("largest difference from the solution of one rank alone: {error:.1e} of the largest x");
        // Rounding, as the least eigenvalue, mass^2, makes it larger beside the largest, 16 + mass^2.
        let rounding = 1e-13 * (8.0 + options.diagonal()) / options.mass.powi(2);
        ensure!(
            error < rounding,
            "the solution is not that of one rank alone: {error:e} of the largest x beside it, not {rounding:e}"
        );
    }
    Ok(())
}

/// A single run as a row of a table.
fn row(comm: &Comm, options: &Options, split: [u32; 2]) -> Result<()> {
    let (solution, a) = run(comm, options, &options.decomposition(comm.size(), Some(split))?)?;
    if comm.rank().0 != 0 {
        return Ok(());
    }
    let (block, [nx, ny]) = (a.field.block(), split);
    let faces = [(ny, block.len[2]), (nx, block.len[3])].into_iter().filter(|(ranks, _)| *ranks > 1);
    let bytes = faces.map(|(_, extent)| block.points() / extent * size_of::<f64>()).max().unwrap_or(0);
    let Solution { iterations, residual, time, ghosts, sums, .. } = solution;
    print!("{:>6} {bytes:>20} {iterations:>11} {residual:>9.1e}  |", format!("{nx},{ny}"));
    for time in [time, ghosts, sums] {
        print!(" {:>7.1}", time.real.as_secs_f64() * 1e6);
    }
    print!("  | ");
    for time in [time, ghosts, sums] {
        print!(" {:>7}", time.emulated.map_or("-".into(), |time| format!("{:.3}", time.as_secs_f64() * 1e6)));
    }
    println!();
    Ok(())
}

/// The same by so many iterations of one rank, without blocks or ghosts.
fn solve_alone(b: &Array4<f64>, diagonal: f64, iterations: u32) -> Array4<f64> {
    let (mut x, mut r, mut p) = (Array4::zeros(b.dim()), b.clone(), b.clone());
    let dot = |v: &Array4<f64>, w: &Array4<f64>| (v * w).sum();
    for _ in 0..iterations {
        let mut ap = diagonal * &p;
        for axis in (0..4).map(Axis) {
            let extent = p.len_of(axis);
            for (at, mut slab) in ap.axis_iter_mut(axis).enumerate() {
                slab -= &p.index_axis(axis, (at + 1) % extent);
                slab -= &p.index_axis(axis, (at + extent - 1) % extent);
            }
        }
        let (rr, alpha) = (dot(&r, &r), dot(&r, &r) / dot(&p, &ap));
        x.scaled_add(alpha, &p);
        r.scaled_add(-alpha, &ap);
        p = &r + dot(&r, &r) / rr * &p;
    }
    x
}
