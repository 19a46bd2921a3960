//! The address space that all boards share: the number of a node in the upper bits, a place in its memory below. Our own map; that of
//! the real board was never published. Pure; knows neither memory nor routes.

use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::ops::Range;

/// A board, by the number of the rank that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Node(pub(crate) u8);

/// A place in the memory of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Address(u64);

/// Bits 63-56 are the node.
const NODE_SHIFT: u32 = 56;

/// Where the descriptor registers of all channels lie in every node, then the internal memory, then all of the host's memory. The
/// page at 0 belongs to nobody, so that a null pointer is none.
pub(crate) const REGISTERS: u64 = 0x1000;
pub(crate) const INTERNAL: u64 = 0x10_0000;
pub(crate) const HOST: u64 = 1 << 32;

impl Address {
    /// How many bits the place in a node has.
    pub(crate) const OFFSET_BITS: u32 = NODE_SHIFT;
    pub(crate) const NULL: Self = Self(0);

    /// Panics on an offset that reaches into the bits of the node: it is a bug to have one.
    pub(crate) fn new(node: Node, offset: u64) -> Self {
        assert!(offset >> NODE_SHIFT == 0, "bug: offset {offset:#x} is in no node");
        Self((u64::from(node.0) << NODE_SHIFT) | offset)
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn node(self) -> Node {
        Node((self.0 >> NODE_SHIFT) as u8)
    }

    pub(crate) const fn offset(self) -> u64 {
        self.0 & ((1 << NODE_SHIFT) - 1)
    }

    /// So many bytes further; `None` outside the node.
    pub(crate) fn checked_add(self, bytes: u64) -> Option<Self> {
        let sum = self.offset().checked_add(bytes)?;
        (sum >> NODE_SHIFT == 0).then(|| Self::new(self.node(), sum))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.node().0, self.offset())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The host memory of a node that has been given an address. No address is given twice: what was meant for a window that is gone
/// never reaches another one.
#[derive(Debug)]
pub(crate) struct HostMap {
    next: u64,
}

/// A page, so that no two pieces share one.
const ALIGNMENT: u64 = 4096;

impl HostMap {
    pub(crate) const fn new() -> Self {
        Self { next: HOST }
    }

    /// Offsets for so many bytes; `None` when all have been given out.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Range<u64>> {
        let end = self.next.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)?;
        if end >> NODE_SHIFT != 0 {
            return None;
        }
        let taken = self.next..self.next + bytes;
        // What has no bytes has an address of its own, too.
        self.next = end.max(self.next + ALIGNMENT);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_node_and_its_offset() {
        for (node, offset) in [(0, 0), (15, HOST), (255, (1 << 56) - 1)] {
            let address = Address::new(Node(node), offset);
            assert_eq!((address.node(), address.offset()), (Node(node), offset));
            assert_eq!(Address::from_bits(address.bits()), address);
        }
    }

    #[test]
    fn nothing_is_added_across_the_end_of_a_node() {
        let last = Address::new(Node(3), (1 << 56) - 1);
        assert_eq!(last.checked_add(0), Some(last));
        assert_eq!(last.checked_add(1), None);
        assert_eq!(last.checked_add(u64::MAX), None);
    }

    #[test]
    fn pieces_of_host_memory_share_no_page_and_come_to_an_end() {
        let mut map = HostMap::new();
        let pieces: Vec<_> = [1, 4096, 0, 0, 5000].into_iter().map(|bytes| map.take(bytes).unwrap()).collect();
        for pair in pieces.windows(2) {
            assert!(pair[0].end <= pair[1].start && pair[0].start < pair[1].start, "{pieces:?}");
            assert!(pair[1].start.is_multiple_of(ALIGNMENT));
        }
        assert_eq!(map.take(1 << 56), None);
        assert_eq!(map.take(u64::MAX), None);
        assert!(map.take(1 << 55).is_some());
        assert_eq!(map.take(1 << 55), None);
        assert!(map.take(10).is_some(), "what is too long is refused, and the rest is still there");
    }
}
