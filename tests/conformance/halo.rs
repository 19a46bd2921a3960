//! The halo library: every mode proved point by point, and ghosts refused in flight.

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use rma::Comm;
use rma_algorithms::grid::balanced;
use rma_halo::{Decomposition, Field, Halo, Layout, Mode, Packing};

/// Fields of different elements, widths and staggers in one exchange, in every mode, with and without packing: each proves itself.
pub fn every_mode_of_a_halo_fills_every_ghost(comm: &Comm, seed: u64) -> Result<()> {
    let mut random = Rng::with_seed(seed);
    for mode in [Mode::Faces, Mode::Corners, Mode::ByDimension] {
        for packing in [Packing::Auto, Packing::Always, Packing::Never] {
            let grid = balanced::<3>(comm.size());
            let cells: [usize; 3] = grid.map(|ranks| 2 * ranks as usize + random.usize(..3));
            let periodic: [bool; 3] = std::array::from_fn(|_| random.bool());
            exchange(comm, &mut random, cells, grid, periodic, mode, packing)
                .with_context(|| format!("{mode:?} {packing:?} {cells:?} over {grid:?} {periodic:?}"))?;
        }
    }
    let grid_4 = balanced::<4>(comm.size());
    let cells = grid_4.map(|ranks| 2 * ranks as usize);
    exchange(comm, &mut random, cells, grid_4, [true; 4], Mode::Corners, Packing::Auto).context("four dimensions")?;
    let cells = [3 * comm.size() as usize];
    exchange(comm, &mut random, cells, [comm.size()], [true], Mode::Faces, Packing::Auto).context("one dimension")
}

fn exchange<const N: usize>(
    comm: &Comm,
    random: &mut Rng,
    cells: [usize; N],
    grid: [u32; N],
    periodic: [bool; N],
    mode: Mode,
    packing: Packing,
) -> Result<()>
where
    ndarray::Dim<[usize; N]>: ndarray::Dimension,
{
    let decomposition = Decomposition::with_grid(cells, grid)?.periodic(periodic);
    let mut layout = || Layout::<N>::ghosts(0).widths(std::array::from_fn(|_| (random.usize(..3), random.usize(..3))));
    let real = Field::<f64, N>::new(comm, &decomposition, layout())?;
    let small = Field::<u8, N>::new(comm, &decomposition, layout().on_faces(std::array::from_fn(|d| d % 2 == 0)))?;
    let vector = Field::<[f32; 3], N>::new(comm, &decomposition, layout())?;
    let value = |at: [usize; N]| at.iter().fold(0.0, |value, &at| 100.0 * value + at as f64);
    real.fill_with(value)?;
    let halo = Halo::of(comm).field(&real).field(&small).field(&vector).mode(mode).packing(packing);
    let mut halo = if random.bool() { halo.expose_at_start() } else { halo }.commit()?;
    for _ in 0..2 {
        halo.verify(comm)?;
    }
    ensure!(halo.explain().contains(&format!("{cells:?} cells")), "the explanation lacks the cells");
    let whole = real.gather(comm, comm.size() - 1)?;
    ensure!(whole.is_some() == (comm.rank().0 + 1 == comm.size()), "the whole field is not where it belongs");
    for (place, &found) in whole.iter().flatten().enumerate() {
        let mut rest = place;
        let mut at = [0; N];
        for d in (0..N).rev() {
            at[d] = rest % cells[d];
            rest /= cells[d];
        }
        ensure!(found == value(at), "{found} at {at:?} of the gathered field");
    }
    Ok(())
}

/// While an exchange is in flight, owned points can be read and inner ones written, and no ghost can be had; afterwards all are there.
pub fn a_ghost_in_flight_is_refused_and_inner_points_are_not(comm: &Comm, _seed: u64) -> Result<()> {
    let cells = [4 * comm.size() as usize, 6];
    let decomposition = Decomposition::new(cells, comm.size())?.periodic([true; 2]);
    for mode in [Mode::Faces, Mode::Corners, Mode::ByDimension] {
        let field = Field::<u32, 2>::new(comm, &decomposition, Layout::ghosts(1))?;
        let mut halo = Halo::of(comm).field(&field).mode(mode).commit()?;
        let value = |step: usize, [x, y]: [usize; 2]| (1000 * step + 10 * x + y) as u32;
        for step in 0..5 {
            field.fill_with(|at| value(step, at))?;
            let flight = halo.start()?;
            ensure!(field.padded().is_err() && field.padded_mut().is_err(), "ghosts in flight were given out in mode {mode:?}");
            ensure!(field.owned()?.view().len() == field.block().points(), "not all owned points can be read");
            field.interior_mut()?.view_mut().fill(0);
            let arrived = flight.wait()?;
            let (padded, block) = (arrived.padded(&field)?, field.block());
            for column in 0..block.len[1] {
                let above = [(block.start[0] + cells[0] - 1) % cells[0], block.start[1] + column];
                let found = padded.view()[[0, column + 1]];
                ensure!(found == value(step, above), "{found} stands for {above:?} in step {step}, {mode:?}");
            }
        }
    }
    Ok(())
}
