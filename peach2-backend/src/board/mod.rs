//! A board: its address, its descriptor memory, what it can reach, and the memory that other boards write.
//! The one place where memory of others is touched, and all unsafe code of this crate; it knows neither queues nor the clock.
#![allow(unsafe_code, reason = "memory that other boards write is reached through raw pointers here and nowhere else")]

mod flags;
mod memory;

pub(crate) use flags::{CREDIT_TAG, Flag, FlagMemory, OWN_HALF, SLOTS, Slots};

use crate::address::{Address, HostMap, Node};
use crate::chain::{ChainError, Step, Walk};
use crate::clock::Time;
use crate::descriptor::{FlagPlace, Placement, Request};
use crate::placement::Memories;
use crate::windows::Windows;
use bytemuck::{Pod, Zeroable};
use memory::Mapped;
use rma::shm::{Region, RegionId, Space};
use rma::{Epoch, Error, Rank};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What every rank is told of a board: plain bytes, exchanged by an allgather (P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Handle {
    region: u32,
    slots: u16,
    node: u8,
    reserved: u8,
}

const _: () = assert!(size_of::<Handle>() == 8);

impl Handle {
    /// What the rank at this place of the allgather has sent.
    pub(crate) fn read(from: Rank, bytes: &[u8]) -> rma::Result<Self> {
        let refused = |reason: String| Error::Malformed { what: "board handle", from: from.to_string(), reason };
        let handle: Self =
            bytemuck::try_pod_read_unaligned(bytes).map_err(|cause| refused(format!("{} bytes: {cause}", bytes.len())))?;
        match handle {
            Self { node, .. } if u32::from(node) != from.0 => Err(refused(format!("it is of node {node}"))),
            Self { slots, .. } if slots != SLOTS => {
                Err(refused(format!("it has {slots} slots, not {SLOTS}: another version of rma?")))
            }
            handle => Ok(handle),
        }
    }

    pub(crate) fn region(self) -> RegionId {
        RegionId(self.region)
    }
}

/// The board of this rank.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) node: Node,
    handle: Handle,
    pub(crate) flags: Rc<FlagMemory>,
    pub(crate) slots: RefCell<Slots>,
    /// The flags of the boards that are written, by node.
    peers: RefCell<Vec<Option<Rc<FlagMemory>>>>,
    pub(crate) descriptors: RefCell<Memories>,
    pub(crate) host: RefCell<HostMap>,
    windows: RefCell<Windows<Mapped>>,
}

impl Board {
    /// With flag memory of its own in `space`.
    pub(crate) fn new(node: Node, space: &Space) -> rma::Result<Self> {
        let (id, region) = space.make(FlagMemory::BYTES)?;
        let flags = FlagMemory::new(region).map(Rc::new);
        Ok(Self {
            node,
            handle: Handle { region: id.0, slots: SLOTS, node: node.0, reserved: 0 },
            flags: flags.unwrap_or_else(|| unreachable!("bug: a region shorter than asked for")),
            slots: RefCell::new(Slots::new()),
            peers: RefCell::default(),
            descriptors: RefCell::new(Memories::new(node)),
            host: RefCell::new(HostMap::new()),
            windows: RefCell::new(Windows::new()),
        })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The flags of a board, if they have been handed over.
    pub(crate) fn peer(&self, node: Node) -> Option<Rc<FlagMemory>> {
        if node == self.node {
            return Some(self.flags.clone());
        }
        self.peers.borrow().get(usize::from(node.0))?.clone()
    }

    /// Takes note of the flags of a board.
    pub(crate) fn meet(&self, node: Node, flags: FlagMemory) -> Rc<FlagMemory> {
        let mut peers = self.peers.borrow_mut();
        let index = usize::from(node.0);
        if peers.len() <= index {
            peers.resize(index + 1, None);
        }
        peers[index].insert(Rc::new(flags)).clone()
    }

    /// Lets descriptors reach a window, which is mapped here as `region`.
    pub(crate) fn reach(&self, begin: Address, region: &Arc<Region>) {
        self.windows.borrow_mut().add(begin, region.len_bytes() as u64, || Mapped(region.clone()));
    }

    /// The opposite, for each time that [`reach`](Self::reach) was called.
    pub(crate) fn unreach(&self, begin: Address) {
        self.windows.borrow_mut().remove(begin);
    }

    /// What the DMA controller would do with the chain at `head`: each put with where its descriptor lies.
    pub(crate) fn survey(&self, head: Address) -> Result<Vec<(Placement, Request)>, ChainError> {
        let (descriptors, windows) = (self.descriptors.borrow(), self.windows.borrow());
        let steps = Walk::new(self.node, &*descriptors, &windows, head);
        steps.map(|step| step.map(|step| (step.placement, step.request))).collect()
    }

    /// The DMA controller: makes every put of the chain at `head`, and writes the flags that it asks for with `epoch` and `at`, when
    /// the last put arrives in the virtual time.
    ///
    /// # Safety
    /// The targets have granted the epoch, so that nobody but this chain touches what it writes; nobody writes what it reads.
    pub(crate) unsafe fn run(&self, head: Address, epoch: Epoch, at: Time) -> Result<(), DmaError> {
        let (descriptors, windows) = (self.descriptors.borrow(), self.windows.borrow());
        for step in Walk::new(self.node, &*descriptors, &windows, head) {
            let Step { request, ends, .. } = step?;
            if let Some([(source, source_offset), (target, target_offset)]) = ends {
                // SAFETY: the walk has found both ranges inside their windows; the rest is the caller's promise.
                unsafe { memory::copy(&request.shape, (source, source_offset), (target, target_offset)) };
            }
            if let Some(place) = request.notify {
                let peers = self.peers.borrow();
                let node = request.target.node();
                let flags = match node == self.node {
                    true => Some(&self.flags),
                    false => peers.get(usize::from(node.0)).and_then(Option::as_ref),
                };
                let flag = flags.and_then(|flags| flags.flag(place)).ok_or(DmaError::NoFlag { node, place })?;
                flag.publish(epoch, at);
            }
            if let (Some(FlagPlace { tag, .. }), Some(slot)) = (request.notify, request.notify_self) {
                let place = FlagPlace { slot, tag: tag | OWN_HALF };
                self.flags.flag(place).ok_or(DmaError::NoFlag { node: self.node, place })?.publish(epoch, at);
            }
        }
        Ok(())
    }
}

/// Why the controller stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DmaError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("node {} has no flag at slot {}, tag {}, that this board knows", .node.0, .place.slot, .place.tag)]
    NoFlag { node: Node, place: FlagPlace },
}
