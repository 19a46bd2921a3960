//! Windows: memory that other ranks write, and the leases through which this rank touches its own part.
//! Owns what protects the memory (claims of queues, leases of the program); knows no backend beyond its memory.

#[cfg(feature = "ndarray")]
pub(crate) mod area;
pub(crate) mod claims;
#[cfg(feature = "ndarray")]
pub(crate) mod copies;
mod extent;
pub(crate) mod leases;
mod thread_bound;

use crate::backend::{WindowMem, WindowSpec};
use crate::comm::CommInner;
use crate::{Deadline, Error, Purpose, QueueId, Rank, Result, WindowId};
use claims::{Claim, Exposure};
use extent::Extent;
use leases::{Access, Busy};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use thread_bound::ThreadBound;

/// How long a commit gives partners' clearing of an earlier queue to be seen here.
const CLEARED_IN: Duration = Duration::from_secs(1);

/// A window of memory that spans all ranks: each has a part of its own length, which the others may write.
///
/// Made by [`Comm::window_alloc`](crate::Comm::window_alloc). This rank's part is touched through
/// [`read`](RmaWindow::read) and [`write`](RmaWindow::write).
#[derive(Debug)]
pub struct RmaWindow {
    pub(crate) inner: Rc<WindowInner>,
}

#[derive(Debug)]
pub(crate) struct WindowInner {
    pub(crate) id: WindowId,
    pub(crate) comm: Rc<CommInner>,
    pub(crate) mem: Rc<dyn WindowMem>,
    pub(crate) bytes_by_rank: Vec<u64>,
    pub(super) access: RefCell<Access>,
    pub(crate) freed: Cell<bool>,
}

/// A window that could not be freed, and why.
#[derive(Debug)]
pub struct FreeError {
    error: Error,
    window: ThreadBound<RmaWindow>,
}

impl std::fmt::Display for FreeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FreeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl FreeError {
    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The window, as good as before. `None` on another thread than the one it belongs to.
    pub fn into_window(self) -> Option<RmaWindow> {
        self.window.into_inner()
    }
}

impl From<FreeError> for Error {
    fn from(failed: FreeError) -> Self {
        failed.error
    }
}

impl RmaWindow {
    /// Collective: see [`Comm::window_alloc`](crate::Comm::window_alloc).
    pub(crate) fn alloc(comm: &Rc<CommInner>, bytes: usize) -> Result<Self> {
        const CALL: &str = "window_alloc";
        let deadline = Deadline::after(comm.config.setup_timeout).of(Purpose::WindowAlloc);
        let id = WindowId(comm.next_window.get());
        let mut call = [0; 12];
        call[..4].copy_from_slice(&id.0.to_le_bytes());
        call[4..].copy_from_slice(&(bytes as u64).to_le_bytes());
        let calls = comm.boot.allgather(&call, deadline)?;
        let mut bytes_by_rank = Vec::with_capacity(calls.len());
        for (peer, call) in (0..).map(Rank).zip(&calls) {
            let Ok(call) = <[u8; 12]>::try_from(call.as_slice()) else {
                return Err(Error::Malformed {
                    what: CALL,
                    from: peer.to_string(),
                    reason: format!("{} bytes instead of 12", call.len()),
                });
            };
            let (theirs, len) = call.split_at(4);
            let theirs = WindowId(theirs.iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte)));
            if theirs != id {
                let (ours, theirs) = (format!("{CALL} of {id}"), format!("{CALL} of {theirs}"));
                return Err(Error::CollectiveMismatch { rank: comm.rank, ours, peer, theirs });
            }
            bytes_by_rank.push(len.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)));
        }
        let limit = comm.backend.caps().max_window_bytes;
        if let Some((rank, &asked)) = bytes_by_rank.iter().enumerate().find(|&(_, &asked)| asked > limit) {
            let mend = format!("allocate less on rank {rank}, or use several windows");
            return Err(Error::Limit { what: "window length in bytes,", asked, limit, mend });
        }
        let spec = WindowSpec { id, bytes_by_rank: &bytes_by_rank };
        comm.all_or_none(CALL, comm.backend.admit(&spec), deadline)?;
        let mem = comm.all_or_none(CALL, comm.backend.register(&spec), deadline)?;
        comm.next_window.set(id.0 + 1);
        let inner = WindowInner { id, comm: comm.clone(), mem, bytes_by_rank, access: RefCell::default(), freed: Cell::new(false) };
        Ok(Self { inner: Rc::new(inner) })
    }

    /// Its id, the same on every rank.
    pub fn id(&self) -> WindowId {
        self.inner.id
    }

    /// The length of this rank's part.
    pub fn len_bytes(&self) -> usize {
        self.inner.mem.len_bytes()
    }

    /// The length of another rank's part.
    pub fn len_bytes_of(&self, rank: Rank) -> Result<u64> {
        self.inner.bytes_of("window length", rank)
    }

    /// Collective: gives the memory back. Refused everywhere, and the window returned by the error, while a queue on it is
    /// committed on any rank.
    pub fn free(self) -> Result<(), FreeError> {
        match self.inner.release() {
            Ok(()) => Ok(()),
            Err(error) => Err(FreeError { error, window: ThreadBound::new(self) }),
        }
    }
}

