//! The walk along a chain of descriptors, as the DMA controller makes it. It trusts nothing that it reads: whatever the bytes are, it
//! comes to an end, and what it yields lies inside windows. Pure; moves nothing.

use crate::address::{Address, Node};
use crate::descriptor::{Descriptor, Malformed, Placement, Request};
use crate::windows::{OutOfReach, Windows};

/// Where descriptors are read.
pub(crate) trait DescriptorMemory {
    /// The descriptor at an offset of the node, and in which memory that is; `None` where there is none.
    fn fetch(&self, offset: u64) -> Option<(Descriptor, Placement)>;
}

/// The most descriptors of a chain: one for each of the most puts that a queue may have, and as many again for puts that are cut.
pub(crate) const MAX_CHAIN: u64 = 1 << 21;

/// Why a chain cannot be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainError {
    #[error("descriptor {step} would be at {at}, which belongs to another board than node {own}", own = .own.0)]
    Foreign { step: u64, at: Address, own: Node },
    #[error("there is no descriptor at {at}, where descriptor {step} would be")]
    NoDescriptor { step: u64, at: Address },
    #[error("the chain comes back to the descriptor at {at} after {step} steps")]
    Loop { step: u64, at: Address },
    #[error("the chain has more than {limit} descriptors")]
    TooLong { limit: u64 },
    #[error("descriptor {step} at {at}: {cause}")]
    Malformed { step: u64, at: Address, cause: Malformed },
    #[error("descriptor {step} says it lies in {said:?}, and was read from {real:?}")]
    Misplaced { step: u64, said: Placement, real: Placement },
    #[error(
        "descriptor {step} reads from {from}, the memory of another node: a PEACH2 board only puts, as a read over the ring would \
         have to be a proxy write by the other side; have node {} put instead", .from.node().0
    )]
    Get { step: u64, from: Address },
    #[error("{side} of descriptor {step}: {cause}")]
    OutOfReach { step: u64, side: &'static str, cause: OutOfReach },
}

/// A put of the chain that may be made.
#[derive(Debug)]
pub(crate) struct Step<'a, T> {
    pub(crate) placement: Placement,
    pub(crate) request: Request,
    /// What is read and what is written, and how far from their beginnings; `None` for a put of no bytes.
    pub(crate) ends: Option<[(&'a T, u64); 2]>,
}

/// A walk along a chain.
#[derive(Debug)]
pub(crate) struct Walk<'a, M, T> {
    node: Node,
    memory: &'a M,
    windows: &'a Windows<T>,
    next: Option<Address>,
    step: u64,
    /// How many descriptors there may be.
    limit: u64,
    /// Brent: where the walk was at the last power of two, and how many steps it goes on from there.
    landmark: Option<Address>,
    until: u64,
}

impl<'a, M: DescriptorMemory, T> Walk<'a, M, T> {
    /// From the descriptor at `head` on.
    pub(crate) fn new(node: Node, memory: &'a M, windows: &'a Windows<T>, head: Address) -> Self {
        Self::of_at_most(MAX_CHAIN, node, memory, windows, head)
    }

    /// The same, of no more than so many descriptors.
    pub(crate) fn of_at_most(limit: u64, node: Node, memory: &'a M, windows: &'a Windows<T>, head: Address) -> Self {
        Self { node, memory, windows, next: Some(head), step: 0, limit, landmark: None, until: 1 }
    }

    #[inline]
    fn take(&mut self, at: Address) -> Result<Step<'a, T>, ChainError> {
        let step = self.step;
        if at.node() != self.node {
            return Err(ChainError::Foreign { step, at, own: self.node });
        }
        if self.landmark == Some(at) {
            return Err(ChainError::Loop { step, at });
        }
        if step == self.limit {
            return Err(ChainError::TooLong { limit: self.limit });
        }
        if step == self.until {
            (self.landmark, self.until) = (Some(at), 2 * step);
        }
        let (descriptor, real) = self.memory.fetch(at.offset()).ok_or(ChainError::NoDescriptor { step, at })?;
        let request = Request::decode(&descriptor).map_err(|cause| ChainError::Malformed { step, at, cause })?;
        if request.placement != real {
            return Err(ChainError::Misplaced { step, said: request.placement, real });
        }
        if request.source.node() != self.node {
            return Err(ChainError::Get { step, from: request.source });
        }
        let shape = request.shape;
        let find = |side, at, pitch| {
            self.windows.find(at, shape.extent(pitch)).map_err(|cause| ChainError::OutOfReach { step, side, cause })
        };
        let ends = match shape.total_bytes() {
            0 => None,
            _ => Some([find("source", request.source, shape.source_pitch)?, find("target", request.target, shape.target_pitch)?]),
        };
        (self.step, self.next) = (step + 1, request.next);
        Ok(Step { placement: real, request, ends })
    }
}

impl<'a, M: DescriptorMemory, T> Iterator for Walk<'a, M, T> {
    type Item = Result<Step<'a, T>, ChainError>;

    /// After an error nothing more comes.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let at = self.next.take()?;
        Some(self.take(at))
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
