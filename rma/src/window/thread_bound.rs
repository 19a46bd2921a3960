//! A value that may travel to other threads but is only ever touched on its own.
//! Lets an error give a handle of one rank back and still be an error that any program can pass on.

use std::fmt;
use std::mem::ManuallyDrop;
use std::thread::ThreadId;

pub(super) struct ThreadBound<T> {
    value: ManuallyDrop<T>,
    home: ThreadId,
}

// SAFETY: the value is reached, and dropped, only where the current thread is `home`; elsewhere it is leaked.
unsafe impl<T> Send for ThreadBound<T> {}

// SAFETY: a shared reference gives no way to the value at all.
unsafe impl<T> Sync for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), home: std::thread::current().id() }
    }

    fn is_home(&self) -> bool {
        std::thread::current().id() == self.home
    }

    pub(super) fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: on its own thread, and `this` is never dropped, so the value is taken only once.
        this.is_home().then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.is_home() {
            // SAFETY: on its own thread, and nothing uses the value after its owner's drop.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

impl<T> fmt::Debug for ThreadBound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadBound(..)")
    }
}
