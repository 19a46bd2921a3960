//! The memories that descriptors lie in: registers of each channel, the internal memory of the board, the memory of its host.
//! Owns who has which place, and what is written there. Pure.

use crate::address::{Address, HostMap, INTERNAL, Node, REGISTERS};
use crate::chain::DescriptorMemory;
use crate::descriptor::{DESCRIPTOR_BYTES, Descriptor, Placement, Request};
use bytemuck::Zeroable;
use std::collections::BTreeMap;

/// What a board has (P3).
pub(crate) const CHANNELS: usize = 4;
pub(crate) const REGISTERS_A_CHANNEL: usize = 16;
pub(crate) const INTERNAL_DESCRIPTORS: usize = 1024;

/// All memory of a node that can hold descriptors.
#[derive(Debug)]
pub(crate) struct Memories {
    node: Node,
    /// Of all channels, one after the other.
    registers: Store,
    internal: Store,
    /// Tables in host memory, by their offset.
    host: BTreeMap<u64, Box<[Descriptor]>>,
}

/// A memory of so many places, and who has them.
#[derive(Debug)]
struct Store {
    begin: u64,
    descriptors: Box<[Descriptor]>,
    taken: Box<[bool]>,
}

/// Where a chain lies. To be given back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) placement: Placement,
    /// The offset of each descriptor.
    offsets: Vec<u64>,
    node: Node,
}

impl Placed {
    /// The first descriptor.
    pub(crate) fn head(&self) -> Option<Address> {
        self.offsets.first().map(|&offset| Address::new(self.node, offset))
    }
}

impl Store {
    fn new(begin: u64, places: usize) -> Self {
        Self { begin, descriptors: vec![Descriptor::zeroed(); places].into(), taken: vec![false; places].into() }
    }

    fn offset(&self, index: usize) -> u64 {
        self.begin + index as u64 * DESCRIPTOR_BYTES
    }

    fn index(&self, offset: u64) -> Option<usize> {
        let index = index_of(offset.checked_sub(self.begin)?)?;
        (index < self.descriptors.len()).then_some(index)
    }

    /// `count` places among these, if so many are free.
    fn take(&mut self, among: std::ops::Range<usize>, count: usize) -> Option<Vec<u64>> {
        let free: Vec<_> = among.filter(|&index| !self.taken[index]).take(count).collect();
        if free.len() < count {
            return None;
        }
        free.iter().for_each(|&index| self.taken[index] = true);
        Some(free.into_iter().map(|index| self.offset(index)).collect())
    }

    fn give_back(&mut self, offset: u64) {
        if let Some(index) = self.index(offset) {
            self.taken[index] = false;
            // Whoever comes here by mistake finds nothing.
            self.descriptors[index] = Descriptor::zeroed();
        }
    }
}

/// The number of a descriptor so many bytes from the first.
fn index_of(bytes: u64) -> Option<usize> {
    (bytes.is_multiple_of(DESCRIPTOR_BYTES)).then(|| usize::try_from(bytes / DESCRIPTOR_BYTES).ok())?
}

impl Memories {
    pub(crate) fn new(node: Node) -> Self {
        Self {
            node,
            registers: Store::new(REGISTERS, CHANNELS * REGISTERS_A_CHANNEL),
            internal: Store::new(INTERNAL, INTERNAL_DESCRIPTORS),
            host: BTreeMap::new(),
        }
    }

    /// How many places are free: registers of each channel, and in the internal memory.
    pub(crate) fn free(&self) -> ([usize; CHANNELS], usize) {
        let count = |taken: &[bool]| taken.iter().filter(|taken| !**taken).count();
        let of_channel = |channel| count(&self.registers.taken[channel * REGISTERS_A_CHANNEL..][..REGISTERS_A_CHANNEL]);
        (std::array::from_fn(of_channel), count(&self.internal.taken))
    }

