//! How long things take: on this machine, and on an emulated device, where there is one with a clock of its own.

use rma::Comm;
use std::ops::{AddAssign, Div};
use std::time::{Duration, Instant};

/// A moment on the clocks of a rank.
#[derive(Debug)]
pub struct Moment<'a> {
    comm: &'a Comm,
    real: Instant,
    emulated: Option<Duration>,
}

impl<'a> Moment<'a> {
    /// This one.
    pub fn now(comm: &'a Comm) -> Self {
        Self { comm, real: Instant::now(), emulated: comm.virtual_now() }
    }

    /// What has passed since.
    pub fn elapsed(&self) -> Span {
        let now = self.comm.virtual_now();
        let emulated = now.zip(self.emulated).map(|(now, then)| now.saturating_sub(then));
        Span { real: self.real.elapsed(), emulated }
    }
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// On this machine.
    pub real: Duration,
    /// On the emulated device, on which computing takes no time; `None` without one.
    pub emulated: Option<Duration>,
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        self.real += other.real;
        self.emulated = self.emulated.into_iter().chain(other.emulated).reduce(|sum, more| sum + more);
    }
}

impl Div<u32> for Span {
    type Output = Self;

    fn div(self, parts: u32) -> Self {
        Self { real: self.real / parts, emulated: self.emulated.map(|emulated| emulated / parts) }
    }
}
