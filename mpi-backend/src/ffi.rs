//! Every call of MPI, with its return code checked.
//! Owns the initialization and the end of the library. Knows no ranks of `rma`.
#![allow(unsafe_code, reason = "calls a C library")]

use mpi::ffi as sys;
use mpi::traits::AsRaw;
use rma::{Error, Result};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// A call that MPI refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text}")]
pub(crate) struct Refused {
    call: &'static str,
    text: String,
}

pub(crate) type Outcome<T> = std::result::Result<T, Refused>;

fn checked(call: &'static str, code: c_int) -> Outcome<()> {
    if code == sys::MPI_SUCCESS as c_int { Ok(()) } else { Err(Refused { call, text: text_of(code) }) }
}

/// What MPI says of an error.
fn text_of(code: c_int) -> String {
    let (mut text, mut len) = ([0; sys::MPI_MAX_ERROR_STRING as usize], 0);
    // SAFETY: room for the longest text; both are written before the call returns.
    match unsafe { sys::MPI_Error_string(code, text.as_mut_ptr(), &mut len) } {
        0 => lossy(&text, len),
        _ => format!("error {code}"),
    }
}

fn lossy(text: &[c_char], len: c_int) -> String {
    let bytes: Vec<u8> = text.iter().take(usize::try_from(len).unwrap_or(0)).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The first line of what the library says of itself. MPI need not be initialized.
pub(crate) fn library_version() -> String {
    let mut len = 0;
    let mut text = vec![0; sys::MPI_MAX_LIBRARY_VERSION_STRING as usize];
    // SAFETY: room for the longest text; both are written before the call returns.
    let code = unsafe { sys::MPI_Get_library_version(text.as_mut_ptr(), &mut len) };
    let all = if code == 0 { lossy(&text, len) } else { String::new() };
    let line = all.lines().next().unwrap_or_default().split(", package").next().unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Makes sure that MPI is initialized. Who was first to do so is who ends it: at the end of the process, if that is this crate.
pub(crate) fn initialize() -> Result<()> {
    let (mut initialized, mut finalized) = (0, 0);
    // SAFETY: allowed at any time; written before the call returns.
    let asked = checked("MPI_Initialized", unsafe { sys::MPI_Initialized(&mut initialized) });
    asked.map_err(|refused| crate::failed("asking whether MPI is initialized", refused))?;
    // SAFETY: as above.
    let asked = checked("MPI_Finalized", unsafe { sys::MPI_Finalized(&mut finalized) });
    asked.map_err(|refused| crate::failed("asking whether MPI is finalized", refused))?;
    if finalized != 0 {
        return Err(Error::Launch("MPI was finalized already, and cannot be used again: make the Comm before that".into()));
    }
    if initialized == 0 {
        let mut provided = 0;
        // SAFETY: not initialized yet; without arguments, which MPI allows.
        let code = unsafe {
            sys::MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), sys::RSMPI_THREAD_SERIALIZED, &mut provided)
        };
        checked("MPI_Init_thread", code).map_err(|refused| crate::failed("initializing MPI", refused))?;
        // SAFETY: a function without arguments that does not unwind.
        if unsafe { libc::atexit(finalize) } != 0 {
            return Err(Error::Launch("the end of MPI could not be arranged for the end of the process: out of memory".into()));
        }
    }
    let mut level = 0;
    // SAFETY: initialized; written before the call returns.
    let asked = checked("MPI_Query_thread", unsafe { sys::MPI_Query_thread(&mut level) });
    asked.map_err(|refused| crate::failed("asking for the thread level of MPI", refused))?;
    let mut is_main = 0;
    // SAFETY: as above.
    let asked = checked("MPI_Is_thread_main", unsafe { sys::MPI_Is_thread_main(&mut is_main) });
    asked.map_err(|refused| crate::failed("asking for the main thread of MPI", refused))?;
    // SAFETY: constants of the library.
    let serialized = unsafe { sys::RSMPI_THREAD_SERIALIZED };
    if level < serialized && is_main == 0 {
        return Err(Error::Launch(
            "MPI was initialized with a thread level below MPI_THREAD_SERIALIZED, and this is not its main thread: make the Comm on the \
             main thread, or initialize MPI with that level"
                .into(),
        ));
    }
    Ok(())
}

/// At the end of the process: without it, launchers take the rank for one that failed.
extern "C" fn finalize() {
    let mut finalized = 0;
    // SAFETY: allowed at any time; written before the call returns.
    let asked = unsafe { sys::MPI_Finalized(&mut finalized) };
    if asked == 0 && finalized == 0 {
        // SAFETY: initialized by this crate, and not finalized.
        unsafe { sys::MPI_Finalize() };
    }
}

/// A communicator of this crate's own, whose errors are returned.
#[derive(Debug)]
pub(crate) struct Communicator {
    raw: sys::MPI_Comm,
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

    pub(crate) fn rank(&self) -> Outcome<u32> {
        let mut rank = 0;
        // SAFETY: a communicator that is alive; written before the call returns.
        checked("MPI_Comm_rank", unsafe { sys::MPI_Comm_rank(self.raw, &mut rank) })?;
        Ok(rank as u32)
    }

    pub(crate) fn size(&self) -> Outcome<u32> {
        let mut size = 0;
        // SAFETY: as above.
        checked("MPI_Comm_size", unsafe { sys::MPI_Comm_size(self.raw, &mut size) })?;
        Ok(size as u32)
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
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: made by this crate, freed once, before MPI is finalized at the end of the process.
        if let Err(refused) = checked("MPI_Comm_free", unsafe { sys::MPI_Comm_free(&mut self.raw) }) {
            tracing::warn!("{refused}");
        }
    }
}
