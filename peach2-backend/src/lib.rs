//! An emulated PEACH2 board for `rma`: what a program that exchanges over that board does, step by step, and what it would take there.
//!
//! PEACH2 joined the PCIe buses of the nodes of a cluster. Its DMA controller works through chains of descriptors, on four channels,
//! and announces each by a flag in the memory of the target; it only puts. Here each rank has such a board, and the ranks are threads
//! or processes of one host. Every byte is moved for real, by descriptors in the board's own layout. The times of the real board, as its
//! paper has them, are kept by a virtual clock, which is the same on every run: see [`Comm::virtual_now`](rma::Comm::virtual_now).
#![deny(unsafe_code)]

mod address;
mod board;
mod chain;
mod channel;
mod clock;
mod commit;
mod descriptor;
mod device;
mod options;
mod placement;
mod plan;
mod progress;
mod route;
mod survey;
mod window;
mod windows;

pub use clock::Constant;
pub use device::Peach2Backend;
pub use options::{check_variables, variables};
pub use survey::{Survey, survey};

use rma::backend::Backend;
use rma::provider::Provider;
use rma::{Bootstrap, Config, Deadline, Error, Hosts, Rank, Result};
use std::rc::Rc;
use std::sync::Arc;

/// What `RMA_BACKEND` and error texts call it.
pub const NAME: &str = "peach2";

/// Lets this program use emulated boards, with `RMA_BACKEND=peach2`. To be called before the first [`Comm`](rma::Comm).
///
/// ```
/// rma_peach2::offer();
/// let mut config = rma::Config::default();
/// config.backend = Some(rma_peach2::NAME.into());
/// let durations = rma::Comm::threads_with(2, config, |comm| {
///     let other = rma::Rank(1 - comm.rank().0);
///     let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
///     let mut queue = comm.queue_alloc(&inbox)?;
///     queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, other)?)?.add_origin(other)?;
///     let mut queue = queue.commit()?;
///     let arrived = queue.start()?.wait()?;
///     Ok::<_, rma::Error>(arrived.virtual_span().map(|span| span.duration()))
/// })?;
/// for duration in durations {
///     // 0.8 us until the first credit is here, then 1.8 us for the put, as the paper has them.
///     assert_eq!(duration?.map(|time| time.as_nanos()), Some(2602));
/// }
/// # Ok::<(), rma::Error>(())
/// ```
#[allow(unsafe_code, reason = "promises that this backend keeps its contract")]
pub fn offer() {
    // SAFETY: the backend of this crate keeps the contract of `rma::backend`.
    unsafe { rma::provider::offer(&Peach2) };
}

#[derive(Debug)]
struct Peach2;

impl Provider for Peach2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spans_hosts(&self) -> bool {
        false
    }

    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Rc<dyn Backend>> {
        Ok(Rc::new(Peach2Backend::open(&**boot, hosts, config, deadline)?))
    }
}

/// A message of a rank that is none.
fn malformed(what: &'static str, from: Rank, reason: impl ToString) -> Error {
    Error::Malformed { what, from: from.to_string(), reason: reason.to_string() }
}
