//! Every call of MPI, with its return code checked.
//! Owns the initialization and the end of the library. Knows nothing of queues and epochs.
#![allow(unsafe_code, reason = "calls a C library")]

mod communicator;
mod datatype;
mod message;
mod turn;
mod window;

pub(crate) use communicator::Communicator;
pub(crate) use datatype::Bytes;
pub(crate) use message::{Memory, Persistent};
pub(crate) use turn::Turn;
pub(crate) use window::{Window, word_of};

use mpi::ffi as sys;
use rma::{Error, Result};
use std::ffi::{c_char, c_int};
use turn::User;

/// A call that MPI refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text}")]
pub(crate) struct Refused {
    call: &'static str,
    text: String,
}

pub(crate) type Outcome<T> = std::result::Result<T, Refused>;

/// The tag that no message has.
const NO_TAG: c_int = 0;

#[inline]
fn checked(call: &'static str, code: c_int) -> Outcome<()> {
    if code == sys::MPI_SUCCESS as c_int { Ok(()) } else { Err(refused(call, code)) }
}

/// Of a call whose failure nobody can be told of: the end of something.
fn warn_of(call: &'static str, code: c_int) {
    if let Err(refused) = checked(call, code) {
        tracing::warn!("{refused}");
    }
}

#[cold]
fn refused(call: &'static str, code: c_int) -> Refused {
    Refused { call, text: text_of(code) }
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

/// The name and version of the library that this crate was built with.
pub(crate) fn built_with() -> String {
    /// What a library lacks of these names is found here, outside the scope of its own.
    mod absent {
        #![allow(dead_code, reason = "each library hides some of them")]
        pub(super) const OMPI_MAJOR_VERSION: u32 = 0;
        pub(super) const OMPI_MINOR_VERSION: u32 = 0;
        pub(super) const OMPI_RELEASE_VERSION: u32 = 0;
        pub(super) const MPICH_VERSION: &[u8] = b"";
    }
    #[allow(unused_imports, reason = "each library hides some of them")]
    use absent::{MPICH_VERSION, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION};
    {
        #[allow(unused_imports, reason = "gives what the library has")]
        use sys::*;
        let mpich = String::from_utf8_lossy(MPICH_VERSION);
        match OMPI_MAJOR_VERSION {
            0 if mpich.is_empty() => "an unknown MPI".into(),
            0 => format!("MPICH {}", mpich.trim_end_matches('\0')),
            major => format!("Open MPI {major}.{OMPI_MINOR_VERSION}.{OMPI_RELEASE_VERSION}"),
        }
    }
}

/// Makes sure that MPI is initialized, and that this thread may use it as long as it has the turn. Who was first to initialize is who
/// ends it: at the end of the process, if that is this crate.
pub(crate) fn initialize() -> Result<Turn> {
    let turn = Turn::take()?;
    let mut initialized = 0;
    // SAFETY: allowed at any time; written before the call returns.
    let asked = checked("MPI_Initialized", unsafe { sys::MPI_Initialized(&mut initialized) });
    asked.map_err(|refused| crate::failed("asking whether MPI is initialized", refused))?;
    if is_finalized() {
        return Err(Error::Launch("MPI was finalized already, and cannot be used again: make the Comm before that".into()));
    }
    if initialized == 0 {
        let mut provided = 0;
        // SAFETY: not initialized yet; without arguments, which MPI allows.
        let code = unsafe {
            sys::MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), sys::RSMPI_THREAD_SERIALIZED, &mut provided)
        };
        checked("MPI_Init_thread", code).map_err(|refused| crate::failed("initializing MPI", refused))?;
        return_errors().map_err(|refused| crate::failed("having MPI return its errors", refused))?;
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
    turn.watch_the_end().map_err(|refused| crate::failed("watching for the end of MPI", refused))?;
    Ok(turn)
}

/// Has the library return errors that belong to no object of this crate, as those of data types. Only in a program that left MPI
/// to this crate: another has its own way with them.
fn return_errors() -> Outcome<()> {
    // SAFETY: a constant of the library.
    let returned = unsafe { sys::RSMPI_ERRORS_RETURN };
    // SAFETY: as above.
    for communicator in [unsafe { sys::RSMPI_COMM_WORLD }, unsafe { sys::RSMPI_COMM_SELF }] {
        // SAFETY: MPI is initialized.
        checked("MPI_Comm_set_errhandler", unsafe { sys::MPI_Comm_set_errhandler(communicator, returned) })?;
    }
    Ok(())
}

/// Whether nothing may be called any more.
pub(crate) fn is_finalized() -> bool {
    let mut finalized = 0;
    // SAFETY: allowed at any time; written before the call returns.
    let asked = unsafe { sys::MPI_Finalized(&mut finalized) };
    asked != 0 || finalized != 0
}

/// At the end of the process: without it, launchers take the rank for one that failed.
extern "C" fn finalize() {
    // A thread that the process does not wait for may be in a call of MPI: its launcher will see this rank end in the middle.
    if is_finalized() || turn::user() == User::AnotherThread {
        return;
    }
    // Finalizing waits for the other ranks, and those must not wait for this one, should its Comm still be there.
    rma::bootstrap::leave();
    turn::ending();
    // SAFETY: initialized by this crate, and not finalized. Nobody is left to be told how it went; the launcher sees it.
    unsafe { sys::MPI_Finalize() };
}
