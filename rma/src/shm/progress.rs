//! Start and wait: copies and counters.
//! Owns the hot path. Nothing here allocates, locks or, while every rank has a core, calls the system.

use super::board::Slot;
use super::copy::Copy;
use super::counters::{Bell, Counter};
use super::device::Shared;
use super::patience::Patience;
use super::region::Region;
use crate::backend::{Chain, Committed, Lack, Missing, Progress};
use crate::{Epoch, Rail, Rank, Result};
use std::fmt::Write;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The puts to one target on one rail, and what tells it of them.
#[derive(Debug)]
pub(super) struct Lane {
    /// In the own board: the target's credits.
    pub(super) granted: NonNull<Counter>,
    /// In the target's board: arrivals on this rail.
    pub(super) arrived: NonNull<Counter>,
    pub(super) bell: NonNull<Bell>,
    pub(super) copies: Box<[Copy]>,
    pub(super) target: Rank,
    pub(super) rail: Rail,
}

/// A notification to wait for, in the own board.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) counter: NonNull<Counter>,
    pub(super) origin: Rank,
    pub(super) rail: Rail,
}

/// Where an origin looks for its credits: in its board.
#[derive(Debug)]
pub(super) struct Credit {
    pub(super) counter: NonNull<Counter>,
    pub(super) bell: NonNull<Bell>,
}

/// A chain with addresses.
#[derive(Debug)]
pub(super) struct ShmCommitted {
    chain: Rc<Chain>,
    epoch: Epoch,
    /// Whether lanes wait for credits.
    credited: bool,
    patience: Patience,
    closed: bool,
    pub(super) lanes: Vec<Lane>,
    pub(super) expected: Vec<Expected>,
    pub(super) credits: Vec<Credit>,
    /// The lanes of this epoch that still lack their credit. Never grows beyond the capacity it got at commit.
    unposted: Vec<usize>,
    /// How many of `expected`, from the front, have come in this epoch.
    arrived: usize,
    /// In the own board: the epoch this rank has started, for others' error texts.
    started: NonNull<Counter>,
    own_bell: NonNull<Bell>,
    /// The same of every partner.
    pub(super) peers: Vec<(Rank, NonNull<Counter>)>,
    /// Counters of the own board, given back once no partner writes them any more.
    taken: Option<Taken>,
    /// Everything the addresses point into.
    regions: Vec<Arc<Region>>,
}

impl ShmCommitted {
    pub(super) fn new(chain: Rc<Chain>, patience: Patience, started: NonNull<Counter>, own_bell: NonNull<Bell>) -> Self {
        Self {
            credited: chain.credits,
            chain,
            epoch: Epoch(0),
            patience,
            closed: false,
            lanes: Vec::new(),
            expected: Vec::new(),
            credits: Vec::new(),
            unposted: Vec::new(),
            arrived: 0,
            started,
            own_bell,
            peers: Vec::new(),
            taken: None,
            regions: Vec::new(),
        }
    }

    /// Ends the building: `regions` are all that the addresses point into.
    pub(super) fn seal(&mut self, taken: Taken, regions: Vec<Arc<Region>>) {
        self.unposted.reserve_exact(self.lanes.len());
        self.taken = Some(taken);
        self.regions = regions;
    }

    /// Whether the target of a lane has granted this epoch.
    #[inline]
    fn has_credit(&self, lane: &Lane) -> bool {
        // SAFETY: points into the own board, which `regions` keeps mapped.
        !self.credited || unsafe { lane.granted.as_ref() }.reached(self.epoch)
    }

    /// Copies everything of a lane and notifies its target.
    ///
    /// # Safety
    /// The target has granted this epoch, and the sources are not written now.
    #[inline]
    unsafe fn post(&self, lane: &Lane) {
        for copy in &lane.copies {
            // SAFETY: both windows are kept mapped (the target's by `regions`, the source by the chain); the target has granted
            // the epoch, so nobody else touches these bytes until it is notified; the sources are the caller's promise.
            unsafe { copy.run() };
        }
        // SAFETY: points into the target's board, which `regions` keeps mapped.
        unsafe { lane.arrived.as_ref() }.publish(self.epoch);
        self.ring(lane.bell);
    }

