//! What a thread does while it waits in a collective call.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    static WORK: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// How long to wait for news before the work is done again.
const PAUSE: Duration = Duration::from_micros(300);

/// Has `work` done again and again while this thread waits for other processes in a collective call: for a backend that moves
/// nothing unless it is called, so that ranks that have gone ahead help those that have not. It replaces what was to be done before,
/// ends with the joining of a job if it begins before that, and must not make a collective call.
pub fn while_waiting(work: impl Fn() + 'static) {
    WORK.set(Some(Rc::new(work)));
}

/// Nothing is to be done any more.
pub(super) fn end() {
    WORK.set(None);
}

/// Does the work, if there is any, and tells how long to wait until it is to be done again.
pub(super) fn work(wait: Duration) -> Duration {
    let Some(work) = WORK.with_borrow(Clone::clone) else { return wait };
    work();
    wait.min(PAUSE)
}
