//! The copy that is a put: one block, or blocks at equal distances, straight into the target's window.
//! Owns the choice of how to copy, made once at commit by length and processor; knows addresses only.
//!
//! The C library's memcpy is good at all lengths and best at most. Two ranges are worth a way of their own, by a quarter to a half of
//! the time, measured with both sides in the caches (ping-pong of `rma bench put`): a few KiB with 64-byte registers, where the
//! library begins with string instructions too early, and from the size of a second-level cache on with string instructions, where
//! it ends with them too early.

use crate::backend::Put;
use crate::layout::Blocks;
use crate::ways::{copy_blocks, copy_repeat, copy_wide, has_fast_strings, has_wide_registers};
use std::ptr::NonNull;

/// The least length for 64-byte registers: what the loop takes in one step.
const WIDE: usize = 256;

/// The most bytes of a whole chain for 64-byte registers: sources and targets together fit into a first-level cache.
const WIDE_CHAIN: u128 = 24 << 10;

/// Lengths from which string instructions are used up to which they are no worse.
const REPEAT: std::ops::RangeInclusive<usize> = 768 << 10..=4 << 20;

/// A put with its addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    source: *const u8,
    target: *mut u8,
    block_bytes: usize,
    how: How,
    count: usize,
    source_stride: usize,
    target_stride: usize,
}

/// The way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Eight bytes: a load and a store.
    Number,
    /// One block, by the C library; also of no bytes.
    Memcpy,
    /// One block, with 64-byte registers.
    Wide,
    /// One block, with string instructions.
    Repeat,
    /// Several blocks.
    Blocks,
}

impl Copy {
    /// The addresses of a put; `window` is where the target's part begins here, `len_bytes` how long it is, and `chain_bytes` what
    /// all puts of the chain move together. Panics when the put is not inside, which the core has checked.
    pub(super) fn new(put: &Put, window: NonNull<u8>, len_bytes: usize, chain_bytes: u128) -> Self {
        let source = within(put.source.base(), put.source.len_bytes(), &put.source_blocks);
        let target = within(window, len_bytes, &put.target_blocks);
        let (from, to) = (&put.source_blocks, &put.target_blocks);
        let (block_bytes, count) = match to {
            _ if to.is_empty() => (0, 1),
            _ if from.is_contiguous() && to.is_contiguous() => (to.block_bytes as usize * to.count as usize, 1),
            _ => (to.block_bytes as usize, to.count as usize),
        };
        let how = match block_bytes {
            _ if count > 1 => How::Blocks,
            8 => How::Number,
            bytes if bytes >= WIDE && chain_bytes <= WIDE_CHAIN && has_wide_registers() => How::Wide,
            bytes if REPEAT.contains(&bytes) && has_fast_strings() => How::Repeat,
            _ => How::Memcpy,
        };
        let (source_stride, target_stride) = (from.stride as usize, to.stride as usize);
        Self { source, target, block_bytes, how, count, source_stride, target_stride }
    }

    /// Moves the bytes.
    ///
    /// # Safety
    /// Both windows are mapped, nobody writes the source and nobody else touches the target now.
    #[inline]
    pub(super) unsafe fn run(&self) {
        let Self { source, target, block_bytes, .. } = *self;
        // In every arm: `new` checked both ranges, and they do not overlap, for the core refuses a queue that does.
        match self.how {
            // SAFETY: see above.
            How::Number => unsafe { std::ptr::copy_nonoverlapping(source, target, 8) },
            // SAFETY: see above.
            How::Memcpy => unsafe { std::ptr::copy_nonoverlapping(source, target, block_bytes) },
            // SAFETY: see above; `new` checked the processor, and that there are 256 bytes or more.
            How::Wide => unsafe { copy_wide(source, target, block_bytes) },
            // SAFETY: see above; `new` checked the processor.
            How::Repeat => unsafe { copy_repeat(source, target, block_bytes) },
            // SAFETY: passed on.
            How::Blocks => unsafe { self.run_blocks() },
        }
    }

    /// Out of line, or what it needs would cost those who have one block.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(never)]
    unsafe fn run_blocks(&self) {
        let (source, target) = ((self.source, self.source_stride), (self.target, self.target_stride));
        // SAFETY: as in `run`, for every block.
        unsafe { copy_blocks(source, target, self.block_bytes, self.count) };
    }
}

fn within(base: NonNull<u8>, len_bytes: usize, blocks: &Blocks) -> *mut u8 {
    assert!(blocks.span().end <= len_bytes as u128, "bug: a put outside its window reached the backend");
    base.as_ptr().wrapping_add(blocks.offset as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::WindowMem;
    use crate::{Rail, Rank, WindowId};
    use std::any::Any;
    use std::rc::Rc;

    #[derive(Debug)]
    struct Plain(Vec<u8>);

    impl WindowMem for Plain {
        fn base(&self) -> NonNull<u8> {
            NonNull::from(self.0.as_slice()).cast()
        }

        fn len_bytes(&self) -> usize {
            self.0.len()
        }

        fn key(&self) -> Vec<u8> {
            Vec::new()
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn every_way_to_copy_moves_just_the_bytes_of_the_put() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut lengths: Vec<usize> = (0..40).chain([255, 256, 257, 511, 512, 513, 4096, 32768, 32769]).collect();
        lengths.extend([(768 << 10) - 1, 768 << 10, (768 << 10) + 1, 4 << 20, (4 << 20) + 1]);
        lengths.extend((0..60).map(|_| random.usize(..40_000)));
        for bytes in lengths {
            let (from, to) = (random.usize(..70), random.usize(..70));
            let source = Plain((0..bytes + from + 64).map(|_| random.u8(..)).collect());
            let mut target = vec![0xa5; bytes + to + 64];
            let mut expected = target.clone();
            expected[to..to + bytes].copy_from_slice(&source.0[from..from + bytes]);
            let put = Put {
                target: Rank(0),
                rail: Rail(0),
                source: Rc::new(source),
                source_blocks: Blocks::contiguous(from as u64, bytes as u64),
                window: WindowId(0),
                target_blocks: Blocks::contiguous(to as u64, bytes as u64),
                key: Rc::new([]),
            };
            let len_bytes = target.len();
            let copy = Copy::new(&put, NonNull::from(target.as_mut_slice()).cast(), len_bytes, bytes as u128);
            // SAFETY: both vectors are alive and used by nobody else.
            unsafe { copy.run() };
            assert!(target == expected, "{bytes} bytes from {from} to {to}, {:?}", copy.how);
        }
    }
}
