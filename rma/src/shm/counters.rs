//! The protocol's atomics: counters that carry arrivals and credits, and the bell that wakes a rank which sleeps.
//! Owns every memory ordering of the backend; knows neither addresses nor queues.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::Epoch;
use rustix::thread::futex;
use std::time::Duration;

/// How far one writer is: an epoch, and whether it has closed the queue. One rank writes it, another reads it.
///
/// Bit 0 is set once the writer has closed its part; the bits above hold the epoch. So `epoch << 1` compares right with both.
#[derive(Debug)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

const CLOSED: u64 = 1;

impl Counter {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Back to "never", before the counter is handed to a new writer. Only while nobody else uses it.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Publishes that everything of `epoch` is done.
    #[inline]
    pub fn publish(&self, epoch: Epoch) {
        // Release: pairs with the Acquire in `reached`. For an arrival it publishes the copies of this epoch; for a credit it
        // keeps the reads of the epoch before it from sinking below.
        self.publish_with(epoch, Ordering::Release);
    }

    #[inline]
    fn publish_with(&self, epoch: Epoch, order: Ordering) {
        self.0.store(epoch.0 << 1, order);
    }

    /// Whether the writer has published `epoch`.
    #[inline]
    pub fn reached(&self, epoch: Epoch) -> bool {
        // Acquire: pairs with the Release in `publish`.
        self.0.load(Ordering::Acquire) >= epoch.0 << 1
    }

    /// Says that nothing more will come. Called by the writer.
    pub fn close(&self) {
        // The writer is the only one that stores, so its own Relaxed load is current. Release: the reader takes a closed counter
        // for "no more writes".
        self.0.store(self.0.load(Ordering::Relaxed) | CLOSED, Ordering::Release);
    }

    /// The last published epoch, and whether the writer has closed.
    pub fn look(&self) -> (Epoch, bool) {
        // Acquire: pairs with the Release in `close`, after which the reader gives the memory to others.
        let value = self.0.load(Ordering::Acquire);
        (Epoch(value >> 1), value & CLOSED != 0)
    }
}

/// Wakes a rank that sleeps because it has no core to spin on. 1 while the owner sleeps or is about to.
///
/// The two sides must not miss each other: the owner sets the bell and then looks at its counters, a writer publishes a counter
/// and then looks at the bell. Both put a SeqCst fence in between, so at least one of them sees the other.
#[derive(Debug)]
#[repr(transparent)]
pub struct Bell(AtomicU32);

/// What the bell holds while its owner sleeps.
const SLEEPING: u32 = 1;

impl Bell {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The owner is about to sleep; it must look at its counters once more after this.
    pub(crate) fn prepare(&self) {
        self.prepare_with(Ordering::SeqCst);
    }

    fn prepare_with(&self, order: Ordering) {
        self.0.store(SLEEPING, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `ring`.
        fence(order);
    }

    /// The owner is awake again.
    pub(crate) fn awake(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// After a counter was published: whether the owner sleeps and must be woken by this caller.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        self.ring_with(Ordering::SeqCst)
    }

    #[inline]
    fn ring_with(&self, order: Ordering) -> bool {
        // SeqCst: pairs with the fence in `prepare`.
        fence(order);
        // The swap makes only one of several writers wake the owner.
        self.0.load(Ordering::Relaxed) == SLEEPING && self.0.swap(0, Ordering::Relaxed) == SLEEPING
    }

    /// Sleeps until somebody wakes, unless the bell was rung since `prepare`; at most `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        if let Ok(limit) = futex::Timespec::try_from(limit) {
            // Every way out (woken, rung before, time over, a signal) is a reason to look at the counters again. Shared, not
            // private: the writer may be another process.
            let _ = futex::wait(self.word(), futex::Flags::empty(), SLEEPING, Some(&limit));
        }
    }

    /// Wakes the owner.
    pub(crate) fn wake(&self) {
        // Nobody left to wake is as good as woken.
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
    }

    #[cfg(not(loom))]
    fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Models do not sleep: they only ask whether somebody would have to be woken.
    #[cfg(loom)]
    fn word(&self) -> &std::sync::atomic::AtomicU32 {
        unreachable!("bug: a model called the system")
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Counter>() == 8 && align_of::<Counter>() == 8);
    assert!(size_of::<Bell>() == 4 && align_of::<Bell>() == 4);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_counter_has_reached_what_it_published_and_nothing_more() {
        let counter = Counter::new();
        assert!(counter.reached(Epoch(0)) && !counter.reached(Epoch(1)));
        counter.publish(Epoch(7));
        counter.close();
        assert!(counter.reached(Epoch(7)) && !counter.reached(Epoch(8)));
        assert_eq!(counter.look(), (Epoch(7), true));
        counter.reset();
        assert_eq!(counter.look(), (Epoch(0), false));
    }
}

/// All interleavings of the protocol. Each fact has its negative control: with the ordering weakened the model must fail.
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Window {
        arrived: Counter,
        granted: Counter,
        data: UnsafeCell<u64>,
    }

    // SAFETY: the counters order the accesses to `data`; that they do is what the model checks.
    unsafe impl Sync for Window {}
    // SAFETY: as above.
    unsafe impl Send for Window {}

    /// Two epochs of one origin and one target over one cell of memory.
    fn two_epochs(arrival: Ordering, credit: Ordering) {
        loom::model(move || {
            let window = Arc::new(Window { arrived: Counter::new(), granted: Counter::new(), data: UnsafeCell::new(0) });
            window.granted.publish_with(Epoch(1), credit);
            let origin = {
                let window = window.clone();
                thread::spawn(move || {
                    for epoch in [Epoch(1), Epoch(2)] {
                        while !window.granted.reached(epoch) {
                            thread::yield_now();
                        }
                        window.data.with_mut(|data| {
                            // SAFETY: loom checks that no other access is concurrent.
                            unsafe { *data = epoch.0 }
                        });
                        window.arrived.publish_with(epoch, arrival);
                    }
                })
            };
            for epoch in [Epoch(1), Epoch(2)] {
                while !window.arrived.reached(epoch) {
                    thread::yield_now();
                }
                let seen = window.data.with(|data| {
                    // SAFETY: loom checks that no other access is concurrent.
                    unsafe { *data }
                });
                assert_eq!(seen, epoch.0);
                window.granted.publish_with(epoch.next(), credit);
            }
            origin.join().unwrap();
        });
    }

    #[test]
    fn loom_data_is_never_read_before_its_arrival_nor_written_before_its_credit() {
        two_epochs(Ordering::Release, Ordering::Release);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_relaxed_arrival_is_caught() {
        two_epochs(Ordering::Relaxed, Ordering::Release);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_relaxed_credit_is_caught() {
        two_epochs(Ordering::Release, Ordering::Relaxed);
    }

    /// The owner decides to sleep, or the writer decides to wake it, or both; never neither.
    fn bell(order: Ordering) {
        loom::model(move || {
            let shared = Arc::new((Counter::new(), Bell::new()));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.0.publish(Epoch(1));
                    shared.1.ring_with(order)
                })
            };
            shared.1.prepare_with(order);
            let sleeps = !shared.0.reached(Epoch(1));
            let woken = writer.join().unwrap();
            assert!(!sleeps || woken, "the owner sleeps and nobody wakes it");
        });
    }

    #[test]
    fn loom_a_rank_that_goes_to_sleep_is_woken() {
        bell(Ordering::SeqCst);
    }

    #[test]
    #[should_panic(expected = "nobody wakes it")]
    fn loom_a_bell_without_sequential_consistency_is_caught() {
        bell(Ordering::AcqRel);
    }
}