    /// Wakes the owner of a bell if it sleeps.
    #[inline]
    fn ring(&self, bell: NonNull<Bell>) {
        // SAFETY: points into a partner's board, which `regions` keeps mapped.
        self.patience.ring(unsafe { bell.as_ref() });
    }

    /// Posts the lanes whose credit has come meanwhile.
    fn post_waiting(&mut self) {
        let mut at = 0;
        while at < self.unposted.len() {
            let lane = &self.lanes[self.unposted[at]];
            if self.has_credit(lane) {
                // SAFETY: the credit is there; `start` promised that the sources are left alone until the epoch is done.
                unsafe { self.post(lane) };
                self.unposted.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    #[inline]
    fn look(&mut self) -> Progress {
        if !self.unposted.is_empty() {
            self.post_waiting();
        }
        while let Some(expected) = self.expected.get(self.arrived) {
            // SAFETY: points into the own board, which `regions` keeps mapped.
            if !unsafe { expected.counter.as_ref() }.reached(self.epoch) {
                return Progress::Pending;
            }
            self.arrived += 1;
        }
        if self.unposted.is_empty() { Progress::Done } else { Progress::Pending }
    }

    fn peer_epoch(&self, peer: Rank) -> Option<Epoch> {
        let (_, started) = self.peers.iter().find(|(rank, _)| *rank == peer)?;
        // SAFETY: points into the peer's board, which `regions` keeps mapped.
        Some(unsafe { started.as_ref() }.look().0)
    }

    /// The counters of the own board that partners write.
    fn written_by_partners(&self) -> impl Iterator<Item = (Rank, NonNull<Counter>)> {
        let arrivals = self.expected.iter().map(|expected| (expected.origin, expected.counter));
        arrivals.chain(self.lanes.iter().map(|lane| (lane.target, lane.granted)))
    }
}

impl Committed for ShmCommitted {
    #[inline]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        self.epoch = epoch;
        self.arrived = 0;
        // SAFETY: points into the own board, which `regions` keeps mapped.
        unsafe { self.started.as_ref() }.publish(epoch);
        for (index, lane) in self.lanes.iter().enumerate() {
            if self.has_credit(lane) {
                // SAFETY: the credit is there, and the sources are the caller's promise.
                unsafe { self.post(lane) };
            } else {
                self.unposted.push(index);
            }
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        if self.look() == Progress::Done {
            return Ok(Progress::Done);
        }
        for _ in 1..rounds {
            self.patience.relax();
            if self.look() == Progress::Done {
                return Ok(Progress::Done);
            }
        }
        Ok(Progress::Pending)
    }

    #[inline]
    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        for credit in &self.credits {
            // SAFETY: points into the origin's board, which `regions` keeps mapped.
            unsafe { credit.counter.as_ref() }.publish(epoch);
            self.ring(credit.bell);
        }
        Ok(())
    }

    fn park(&mut self, turn: u32, limit: Duration) {
        // SAFETY: points into the own board, which `regions` keeps mapped, also while `look` changes what is looked for.
        let bell = unsafe { self.own_bell.as_ref() };
        self.patience.park(turn, limit, bell, || self.look() == Progress::Done);
    }

    fn missing(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        for lane in self.unposted.iter().map(|&index| &self.lanes[index]) {
            // SAFETY: points into the own board, which `regions` keeps mapped.
            let (granted, closed) = unsafe { lane.granted.as_ref() }.look();
            if granted < self.epoch && !missing.iter().any(|m: &Missing| m.what == Lack::Credit(lane.target)) {
                missing.push(Missing { what: Lack::Credit(lane.target), peer_epoch: self.peer_epoch(lane.target), closed });
            }
        }
        for expected in &self.expected {
            // SAFETY: points into the own board, which `regions` keeps mapped.
            let (arrived, closed) = unsafe { expected.counter.as_ref() }.look();
            if arrived < self.epoch {
                let what = Lack::Arrival(expected.origin, expected.rail);
                missing.push(Missing { what, peer_epoch: self.peer_epoch(expected.origin), closed });
            }
        }
        missing
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.unposted.clear();
        let bells = self.lanes.iter().map(|lane| (lane.arrived, lane.bell));
        for (counter, bell) in bells.chain(self.credits.iter().map(|credit| (credit.counter, credit.bell))) {
            // SAFETY: points into a partner's board, which `regions` keeps mapped.
            unsafe { counter.as_ref() }.close();
            self.ring(bell);
        }
    }

    fn unclosed(&self) -> Vec<Rank> {
        let mut ranks: Vec<_> = self
            .written_by_partners()
            // SAFETY: points into the own board, which `regions` keeps mapped.
            .filter(|(_, counter)| !unsafe { counter.as_ref() }.look().1)
            .map(|(rank, _)| rank)
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        // Who has ended does not write any more.
        let shared = self.taken.as_ref().map(|taken| &taken.shared);
        ranks.retain(|&rank| !shared.is_some_and(|shared| shared.space.has_ended(rank)));
        ranks
    }

    fn explain(&self) -> String {
        let mut text = String::new();
        for lane in &self.lanes {
            let puts: Vec<_> = self.chain.puts.iter().filter(|put| (put.target, put.rail) == (lane.target, lane.rail)).collect();
            let bytes: u128 = puts.iter().map(|put| put.target_blocks.total_bytes()).sum();
            let strided =
                puts.iter().filter(|put| !put.target_blocks.is_contiguous() || !put.source_blocks.is_contiguous()).count();
            let copies = lane.copies.len();
            let _ = writeln!(
                text,
                "to {} on {}: {bytes} bytes in {copies} put(s), {strided} of them with gaps and copied as they are; then one notification",
                lane.target, lane.rail
            );
        }
        for expected in &self.expected {
            let _ = writeln!(text, "from {} on {}: one notification", expected.origin, expected.rail);
        }
        let _ = write!(text, "waiting: {}", self.patience.describe());
        text
    }
}

impl Drop for ShmCommitted {
    fn drop(&mut self) {
        // A partner must never wait for a queue that is gone, also not for one whose commit failed.
        self.close();
        // A counter that a partner may still write is not given to anybody else; its memory stays.
        if self.unclosed().is_empty()
            && let Some(taken) = self.taken.take()
        {
            taken.give_back();
        }
    }
}

/// Counters taken from the own board for one queue.
#[derive(Debug)]
pub(super) struct Taken {
    shared: Rc<Shared>,
    slots: Vec<(Rank, Slot)>,
    started: Option<Slot>,
}

impl Taken {
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        Self { shared, slots: Vec::new(), started: None }
    }

    /// The one that this rank writes itself: the epoch it has started.
    pub(super) fn started(&mut self) -> Result<Slot> {
        if let Some(slot) = self.started {
            return Ok(slot);
        }
        let slot = self.take(self.shared.rank)?;
        Ok(*self.started.insert(slot))
    }

    pub(super) fn take(&mut self, partner: Rank) -> Result<Slot> {
        let slot = self.shared.board.borrow_mut().take(partner, &self.shared.space)?;
        self.slots.push((partner, slot));
        Ok(slot)
    }

    pub(super) fn bell(&self) -> Result<Slot> {
        self.shared.board.borrow_mut().bell(&self.shared.space)
    }

    pub(super) fn give_back(self) {
        let mut board = self.shared.board.borrow_mut();
        self.slots.iter().for_each(|&(partner, slot)| board.give_back(partner, slot));
    }
}
