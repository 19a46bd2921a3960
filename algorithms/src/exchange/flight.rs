//! An epoch of an exchange under way, and one that has arrived.
//! Owns that both are used as those of a queue, however the exchange is stepped.

use super::rounds::FlyingRounds;
use super::times::Stopwatch;
use rma::{Epoch, InFlight, Pod, ReadLease, Result, RmaWindow, VirtualSpan, WriteLease};
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// A started epoch. Dropping it without `wait` makes the exchange unusable, for its memory may still be read and written.
///
/// A flight that is not used is a warning, and with warnings denied an error:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # fn f(mut exchange: rma_algorithms::Exchange<rma_algorithms::Ready>) -> rma::Result<()> {
/// exchange.start()?;
/// # Ok(()) }
/// ```
#[must_use = "an epoch that was started must be waited for"]
#[derive(Debug)]
pub struct Flight<'e> {
    flying: Flying<'e>,
    /// While epochs are timed.
    stopwatch: Option<Stopwatch<'e>>,
}

#[derive(Debug)]
pub(super) enum Flying<'e> {
    Streamed(InFlight<'e>),
    Fenced(FlyingRounds<'e>),
}

/// An epoch that has arrived: the received ranges may be read until this is dropped, which grants the next credits.
///
/// What is read from it cannot outlive it:
///
/// ```compile_fail,E0505
/// # fn f(arrived: rma_algorithms::Arrived<'_>, window: &rma::RmaWindow) -> rma::Result<f64> {
/// let ghosts = arrived.read::<f64>(window, ..)?;
/// drop(arrived); // the origins may write again
/// Ok(ghosts[0])
/// # }
/// ```
#[derive(Debug)]
pub struct Arrived<'e> {
    came: Came<'e>,
}

#[derive(Debug)]
enum Came<'e> {
    Streamed(rma::Arrived<'e>),
    /// The rounds are exposed at start and over, so what they received is ordinary memory. But no start while this is there.
    Fenced {
        epoch: Epoch,
        span: Option<VirtualSpan>,
        _exchange: PhantomData<&'e mut ()>,
    },
}

impl<'e> Flight<'e> {
    #[inline]
    pub(super) fn new(flying: Flying<'e>, stopwatch: Option<Stopwatch<'e>>) -> Self {
        Self { flying, stopwatch }
    }

    /// Looks once, and moves on what waited for credit, or for the end of a round: whether a `wait` would return at once.
    ///
    /// On an emulated device the end of a round moves the [clock](rma::Comm::virtual_now), as a `wait` does.
    pub fn test(&mut self) -> Result<bool> {
        match &mut self.flying {
            Flying::Streamed(flight) => flight.test(),
            Flying::Fenced(rounds) => rounds.test(),
        }
    }

    /// The elements of an area that this rank itself fills in every epoch, to read and write while messages are on their way; see
    /// [`InFlight::write_area`].
    #[cfg(feature = "ndarray")]
    pub fn write_area<'a, T: Pod, const N: usize>(&'a self, area: &'a rma::Area<T, N>) -> Result<rma::WriteArea<'a, T, N>> {
        match &self.flying {
            Flying::Streamed(flight) => flight.write_area(area),
            // Once the last round is over, all is ordinary memory.
            Flying::Fenced(rounds) => rounds.current().map_or_else(|| area.write(), |flight| flight.write_area(area)),
        }
    }

    /// Waits until this rank's messages have left and every origin's have arrived. An error makes the exchange unusable: those of
    /// [`InFlight::wait`] and, of a fenced exchange, what [`RmaQueue::start`](rma::RmaQueue::start) refuses of a later round.
    #[inline]
    pub fn wait(self) -> Result<Arrived<'e>> {
        let Self { flying, stopwatch } = self;
        let came = match flying {
            Flying::Streamed(flight) => Came::Streamed(flight.wait()?),
            Flying::Fenced(rounds) => {
                let (epoch, span) = rounds.wait()?;
                Came::Fenced { epoch, span, _exchange: PhantomData }
            }
        };
        let arrived = Arrived { came };
        if let Some(stopwatch) = stopwatch {
            stopwatch.stop(arrived.virtual_span());
        }
        Ok(arrived)
    }
}

impl Arrived<'_> {
    /// The epoch that has arrived.
    pub fn epoch(&self) -> Epoch {
        match &self.came {
            Came::Streamed(arrived) => arrived.epoch(),
            Came::Fenced { epoch, .. } => *epoch,
        }
    }

    /// When the epoch was under way on an emulated device, from the start of its first round. `None` on a backend without a
    /// [virtual clock](rma::Comm::virtual_now).
    pub fn virtual_span(&self) -> Option<VirtualSpan> {
        match &self.came {
            Came::Streamed(arrived) => arrived.virtual_span(),
            Came::Fenced { span, .. } => *span,
        }
    }

    /// Elements that may be read, over a range of bytes of this rank's part of `window`: received ranges of this exchange, and
    /// whatever else no queue or lease stands against.
    pub fn read<'a, T: Pod>(&'a self, window: &'a RmaWindow, bytes: impl RangeBounds<usize>) -> Result<ReadLease<'a, T>> {
        match &self.came {
            Came::Streamed(arrived) => arrived.read(window, bytes),
            Came::Fenced { .. } => window.read(bytes),
        }
    }

    /// The same to read and write.
    pub fn write<'a, T: Pod>(&'a self, window: &'a RmaWindow, bytes: impl RangeBounds<usize>) -> Result<WriteLease<'a, T>> {
        match &self.came {
            Came::Streamed(arrived) => arrived.write(window, bytes),
            Came::Fenced { .. } => window.write(bytes),
        }
    }

    /// The elements of an area, to read.
    #[cfg(feature = "ndarray")]
    pub fn read_area<'a, T: Pod, const N: usize>(&'a self, area: &'a rma::Area<T, N>) -> Result<rma::ReadArea<'a, T, N>> {
        match &self.came {
            Came::Streamed(arrived) => arrived.read_area(area),
            Came::Fenced { .. } => area.read(),
        }
    }

    /// The same to read and write.
    #[cfg(feature = "ndarray")]
    pub fn write_area<'a, T: Pod, const N: usize>(&'a self, area: &'a rma::Area<T, N>) -> Result<rma::WriteArea<'a, T, N>> {
        match &self.came {
            Came::Streamed(arrived) => arrived.write_area(area),
            Came::Fenced { .. } => area.write(),
        }
    }
}
