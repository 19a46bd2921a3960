//! Windows of MPI: memory that every rank of a communicator may write, from the allocation to the end.

use super::{Bytes, Communicator, Outcome, Refused, checked, sys, warn_of};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

/// A window with this rank's part of its memory. Dropping it frees nothing, as only all ranks together can; what has not been
/// freed is, in the order of making, when MPI is finalized.
#[derive(Debug)]
pub(crate) struct Window {
    raw: sys::MPI_Win,
    number: u64,
    base: NonNull<u8>,
    len_bytes: usize,
}

/// A handle that may be kept in a static: whoever uses it holds to the thread level that MPI was initialized with.
struct Handle(sys::MPI_Win);

// SAFETY: a name of an object of the library, which any thread may use that is allowed to call MPI.
unsafe impl Send for Handle {}

/// The windows that are not freed, by their number: all ranks make and free the same, so they have the same.
static ALIVE: Mutex<(u64, BTreeMap<u64, Handle>)> = Mutex::new((0, BTreeMap::new()));

/// The alignment of a window's memory, at least.
const ALIGNMENT: usize = 64;
const PAGE: usize = 4096;

impl Window {
    /// Collective: a window with `len_bytes` bytes on this rank, on every rank or on none. They are to be taken into use next.
    pub(crate) fn allocate(communicator: &Communicator, len_bytes: usize) -> Outcome<Self> {
        let made = make(communicator, len_bytes);
        // Ranks must agree on the windows that there are, and no library promises that all of a call fail.
        let all_made = communicator.all(made.is_ok())?;
        let (raw, base) = made?;
        if !all_made {
            // It stays, for freeing takes all ranks.
            return Err(Refused { call: "MPI_Win_allocate", text: "it failed on another rank".into() });
        }
        Ok(Self { raw, number: keep(raw), base, len_bytes })
    }

    /// Makes the memory all zero, or says what is wrong with it. Concerns this rank alone.
    ///
    /// # Safety
    /// No rank writes here yet, and nobody uses the memory.
    pub(crate) unsafe fn take_into_use(&self) -> Outcome<()> {
        require_unified(self.raw)?;
        provide(self.base, self.len_bytes)?;
        // SAFETY: memory of this rank, which nobody uses, as the caller promises.
        unsafe { self.base.write_bytes(0, self.len_bytes) };
        Ok(())
    }

    /// The first byte of this rank's part.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Which of all windows it is, the same on every rank.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where the memory begins in what MPI allocated here, for those who write.
    pub(crate) fn displacement(&self) -> Outcome<u64> {
        let (mut start, mut found) = (null_mut::<c_void>(), 0);
        // SAFETY: a window that is alive; both are written before the call returns.
        let code = unsafe { sys::MPI_Win_get_attr(self.raw, sys::MPI_WIN_BASE as c_int, (&raw mut start).cast(), &mut found) };
        checked("MPI_Win_get_attr", code)?;
        if found == 0 {
            return Err(Refused { call: "MPI_Win_get_attr", text: "the window has no base".into() });
        }
        Ok((self.base.as_ptr().addr() - start.addr()) as u64)
    }

    /// Begins to write into a rank's part, `displacement` bytes from where MPI's memory begins there.
    ///
    /// # Safety
    /// The source is valid, and not written until a flush; the target is inside the rank's part, and is touched by nobody else until
    /// it is told.
    #[inline]
    pub(crate) unsafe fn put(&self, source: *const u8, from: &Bytes, target: c_int, displacement: i64, to: &Bytes) -> Outcome<()> {
        // SAFETY: the caller's promise; data types and the window are alive.
        let code = unsafe {
            sys::MPI_Put(
                source.cast(),
                from.count,
                from.datatype,
                target,
                displacement as sys::MPI_Aint,
                to.count,
                to.datatype,
                self.raw,
            )
        };
        checked("MPI_Put", code)
    }

