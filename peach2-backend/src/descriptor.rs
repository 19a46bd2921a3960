//! What the DMA controller reads: one put in 64 bytes, the line of a cache and of a PCIe read. Owns the layout and what of it means
//! something. Pure; that the addresses in it lead anywhere is for `chain` to find out.

use crate::address::Address;
use bytemuck::{Pod, Zeroable};

/// A descriptor as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// The next one of the chain; null in the last.
    next: u64,
    source: u64,
    target: u64,
    block_bytes: u64,
    /// From the start of a block to the start of the next, on both sides.
    source_pitch: u64,
    target_pitch: u64,
    count: u32,
    flags: u16,
    /// Where in the target's flags this put is announced, and in the board's own.
    slot: u16,
    own_slot: u16,
    tag: u8,
    kind: u8,
    reserved: u32,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 8);
    assert!(offset_of!(Descriptor, next) == 0 && offset_of!(Descriptor, source) == 8 && offset_of!(Descriptor, target) == 16);
    assert!(offset_of!(Descriptor, block_bytes) == 24 && offset_of!(Descriptor, source_pitch) == 32);
    assert!(offset_of!(Descriptor, target_pitch) == 40 && offset_of!(Descriptor, count) == 48);
    assert!(offset_of!(Descriptor, flags) == 52 && offset_of!(Descriptor, slot) == 54 && offset_of!(Descriptor, own_slot) == 56);
    assert!(offset_of!(Descriptor, tag) == 58 && offset_of!(Descriptor, kind) == 59 && offset_of!(Descriptor, reserved) == 60);
};

/// How far descriptors lie apart.
pub(crate) const DESCRIPTOR_BYTES: u64 = size_of::<Descriptor>() as u64;

bitflags::bitflags! {
    /// What comes with a put.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u16 {
        /// The target's flag is written once the bytes are there.
        const NOTIFY = 1 << 0;
        /// The board's own flag is, too.
        const NOTIFY_SELF = 1 << 1;
        /// The next descriptor is begun when the last packet of this one has left, not when it has arrived.
        const PIPELINE = 1 << 2;
        /// Nothing follows.
        const LAST = 1 << 3;
        /// It lies in the internal memory of the board ..
        const INTERNAL = 1 << 4;
        /// .. or in a register of its channel; without either in the memory of the host.
        const REGISTER = 1 << 5;
    }
}

const COPY: u8 = 1;
const BLOCK_STRIDE: u8 = 2;

/// Where a descriptor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    Registers,
    Internal,
    Host,
}

/// The bytes that a put moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) block_bytes: u64,
    /// One for a plain copy.
    pub(crate) count: u32,
    /// Without meaning, and 0, for a plain copy.
    pub(crate) source_pitch: u64,
    pub(crate) target_pitch: u64,
}

impl Shape {
    pub(crate) const fn copy(bytes: u64) -> Self {
        Self { block_bytes: bytes, count: 1, source_pitch: 0, target_pitch: 0 }
    }

    /// All bytes, wide enough never to overflow.
    pub(crate) const fn total_bytes(&self) -> u128 {
        self.block_bytes as u128 * self.count as u128
    }

    /// From the first byte to behind the last with this pitch, wide enough never to overflow.
    pub(crate) const fn extent(&self, pitch: u64) -> u128 {
        if self.block_bytes == 0 || self.count == 0 {
            return 0;
        }
        (self.count as u128 - 1) * pitch as u128 + self.block_bytes as u128
    }
}

/// Where a put is announced: flags at (slot, tag).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlagPlace {
    pub(crate) slot: u16,
    pub(crate) tag: u8,
}

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// `None` in the last of a chain.
    pub(crate) next: Option<Address>,
    pub(crate) placement: Placement,
    pub(crate) source: Address,
    pub(crate) target: Address,
    pub(crate) shape: Shape,
    /// In the target's board.
    pub(crate) notify: Option<FlagPlace>,
    /// In the own board: the slot; the tag is the same, in the half of the slot that the board itself writes.
    pub(crate) notify_self: Option<u16>,
    pub(crate) pipeline: bool,
}

