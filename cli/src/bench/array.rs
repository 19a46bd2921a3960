//! Ghosts of a cube of f64 on every rank, exchanged by the halo library.

use super::ArrayOptions;
use super::measure::{Times, measure};
use super::report::Report;
use anyhow::Result;
use rma::Comm;
use rma_algorithms::grid::balanced;
use rma_halo::{Decomposition, Field, Halo, Layout, Mode, Packing};

const FACES: u32 = 6;

pub(super) fn run(comm: &Comm, options: &ArrayOptions) -> Result<()> {
    let report = Report::begin("array", "time of an exchange of the ghosts of a cube", comm, &options.common, FACES);
    for &cells in &options.cells {
        let face_bytes = usize::from(options.width) * (cells as usize).pow(2) * size_of::<f64>();
        report.row(face_bytes, &exchange(comm, options, cells as usize)?);
    }
    Ok(())
}

fn exchange(comm: &Comm, options: &ArrayOptions, cells: usize) -> Result<Times> {
    let grid = balanced(comm.size());
    let decomposition = Decomposition::with_grid(grid.map(|ranks| ranks as usize * cells), grid)?.periodic([true; 3]);
    let field = Field::<f64, 3>::new(comm, &decomposition, Layout::ghosts(options.width.into()))?;
    let mut halo = Halo::of(comm).field(&field).mode(options.ghosts).packing(options.packing);
    if options.common.expose_at_start {
        halo = halo.expose_at_start();
    }
    let mut halo = halo.commit()?;
    halo.verify(comm)?;
    measure(comm, options.common.repeats, options.common.batch(), |iterations| {
        (0..iterations).try_for_each(|_| halo.start()?.wait().map(drop))
    })
}

/// A way to fill ghosts by its name.
pub(super) fn mode(name: &str) -> Result<Mode, String> {
    match name {
        "faces" => Ok(Mode::Faces),
        "corners" => Ok(Mode::Corners),
        "by-dimension" => Ok(Mode::ByDimension),
        _ => Err("there is no such way; use faces, corners or by-dimension".into()),
    }
}

/// A way of packing by its name.
pub(super) fn packing(name: &str) -> Result<Packing, String> {
    match name {
        "auto" => Ok(Packing::Auto),
        "always" => Ok(Packing::Always),
        "never" => Ok(Packing::Never),
        _ => Err("there is no such way; use auto, always or never".into()),
    }
}
