//! The bytes themselves: a window of this or another board where it is mapped here, and the copy that the DMA controller makes.

use crate::descriptor::Shape;
use rma::shm::Region;
use std::sync::Arc;

/// A window, mapped.
#[derive(Clone, Debug)]
pub(super) struct Mapped(pub(super) Arc<Region>);

impl Mapped {
    fn at(&self, offset: u64) -> *mut u8 {
        self.0.base().as_ptr().wrapping_add(offset as usize)
    }
}

/// Moves the blocks of a put, one after the other, each from and to so many bytes behind the beginning of its window.
///
/// # Safety
/// Both ranges are inside their windows; nobody writes the source, and nobody else touches the target.
#[inline]
pub(super) unsafe fn copy(shape: &Shape, source: (&Mapped, u64), target: (&Mapped, u64)) {
    let (mut from, mut to) = (source.0.at(source.1).cast_const(), target.0.at(target.1));
    for block in 0..shape.count {
        if block > 0 {
            // Inside both windows by the caller's promise; wrapping only so that no unsafe is needed for arithmetic.
            (from, to) = (from.wrapping_add(shape.source_pitch as usize), to.wrapping_add(shape.target_pitch as usize));
        }
        // SAFETY: inside both windows, which the caller keeps mapped. A descriptor may ask for anything, also for a range onto itself.
        unsafe { std::ptr::copy(from, to, shape.block_bytes as usize) };
    }
}