    /// Returns when all that was put to a rank is there.
    #[inline]
    pub(crate) fn flush(&self, target: c_int) -> Outcome<()> {
        // SAFETY: a window that is alive and locked.
        checked("MPI_Win_flush", unsafe { sys::MPI_Win_flush(target, self.raw) })
    }

    /// Returns when the sources of all that was put to a rank may be used again.
    #[inline]
    pub(crate) fn flush_local(&self, target: c_int) -> Outcome<()> {
        // SAFETY: a window that is alive and locked.
        checked("MPI_Win_flush_local", unsafe { sys::MPI_Win_flush_local(target, self.raw) })
    }

    /// Collective: gives the memory back.
    pub(crate) fn free(self) -> Outcome<()> {
        forget(self.number);
        // SAFETY: nobody holds the window here, and so does every other rank that calls this; freed once, as it is forgotten.
        unsafe { free(self.raw) }
    }
}

/// A word of this rank's part, which others write.
pub(crate) fn word_of(window: &Window, offset: usize) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= window.len_bytes, "bug: no word of the window");
    // SAFETY: inside the memory, checked above.
    let word = unsafe { window.base.add(offset) }.cast::<AtomicU64>();
    // SAFETY: aligned as the offset is; here it is only read and written as an atomic, and the memory lives as long as the window,
    // which is freed by its owner alone.
    unsafe { word.as_ref() }
}

/// Ends the epoch of a window, and the window.
///
/// # Safety
/// As for [`Window::free`].
unsafe fn free(mut raw: sys::MPI_Win) -> Outcome<()> {
    // SAFETY: locked since it was made.
    checked("MPI_Win_unlock_all", unsafe { sys::MPI_Win_unlock_all(raw) })?;
    // SAFETY: the caller's promise.
    checked("MPI_Win_free", unsafe { sys::MPI_Win_free(&mut raw) })
}

fn keep(raw: sys::MPI_Win) -> u64 {
    let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let number = alive.0;
    alive.0 += 1;
    alive.1.insert(number, Handle(raw));
    number
}

fn forget(number: u64) {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number);
}

/// Collective: a window, and the first aligned byte of its memory here.
fn make(communicator: &Communicator, len_bytes: usize) -> Outcome<(sys::MPI_Win, NonNull<u8>)> {
    let room = len_bytes.checked_add(ALIGNMENT).and_then(|room| room.checked_next_multiple_of(PAGE));
    let Some(room) = room.and_then(|room| sys::MPI_Aint::try_from(room).ok()) else {
        panic!("bug: a window of {len_bytes} bytes, more than an address can count, was admitted");
    };
    let (mut base, mut raw) = (null_mut::<c_void>(), MaybeUninit::uninit());
    let hints = Hints::new()?;
    // SAFETY: a communicator that is alive; both are written before the call returns with success.
    let code = unsafe { sys::MPI_Win_allocate(room, 1, hints.0, communicator.raw, (&raw mut base).cast(), raw.as_mut_ptr()) };
    checked("MPI_Win_allocate", code)?;
    // SAFETY: written above.
    let raw = unsafe { raw.assume_init() };
    // SAFETY: a constant of the library.
    let returned = unsafe { sys::RSMPI_ERRORS_RETURN };
    // SAFETY: a window that is alive.
    checked("MPI_Win_set_errhandler", unsafe { sys::MPI_Win_set_errhandler(raw, returned) })?;
    let Some(base) = NonNull::new(base.cast::<u8>()) else {
        return Err(Refused { call: "MPI_Win_allocate", text: "it gave no memory".into() });
    };
    // SAFETY: less than the alignment, which the room includes.
    let base = unsafe { base.add(base.align_offset(ALIGNMENT)) };
    // SAFETY: a window that is alive. No rank locks it in any other way, so there is nothing to check.
    checked("MPI_Win_lock_all", unsafe { sys::MPI_Win_lock_all(sys::MPI_MODE_NOCHECK as c_int, raw) })?;
    Ok((raw, base))
}

