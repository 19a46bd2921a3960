//! MPI for `rma`: ranks that `mpirun`, `mpiexec` or `srun` started find each other, whatever they exchange over.
//!
//! A program calls [`offer`] first. Started by a launcher of the MPI library that it was built with, its ranks are then those of
//! `MPI_COMM_WORLD`. MPI only tells them where rank 0 listens; what is agreed later goes over TCP, which also notices ranks that die.
#![deny(unsafe_code)]

mod ffi;
mod meeting;

use ffi::Communicator;
use rma::config::Place;
use rma::launcher::Launcher;
use rma::{Error, Result};

/// What error texts call it.
pub const NAME: &str = "mpi";

/// Lets this program take its place among the ranks that an MPI launcher started. To be called before the first
/// [`Comm`](rma::Comm).
///
/// ```
/// fn main() -> rma::Result<()> {
///     rma_mpi::offer();
///     rma::Comm::launch(4, |comm| {
///         println!("{} of {}", comm.rank(), comm.size());
///         Ok(())
///     })
/// }
/// ```
///
/// MPI is initialized when the place is taken, unless the program has done so, and then finalized at the end of the process.
pub fn offer() {
    rma::launcher::offer(&Mpi);
}

/// Collective over a communicator of the program's own: each rank's place among its ranks, for [`Comm::join`](rma::Comm::join).
/// MPI must be initialized, and may be called from this thread.
///
/// ```no_run
/// let universe = mpi::initialize().expect("MPI was initialized before");
/// let place = rma_mpi::place_on(&universe.world())?;
/// let comm = rma::Comm::join(&place, rma::Config::default())?;
/// # Ok::<(), rma::Error>(())
/// ```
pub fn place_on(communicator: &impl mpi::traits::Communicator) -> Result<Place> {
    meeting::place(&Communicator::copy_of(communicator).map_err(|refused| failed("copying the communicator", refused))?)
}

/// The name and version of the MPI library that this program runs with, in a line.
pub fn library() -> String {
    ffi::library_version()
}

#[derive(Debug)]
struct Mpi;

impl Launcher for Mpi {
    fn library(&self) -> String {
        library()
    }

    fn place(&self) -> Result<Place> {
        ffi::initialize()?;
        meeting::place(&Communicator::world().map_err(|refused| failed("copying MPI_COMM_WORLD", refused))?)
    }
}

/// An error of MPI with what was tried.
fn failed(doing: impl Into<String>, refused: ffi::Refused) -> Error {
    Error::Backend { backend: NAME, doing: doing.into(), cause: Box::new(refused) }
}
