//! Start and wait: puts, their announcement, and words.
//! Owns the hot path. Nothing here allocates or locks; MPI may do both.

use crate::board::{FarWord, Lines, OwnWord};
use crate::commit::Built;
use crate::device::Shared;
use crate::failed;
use crate::ffi::{Bytes, Outcome, Refused, Window};
use rma::backend::{Chain, Committed, Lack, Missing, Progress};
use rma::{Epoch, Error, Rail, Rank, Result};
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// One call of MPI that puts.
#[derive(Debug)]
pub(crate) struct PutCall {
    pub(crate) source: *const u8,
    pub(crate) from: Bytes,
    pub(crate) window: Rc<Window>,
    pub(crate) displacement: i64,
    pub(crate) to: Bytes,
}

/// What comes after the puts to a target on a rail: their completion, and the word that says so.
#[derive(Debug)]
pub(crate) struct Way {
    target: c_int,
    /// The windows that are put to.
    windows: Box<[Rc<Window>]>,
    arrived: FarWord,
    /// The epoch that was put last, and the one whose puts are known to be there.
    posted: Cell<Epoch>,
    announced: Cell<Epoch>,
    refused: RefCell<Option<Refused>>,
}

impl Way {
    pub(crate) fn new(target: Rank, windows: Vec<Rc<Window>>, arrived: FarWord) -> Self {
        Self {
            target: target.0 as c_int,
            windows: windows.into(),
            arrived,
            posted: Cell::new(Epoch(0)),
            announced: Cell::new(Epoch(0)),
            refused: RefCell::new(None),
        }
    }

    /// Waits until the puts are there, and says so.
    #[inline]
    pub(crate) fn announce(&self) {
        let epoch = self.posted.get();
        let flushed = self.windows.iter().try_for_each(|window| window.flush(self.target));
        match flushed.and_then(|()| self.arrived.write(epoch)) {
            Ok(()) => self.announced.set(epoch),
            Err(refused) => *self.refused.borrow_mut() = Some(refused),
        }
    }
}

/// The puts to one target on one rail.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) target: Rank,
    pub(crate) rail: Rail,
    /// In the own board: the target's credits.
    pub(crate) granted: OwnWord,
    pub(crate) calls: Box<[PutCall]>,
    pub(crate) way: Rc<Way>,
    /// Whether the puts of this epoch have been made.
    pub(crate) posted: bool,
}

impl Lane {
    /// Makes all puts.
    ///
    /// # Safety
    /// The target has granted this epoch, and the sources are not written until it is announced.
    #[inline]
    #[expect(unsafe_code, reason = "puts what the caller has promised the sources of")]
    unsafe fn put(&self) -> Outcome<()> {
        for call in &self.calls {
            // SAFETY: the caller's promise; the chain keeps the source, and `window` the target.
            unsafe { call.window.put(call.source, &call.from, self.way.target, call.displacement, &call.to)? };
        }
        Ok(())
    }
}

/// A notification to wait for, in the own board.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) word: OwnWord,
    pub(crate) origin: Rank,
    pub(crate) rail: Rail,
}

/// A rank that writes here, or is written to.
#[derive(Debug)]
pub(crate) struct Partner {
    pub(crate) rank: Rank,
    /// Where an origin looks for its credits.
    pub(crate) credit: Option<FarWord>,
    /// The own words that it writes; none before the queue is built, nor after it is dropped.
    pub(crate) lines: Option<Lines>,
}

/// A chain in calls of MPI.
#[derive(Debug)]
pub(crate) struct MpiCommitted {
    chain: Rc<Chain>,
    epoch: Epoch,
    closed: bool,
    lanes: Vec<Lane>,
    /// The lanes of this epoch that still lack their credit. Never grows beyond the capacity it got at commit.
    unposted: Vec<usize>,
    expected: Vec<Expected>,
    /// How many of `expected`, from the front, have come in this epoch.
    arrived: usize,
    partners: Vec<Partner>,
    /// The first call that MPI refused: every later poll fails with it.
    failure: Option<(String, Refused)>,
    /// Last, as with it goes the right to use MPI.
    shared: Rc<Shared>,
}

