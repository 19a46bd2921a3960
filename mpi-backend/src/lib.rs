//! MPI for `rma`: ranks that `mpirun`, `mpiexec` or `srun` started find each other, whatever they exchange over; and a backend that
//! puts by MPI-3 RMA, for machines whose network only MPI knows.
//!
//! A program calls [`offer`] first. Started by a launcher of the MPI library that it was built with, its ranks are then those of
//! `MPI_COMM_WORLD`. MPI only tells them where rank 0 listens; what is agreed later goes over TCP, which also notices ranks that die.
//! Which backend moves the data is another question, and `RMA_BACKEND=mpi` only one of its answers.
#![deny(unsafe_code)]

mod board;
mod commit;
mod device;
mod ffi;
mod meeting;
mod plan;
mod progress;
mod two_sided;
mod window;

pub use device::MpiBackend;

use ffi::Communicator;
use rma::backend::Backend;
use rma::config::Place;
use rma::launcher::Launcher;
use rma::provider::Provider;
use rma::{Bootstrap, Config, Deadline, Error, Hosts, Rank, Result};
use std::rc::Rc;
use std::sync::Arc;

/// What `RMA_BACKEND` and error texts call it.
pub const NAME: &str = "mpi";

/// What `RMA_BACKEND` calls the exchange by persistent sends and receives, which is there to be compared with and for nothing else.
pub const TWO_SIDED: &str = "mpi-two-sided";

/// Lets this program take its place among the ranks that an MPI launcher started, and use MPI for its puts with `RMA_BACKEND=mpi`.
/// To be called before the first [`Comm`](rma::Comm).
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
/// MPI is initialized when the place is taken, unless the program has done so, and then finalized at the end of the process. It is used
/// on the thread of the `Comm`; a process has one such thread at a time.
#[allow(unsafe_code, reason = "promises that the backends of this crate keep their contract")]
pub fn offer() {
    rma::launcher::offer(&Mpi);
    // SAFETY: the backend of this crate keeps the contract of `rma::backend`.
    unsafe { rma::provider::offer(&Mpi) };
    // SAFETY: the baseline keeps what memory rests on: it writes into a target only what that has opened, and reads only what the core
    // has lent it. What it does not keep is named in its module.
    unsafe { rma::provider::offer(&two_sided::Baseline) };
}

/// Collective over a communicator of the program's own: each rank's place among its ranks, for [`Comm::join`](rma::Comm::join).
/// MPI must be initialized, and is to be finalized only when that `Comm` and all that was made of it are gone: else the process ends
/// there and then. To be called once; whatever the environment says, this is the place then.
///
/// ```no_run
/// let universe = mpi::initialize().expect("MPI was initialized before");
/// let place = rma_mpi::place_on(&universe.world())?;
/// let comm = rma::Comm::join(&place, rma::Config::options_from_env()?)?;
/// # Ok::<(), rma::Error>(())
/// ```
pub fn place_on(communicator: &impl mpi::traits::Communicator) -> Result<Place> {
    let _turn = ffi::initialize()?;
    meeting::place(Communicator::copy_of(communicator).map_err(|refused| failed("copying the communicator", refused))?, true)
}

/// The name and version of the MPI library that this program runs with, in a line.
pub fn library() -> String {
    ffi::library_version()
}

/// The name and version of the MPI library that this program was built with.
pub fn built_with() -> String {
    ffi::built_with()
}

#[derive(Debug)]
struct Mpi;

impl Provider for Mpi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Rc<dyn Backend>> {
        Ok(Rc::new(MpiBackend::open(&**boot, hosts, config, deadline)?))
    }
}

impl Launcher for Mpi {
    fn library(&self) -> String {
        library()
    }

    fn place(&self) -> Result<Place> {
        let _turn = ffi::initialize()?;
        meeting::place(Communicator::world().map_err(|refused| failed("copying MPI_COMM_WORLD", refused))?, false)
    }
}

/// An error of MPI with what was tried.
fn failed(doing: impl Into<String>, refused: ffi::Refused) -> Error {
    Error::Backend { backend: NAME, doing: doing.into(), cause: Box::new(refused) }
}

/// A message of a rank that is none.
fn malformed(what: &'static str, from: Rank, reason: impl ToString) -> Error {
    Error::Malformed { what, from: from.to_string(), reason: reason.to_string() }
}
