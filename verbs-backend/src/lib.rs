//! The ibverbs backend of `rma`: put chains over InfiniBand, RoCE and Soft-RoCE.
//!
//! A program calls [`offer`] first; then `RMA_BACKEND=verbs` selects it, and a job on several hosts does so by itself.
#![deny(unsafe_code)]

mod advice;
mod commit;
mod connection;
mod device;
mod engine;
mod failure;
mod ffi;
mod gid;
mod memory;
mod notice;
mod options;
mod plan;
mod ports;
mod progress;
mod slot;
mod survey;
mod window;

pub use device::VerbsBackend;
pub use options::{Options, variables};
pub use survey::{DeviceFacts, DeviceFile, GidFacts, GidKind, Interface, Limits, PortFacts, Problem, Survey, survey};

use rma::backend::Backend;
use rma::provider::Provider;
use rma::{Bootstrap, Config, Deadline, Hosts, Result};
use std::rc::Rc;
use std::sync::Arc;

/// What `RMA_BACKEND` and error texts call it.
pub const NAME: &str = "verbs";

/// Lets this program use RDMA devices: with `RMA_BACKEND=verbs`, and by itself when the ranks are on several hosts. To be called
/// before the first [`Comm`](rma::Comm).
///
/// ```
/// fn main() -> rma::Result<()> {
///     rma_verbs::offer();
///     rma::Comm::launch(4, |comm| {
///         println!("{} of {}", comm.rank(), comm.size());
///         Ok(())
///     })
/// }
/// ```
#[allow(unsafe_code, reason = "promises that this backend keeps its contract")]
pub fn offer() {
    // SAFETY: the backend of this crate keeps the contract of `rma::backend`.
    unsafe { rma::provider::offer(&Verbs) };
}

#[derive(Debug)]
struct Verbs;

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Rc<dyn Backend>> {
        Ok(Rc::new(VerbsBackend::open(boot, hosts, config, deadline)?))
    }
}
