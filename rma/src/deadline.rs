//! A point in time by which a collective call must have come to its end, and what the call is for.
//! Knows the clock; knows nothing of what is waited for.

use std::time::{Duration, Instant};

/// What a collective call is for, so that ranks that do different things can be told what each of them does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Something that the program agrees on by itself.
    #[default]
    Program,
    /// Making a `Comm`.
    SetUp,
    /// `window_alloc`.
    WindowAlloc,
    /// `commit`.
    Commit,
    /// `free`.
    Free,
    /// `barrier`.
    Barrier,
}

/// The end of the patience of one call, how much patience there was, and what the call is for.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Instant>,
    patience: Duration,
    purpose: Purpose,
}

impl Deadline {
    /// Ends `patience` from now. A duration beyond what the clock can count never ends.
    pub fn after(patience: Duration) -> Self {
        Self { at: Instant::now().checked_add(patience), patience, purpose: Purpose::default() }
    }

    /// The same, of a call that is part of something the library does.
    pub(crate) fn of(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    /// What the call is for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
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