/// Turns of `park` in which a rank keeps its core, or gives it away only to who wants it, before it sleeps.
const YIELDING_TURNS: u32 = 400;
/// The longest sleep: nothing wakes a rank that sleeps.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

impl MpiCommitted {
    pub(crate) fn new(shared: Rc<Shared>, chain: Rc<Chain>, built: Built) -> Self {
        let Built { lanes, expected, partners } = built;
        Self {
            chain,
            epoch: Epoch(0),
            closed: false,
            unposted: Vec::with_capacity(lanes.len()),
            lanes,
            expected,
            arrived: 0,
            partners,
            failure: None,
            shared,
        }
    }

    /// Puts what a lane has, if its target has granted the epoch.
    ///
    /// # Safety
    /// The sources are not written until the epoch is done.
    #[inline]
    #[expect(unsafe_code, reason = "passes a promise on")]
    unsafe fn post(&mut self, index: usize) -> bool {
        let lane = &mut self.lanes[index];
        if self.chain.credits && !lane.granted.reached(self.epoch) {
            return false;
        }
        // SAFETY: the credit is there, and the sources are the caller's promise.
        match unsafe { lane.put() } {
            Ok(()) => {
                lane.posted = true;
                lane.way.posted.set(self.epoch);
                self.shared.posted(&lane.way);
            }
            Err(refused) => self.failure = Some((format!("putting to {} in {}", lane.target, self.epoch), refused)),
        }
        true
    }

