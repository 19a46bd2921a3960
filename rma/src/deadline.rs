//! A point in time by which a collective call must have come to its end.
//! Knows the clock; knows nothing of what is waited for.

use std::time::{Duration, Instant};

/// The end of the patience of one call, and how much patience there was.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Instant>,
    patience: Duration,
}

impl Deadline {
    /// Ends `patience` from now. A duration beyond what the clock can count never ends.
    pub fn after(patience: Duration) -> Self {
        Self { at: Instant::now().checked_add(patience), patience }
    }

    /// What the caller was ready to wait, for error texts.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether the time is up.
    pub fn is_over(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// The time left, at most `cap`; zero when it is over.
    pub fn left(&self, cap: Duration) -> Duration {
        self.at.map_or(cap, |at| at.saturating_duration_since(Instant::now()).min(cap))
    }
}
