//! Memory of its own pages, for windows and for packing.
//! Knows no device.
#![allow(unsafe_code, reason = "maps memory, and copies between windows and packing buffers")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

/// Zeroed pages, mapped until dropped. Written by devices and by the ranks that the protocol gives them to.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len_bytes: usize,
}

/// What is said of memory that has no byte: aligned, and never touched.
const NOWHERE: usize = 4096;
/// From this length on, the system is asked for large pages: a device looks up fewer of them.
const LARGE_BYTES: usize = 2 << 20;

impl Memory {
    pub(crate) fn new(len_bytes: usize) -> io::Result<Self> {
        if len_bytes == 0 {
            let base = NonNull::new(std::ptr::without_provenance_mut(NOWHERE));
            return base.map(|base| Self { base, len_bytes }).ok_or_else(|| io::Error::other("bug: nowhere is null"));
        }
        // SAFETY: new pages at an address of the system's choice.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the system mapped memory at address 0"))?;
        let memory = Self { base, len_bytes };
        if len_bytes >= LARGE_BYTES {
            // SAFETY: pages mapped above. Whether the system follows the advice makes no difference but in speed.
            let _ = unsafe { madvise(base.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
        }
        Ok(memory)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Where it begins, as devices and copies name it.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len_bytes > 0 {
            // SAFETY: mapped by `new` with this length; whoever uses the pages holds this object.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
            if let Err(cause) = unmapped {
                tracing::warn!("unmapping {} bytes: {cause}", self.len_bytes);
            }
        }
    }
}

/// A copy of a block into a packing buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gather {
    /// The address it is read from.
    pub(crate) from: u64,
    /// Where in the packing buffer it goes.
    pub(crate) at: usize,
    pub(crate) len_bytes: usize,
}

/// Copies blocks into a packing buffer.
///
/// # Safety
/// What is read is mapped and not written now; nobody else uses the buffer.
pub(crate) unsafe fn gather(copies: &[Gather], buffer: &Memory) {
    for copy in copies {
        assert!(copy.at + copy.len_bytes <= buffer.len_bytes, "bug: {copy:?} into a packing buffer of {} bytes", buffer.len_bytes);
        // SAFETY: inside the buffer.
        let to = unsafe { buffer.base.as_ptr().add(copy.at) };
        let from = std::ptr::with_exposed_provenance::<u8>(copy.from as usize);
        // SAFETY: the source is the caller's promise, the buffer is no window, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, copy.len_bytes) };
    }
}
