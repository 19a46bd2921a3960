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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_epochs_are_timed_and_no_others() {
        let mut times = Times::new();
        assert_eq!(times.summary(), None);
        let room = times.all_us.capacity();
        // Odd ones take long. Emulated times count, not those of this test.
        for epoch in 1..=2 * TIMED_EPOCHS as u64 {
            let ended = Duration::from_micros(if epoch % 2 == 1 { 1000 + epoch } else { epoch });
            if let Some(stopwatch) = times.begin() {
                stopwatch.stop(Some(VirtualSpan { begun: Duration::ZERO, ended }));
            }
        }
        let whole_us = times.summary().map(|(epochs, median_us, least_us)| (epochs, median_us.round(), least_us.round()));
        assert_eq!(whole_us, Some((TIMED_EPOCHS, 1001.0, 2.0)));
        assert_eq!(times.all_us.capacity(), room);
    }

    #[test]
    fn an_epoch_that_fails_is_not_timed() {
        let mut times = Times::new();
        assert!(times.begin().is_some());
        assert_eq!(times.summary(), None);
    }
}