/// Has the system provide the pages. Libraries map files without looking whether there is room for them; who touches the memory
/// of such a file is killed.
fn provide(base: NonNull<u8>, len_bytes: usize) -> Outcome<()> {
    let page = rustix::param::page_size();
    let before = base.addr().get() % page;
    let len = (before + len_bytes).next_multiple_of(page);
    // SAFETY: pages that hold memory of the window, whose content stays as it is.
    let provided = unsafe { rustix::mm::madvise(base.as_ptr().wrapping_sub(before).cast(), len, Advice::LinuxPopulateWrite) };
    match provided {
        // Older systems do not know it.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(cause) => {
            let text = format!("the system has no memory for its {len_bytes} bytes ({cause})");
            Err(Refused { call: "MPI_Win_allocate", text })
        }
    }
}

/// Refuses a window whose memory is not what its owner reads.
fn require_unified(raw: sys::MPI_Win) -> Outcome<()> {
    let (mut model, mut found) = (null_mut::<c_int>(), 0);
    // SAFETY: a window that is alive; both are written before the call returns.
    let code = unsafe { sys::MPI_Win_get_attr(raw, sys::MPI_WIN_MODEL as c_int, (&raw mut model).cast(), &mut found) };
    checked("MPI_Win_get_attr", code)?;
    // SAFETY: points to a number of the library where it was found.
    if found != 0 && unsafe { *model } == unified() {
        return Ok(());
    }
    let text =
        "this MPI keeps what others write apart from what a rank reads (MPI_WIN_SEPARATE), which takes a call for each look; \
                use another backend here"
            .into();
    Err(Refused { call: "MPI_Win_allocate", text })
}

/// `MPI_WIN_UNIFIED`, which libraries declare in different ways.
fn unified() -> c_int {
    /// What a library lacks of these names is found here, outside the scope of its own.
    mod absent {
        #![allow(dead_code, non_upper_case_globals, reason = "each library hides one of them")]
        pub(super) const MPI_WIN_UNIFIED: u32 = 0;
        pub(super) const MPIR_Win_model_MPI_WIN_UNIFIED: u32 = 0;
    }
    #[allow(unused_imports, reason = "each library hides one of them")]
    use absent::{MPI_WIN_UNIFIED, MPIR_Win_model_MPI_WIN_UNIFIED};
    {
        #[allow(unused_imports, reason = "gives what the library has")]
        use sys::*;
        (MPI_WIN_UNIFIED | MPIR_Win_model_MPI_WIN_UNIFIED) as c_int
    }
}

/// What the allocation is told about the use of a window.
struct Hints(sys::MPI_Info);

impl Hints {
    fn new() -> Outcome<Self> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: MPI is initialized; written before the call returns with success.
        checked("MPI_Info_create", unsafe { sys::MPI_Info_create(raw.as_mut_ptr()) })?;
        // SAFETY: written above.
        let hints = Self(unsafe { raw.assume_init() });
        hints.set(c"alloc_shared_noncontig", c"true")?;
        Ok(hints)
    }

    fn set(&self, key: &CStr, value: &CStr) -> Outcome<()> {
        // SAFETY: an object that is alive, and two texts with their ends.
        checked("MPI_Info_set", unsafe { sys::MPI_Info_set(self.0, key.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: made by this crate, freed once.
        warn_of("MPI_Info_free", unsafe { sys::MPI_Info_free(&mut self.0) });
    }
}

/// Frees all windows, in the order of making: the same on every rank.
///
/// # Safety
/// No rank writes any more, and nobody here uses a window again.
pub(super) unsafe fn free_all() {
    let alive = std::mem::take(&mut ALIVE.lock().unwrap_or_else(PoisonError::into_inner).1);
    for Handle(raw) in alive.into_values() {
        // SAFETY: the caller's promise.
        if unsafe { free(raw) }.is_err() {
            // Whatever is wrong, finalizing says so, too.
            break;
        }
    }
}
