//! Windows of this backend: each a window of MPI, and the key that says where a rank's part begins in it.

use crate::device::Shared;
use crate::failed;
use crate::ffi::Window;
use rma::backend::{WindowMem, WindowSpec};
use rma::{Rank, Result};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;

/// This rank's part of a window.
#[derive(Debug)]
pub(crate) struct MpiWindow {
    window: Rc<Window>,
    key: Key,
    /// With the right to use MPI, as long as there is this memory of it.
    _shared: Rc<Shared>,
}

/// What a peer needs to write a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Which of all windows, the same on every rank.
    pub(crate) number: u64,
    /// Where the part begins.
    pub(crate) displacement: u64,
}

/// Collective: makes a window.
pub(crate) fn register(shared: &Rc<Shared>, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
    shared.free_what_nobody_uses(0)?;
    let len_bytes = spec.bytes_by_rank.get(shared.rank.index()).copied().unwrap_or(0);
    let window = shared.allocate(usize::try_from(len_bytes).unwrap_or(usize::MAX))?;
    let displacement = window.displacement().map_err(|refused| failed(format!("asking where {} begins", spec.id), refused))?;
    let key = Key { number: window.number(), displacement };
    Ok(Rc::new(MpiWindow { window, key, _shared: shared.clone() }))
}

impl WindowMem for MpiWindow {
    fn base(&self) -> NonNull<u8> {
        self.window.base()
    }

    fn len_bytes(&self) -> usize {
        self.window.len_bytes()
    }

    fn key(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.key).expect("bug: a key cannot be encoded")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The key that a target sent.
pub(crate) fn key_of(bytes: &[u8], target: Rank) -> Result<Key> {
    postcard::from_bytes(bytes).map_err(|cause| crate::malformed("key", target, cause))
}
