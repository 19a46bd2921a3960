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
