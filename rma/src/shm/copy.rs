//! The copy that is a put: one block, or blocks at equal distances, straight into the target's window.
//! Knows addresses only.

use crate::backend::Put;
use crate::layout::Blocks;
use std::ptr::NonNull;

/// A put with its addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    source: *const u8,
    target: *mut u8,
    block_bytes: usize,
    count: usize,
    source_stride: usize,
    target_stride: usize,
}

impl Copy {
    /// The addresses of a put; `window` is where the target's part begins here, `len_bytes` how long it is.
    /// Panics when the put is not inside, which the core has checked.
    pub(super) fn new(put: &Put, window: NonNull<u8>, len_bytes: usize) -> Self {
        let source = within(put.source.base(), put.source.len_bytes(), &put.source_blocks);
        let target = within(window, len_bytes, &put.target_blocks);
        let (from, to) = (&put.source_blocks, &put.target_blocks);
        let mut copy = Self {
            source,
            target,
            block_bytes: to.block_bytes as usize,
            count: to.count as usize,
            source_stride: from.stride as usize,
            target_stride: to.stride as usize,
        };
        if to.is_empty() {
            copy.count = 0;
        } else if from.is_contiguous() && to.is_contiguous() {
            copy.block_bytes *= copy.count;
            copy.count = 1;
        }
        copy
    }

    /// Moves the bytes.
    ///
    /// # Safety
    /// Both windows are mapped, nobody writes the source and nobody else touches the target now.
    #[inline]
    pub(super) unsafe fn run(&self) {
        if self.count == 1 {
            // SAFETY: `new` checked both ranges; they do not overlap, for the core refuses a queue that does.
            unsafe { copy_block(self.source, self.target, self.block_bytes) };
        } else {
            // SAFETY: passed on.
            unsafe { self.run_blocks() };
        }
    }

    /// # Safety
    /// As for `run`.
    #[inline(never)]
    unsafe fn run_blocks(&self) {
        let (mut source, mut target) = (self.source, self.target);
        for block in 0..self.count {
            if block > 0 {
                // Inside both ranges, which `new` checked; wrapping only so that no unsafe is needed for arithmetic.
                source = source.wrapping_add(self.source_stride);
                target = target.wrapping_add(self.target_stride);
            }
            // SAFETY: as in `run`, for this block.
            unsafe { copy_block(source, target, self.block_bytes) };
        }
    }
}

/// One block. A number, or an element of a column, is common enough not to call memcpy for it: a length known to the compiler is
/// one load and one store.
///
/// # Safety
/// Both blocks may be accessed, and do not overlap.
#[inline]
unsafe fn copy_block(source: *const u8, target: *mut u8, bytes: usize) {
    match bytes {
        // SAFETY: the caller's promise.
        8 => unsafe { std::ptr::copy_nonoverlapping(source, target, 8) },
        // SAFETY: the caller's promise.
        4 => unsafe { std::ptr::copy_nonoverlapping(source, target, 4) },
        // SAFETY: the caller's promise.
        bytes => unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) },
    }
}

fn within(base: NonNull<u8>, len_bytes: usize, blocks: &Blocks) -> *mut u8 {
    assert!(blocks.span().end <= len_bytes as u128, "bug: a put outside its window reached the backend");
    base.as_ptr().wrapping_add(blocks.offset as usize)
}