    /// Finds a place for chains, each with its channel, in the fastest memory from `best` on that has room for the whole chain, and
    /// writes them there. The shortest choose first, as more of them fit into what is fast. `None` when the host has no more addresses.
    pub(crate) fn place(&mut self, best: Placement, chains: &[(usize, Vec<Request>)], host: &mut HostMap) -> Option<Vec<Placed>> {
        let mut order: Vec<usize> = (0..chains.len()).collect();
        order.sort_by_key(|&index| chains[index].1.len());
        let mut placed: Vec<Option<Placed>> = chains.iter().map(|_| None).collect();
        for index in order {
            let (channel, requests) = &chains[index];
            match self.place_one(best, *channel, requests, host) {
                Some(place) => placed[index] = Some(place),
                None => {
                    placed.into_iter().flatten().for_each(|place| self.give_back(&place));
                    return None;
                }
            }
        }
        Some(placed.into_iter().flatten().collect())
    }

    fn place_one(&mut self, best: Placement, channel: usize, requests: &[Request], host: &mut HostMap) -> Option<Placed> {
        let count = requests.len();
        let of_channel = channel * REGISTERS_A_CHANNEL..(channel + 1) * REGISTERS_A_CHANNEL;
        let registers = (best <= Placement::Registers).then(|| self.registers.take(of_channel, count)).flatten();
        let (placement, offsets) = if let Some(offsets) = registers {
            (Placement::Registers, offsets)
        } else if let Some(offsets) =
            (best <= Placement::Internal).then(|| self.internal.take(0..INTERNAL_DESCRIPTORS, count)).flatten()
        {
            (Placement::Internal, offsets)
        } else {
            let begin = host.take(count as u64 * DESCRIPTOR_BYTES)?.start;
            self.host.insert(begin, vec![Descriptor::zeroed(); count].into());
            (Placement::Host, (0..count as u64).map(|index| begin + index * DESCRIPTOR_BYTES).collect())
        };
        for (index, request) in requests.iter().enumerate() {
            let next = offsets.get(index + 1).map(|&offset| Address::new(self.node, offset));
            self.write(offsets[index], Request { next, placement, ..*request }.encode());
        }
        Some(Placed { placement, offsets, node: self.node })
    }

    /// Frees the places of a chain, which must not be started any more.
    pub(crate) fn give_back(&mut self, placed: &Placed) {
        match placed.placement {
            Placement::Registers => placed.offsets.iter().for_each(|&offset| self.registers.give_back(offset)),
            Placement::Internal => placed.offsets.iter().for_each(|&offset| self.internal.give_back(offset)),
            Placement::Host => drop(placed.offsets.first().and_then(|offset| self.host.remove(offset))),
        }
    }

    fn write(&mut self, offset: u64, descriptor: Descriptor) {
        let place = if let Some(index) = self.registers.index(offset) {
            self.registers.descriptors.get_mut(index)
        } else if let Some(index) = self.internal.index(offset) {
            self.internal.descriptors.get_mut(index)
        } else {
            let table = self.host.range_mut(..=offset).next_back();
            table.and_then(|(begin, table)| table.get_mut(index_of(offset - begin)?))
        };
        match place {
            Some(place) => *place = descriptor,
            None => unreachable!("bug: a descriptor was placed at {offset:#x}, where there is no memory"),
        }
    }
}