    /// Posts the lanes whose credit has come meanwhile.
    #[expect(unsafe_code, reason = "passes a promise on")]
    fn post_waiting(&mut self) {
        let mut at = 0;
        while at < self.unposted.len() {
            // SAFETY: `start` promised that the sources are left alone until the epoch is done.
            if unsafe { self.post(self.unposted[at]) } {
                self.unposted.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.shared.announce();
    }

    #[inline]
    fn look(&mut self) -> Progress {
        if !self.unposted.is_empty() {
            self.post_waiting();
        }
        while let Some(expected) = self.expected.get(self.arrived) {
            if !expected.word.reached(self.epoch) {
                return Progress::Pending;
            }
            self.arrived += 1;
        }
        let announced = |lane: &Lane| lane.way.announced.get() == self.epoch;
        if self.unposted.is_empty() && self.lanes.iter().all(announced) { Progress::Done } else { Progress::Pending }
    }

    /// The error of a call that MPI refused.
    #[cold]
    fn failure(&mut self) -> Option<Error> {
        let refused = |lane: &Lane| {
            let refused = lane.way.refused.borrow().clone();
            refused.map(|refused| (format!("completing the puts to {} in {}", lane.target, self.epoch), refused))
        };
        let failure = self.failure.clone().or_else(|| self.lanes.iter().find_map(refused));
        self.failure = failure;
        self.failure.clone().map(|(doing, refused)| failed(doing, refused))
    }
}

impl Committed for MpiCommitted {
    #[expect(unsafe_code, reason = "takes over a contract")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        self.epoch = epoch;
        self.arrived = 0;
        for index in 0..self.lanes.len() {
            self.lanes[index].posted = false;
            // SAFETY: the caller's promise.
            if !unsafe { self.post(index) } {
                self.unposted.push(index);
            }
        }
        Ok(())
    }

    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        self.shared.announce();
        for _ in 0..rounds {
            if self.look() == Progress::Done {
                return Ok(Progress::Done);
            }
            // In many libraries what others write here arrives only while they are called.
            self.shared.communicator.progress();
            if self.shared.crowded {
                rustix::thread::sched_yield();
            } else {
                std::hint::spin_loop();
            }
        }
        self.failure().map_or(Ok(Progress::Pending), Err)
    }

    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        // Release: what this rank has read of the received ranges, it has read before the credit goes out.
        fence(Ordering::Release);
        for Partner { rank, credit, .. } in &self.partners {
            let written = credit.as_ref().map_or(Ok(()), |credit| credit.write(epoch));
            written.map_err(|refused| failed(format!("granting {epoch} to {rank}"), refused))?;
        }
        Ok(())
    }

    fn park(&mut self, turn: u32, limit: Duration) {
        if turn < YIELDING_TURNS {
            rustix::thread::sched_yield();
        } else {
            std::thread::sleep(limit.min(LONGEST_SLEEP));
        }
    }

    fn missing(&self) -> Vec<Missing> {
        let mut missing: Vec<Missing> = Vec::new();
        for lane in self.lanes.iter().filter(|lane| lane.way.announced.get() < self.epoch) {
            let granted = lane.granted.look();
            let what = match lane.posted {
                true => Lack::Completion(lane.target, lane.rail),
                false => Lack::Credit(lane.target),
            };
            if !missing.iter().any(|other| other.what == what) {
                // A target grants an epoch when it is done with the one before.
                let peer_epoch = self.chain.credits.then(|| Epoch(granted.epoch.0.saturating_sub(1)));
                missing.push(Missing { what, peer_epoch, closed: granted.closed });
            }
        }
        for Expected { word, origin, rail } in &self.expected {
            let said = word.look();
            if said.epoch < self.epoch {
                let words = self.expected.iter().filter(|other| other.origin == *origin);
                let started = words.map(|other| other.word.look().epoch).max();
                missing.push(Missing { what: Lack::Arrival(*origin, *rail), peer_epoch: started, closed: said.closed });
            }
        }
        missing
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.unposted.clear();
        self.shared.announce();
        let words = self.lanes.iter().map(|lane| &lane.way.arrived);
        for word in words.chain(self.partners.iter().filter_map(|partner| partner.credit.as_ref())) {
            if let Err(refused) = word.close() {
                tracing::warn!(rank = self.shared.rank.0, queue = self.chain.queue.0, "closing: {refused}");
            }
        }
    }

    fn unclosed(&self) -> Vec<Rank> {
        self.shared.advance();
        let open = |partner: &&Partner| partner.lines.as_ref().is_some_and(|lines| !lines.closed());
        self.partners.iter().filter(open).map(|partner| partner.rank).collect()
    }

    fn explain(&self) -> String {
        let mut text = String::new();
        for lane in &self.lanes {
            let puts = self.chain.puts.iter().filter(|put| (put.target, put.rail) == (lane.target, lane.rail));
            let (puts, bytes) = puts.fold((0, 0), |(puts, bytes), put| (puts + 1, bytes + put.target_blocks.total_bytes()));
            let _ = writeln!(
                text,
                "to {} on {}: {bytes} bytes in {puts} put(s) as {} call(s) of MPI_Put; then a flush and one notification",
                lane.target,
                lane.rail,
                lane.calls.len()
            );
        }
        for expected in &self.expected {
            let _ = writeln!(text, "from {} on {}: one notification", expected.origin, expected.rail);
        }
        let waiting = if self.shared.crowded {
            "poll, yield, then sleep (more ranks than cores on this host)"
        } else {
            "poll, then sleep after some milliseconds (a core for every rank)"
        };
        let _ = write!(text, "waiting: {waiting}");
        text
    }
}

impl Drop for MpiCommitted {
    fn drop(&mut self) {
        // A partner must never wait for a queue that is gone, also not for one whose commit failed.
        self.close();
        self.shared.release(self.lanes.len());
        // Words that a partner may still write are not given to anybody else.
        let mut boards = self.shared.boards.borrow_mut();
        self.partners.iter_mut().filter_map(|partner| partner.lines.take()).for_each(|lines| boards.abandon(lines));
    }
}
