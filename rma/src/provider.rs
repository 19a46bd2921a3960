//! The backends a program was built with, besides shared memory, and which of them a job uses.
//! Owns the table of offers and the choice; knows nothing of what is behind an offer.

use crate::backend::Backend;
use crate::config::Token;
use crate::shm::ShmBackend;
use crate::{Bootstrap, Config, Deadline, Error, Hosts, Purpose, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// A kind of backend that a program can be built with.
pub trait Provider: Send + Sync {
    /// What `RMA_BACKEND` calls it.
    fn name(&self) -> &'static str;

    /// Collective: this rank's backend.
    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Arc<dyn Backend>>;
}

/// What was offered, in order.
static OFFERS: Mutex<Vec<&'static dyn Provider>> = Mutex::new(Vec::new());

/// Lets this program use a backend: [`Comm::from_env`](crate::Comm::from_env), [`Comm::launch`](crate::Comm::launch) and the others
/// take it when `RMA_BACKEND` names it, and when the ranks are on several hosts, which shared memory does not reach across.
/// Offering it again changes nothing. Backends have a safe function of the same name that offers them.
///
/// # Safety
/// As for [`Comm::new`](crate::Comm::new): what the provider opens keeps the contract of [`backend`](crate::backend).
#[allow(unsafe_code, reason = "declares a contract; contains no unsafe operation")]
pub unsafe fn offer(provider: &'static dyn Provider) {
    let mut offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    if offers.iter().all(|other| other.name() != provider.name()) {
        offers.push(provider);
    }
}

/// The names of all backends that this program has, shared memory first.
pub fn names() -> Vec<&'static str> {
    let offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    std::iter::once(crate::shm::NAME).chain(offers.iter().map(|offer| offer.name())).collect()
}

/// Collective, for ranks that are threads of one process: the backend that the options name, else `shared_memory`.
pub(crate) fn open_for_threads(
    boot: &Arc<dyn Bootstrap>,
    config: &Config,
    shared_memory: impl FnOnce() -> ShmBackend,
) -> Result<Arc<dyn Backend>> {
    let Some(provider) = named(config.backend.as_deref())? else { return Ok(Arc::new(shared_memory())) };
    let deadline = Deadline::after(config.setup_timeout).of(Purpose::SetUp);
    provider.open(boot, &Hosts::gather(&**boot, config.backend.as_deref(), deadline)?, config, deadline)
}

/// Collective, for ranks that are processes: the backend that the options name; without a name shared memory where it reaches
/// every rank, else the first that was offered.
pub(crate) fn open_for_processes(boot: &Arc<dyn Bootstrap>, config: &Config, token: Token) -> Result<Arc<dyn Backend>> {
    let deadline = Deadline::after(config.setup_timeout).of(Purpose::SetUp);
    let hosts = Hosts::gather(&**boot, config.backend.as_deref(), deadline)?;
    let reached = config.backend.is_some() || hosts.elsewhere().is_none();
    let provider = if reached { named(config.backend.as_deref())? } else { first() };
    match provider {
        Some(provider) => provider.open(boot, &hosts, config, deadline),
        None => Ok(Arc::new(ShmBackend::processes(&**boot, &hosts, token, config, deadline)?)),
    }
}

fn first() -> Option<&'static dyn Provider> {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
}

/// The offer of this name; `None`, asked and answered, is shared memory.
fn named(name: Option<&str>) -> Result<Option<&'static dyn Provider>> {
    let Some(name) = name.filter(|&name| name != crate::shm::NAME) else { return Ok(None) };
    let found = OFFERS.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|offer| offer.name() == name).copied();
    found.map(Some).ok_or_else(|| {
        Error::Launch(format!(
            "RMA_BACKEND={name}: this program has no such backend, but {}; build it with the one you want (rma-verbs for RDMA \
             devices) and have it call that crate's `offer()` first",
            names().join(", ")
        ))
    })
}
