//! Puts, declared once and pushed to any number of queues.
//! Owns the check that every range is inside its window; moves nothing.

use crate::comm::CommInner;
use crate::layout::Blocks;
use crate::window::{RmaWindow, WindowInner};
use crate::{Error, Rail, Rank, Result};
use std::rc::Rc;

/// A declared put: which bytes of which window of this rank go to which bytes of which window of the target.
///
/// Made by [`Comm::declare_write`](crate::Comm::declare_write). It moves nothing by itself: push it to a queue.
#[derive(Clone, Debug)]
pub struct MsgHandle {
    pub(crate) target: Rank,
    pub(crate) rail: Option<Rail>,
    pub(crate) source: Rc<WindowInner>,
    pub(crate) source_blocks: Blocks,
    pub(crate) window: Rc<WindowInner>,
    pub(crate) target_blocks: Blocks,
}

impl MsgHandle {
    pub(crate) fn declare(
        comm: &Rc<CommInner>,
        (window, target_offset): (&RmaWindow, usize),
        (source, source_offset): (&RmaWindow, usize),
        len_bytes: usize,
        target: Rank,
    ) -> Result<Self> {
        for (what, window) in [("destination of declare_write", window), ("source of declare_write", source)] {
            if !Rc::ptr_eq(comm, &window.inner.comm) {
                return Err(Error::Invalid {
                    what,
                    reason: format!("{} belongs to another Comm; allocate it on this one", window.id()),
                });
            }
        }
        let message = Self {
            target,
            rail: None,
            source: source.inner.clone(),
            source_blocks: Blocks::contiguous(source_offset as u64, len_bytes as u64),
            window: window.inner.clone(),
            target_blocks: Blocks::contiguous(target_offset as u64, len_bytes as u64),
        };
        message.check()?;
        Ok(message)
    }

    /// The same put over a rail of the program's choice. Without it the queue chooses: the rail with the fewest bytes so far where
    /// rails work in parallel ([`Caps`](crate::backend::Caps)), else rail 0, which saves notifications.
    ///
    /// [`Error::NoSuchRail`] when the backend has fewer.
    pub fn rail(mut self, rail: impl Into<Rail>) -> Result<Self> {
        let rail = rail.into();
        let caps = self.source.comm.backend.caps();
        if rail.0 >= caps.rails {
            return Err(Error::NoSuchRail { what: "put", rail, backend: caps.name, rails: caps.rails });
        }
        self.rail = Some(rail);
        Ok(self)
    }

    /// `count` blocks, each as long as was declared: read `source_stride` bytes apart, written `target_stride` bytes apart
    /// (from the start of a block to the start of the next).
    ///
    /// [`Error::OutOfRange`] when the last block ends behind a window, [`Error::Invalid`] when target blocks overlap.
    pub fn blocks(mut self, count: usize, source_stride: usize, target_stride: usize) -> Result<Self> {
        let block_bytes = self.source_blocks.block_bytes;
        for (blocks, stride) in [(&mut self.source_blocks, source_stride), (&mut self.target_blocks, target_stride)] {
            *blocks = Blocks { count: count as u64, stride: stride as u64, ..*blocks };
        }
        if self.target_blocks.overlaps_itself() {
            return Err(Error::Invalid {
                what: "target_stride of blocks",
                reason: format!(
                    "{target_stride} is shorter than a block of {block_bytes} bytes, so blocks would overwrite each other"
                ),
            });
        }
        self.check()?;
        Ok(self)
    }

    /// The rank that is written.
    pub fn target(&self) -> Rank {
        self.target
    }

    /// How many bytes the put moves.
    pub fn len_bytes(&self) -> u64 {
        // Both spans fit into a window, so the sum of the blocks fits too, unless source blocks repeat each other.
        u64::try_from(self.target_blocks.total_bytes()).unwrap_or(u64::MAX)
    }

    fn check(&self) -> Result<()> {
        let rank = self.source.comm.rank;
        check_inside("destination of declare_write", &self.window, self.target, &self.target_blocks)?;
        check_inside("source of declare_write", &self.source, rank, &self.source_blocks)
    }
}

fn check_inside(what: &'static str, window: &WindowInner, rank: Rank, blocks: &Blocks) -> Result<()> {
    let len_bytes = window.bytes_of(what, rank)?;
    let bytes = blocks.span();
    if bytes.end > u128::from(len_bytes) {
        return Err(Error::OutOfRange { what, window: window.id, rank, bytes, len_bytes });
    }
    Ok(())
}
