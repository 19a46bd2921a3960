//! How a rank waits for counters that others write: spinning with a core of its own, else giving it away and sleeping on its bell.
//! Owns what a poll does between two looks; knows no queue.

use super::counters::Bell;
use std::time::Duration;

/// Chosen once for all ranks of a job: whether there are more of them than cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    crowded: bool,
}

/// How often a wait polls in a row: spinning for some tens of microseconds with a core each, else yielding in between.
const POLLS_WITH_A_CORE_EACH: u32 = 1000;
const POLLS_WHEN_CROWDED: u32 = 64;
/// Turns of `park` in which a rank with a core of its own keeps it.
const PATIENT_TURNS: u32 = 40;
/// Turns of `park`, each after many polls that yield, before a crowded rank sleeps.
const YIELDING_TURNS: u32 = 4;

impl Patience {
    /// `crowded`: more ranks than cores.
    pub(super) const fn new(crowded: bool) -> Self {
        Self { crowded }
    }

    /// How many times a wait polls before it looks at the clock, for [`Caps`](crate::backend::Caps).
    pub const fn polls_per_look(self) -> u32 {
        if self.crowded { POLLS_WHEN_CROWDED } else { POLLS_WITH_A_CORE_EACH }
    }

    /// Between two looks: leaves the core to whoever may bring what is missing, if it wants one.
    #[inline]
    pub fn relax(self) {
        if self.crowded {
            rustix::thread::sched_yield();
        } else {
            std::hint::spin_loop();
        }
    }

    /// What [`Committed::park`](crate::backend::Committed::park) asks for. `is_done` looks at everything that comes with `bell`.
    pub fn park(self, turn: u32, limit: Duration, bell: &Bell, is_done: impl FnOnce() -> bool) {
        match self.crowded {
            false if turn < PATIENT_TURNS => {}
            true if turn >= YIELDING_TURNS => {
                bell.prepare();
                if !is_done() {
                    bell.sleep(limit);
                }
                bell.awake();
            }
            _ => rustix::thread::sched_yield(),
        }
    }

    /// After something was published: wakes the owner of `bell` if it may have gone to sleep. Whoever has a core does not sleep.
    #[inline]
    pub fn ring(self, bell: &Bell) {
        if self.crowded {
            ring_crowded(bell);
        }
    }

    /// In words, for reports.
    pub const fn describe(self) -> &'static str {
        if self.crowded { "spin, yield, then sleep (more ranks than cores)" } else { "spin (a core for every rank)" }
    }
}

#[cold]
fn ring_crowded(bell: &Bell) {
    if bell.ring() {
        bell.wake();
    }
}