/// A descriptor that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("kind {0} is neither copy (1) nor block-stride copy (2)")]
    Kind(u8),
    #[error("flags {0:#06x} have bits without a meaning")]
    Flags(u16),
    #[error("reserved bytes hold {0:#x}, not 0")]
    Reserved(u32),
    #[error("it is said to lie in a register and in the internal memory")]
    TwoPlaces,
    #[error("a plain copy of {count} blocks with pitches {source_pitch} and {target_pitch}; it has 1 block and no pitch")]
    CopyOfBlocks { count: u32, source_pitch: u64, target_pitch: u64 },
    #[error("a block-stride copy of {0} block(s); it has 2 or more")]
    TooFewBlocks(u32),
    #[error("slot {slot}, own slot {own_slot} and tag {tag} without the flags to write there")]
    NoFlag { slot: u16, own_slot: u16, tag: u8 },
    #[error("its next pointer is null, but it is not marked as the last")]
    NullNext,
    #[error("it is marked as the last, but {0} follows")]
    NextOfLast(Address),
}

impl Request {
    pub(crate) fn encode(&self) -> Descriptor {
        let mut flags = match self.placement {
            Placement::Registers => Flags::REGISTER,
            Placement::Internal => Flags::INTERNAL,
            Placement::Host => Flags::empty(),
        };
        flags.set(Flags::NOTIFY, self.notify.is_some());
        flags.set(Flags::NOTIFY_SELF, self.notify_self.is_some());
        flags.set(Flags::PIPELINE, self.pipeline);
        flags.set(Flags::LAST, self.next.is_none());
        let Shape { block_bytes, count, source_pitch, target_pitch } = self.shape;
        Descriptor {
            next: self.next.unwrap_or(Address::NULL).bits(),
            source: self.source.bits(),
            target: self.target.bits(),
            block_bytes,
            source_pitch,
            target_pitch,
            count,
            flags: flags.bits(),
            slot: self.notify.map_or(0, |place| place.slot),
            own_slot: self.notify_self.unwrap_or(0),
            tag: self.notify.map_or(0, |place| place.tag),
            kind: if count == 1 { COPY } else { BLOCK_STRIDE },
            reserved: 0,
        }
    }

