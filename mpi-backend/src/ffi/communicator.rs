//! A communicator of this crate's own.

use super::{Outcome, checked, sys, warn_of};
use mpi::traits::AsRaw;
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// A communicator of this crate's own, whose errors are returned.
#[derive(Debug)]
pub(crate) struct Communicator {
    pub(super) raw: sys::MPI_Comm,
}

impl Communicator {
    /// Collective: a copy of `MPI_COMM_WORLD`.
    pub(crate) fn world() -> Outcome<Self> {
        // SAFETY: a constant of the library.
        Self::duplicate(unsafe { sys::RSMPI_COMM_WORLD })
    }

    /// Collective: a copy of a program's own.
    pub(crate) fn copy_of(communicator: &impl AsRaw<Raw = sys::MPI_Comm>) -> Outcome<Self> {
        Self::duplicate(communicator.as_raw())
    }

    fn duplicate(raw: sys::MPI_Comm) -> Outcome<Self> {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: MPI is initialized, and the communicator alive; written before the call returns with success.
        checked("MPI_Comm_dup", unsafe { sys::MPI_Comm_dup(raw, copy.as_mut_ptr()) })?;
        // SAFETY: written above.
        let copy = Self { raw: unsafe { copy.assume_init() } };
        // SAFETY: a constant of the library.
        let returned = unsafe { sys::RSMPI_ERRORS_RETURN };
        // SAFETY: a communicator that is alive.
        checked("MPI_Comm_set_errhandler", unsafe { sys::MPI_Comm_set_errhandler(copy.raw, returned) })?;
        Ok(copy)
    }

    /// This rank in `MPI_COMM_WORLD`, and how many there are.
    pub(crate) fn place_in_world() -> Outcome<(u32, u32)> {
        // SAFETY: a constant of the library.
        let world = unsafe { sys::RSMPI_COMM_WORLD };
        Ok((rank_in(world)?, size_of(world)?))
    }

    pub(crate) fn rank(&self) -> Outcome<u32> {
        rank_in(self.raw)
    }

    pub(crate) fn size(&self) -> Outcome<u32> {
        size_of(self.raw)
    }

    /// Collective: the ranks that can share memory with this one.
    pub(crate) fn on_this_host(&self) -> Outcome<Self> {
        let mut part = MaybeUninit::uninit();
        // SAFETY: a constant of the library.
        let kind = unsafe { sys::RSMPI_COMM_TYPE_SHARED };
        // SAFETY: as above.
        let info = unsafe { sys::RSMPI_INFO_NULL };
        // SAFETY: a communicator that is alive; written before the call returns with success.
        checked("MPI_Comm_split_type", unsafe { sys::MPI_Comm_split_type(self.raw, kind, 0, info, part.as_mut_ptr()) })?;
        // SAFETY: written above.
        Ok(Self { raw: unsafe { part.assume_init() } })
    }

    /// Collective: what rank 0 says, on every rank. Whatever the others give is replaced.
    pub(crate) fn broadcast(&self, words: Vec<u8>) -> Outcome<Vec<u8>> {
        let mut len = words.len() as u64;
        // SAFETY: a constant of the library.
        let number = unsafe { sys::RSMPI_UINT64_T };
        // SAFETY: a communicator that is alive, and one number on every rank.
        checked("MPI_Bcast", unsafe { sys::MPI_Bcast((&raw mut len).cast(), 1, number, 0, self.raw) })?;
        let mut words = words;
        words.resize(len as usize, 0);
        // SAFETY: a constant of the library.
        let byte = unsafe { sys::RSMPI_UINT8_T };
        // SAFETY: a communicator that is alive, and as many bytes on every rank, a few hundred.
        checked("MPI_Bcast", unsafe { sys::MPI_Bcast(words.as_mut_ptr().cast(), len as c_int, byte, 0, self.raw) })?;
        Ok(words)
    }

    /// Collective: whether all say so.
    pub(crate) fn all(&self, mine: bool) -> Outcome<bool> {
        let (mine, mut all) = (c_int::from(mine), 0);
        // SAFETY: a constant of the library.
        let number = unsafe { sys::RSMPI_INT32_T };
        // SAFETY: as above.
        let and = unsafe { sys::RSMPI_LAND };
        // SAFETY: a communicator that is alive, and one number on every rank.
        let code = unsafe { sys::MPI_Allreduce((&raw const mine).cast(), (&raw mut all).cast(), 1, number, and, self.raw) };
        checked("MPI_Allreduce", code)?;
        Ok(all != 0)
    }

    /// Collective: for every bit, whether any rank has set it.
    pub(crate) fn any(&self, mine: &[u64]) -> Outcome<Vec<u64>> {
        let mut all = vec![0u64; mine.len()];
        // SAFETY: a constant of the library.
        let number = unsafe { sys::RSMPI_UINT64_T };
        // SAFETY: as above.
        let or = unsafe { sys::RSMPI_BOR };
        let (from, to, count) = (mine.as_ptr().cast(), all.as_mut_ptr().cast(), mine.len() as c_int);
        // SAFETY: a communicator that is alive, and as many numbers on every rank.
        checked("MPI_Allreduce", unsafe { sys::MPI_Allreduce(from, to, count, number, or, self.raw) })?;
        Ok(all)
    }

    /// Lets the library do what it has to do for others: answer, and take in what they wrote here.
    #[inline]
    pub(crate) fn progress(&self) {
        let mut found = 0;
        // SAFETY: a constant of the library.
        let anyone = unsafe { sys::RSMPI_ANY_SOURCE };
        // SAFETY: as above.
        let ignored = unsafe { sys::RSMPI_STATUS_IGNORE };
        // SAFETY: a communicator that is alive. Nobody sends with this tag: looking for it is the cheapest call that all libraries
        // make progress in. What is wrong shows in the calls that matter.
        unsafe { sys::MPI_Iprobe(anyone, super::NO_TAG, self.raw, &mut found, ignored) };
    }
}

fn rank_in(raw: sys::MPI_Comm) -> Outcome<u32> {
    let mut rank = 0;
    // SAFETY: MPI is initialized, and the communicator alive; written before the call returns.
    checked("MPI_Comm_rank", unsafe { sys::MPI_Comm_rank(raw, &mut rank) })?;
    Ok(rank as u32)
}

fn size_of(raw: sys::MPI_Comm) -> Outcome<u32> {
    let mut size = 0;
    // SAFETY: as above.
    checked("MPI_Comm_size", unsafe { sys::MPI_Comm_size(raw, &mut size) })?;
    Ok(size as u32)
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if super::is_finalized() {
            return;
        }
        // SAFETY: made by this crate, freed once, before MPI is finalized at the end of the process.
        warn_of("MPI_Comm_free", unsafe { sys::MPI_Comm_free(&mut self.raw) });
    }
}