impl WindowInner {
    /// The length of a rank's part, or that there is no such rank.
    pub(crate) fn bytes_of(&self, what: &'static str, rank: Rank) -> Result<u64> {
        let size = self.comm.size;
        self.bytes_by_rank.get(rank.index()).copied().ok_or(Error::NoSuchRank { what, rank, size })
    }

    fn release(&self) -> Result<()> {
        let comm = &self.comm;
        let deadline = Deadline::after(comm.config.setup_timeout).of(Purpose::Free);
        // A message around the ring of ranks makes sure that all of them free the same window.
        let next = Rank((comm.rank.0 + 1) % comm.size);
        let words = comm.boot.exchange(vec![(next, self.id.0.to_le_bytes().to_vec())], deadline)?;
        let other = words.iter().find(|(_, word)| word.as_slice() != self.id.0.to_le_bytes());
        let alive = self.access.borrow().claims.iter().find(|claim| !claim.retiring.get()).map(|claim| claim.queue);
        let objection = match (other, alive) {
            (Some((peer, _)), _) => Some(format!("{} frees {} while {peer} makes another call", comm.rank, self.id)),
            (None, Some(queue)) => Some(format!("{queue} on {} is still committed; clear it first", self.id)),
            (None, None) => None,
        };
        if let Some(objection) = comm.boot.agree(objection, deadline)? {
            return Err(Error::CollectiveFailed { call: "free", rank: objection.rank, reason: objection.reason });
        }
        comm.reap();
        self.freed.set(true);
        Ok(())
    }

    /// Adds the claim of a queue that is about to be committed, or says what stands against it.
    pub(crate) fn add_claim(&self, claim: &Rc<Claim>, deadline: Deadline) -> Result<()> {
        let busy = |bytes: Range<u64>, reason| Error::RangeBusy {
            rank: self.comm.rank,
            window: self.id,
            bytes: bytes.start as usize..bytes.end as usize,
            access: "committed",
            reason,
        };
        // All ranks are in this commit, so whoever was to clear a queue before it has done so; that may take a moment to be seen.
        let patience = Deadline::after(CLEARED_IN.min(deadline.left(2 * CLEARED_IN) / 2));
        let clash = |access: &Access| access.claims.iter().find_map(|other| Some((claim.clash(other)?, other.retiring.get())));
        loop {
            let clash = clash(&self.access.borrow());
            match clash {
                None => break,
                Some((_, true)) if self.comm.reap_again(patience) => {}
                Some(((bytes, reason), _)) => return Err(busy(bytes, reason)),
            }
        }
        let mut access = self.access.borrow_mut();
        if claim.exposure != Exposure::AtStart
            && let Some(bytes) = access.leased_incoming(claim)
        {
            let reason = "origins would write it while a lease is alive; drop the lease before the commit".into();
            return Err(busy(bytes, reason));
        }
        for other in access.claims.iter().filter(|other| claim.is_rival_of(other)) {
            self.count_rivals(claim, 1);
            self.count_rivals(other, 1);
        }
        access.claims.push(claim.clone());
        Ok(())
    }

    pub(crate) fn remove_claim(&self, queue: QueueId) {
        let mut access = self.access.borrow_mut();
        let Some(at) = access.claims.iter().position(|claim| claim.queue == queue) else { return };
        let gone = access.claims.remove(at);
        for other in access.claims.iter().filter(|other| gone.is_rival_of(other)) {
            self.count_rivals(&gone, -1);
            self.count_rivals(other, -1);
        }
    }

