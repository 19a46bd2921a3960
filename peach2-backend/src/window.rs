//! Windows of this backend: memory of a node, and the handle by which others write it.

use crate::address::{Address, Node};
use crate::device::{Shared, node_of};
use bytemuck::{Pod, Zeroable};
use rma::backend::{WindowMem, WindowSpec};
use rma::shm::{Region, RegionId};
use rma::{Error, Rank, Result};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// This rank's part of a window.
#[derive(Debug)]
pub(crate) struct Peach2Window {
    pub(crate) begin: Address,
    pub(crate) region: Arc<Region>,
    id: RegionId,
}

/// What a peer needs to write a window: plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Key {
    begin: Address,
    region: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Key>() == 16);

impl Key {
    /// What `target` has sent: the address of its part, and the memory behind it.
    pub(crate) fn read(target: Rank, bytes: &[u8]) -> Result<(Address, RegionId)> {
        let refused = |reason: String| crate::malformed("key", target, reason);
        let key: Self =
            bytemuck::try_pod_read_unaligned(bytes).map_err(|cause| refused(format!("{} bytes: {cause}", bytes.len())))?;
        if key.begin.node() != node_of(target) {
            return Err(refused(format!("an address of node {}", key.begin.node().0)));
        }
        Ok((key.begin, RegionId(key.region)))
    }
}

/// Makes this rank's part of a window.
pub(crate) fn register(shared: &Shared, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
    let bytes = spec.bytes_by_rank.get(shared.rank.index()).copied().unwrap_or(0);
    let begin = address_for(shared, bytes)?;
    let (id, region) = shared.space.make(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    Ok(Rc::new(Peach2Window { begin, region, id }))
}

fn address_for(shared: &Shared, bytes: u64) -> Result<Address> {
    let node: Node = shared.board.node;
    match shared.board.host.borrow_mut().take(bytes) {
        Some(offsets) => Ok(Address::new(node, offsets.start)),
        None => Err(Error::Limit {
            what: "number of bytes in all windows that this rank has ever had",
            asked: bytes,
            limit: 1 << 56,
            mend: "no address is given twice: keep windows and use them again, or restart".into(),
        }),
    }
}

impl WindowMem for Peach2Window {
    fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }

    fn key(&self) -> Vec<u8> {
        bytemuck::bytes_of(&Key { begin: self.begin, region: self.id.0, reserved: 0 }).to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The part of a window that a put reads: of this backend, as all memory of a chain is.
pub(crate) fn source(memory: &dyn WindowMem) -> &Peach2Window {
    let Some(window) = memory.as_any().downcast_ref() else { unreachable!("bug: a source of another backend") };
    window
}
