//! The ibverbs backend of `rma`: put chains over InfiniBand, RoCE and Soft-RoCE.
//!
//! A program calls [`offer`] first; then `RMA_BACKEND=verbs` selects it, and a job on several hosts does so by itself.
#![deny(unsafe_code)]

use rma::backend::Backend;
use rma::provider::Provider;
use rma::{Bootstrap, Config, Deadline, Error, Hosts, Result};
use std::sync::Arc;

/// What `RMA_BACKEND` and error texts call it.
pub const NAME: &str = "verbs";

/// Lets this program use RDMA devices: with `RMA_BACKEND=verbs`, and by itself when the ranks are on several hosts.
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

    fn open(&self, _: &Arc<dyn Bootstrap>, _: &Hosts, _: &Config, _: Deadline) -> Result<Arc<dyn Backend>> {
        Err(Error::Launch("the verbs backend is being built".into()))
    }
}
