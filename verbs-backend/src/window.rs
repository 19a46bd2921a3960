//! Windows of this backend: memory registered on every rail, and the key that lets a peer write it.

use crate::device::{Shared, failed};
use crate::ffi::Region;
use crate::memory::Memory;
use rma::backend::{WindowMem, WindowSpec};
use rma::{Error, Result};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;

/// This rank's part of a window.
#[derive(Debug)]
pub(crate) struct VerbsWindow {
    memory: Rc<Memory>,
    /// By rail; empty if there is no byte to register.
    pub(crate) regions: Vec<Rc<Region>>,
}

/// What a peer needs to write a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) address: u64,
    pub(crate) len_bytes: u64,
    /// By rail; empty if there is no byte to write.
    pub(crate) keys: Vec<u32>,
}

/// Refuses more memory than the host has left, and more than may be locked.
pub(crate) fn admit(shared: &Shared, spec: &WindowSpec<'_>) -> Result<()> {
    spec.check_memory(|rank| shared.hosts_here.contains(&rank))?;
    let own = spec.bytes_by_rank.get(shared.rank.index()).copied().unwrap_or(0);
    let rails = shared.rails.len() as u64;
    match locked_limit() {
        // Every rail locks the pages for itself, and the system counts each.
        Some(limit) if own.saturating_mul(rails) > limit => Err(Error::Limit {
            what: "the length in bytes to be locked for the devices, window times rails,",
            asked: own.saturating_mul(rails),
            limit,
            mend: "raise it with `ulimit -l unlimited` (or in /etc/security/limits.conf, and for daemons that start ranks)".into(),
        }),
        _ => Ok(()),
    }
}

/// The bytes that this process may lock; `None` for no limit.
pub(crate) fn locked_limit() -> Option<u64> {
    const IPC_LOCK: u64 = 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if effective & IPC_LOCK != 0 {
        return None;
    }
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Makes and registers this rank's part.
pub(crate) fn register(shared: &Shared, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
    let len_bytes = spec.bytes_by_rank.get(shared.rank.index()).copied().unwrap_or(0);
    let memory = Memory::new(usize::try_from(len_bytes).unwrap_or(usize::MAX))
        .map_err(|cause| Error::os(format!("mapping {len_bytes} bytes for {}", spec.id), cause))?;
    let memory = Rc::new(memory);
    let mut regions = Vec::new();
    for rail in shared.rails.iter().filter(|_| len_bytes > 0) {
        let region = Region::new(&rail.domain, &memory, true).map_err(|refused| {
            let doing = format!(
                "registering {len_bytes} bytes of {} on {} (it can have {} regions, and this process may lock {} bytes); free \
                 windows, or raise `ulimit -l`",
                spec.id,
                rail.name,
                rail.limits.regions,
                locked_limit().map_or("any number of".into(), |limit| limit.to_string())
            );
            failed(doing, refused)
        })?;
        regions.push(Rc::new(region));
    }
    Ok(Rc::new(VerbsWindow { memory, regions }))
}

impl WindowMem for VerbsWindow {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    fn key(&self) -> Vec<u8> {
        let key = Key {
            address: self.memory.address(),
            len_bytes: self.memory.len_bytes() as u64,
            keys: self.regions.iter().map(|region| region.remote_key()).collect(),
        };
        postcard::to_stdvec(&key).expect("bug: a key cannot be encoded")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl VerbsWindow {
    /// Where it begins, for devices and for packing.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }
}
