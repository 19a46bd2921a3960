//! How long epochs take: the first ones only, so that a start costs no look at the clock for ever.

use rma::VirtualSpan;
use std::time::Instant;

/// How many epochs are timed.
pub(super) const TIMED_EPOCHS: usize = 32;

/// The times of the first epochs in microseconds: by the clock of an emulated device where there is one.
#[derive(Debug)]
pub(super) struct Times {
    all_us: Vec<f64>,
}

/// An epoch that is being timed.
#[derive(Debug)]
pub(super) struct Stopwatch<'e> {
    all_us: &'e mut Vec<f64>,
    begun: Instant,
}

impl Times {
    /// With room for all: no epoch allocates.
    pub(super) fn new() -> Self {
        Self { all_us: Vec::with_capacity(TIMED_EPOCHS) }
    }

    /// `None` once enough epochs were timed.
    #[inline]
    pub(super) fn begin(&mut self) -> Option<Stopwatch<'_>> {
        (self.all_us.len() < TIMED_EPOCHS).then(|| Stopwatch { all_us: &mut self.all_us, begun: Instant::now() })
    }

    /// How many epochs were timed, their median and their least; `None` if there were none.
    pub(super) fn summary(&self) -> Option<(usize, f64, f64)> {
        let mut sorted = self.all_us.clone();
        sorted.sort_by(f64::total_cmp);
        Some((sorted.len(), *sorted.get(sorted.len() / 2)?, *sorted.first()?))
    }
}

impl Stopwatch<'_> {
    /// Takes the time of an epoch that has arrived.
    #[cold]
    pub(super) fn stop(self, by_emulation: Option<VirtualSpan>) {
        let taken = by_emulation.map_or_else(|| self.begun.elapsed(), |span| span.duration());
        self.all_us.push(taken.as_secs_f64() * 1e6);
    }
}
