//! Time on an emulated device: the same on every run, whatever the machine does. Pure; who keeps such a clock is a backend.

use std::time::Duration;

/// An epoch on the clock of an emulated device, counted from when the rank's backend was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualSpan {
    /// When it was started.
    pub begun: Duration,
    /// When this rank's puts were complete and everything had arrived.
    pub ended: Duration,
}

impl VirtualSpan {
    /// From start to end.
    pub const fn duration(&self) -> Duration {
        self.ended.saturating_sub(self.begun)
    }

    /// From the first start to the last end of both.
    pub fn join(self, other: Self) -> Self {
        Self { begun: self.begun.min(other.begun), ended: self.ended.max(other.ended) }
    }
}