    /// What the bytes mean. There is one way to write each request, so whatever else they hold is refused.
    pub(crate) fn decode(descriptor: &Descriptor) -> Result<Self, Malformed> {
        let Descriptor { block_bytes, source_pitch, target_pitch, count, slot, own_slot, tag, kind, reserved, .. } = *descriptor;
        let flags = Flags::from_bits(descriptor.flags).ok_or(Malformed::Flags(descriptor.flags))?;
        if reserved != 0 {
            return Err(Malformed::Reserved(reserved));
        }
        match kind {
            COPY if (count, source_pitch, target_pitch) != (1, 0, 0) => {
                return Err(Malformed::CopyOfBlocks { count, source_pitch, target_pitch });
            }
            BLOCK_STRIDE if count < 2 => return Err(Malformed::TooFewBlocks(count)),
            COPY | BLOCK_STRIDE => {}
            _ => return Err(Malformed::Kind(kind)),
        }
        let placement = match (flags.contains(Flags::REGISTER), flags.contains(Flags::INTERNAL)) {
            (true, true) => return Err(Malformed::TwoPlaces),
            (true, false) => Placement::Registers,
            (false, true) => Placement::Internal,
            (false, false) => Placement::Host,
        };
        let (notify, notify_self) = (flags.contains(Flags::NOTIFY), flags.contains(Flags::NOTIFY_SELF));
        if (!notify && (slot, tag) != (0, 0)) || (!notify_self && own_slot != 0) || (notify_self && !notify) {
            return Err(Malformed::NoFlag { slot, own_slot, tag });
        }
        let next = Address::from_bits(descriptor.next);
        let next = match flags.contains(Flags::LAST) {
            true if next == Address::NULL => None,
            true => return Err(Malformed::NextOfLast(next)),
            false if next == Address::NULL => return Err(Malformed::NullNext),
            false => Some(next),
        };
        Ok(Self {
            next,
            placement,
            source: Address::from_bits(descriptor.source),
            target: Address::from_bits(descriptor.target),
            shape: Shape { block_bytes, count, source_pitch, target_pitch },
            notify: notify.then_some(FlagPlace { slot, tag }),
            notify_self: notify_self.then_some(own_slot),
            pipeline: flags.contains(Flags::PIPELINE),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::address::Node;

    /// Any request that can be written down.
    pub(crate) fn any_request(random: &mut fastrand::Rng) -> Request {
        let mut address = || Address::new(Node(random.u8(..)), random.u64(..) >> random.u32(8..64));
        let (source, target, next) = (address(), address(), address());
        let shape = match random.bool() {
            true => Shape::copy(random.u64(..)),
            false => Shape {
                block_bytes: random.u64(..),
                count: random.u32(2..),
                source_pitch: random.u64(..),
                target_pitch: random.u64(..),
            },
        };
        let notify = random.bool().then(|| FlagPlace { slot: random.u16(..), tag: random.u8(..) });
        Request {
            next: Some(next).filter(|&next| next != Address::NULL && random.bool()),
            placement: [Placement::Registers, Placement::Internal, Placement::Host][random.usize(..3)],
            source,
            target,
            shape,
            notify,
            notify_self: notify.and_then(|_| random.bool().then(|| random.u16(..))),
            pipeline: random.bool(),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_as_it_was() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let request = any_request(&mut random);
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn bytes_that_are_accepted_are_the_only_way_to_write_their_request() {
        let mut random = fastrand::Rng::with_seed(2);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..300_000 {
            let mut descriptor = any_request(&mut random).encode();
            let bytes = bytemuck::bytes_of_mut(&mut descriptor);
            for _ in 0..random.usize(..4) {
                // Most of what means something beyond numbers lies at the end.
                let at = if random.bool() { random.usize(48..64) } else { random.usize(..64) };
                bytes[at] ^= 1 << random.u32(..8);
            }
            match Request::decode(&descriptor) {
                Ok(request) => {
                    assert_eq!(request.encode(), descriptor);
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(accepted > 10_000 && refused > 10_000, "{accepted} accepted, {refused} refused: the test has lost its teeth");
    }

    #[test]
    fn zeros_are_no_descriptor() {
        assert_eq!(Request::decode(&Descriptor::zeroed()), Err(Malformed::Kind(0)));
    }

    #[test]
    fn each_thing_that_makes_no_sense_is_named() {
        let good = any_request(&mut fastrand::Rng::with_seed(3));
        let good = Request { shape: Shape::copy(8), notify: None, notify_self: None, next: None, ..good }.encode();
        assert!(Request::decode(&good).is_ok());
        let next = Address::new(Node(1), 64);
        for (bad, expected) in [
            (Descriptor { kind: 7, ..good }, Malformed::Kind(7)),
            (Descriptor { flags: good.flags | 1 << 9, ..good }, Malformed::Flags(good.flags | 1 << 9)),
            (Descriptor { reserved: 1, ..good }, Malformed::Reserved(1)),
            (Descriptor { flags: Flags::all().bits(), ..good }, Malformed::TwoPlaces),
            (Descriptor { count: 2, ..good }, Malformed::CopyOfBlocks { count: 2, source_pitch: 0, target_pitch: 0 }),
            (Descriptor { kind: BLOCK_STRIDE, ..good }, Malformed::TooFewBlocks(1)),
            (Descriptor { tag: 3, ..good }, Malformed::NoFlag { slot: 0, own_slot: 0, tag: 3 }),
            (Descriptor { flags: good.flags & !Flags::LAST.bits(), ..good }, Malformed::NullNext),
            (Descriptor { next: next.bits(), ..good }, Malformed::NextOfLast(next)),
        ] {
            assert_eq!(Request::decode(&bad), Err(expected));
        }
    }
}