impl DescriptorMemory for Memories {
    #[inline]
    fn fetch(&self, offset: u64) -> Option<(Descriptor, Placement)> {
        if let Some(index) = self.registers.index(offset) {
            return Some((self.registers.descriptors[index], Placement::Registers));
        }
        if let Some(index) = self.internal.index(offset) {
            return Some((self.internal.descriptors[index], Placement::Internal));
        }
        let (begin, table) = self.host.range(..=offset).next_back()?;
        Some((*table.get(index_of(offset - begin)?)?, Placement::Host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::HOST;
    use crate::chain::{ChainError, Walk};
    use crate::descriptor::{Malformed, Shape};
    use crate::windows::Windows;
    use Placement::{Host, Internal, Registers};

    const OWN: Node = Node(3);

    /// Puts that differ, and need no window.
    fn chain(count: usize) -> Vec<Request> {
        let number = |index| Address::new(OWN, index as u64);
        let request = |index| Request {
            next: None,
            placement: Host,
            source: number(index),
            target: number(count),
            shape: Shape::copy(0),
            notify: None,
            notify_self: None,
            pipeline: index % 2 == 0,
        };
        (0..count).map(request).collect()
    }

    /// A board and its host, and chains placed there.
    struct Bench {
        memories: Memories,
        host: HostMap,
    }

    impl Bench {
        fn new() -> Self {
            Self { memories: Memories::new(OWN), host: HostMap::new() }
        }

        /// With host memory for so many pages of descriptors and no more.
        fn with_pages(pages: u64) -> Self {
            let mut bench = Self::new();
            // No address reaches the end of the node, so the last page is never given out.
            bench.host.take((1 << Address::OFFSET_BITS) - HOST - (pages + 1) * 4096).unwrap();
            bench
        }

        /// Chains of such channels and lengths, in one call.
        fn place(&mut self, best: Placement, chains: &[(usize, usize)]) -> Option<Vec<Placed>> {
            let chains: Vec<_> = chains.iter().map(|&(channel, count)| (channel, chain(count))).collect();
            self.memories.place(best, &chains, &mut self.host)
        }

        fn place_one(&mut self, best: Placement, channel: usize, count: usize) -> Placed {
            self.place(best, &[(channel, count)]).unwrap().remove(0)
        }

        /// Where it comes to lie, one chain after the other.
        fn placement(&mut self, channel: usize, count: usize) -> Placement {
            self.place_one(Registers, channel, count).placement
        }

        /// What a walk along a chain finds.
        fn walk(&self, placed: &Placed) -> Result<Vec<Request>, ChainError> {
            let windows = Windows::<()>::new();
            Walk::new(OWN, &self.memories, &windows, placed.head().unwrap()).map(|step| step.map(|step| step.request)).collect()
        }

        fn has_all_free(&self) -> bool {
            self.memories.free() == ([REGISTERS_A_CHANNEL; CHANNELS], INTERNAL_DESCRIPTORS) && self.memories.host.is_empty()
        }
    }

    #[test]
    fn registers_have_room_for_sixteen_of_each_channel() {
        let mut bench = Bench::new();
        for channel in 0..CHANNELS {
            assert_eq!(bench.placement(channel, 16), Registers);
        }
        assert_eq!(bench.memories.free(), ([0; CHANNELS], 1024));
    }

    #[test]
    fn a_chain_of_seventeen_lies_in_internal_memory() {
        let mut bench = Bench::new();
        assert_eq!(bench.placement(0, 17), Internal);
        assert_eq!(bench.memories.free(), ([16; CHANNELS], 1024 - 17));
    }

    #[test]
    fn internal_memory_has_room_for_a_chain_of_1024() {
        assert_eq!(Bench::new().placement(0, 1024), Internal);
    }

    #[test]
    fn a_chain_of_1025_lies_in_host_memory() {
        let mut bench = Bench::new();
        assert_eq!(bench.placement(0, 1025), Host);
        assert_eq!(bench.memories.free(), ([16; CHANNELS], 1024));
    }

    #[test]
    fn registers_that_others_of_the_channel_leave_are_used_to_the_last() {
        let mut bench = Bench::new();
        let places = [(1, 10), (1, 7), (1, 6), (1, 1), (2, 16)].map(|(channel, count)| bench.placement(channel, count));
        assert_eq!(places, [Registers, Internal, Registers, Internal, Registers]);
        assert_eq!(bench.memories.free(), ([16, 0, 0, 16], 1024 - 8));
    }

    #[test]
    fn internal_memory_that_others_leave_is_used_to_the_last() {
        let mut bench = Bench::new();
        let places = [(0, 1000), (1, 25), (2, 24), (3, 17)].map(|(channel, count)| bench.placement(channel, count));
        assert_eq!(places, [Internal, Host, Internal, Host]);
        assert_eq!(bench.memories.free().1, 0);
    }

    #[test]
    fn the_shortest_of_chains_placed_together_choose_first() {
        let placed = Bench::new().place(Registers, &[(0, 1020), (0, 16), (0, 900), (0, 4)]).unwrap();
        let places: Vec<_> = placed.iter().map(|placed| (placed.offsets.len(), placed.placement)).collect();
        assert_eq!(places, [(1020, Host), (16, Internal), (900, Internal), (4, Registers)]);
    }

    #[test]
    fn what_is_given_back_is_free() {
        let mut bench = Bench::new();
        let placed = bench.place(Registers, &[(0, 16), (3, 5), (1, 1024), (2, 2000)]).unwrap();
        assert!(!bench.has_all_free());
        placed.iter().for_each(|placed| bench.memories.give_back(placed));
        assert!(bench.has_all_free(), "{:?}", bench.memories.free());
        let places = [(0, 16), (3, 16), (1, 1024)].map(|(channel, count)| bench.placement(channel, count));
        assert_eq!(places, [Registers, Registers, Internal]);
    }

    #[test]
    fn only_what_is_given_back_is_free() {
        let mut bench = Bench::new();
        let placed = bench.place(Registers, &[(0, 3), (0, 4), (1, 20), (1, 30), (2, 1100), (2, 1200)]).unwrap();
        placed.iter().step_by(2).for_each(|placed| bench.memories.give_back(placed));
        assert_eq!(bench.memories.free(), ([12, 16, 16, 16], 1024 - 30));
        for placed in placed.iter().skip(1).step_by(2) {
            assert_eq!(bench.walk(placed).map(|requests| requests.len()), Ok(placed.offsets.len()));
        }
    }

    #[test]
    fn who_comes_to_what_was_given_back_finds_no_descriptor() {
        for (best, count) in [(Registers, 5), (Internal, 5), (Host, 5)] {
            let mut bench = Bench::new();
            let placed = bench.place_one(best, 0, count);
            bench.memories.give_back(&placed);
            for offset in placed.offsets.iter().copied() {
                let at = Address::new(OWN, offset);
                let here = Placed { placement: best, offsets: vec![offset], node: OWN };
                let expected = match best {
                    Host => ChainError::NoDescriptor { step: 0, at },
                    Registers | Internal => ChainError::Malformed { step: 0, at, cause: Malformed::Kind(0) },
                };
                assert_eq!(bench.walk(&here), Err(expected));
            }
        }
    }

    #[test]
    fn when_addresses_run_out_nothing_stays_taken() {
        // A page holds 64 descriptors; that which does not fit is the longest, and comes last.
        let mut bench = Bench::with_pages(1);
        assert_eq!(bench.place(Registers, &[(0, 1025), (1, 16), (2, 17)]), None);
        assert!(bench.has_all_free(), "{:?}", bench.memories.free());
        let mut bench = Bench::with_pages(2);
        assert_eq!(bench.place(Host, &[(0, 65), (1, 64)]), None);
        assert!(bench.has_all_free(), "{:?}", bench.memories.host.keys());
    }

    #[test]
    fn host_memory_is_used_to_its_last_page() {
        let mut bench = Bench::with_pages(3);
        assert!(bench.place(Host, &[(0, 64), (1, 128)]).is_some());
        assert_eq!(bench.place(Host, &[(0, 1)]), None);
        assert_eq!(bench.placement(0, 1), Registers, "what needs no host memory has its place");
    }

    #[test]
    fn no_faster_memory_than_allowed_is_used() {
        for best in [Registers, Internal, Host] {
            assert_eq!(Bench::new().place_one(best, 2, 1).placement, best);
        }
        let mut bench = Bench::new();
        bench.place_one(Internal, 0, 1024);
        assert_eq!(bench.place_one(Internal, 0, 1).placement, Host, "registers are free, but not allowed");
    }

    #[test]
    fn what_was_placed_is_fetched_linked_in_order() {
        // What others have left makes gaps.
        let mut bench = Bench::new();
        let gaps = bench.place(Registers, &[(1, 1), (1, 2), (1, 3), (0, 20), (0, 40)]).unwrap();
        gaps.iter().step_by(2).for_each(|placed| bench.memories.give_back(placed));
        for (best, count) in [(Registers, 14), (Internal, 980), (Host, 1500)] {
            let placed = bench.place_one(best, 1, count);
            assert_eq!(placed.placement, best);
            let links = placed.offsets.iter().skip(1).map(|&offset| Some(Address::new(OWN, offset))).chain([None]);
            let expected: Vec<_> =
                chain(count).into_iter().zip(links).map(|(request, next)| Request { next, placement: best, ..request }).collect();
            for (offset, request) in placed.offsets.iter().zip(&expected) {
                assert_eq!(bench.memories.fetch(*offset), Some((request.encode(), best)));
            }
            assert_eq!(bench.walk(&placed), Ok(expected));
        }
    }

    #[test]
    fn each_chain_of_a_call_has_its_own_puts() {
        let mut bench = Bench::new();
        let counts = [30, 3, 1200, 7];
        let placed = bench.place(Registers, &counts.map(|count| (0, count))).unwrap();
        for (placed, count) in placed.iter().zip(counts) {
            let sources: Vec<_> = bench.walk(placed).unwrap().iter().map(|request| (request.source, request.target)).collect();
            let expected: Vec<_> = chain(count).iter().map(|request| (request.source, request.target)).collect();
            assert_eq!(sources, expected);
        }
    }

    #[test]
    fn there_is_no_descriptor_beside_the_memories_or_across_two() {
        let mut bench = Bench::new();
        let table = bench.place_one(Host, 0, 3).offsets[0];
        let places = CHANNELS * REGISTERS_A_CHANNEL;
        for (begin, count) in [(REGISTERS, places as u64), (INTERNAL, INTERNAL_DESCRIPTORS as u64), (table, 3)] {
            let end = begin + count * DESCRIPTOR_BYTES;
            let fetch = |offset| bench.memories.fetch(offset).map(|(_, placement)| placement);
            assert!(fetch(begin).is_some() && fetch(end - 64) == fetch(begin));
            for outside in [begin - 64, begin - 1, begin + 1, begin + 32, begin + 63, end - 63, end - 1, end] {
                assert_eq!(fetch(outside), None, "{outside:#x} of {begin:#x} to {end:#x}");
            }
        }
        for nowhere in [0, 64, u64::MAX, u64::MAX - 63, (1 << Address::OFFSET_BITS) - 64] {
            assert_eq!(bench.memories.fetch(nowhere), None, "{nowhere:#x}");
        }
    }

    #[test]
    fn no_two_chains_ever_share_a_place() {
        let mut random = fastrand::Rng::with_seed(17);
        let (mut bench, mut held, mut taken) = (Bench::new(), Vec::<Placed>::new(), BTreeMap::new());
        let mut seen = [0; 3];
        for _ in 0..1000 {
            if !held.is_empty() && random.u32(..5) < 2 {
                let placed = held.swap_remove(random.usize(..held.len()));
                bench.memories.give_back(&placed);
                for offset in &placed.offsets {
                    taken.remove(offset);
                }
            } else {
                let (best, longest) = ([Registers, Internal][random.usize(..2)], [8, 20, 200][random.usize(..3)]);
                let placed = bench.place_one(best, random.usize(..CHANNELS), random.usize(1..longest));
                seen[placed.placement as usize] += 1;
                for &offset in &placed.offsets {
                    assert_eq!(taken.insert(offset, placed.placement), None, "{offset:#x} of {placed:?}");
                }
                held.push(placed);
            }
            let (registers, internal) = bench.memories.free();
            let taken_of = |place| taken.values().filter(|&&taken| taken == place).count();
            assert_eq!(registers.iter().sum::<usize>(), CHANNELS * REGISTERS_A_CHANNEL - taken_of(Registers));
            assert_eq!(internal, INTERNAL_DESCRIPTORS - taken_of(Internal));
        }
        assert!(seen.iter().all(|&times| times > 50), "{seen:?}: the test has lost its teeth");
        for placed in held {
            assert_eq!(bench.walk(&placed).map(|requests| requests.len()), Ok(placed.offsets.len()));
            bench.memories.give_back(&placed);
        }
        assert!(bench.has_all_free());
    }
}
