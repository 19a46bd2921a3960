//! Messages that are declared once and sent again and again, and memory to send them from. For the two-sided baseline alone.

use super::{Bytes, Communicator, Outcome, checked, is_finalized, sys, warn_of};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

/// Memory of MPI, all zero.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    allocated: *mut u8,
    len_bytes: usize,
}

const ALIGNMENT: usize = 64;

impl Memory {
    pub(crate) fn zeroed(len_bytes: usize) -> Outcome<Self> {
        // SAFETY: a constant of the library.
        let info = unsafe { sys::RSMPI_INFO_NULL };
        let mut allocated = null_mut::<u8>();
        let room = (len_bytes + ALIGNMENT) as sys::MPI_Aint;
        // SAFETY: MPI is initialized; written before the call returns with success.
        checked("MPI_Alloc_mem", unsafe { sys::MPI_Alloc_mem(room, info, (&raw mut allocated).cast()) })?;
        let Some(start) = NonNull::new(allocated) else {
            return Err(super::Refused { call: "MPI_Alloc_mem", text: "it gave no memory".into() });
        };
        // SAFETY: less than the alignment, which the room includes.
        let base = unsafe { start.add(start.align_offset(ALIGNMENT)) };
        // SAFETY: memory that nobody else knows.
        unsafe { base.write_bytes(0, len_bytes) };
        Ok(Self { base, allocated, len_bytes })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !is_finalized() {
            // SAFETY: allocated by MPI, freed once.
            warn_of("MPI_Free_mem", unsafe { sys::MPI_Free_mem(self.allocated.cast()) });
        }
    }
}

/// A message that is sent, or received, again and again.
#[derive(Debug)]
pub(crate) struct Persistent {
    raw: sys::MPI_Request,
    active: bool,
    is_receive: bool,
    _bytes: Bytes,
}

impl Persistent {
    /// # Safety
    /// The memory is valid, and not written while the message is under way.
    pub(crate) unsafe fn send(to: &Communicator, target: c_int, tag: c_int, from: *const u8, bytes: Bytes) -> Outcome<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the caller's promise; written before the call returns with success.
        let code = unsafe { sys::MPI_Send_init(from.cast(), bytes.count, bytes.datatype, target, tag, to.raw, raw.as_mut_ptr()) };
        checked("MPI_Send_init", code)?;
        // SAFETY: written above.
        Ok(Self { raw: unsafe { raw.assume_init() }, active: false, is_receive: false, _bytes: bytes })
    }

    /// # Safety
    /// The memory is valid, and not touched while the message is under way.
    pub(crate) unsafe fn receive(on: &Communicator, origin: c_int, tag: c_int, to: *mut u8, bytes: Bytes) -> Outcome<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the caller's promise; written before the call returns with success.
        let code = unsafe { sys::MPI_Recv_init(to.cast(), bytes.count, bytes.datatype, origin, tag, on.raw, raw.as_mut_ptr()) };
        checked("MPI_Recv_init", code)?;
        // SAFETY: written above.
        Ok(Self { raw: unsafe { raw.assume_init() }, active: false, is_receive: true, _bytes: bytes })
    }

    /// # Safety
    /// As promised when the message was declared, until a test says that it is over.
    #[inline]
    pub(crate) unsafe fn start(&mut self) -> Outcome<()> {
        // SAFETY: the caller's promise; not under way.
        checked("MPI_Start", unsafe { sys::MPI_Start(&mut self.raw) })?;
        self.active = true;
        Ok(())
    }

    /// Whether it is not, or no longer, under way.
    #[inline]
    pub(crate) fn test(&mut self) -> Outcome<bool> {
        if !self.active {
            return Ok(true);
        }
        let mut done = 0;
        // SAFETY: a constant of the library.
        let ignored = unsafe { sys::RSMPI_STATUS_IGNORE };
        // SAFETY: a message that is under way; written before the call returns.
        checked("MPI_Test", unsafe { sys::MPI_Test(&mut self.raw, &mut done, ignored) })?;
        self.active = done == 0;
        Ok(!self.active)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        if is_finalized() {
            return;
        }
        if self.active && self.is_receive {
            // SAFETY: a constant of the library.
            let ignored = unsafe { sys::RSMPI_STATUS_IGNORE };
            // SAFETY: a receive that is under way; what had arrived before stays.
            warn_of("MPI_Cancel", unsafe { sys::MPI_Cancel(&mut self.raw) });
            // SAFETY: ends at once, as it is canceled or over.
            warn_of("MPI_Wait", unsafe { sys::MPI_Wait(&mut self.raw, ignored) });
        }
        // SAFETY: made by this crate, freed once; a send that is under way ends first.
        warn_of("MPI_Request_free", unsafe { sys::MPI_Request_free(&mut self.raw) });
    }
}