    /// Takes note of a claim's having one rival more or less.
    fn count_rivals(&self, claim: &Claim, more: i32) {
        let had = claim.rivals.get();
        let has = had.saturating_add_signed(more);
        claim.rivals.set(has);
        self.comm.cautions.set(self.comm.cautions.get() + u64::from(has > 0) - u64::from(had > 0));
    }

    /// Whether the queue of a claim may start now. Looks closer only while leases are alive or queues share bytes.
    fn may_start(&self, claim: &Claim) -> Result<()> {
        if self.access.borrow().start_blocker(claim).is_none() {
            return Ok(());
        }
        // Partners may have cleared meanwhile what stood in the way.
        self.comm.reap();
        let Some((bytes, reason)) = self.access.borrow().start_blocker(claim) else { return Ok(()) };
        Err(Error::RangeBusy {
            rank: self.comm.rank,
            window: self.id,
            bytes: bytes.start as usize..bytes.end as usize,
            access: "used by a start",
            reason,
        })
    }

    /// Waits as long as only partners that are about to clear a queue stand in the way.
    fn wait_for_access(&self, extent: &Extent, writes: bool, exempt: Option<QueueId>) -> Result<()> {
        let mut deadline = None;
        loop {
            let blocker = self.access.borrow().blocker(extent, writes, exempt);
            let mut again =
                || self.comm.reap_again(*deadline.get_or_insert_with(|| Deadline::after(self.comm.config.setup_timeout)));
            let reason = match blocker {
                None => return Ok(()),
                Some(Busy::Retiring(_)) if again() => continue,
                Some(Busy::Retiring(reason) | Busy::Held(reason)) => reason,
            };
            let bytes = extent.bounds();
            return Err(Error::RangeBusy {
                rank: self.comm.rank,
                window: self.id,
                bytes: bytes.start as usize..bytes.end as usize,
                access: if writes { "written" } else { "read" },
                reason,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RangeSet;
    use crate::{Comm, Config};
    use fastrand::Rng;

    /// A claim on bytes by chance: few of a few, so that most come into touch with some others.
    fn any_claim(queue: u32, random: &mut Rng) -> Rc<Claim> {
        let mut ranges = || {
            let count = random.usize(..3);
            RangeSet::from_iter((0..count).map(|_| {
                let start = random.u64(..60);
                start..start + random.u64(..4)
            }))
        };
        let (sources, incoming) = (ranges(), ranges());
        let exposure = if random.u8(..4) == 0 { Exposure::Early } else { Exposure::AtStart };
        let (life, filled, retiring, rivals) = (Rc::default(), RangeSet::default(), Cell::new(false), Cell::new(0));
        Rc::new(Claim { queue: QueueId(queue), exposure, life, sources, incoming, filled, retiring, rivals })
    }

    #[test]
    fn rivals_are_counted_as_if_all_claims_were_compared_anew() {
        let mut random = Rng::with_seed(7);
        let comm = Comm::alone(Config::default()).unwrap();
        let windows = [comm.window_alloc(64).unwrap(), comm.window_alloc(64).unwrap()];
        let (mut refused, mut most) = (0, 0);
        for step in 0..20_000 {
            let window = &windows[random.usize(..2)].inner;
            let held = window.access.borrow().claims.len();
            if random.usize(..12) >= held {
                let claim = any_claim(step, &mut random);
                refused += u32::from(window.add_claim(&claim, Deadline::after(Duration::ZERO)).is_err());
            } else {
                // Now and then one that is not there: a queue that was quiet when it was cleared gives its claims back twice.
                let queue = window.access.borrow().claims[random.usize(..held)].queue;
                (0..random.u32(1..3)).for_each(|_| window.remove_claim(queue));
            }
            let mut cautions = 0;
            for window in &windows {
                let access = window.inner.access.borrow();
                for claim in &access.claims {
                    let others = access.claims.iter().filter(|other| other.queue != claim.queue);
                    let rivals = others.filter(|other| claim.is_rival_of(other)).count() as u32;
                    assert_eq!(claim.rivals.get(), rivals, "of {} at step {step}", claim.queue);
                    cautions += u64::from(rivals > 0);
                }
            }
            assert_eq!(windows[0].inner.comm.cautions.get(), cautions, "at step {step}");
            most = most.max(cautions);
        }
        assert!(refused > 100 && most > 10, "{refused} refused, {most} with rivals: the test has lost its teeth");
    }
}
