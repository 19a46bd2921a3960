//! A fenced exchange: a queue for each round, of which the next is started when the one before has arrived.
//! Owns the way from round to round, and that an exchange which stopped between two of them is not used again.

use rma::{Epoch, Error, InFlight, QueueId, Ready, Result, RmaQueue, VirtualSpan};
use std::slice::IterMut;

/// The queues of all rounds, each exposed at start.
#[derive(Debug)]
pub(super) struct Rounds {
    queues: Vec<RmaQueue<Ready>>,
    failure: Option<Failure>,
}

/// Why the rounds cannot be run again.
#[derive(Clone, Debug)]
struct Failure {
    queue: QueueId,
    epoch: Epoch,
    reason: String,
}

/// An epoch that is in one of its rounds.
#[derive(Debug)]
pub(super) struct FlyingRounds<'e> {
    /// `None` when the last round is over, or one has failed.
    current: Option<InFlight<'e>>,
    queue: QueueId,
    epoch: Epoch,
    later: IterMut<'e, RmaQueue<Ready>>,
    /// From the first round to the last that is over.
    span: Option<VirtualSpan>,
    failure: &'e mut Option<Failure>,
}

impl Rounds {
    /// At least one queue, or an epoch would have no end.
    pub(super) fn new(queues: Vec<RmaQueue<Ready>>) -> Self {
        debug_assert!(!queues.is_empty(), "bug: an exchange without a round");
        Self { queues, failure: None }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.queues.first().map_or(Epoch(0), RmaQueue::epoch)
    }

    pub(super) fn explain(&self) -> String {
        self.queues.iter().map(RmaQueue::explain).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn start(&mut self) -> Result<FlyingRounds<'_>> {
        if let Some(failure) = &self.failure {
            return Err(failure.error());
        }
        let mut later = self.queues.iter_mut();
        let Some(first) = later.next() else { unreachable!("bug: an exchange without a round") };
        let (queue, epoch) = (first.id(), first.epoch().next());
        Ok(FlyingRounds { current: Some(first.start()?), queue, epoch, later, span: None, failure: &mut self.failure })
    }
}

impl FlyingRounds<'_> {
    /// The round that is under way.
    #[cfg(feature = "ndarray")]
    pub(super) fn current(&self) -> Option<&InFlight<'_>> {
        self.current.as_ref()
    }

    /// Whether the last round is over; those that can be started are.
    pub(super) fn test(&mut self) -> Result<bool> {
        while let Some(current) = &mut self.current {
            match current.test() {
                Ok(true) => self.go_on()?,
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.failure.as_ref().map_or(Ok(true), |failure| Err(failure.error()))
    }

    /// Waits for the last round: the epoch, and its time on an emulated device.
    pub(super) fn wait(mut self) -> Result<(Epoch, Option<VirtualSpan>)> {
        while self.current.is_some() {
            self.go_on()?;
        }
        self.failure.as_ref().map_or(Ok((self.epoch, self.span)), |failure| Err(failure.error()))
    }

    /// Waits for the round and starts the next, if there is one.
    fn go_on(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else { return Ok(()) };
        match current.wait() {
            Ok(arrived) => {
                let span = arrived.virtual_span();
                self.span = self.span.map_or(span, |before| span.map(|span| before.join(span)));
            }
            Err(error) => return Err(self.fail(error)),
        }
        let Some(next) = self.later.next() else { return Ok(()) };
        self.queue = next.id();
        match next.start() {
            Ok(flight) => self.current = Some(flight),
            Err(error) => return Err(self.fail(error)),
        }
        Ok(())
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        let Self { queue, epoch, .. } = *self;
        self.current = None;
        self.failure.get_or_insert_with(|| Failure { queue, epoch, reason: error.full_text() });
        error
    }
}

impl Drop for FlyingRounds<'_> {
    fn drop(&mut self) {
        if self.current.is_some() {
            let Self { queue, epoch, .. } = *self;
            let reason = format!("the flight of {epoch} was dropped; wait for every flight");
            self.failure.get_or_insert(Failure { queue, epoch, reason });
        }
    }
}

impl Failure {
    fn error(&self) -> Error {
        let Self { queue, epoch, reason } = self.clone();
        Error::Poisoned { queue, epoch, reason }
    }
}
