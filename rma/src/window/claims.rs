//! What a committed queue claims of a window, and the one place where a chain is started.
//! Owns the rule that exposed and source ranges are not touched by others; knows no backend.

use super::WindowInner;
use crate::backend::Committed;
use crate::layout::RangeSet;
use crate::lifecycle::{Call, Lifecycle, Phase};
use crate::{Error, QueueId, Result};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// When the ranges that others write are open to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Exposure {
    /// From commit to clear, except while an `Arrived` is held. Credits travel while others compute.
    #[default]
    Early,
    /// From start until the next release. In between the ranges are ordinary memory.
    AtStart,
    /// From commit to clear without any credits: the program itself keeps origins from writing too soon.
    Uncredited,
}

/// A queue's claim on one window of this rank.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) queue: QueueId,
    pub(crate) exposure: Exposure,
    /// The life of the queue, shared with it.
    pub(crate) life: Rc<Cell<Lifecycle>>,
    /// What own puts read here.
    pub(crate) sources: RangeSet,
    /// What origins write here, and what the program itself fills in every epoch: closed to others alike.
    pub(crate) incoming: RangeSet,
    /// The latter alone.
    pub(crate) filled: RangeSet,
    /// The queue was cleared, but partners may still write until they clear it too.
    pub(crate) retiring: Cell<bool>,
    /// How many other queues use some of these bytes at other times; who has any is counted among the cautions of the Comm.
    pub(crate) rivals: Cell<u32>,
}

impl Claim {
    /// Whether origins may write the incoming ranges now.
    pub(crate) fn is_exposed(&self) -> bool {
        self.retiring.get()
            || match self.exposure {
                Exposure::Early | Exposure::Uncredited => true,
                Exposure::AtStart => !matches!(self.life.get().phase(), Phase::Open | Phase::Ready),
            }
    }

    /// Whether own puts may still read the sources.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.life.get().phase(), Phase::InFlight | Phase::Failed)
    }

    /// The bytes, and the reason, for which these two claims can never stand side by side.
    pub(crate) fn clash(&self, other: &Self) -> Option<(Range<u64>, String)> {
        let both_at_start = self.exposure == Exposure::AtStart && other.exposure == Exposure::AtStart && !other.retiring.get();
        if let Some(bytes) = self.incoming.overlap_set(&other.incoming).filter(|_| !both_at_start) {
            return Some((
                bytes,
                format!(
                    "written by origins of both {} and {}; clear one of them, or let both be exposed at start (expose_at_start)",
                    self.queue, other.queue
                ),
            ));
        }
        for (writer, reader) in [(self, other), (other, self)] {
            let never_free = writer.exposure != Exposure::AtStart || writer.retiring.get();
            if let Some(bytes) = writer.incoming.overlap_set(&reader.sources).filter(|_| never_free) {
                return Some((
                    bytes,
                    format!(
                        "written by origins of {} at any time and read by puts of {}; clear one of them, or let the former be exposed \
                         at start (expose_at_start)",
                        writer.queue, reader.queue
                    ),
                ));
            }
        }
        None
    }

    /// Whether the two use common bytes in ways that must not happen at the same time.
    pub(crate) fn is_rival_of(&self, other: &Self) -> bool {
        self.incoming.overlap_set(&other.incoming).is_some()
            || self.incoming.overlap_set(&other.sources).is_some()
            || other.incoming.overlap_set(&self.sources).is_some()
    }
}

/// A claim together with the window it is on.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) window: Rc<WindowInner>,
    pub(crate) claim: Rc<Claim>,
}

/// Starts the next epoch: from here on the claims hold. `life` must be what all `parts` share, `cautions` their Comm's.
#[inline]
pub(crate) fn start(
    parts: &[Part],
    cautions: &Cell<u64>,
    life: &Cell<Lifecycle>,
    queue: QueueId,
    exposure: Exposure,
    committed: &mut dyn Committed,
) -> Result<()> {
    let flying = match life.get().after(Call::Start) {
        Ok(flying) => flying,
        Err(refusal) => return Err(Error::QueueState { queue, call: "start", reason: refusal.0.into() }),
    };
    if cautions.get() != 0 {
        may_start(parts)?;
    }
    life.set(flying);
    if exposure == Exposure::AtStart {
        committed.grant_with_start(flying.epoch())?;
    }
    // SAFETY: every window this chain reads is in `parts`; no lease writes its sources now (checked above), and none will be given
    // out while `life` says in flight or failed. What ends that is `poll` saying done, or `close`, after which nothing is read.
    // The life cycle counts epochs one by one.
    unsafe { committed.start(flying.epoch()) }
}

/// The careful part of a start, while leases are alive or queues share bytes.
#[inline(never)]
fn may_start(parts: &[Part]) -> Result<()> {
    parts.iter().try_for_each(|part| part.window.may_start(&part.claim))
}
