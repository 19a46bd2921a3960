//! Whose turn it is to use MPI: one thread's at a time, as no more is asked of the library; and no end of MPI meanwhile.
//! Owns the count of those who use it, and the look at it before MPI ends. Knows not what they do.

use super::window::free_all;
use super::{Outcome, checked, sys};
use rma::{Error, Result};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The right to call MPI on this thread. While there is one, no other thread gets it, and MPI must not be finalized.
#[derive(Debug)]
pub(crate) struct Turn {
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

/// Who uses MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Nobody,
    ThisThread,
    AnotherThread,
}

#[derive(Debug)]
struct State {
    thread: Option<ThreadId>,
    turns: usize,
    /// Whether MPI calls `before_the_end`.
    watched: bool,
    /// Whether this crate finalizes MPI, at the end of the process.
    ending: bool,
}

static STATE: Mutex<State> = Mutex::new(State { thread: None, turns: 0, watched: false, ending: false });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turn {
    pub(super) fn take() -> Result<Self> {
        let mut state = state();
        let me = thread::current().id();
        if state.turns > 0 && state.thread != Some(me) {
            return Err(Error::Launch(
                "another thread of this process has a Comm that uses MPI, which one thread at a time may: make this Comm on that \
                 thread, or when the other is gone"
                    .into(),
            ));
        }
        state.thread = Some(me);
        state.turns += 1;
        Ok(Self { _thread: PhantomData })
    }

    /// Sees to it that the end of MPI, by whomever, is noticed. MPI is initialized.
    pub(super) fn watch_the_end(&self) -> Outcome<()> {
        let mut state = state();
        if !state.watched {
            watch()?;
            state.watched = true;
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        state().turns -= 1;
    }
}

/// Who uses MPI at the moment.
pub(super) fn user() -> User {
    let state = state();
    match state.turns {
        0 => User::Nobody,
        _ if state.thread == Some(thread::current().id()) => User::ThisThread,
        _ => User::AnotherThread,
    }
}

/// Takes note that this crate finalizes MPI, as the process ends: nothing is used after that.
pub(super) fn ending() {
    state().ending = true;
}

/// MPI deletes the attributes of `MPI_COMM_SELF` before it does anything else of its end, while everything still works.
fn watch() -> Outcome<()> {
    let mut key = 0;
    // SAFETY: functions that do not unwind; written before the call returns with success.
    let code = unsafe { sys::MPI_Comm_create_keyval(Some(copy_nothing), Some(before_the_end), &mut key, null_mut()) };
    checked("MPI_Comm_create_keyval", code)?;
    // SAFETY: a constant of the library.
    let own = unsafe { sys::RSMPI_COMM_SELF };
    // SAFETY: a key that was just made; the value is not used.
    checked("MPI_Comm_set_attr", unsafe { sys::MPI_Comm_set_attr(own, key, null_mut()) })
}

unsafe extern "C" fn copy_nothing(
    _: sys::MPI_Comm,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: the library gives a place for the answer.
    unsafe { copied.write(0) };
    0
}

unsafe extern "C" fn before_the_end(_: sys::MPI_Comm, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    let (used, ending) = {
        let state = state();
        (state.turns > 0, state.ending)
    };
    // The memory of windows goes with MPI, whatever still refers to it. Here a panic cannot unwind, so it ends the process.
    assert!(
        !used || ending,
        "MPI was finalized while a Comm that uses it is alive: drop all that was made of the Comm, and it, first"
    );
    // SAFETY: MPI is being finalized, so no rank writes any more; and nobody here refers to a window, or the process ends.
    unsafe { free_all() };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_turn_as_often_as_it_likes() {
        let elsewhere = || thread::spawn(|| (user(), Turn::take().map(drop).map_err(|error| error.to_string()))).join().unwrap();
        let turns = (Turn::take().unwrap(), Turn::take().unwrap());
        drop(turns.0);
        assert_eq!(user(), User::ThisThread);
        let (seen, refused) = elsewhere();
        assert_eq!(seen, User::AnotherThread);
        assert!(refused.unwrap_err().contains("one thread at a time"));
        drop(turns.1);
        assert_eq!(user(), User::Nobody);
        assert_eq!(elsewhere(), (User::Nobody, Ok(())));
    }
}
