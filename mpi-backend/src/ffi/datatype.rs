//! How bytes lie in memory, as MPI is told of it.

use super::{Outcome, checked, is_finalized, sys, warn_of};
use crate::plan::Layout;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// A data type of this crate's own.
#[derive(Debug)]
pub(crate) struct Datatype {
    raw: sys::MPI_Datatype,
}

impl Datatype {
    /// `count` blocks of `block_bytes` at distances of `stride`.
    fn blocks(count: c_int, block_bytes: c_int, stride: i64) -> Outcome<Self> {
        // SAFETY: a constant of the library.
        let byte = unsafe { sys::RSMPI_UINT8_T };
        let mut raw = MaybeUninit::uninit();
        let stride = stride as sys::MPI_Aint;
        // SAFETY: MPI is initialized; written before the call returns with success.
        let code = unsafe { sys::MPI_Type_create_hvector(count, block_bytes, stride, byte, raw.as_mut_ptr()) };
        checked("MPI_Type_create_hvector", code)?;
        // SAFETY: written above.
        let mut made = Self { raw: unsafe { raw.assume_init() } };
        // SAFETY: a data type that is alive.
        checked("MPI_Type_commit", unsafe { sys::MPI_Type_commit(&mut made.raw) })?;
        Ok(made)
    }
}

impl Drop for Datatype {
    fn drop(&mut self) {
        if !is_finalized() {
            // SAFETY: made by this crate, freed once; MPI keeps it for calls under way.
            warn_of("MPI_Type_free", unsafe { sys::MPI_Type_free(&mut self.raw) });
        }
    }
}

/// So many elements of a data type.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    pub(super) count: c_int,
    pub(super) datatype: sys::MPI_Datatype,
    _owner: Option<Rc<Datatype>>,
}

impl Bytes {
    pub(crate) fn new(layout: Layout) -> Outcome<Self> {
        match layout {
            Layout::Contiguous { bytes } => {
                // SAFETY: a constant of the library.
                let datatype = unsafe { sys::RSMPI_UINT8_T };
                Ok(Self { count: bytes as c_int, datatype, _owner: None })
            }
            Layout::Blocks { count, block_bytes, stride } => {
                let owner = Datatype::blocks(count as c_int, block_bytes as c_int, stride as i64)?;
                Ok(Self { count: 1, datatype: owner.raw, _owner: Some(Rc::new(owner)) })
            }
        }
    }

    /// One number of 64 bits, which no library writes in parts if it is aligned.
    pub(crate) fn word() -> Self {
        // SAFETY: a constant of the library.
        let datatype = unsafe { sys::RSMPI_UINT64_T };
        Self { count: 1, datatype, _owner: None }
    }
}
