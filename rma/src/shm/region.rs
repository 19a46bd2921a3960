//! Pieces of memory: private to this process for thread ranks, sealed memfds for processes.
//! Owns mapping and unmapping, and that a mapping is as long as was promised; knows no ranks.

use crate::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Zeroed memory, aligned to a page. Others may write it at any time, so it is only given out as a pointer.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len_bytes: usize,
    /// The memfd, on the rank that made it.
    descriptor: Option<OwnedFd>,
}

// SAFETY: a region is an address range that any thread may use; who may touch which bytes when is the business of its users.
unsafe impl Send for Region {}
// SAFETY: as above; the methods only hand out the address.
unsafe impl Sync for Region {}

/// The least large page of the processors in use.
const HUGE_PAGE_BYTES: usize = 2 << 20;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Region {
    /// Memory that only this process has.
    pub(super) fn private(len_bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), map_len(len_bytes), protection, MapFlags::PRIVATE) };
        let region = Self::from_mapping(base, len_bytes)?;
        region.use_huge_pages();
        region.populate(0..len_bytes)?;
        Ok(region)
    }

    /// Asks for large pages where they fit: a face of a large array has a few bytes on each of its pages, and looking up so many pages
    /// takes longer than the bytes do. Where the system has none, nothing is lost.
    fn use_huge_pages(&self) {
        if self.len_bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range is this mapping; which pages it has changes no contents.
            let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), map_len(self.len_bytes), Advice::LinuxHugepage) };
        }
    }

    /// Memory that can be handed to other processes by its descriptor. It has no name and cannot change its length.
    pub(super) fn shareable(len_bytes: usize) -> Result<Self> {
        let doing = |what: &str| format!("{what} a shared memory object of {len_bytes} bytes");
        let descriptor = rustix::fs::memfd_create("rma", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|cause| Error::os(doing("making") + " (too many open files? raise `ulimit -n`)", cause))?;
        if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Fsize).current
            && map_len(len_bytes) as u64 > limit
        {
            let mend = "raise it with `ulimit -f unlimited`".into();
            return Err(Error::Limit { what: "shared memory object of bytes", asked: len_bytes as u64, limit, mend });
        }
        rustix::fs::ftruncate(&descriptor, map_len(len_bytes) as u64).map_err(|cause| Error::os(doing("sizing"), cause))?;
        rustix::fs::fcntl_add_seals(&descriptor, SEALS).map_err(|cause| Error::os(doing("sealing"), cause))?;
        let mut region = Self::map(descriptor.as_fd(), len_bytes)?;
        region.descriptor = Some(descriptor);
        region.populate(0..len_bytes)?;
        Ok(region)
    }

    /// Maps what another process handed over, once it is as long as promised and cannot shrink: touching it never faults.
    pub(super) fn received(descriptor: &OwnedFd, len_bytes: usize) -> Result<Self> {
        let foreign = |reason: String| Error::Malformed { what: "shared memory", from: "a peer".into(), reason };
        let stat = rustix::fs::fstat(descriptor).map_err(|cause| Error::os("looking at received shared memory", cause))?;
        let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(|_| foreign("it is no memfd".into()))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(foreign("it could be shortened while it is in use".into()));
        }
        if u64::try_from(stat.st_size).unwrap_or(0) < map_len(len_bytes) as u64 {
            return Err(foreign(format!("it has {} bytes where {len_bytes} were promised", stat.st_size)));
        }
        Self::map(descriptor.as_fd(), len_bytes)
    }

    fn map(descriptor: BorrowedFd<'_>, len_bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), map_len(len_bytes), protection, MapFlags::SHARED, descriptor, 0) };
        Self::from_mapping(base, len_bytes)
    }

    fn from_mapping(base: rustix::io::Result<*mut std::ffi::c_void>, len_bytes: usize) -> Result<Self> {
        let base = base.map_err(|cause| Error::os(format!("mapping {len_bytes} bytes of memory"), cause))?;
        let Some(base) = NonNull::new(base.cast()) else { panic!("bug: the kernel mapped memory at address 0") };
        Ok(Self { base, len_bytes, descriptor: None })
    }

    /// Has the kernel provide the pages of a range now, so that a lack of memory is an error here and not a signal later, and the
    /// first exchange is as fast as the others. The range lies inside the region.
    pub(super) fn populate(&self, bytes: Range<usize>) -> Result<()> {
        let page = rustix::param::page_size();
        let first = bytes.start / page * page;
        let end = bytes.end.next_multiple_of(page).min(map_len(self.len_bytes));
        if bytes.is_empty() || first >= end {
            return Ok(());
        }
        let start = self.base.as_ptr().wrapping_add(first);
        // SAFETY: the range is inside this mapping; providing its pages changes no contents.
        let populated = unsafe { rustix::mm::madvise(start.cast(), end - first, Advice::LinuxPopulateWrite) };
        match populated {
            // Kernels before 5.14 do not know the advice; there the pages come when they are touched.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(cause) => {
                let doing = format!("getting {} bytes of memory from the system: allocate less, or free some", end - first);
                Err(Error::os(doing, cause))
            }
        }
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How many bytes were asked for.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The descriptor to hand to another process, on the rank that made the region.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and whoever used a pointer into it held the object alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), map_len(self.len_bytes)) };
        debug_assert!(unmapped.is_ok(), "bug: a region was mapped that cannot be unmapped");
    }
}

/// The length of the mapping: whole pages, at least one.
fn map_len(len_bytes: usize) -> usize {
    let page = rustix::param::page_size();
    len_bytes.max(1).checked_next_multiple_of(page).unwrap_or(usize::MAX - page + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_received_region_shows_the_same_bytes() {
        let made = Region::shareable(5000).unwrap();
        let descriptor = made.descriptor().unwrap().try_clone_to_owned().unwrap();
        let received = Region::received(&descriptor, 5000).unwrap();
        assert_ne!(made.base(), received.base(), "two mappings of one memory");
        // SAFETY: the mapping is alive and not empty, and only this thread uses it.
        unsafe { made.base().write(42) };
        // SAFETY: as above.
        let seen = unsafe { received.base().read() };
        assert_eq!(seen, 42);
    }

    #[test]
    fn memory_that_is_too_short_or_could_shrink_is_refused() {
        let made = Region::shareable(10).unwrap();
        let descriptor = made.descriptor().unwrap().try_clone_to_owned().unwrap();
        let error = Region::received(&descriptor, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("where 1048576 were promised"), "{error}");
        let unsealed = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(Region::received(&unsealed, 10).unwrap_err().to_string().contains("could be shortened"));
        let plain = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(Region::received(&plain, 10).is_err());
    }

    #[test]
    fn a_region_of_no_bytes_has_an_address() {
        assert_eq!(Region::private(0).unwrap().len_bytes(), 0);
        assert_eq!(Region::shareable(0).unwrap().len_bytes(), 0);
    }
}
