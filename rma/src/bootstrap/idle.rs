//! What a thread does while it waits in a collective call.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    static WORK: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static FLIGHTS: RefCell<Vec<Rc<dyn Flights>>> = const { RefCell::new(Vec::new()) };
}

/// Epochs of this thread, which move on only when they are looked at.
pub(crate) trait Flights {
    /// Moves on what can be. Whether any is under way; `None` when there will be none any more. Must not make a collective call.
    fn advance(&self) -> Option<bool>;
}

/// How long to wait for news before the work is done again.
const PAUSE: Duration = Duration::from_micros(300);

/// Has `work` done again and again while this thread waits for other processes in a collective call: for a backend that moves
/// nothing unless it is called, so that ranks that have gone ahead help those that have not. It replaces what was to be done before,
/// ends with the joining of a job if it begins before that, and must not make a collective call.
pub fn while_waiting(work: impl Fn() + 'static) {
    WORK.set(Some(Rc::new(work)));
}

/// Has flights move on, too, for as long as there are any: other ranks may wait for them before they come to the call.
pub(crate) fn move_on(flights: impl Flights + 'static) {
    FLIGHTS.with_borrow_mut(|all| all.push(Rc::new(flights)));
}

/// The work of before is not to be done any more.
pub(super) fn end() {
    WORK.set(None);
}

/// Does the work, if there is any, and tells how long to wait until it is to be done again.
pub(super) fn work(wait: Duration) -> Duration {
    let work = WORK.with_borrow(Clone::clone);
    if let Some(work) = &work {
        work();
    }
    let mut is_flying = false;
    for flights in FLIGHTS.with_borrow(Clone::clone) {
        match flights.advance() {
            Some(flying) => is_flying |= flying,
            None => FLIGHTS.with_borrow_mut(|all| all.retain(|other| !Rc::ptr_eq(other, &flights))),
        }
    }
    if work.is_some() || is_flying { wait.min(PAUSE) } else { wait }
}
