//! Windows of the shared-memory backend: a region whose number is the key.

use super::device::Shared;
use super::region::Region;
use super::space::RegionId;
use crate::Result;
use crate::backend::{WindowMem, WindowSpec};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// This rank's part of a window.
#[derive(Debug)]
pub(super) struct ShmWindow {
    id: RegionId,
    region: Arc<Region>,
}

/// Makes the memory of this rank's part.
pub(super) fn register(shared: &Shared, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
    let len_bytes = spec.bytes_by_rank.get(shared.rank.index()).copied().unwrap_or_default();
    let len_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX);
    let (id, region) = shared.space.make(len_bytes)?;
    Ok(Rc::new(ShmWindow { id, region }))
}

impl WindowMem for ShmWindow {
    fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }

    fn key(&self) -> Vec<u8> {
        self.id.0.to_le_bytes().to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The region that a key names.
pub(super) fn region_of(key: &[u8]) -> Option<RegionId> {
    key.try_into().ok().map(|bytes| RegionId(u32::from_le_bytes(bytes)))
}
