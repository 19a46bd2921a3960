//! Start and wait: lists of requests, notices, and how a waiting rank gives its core away.
//! Owns the hot path. Nothing here allocates or, while every rank has a core, calls the system but to post.

use crate::connection::{Connection, ConnectionId};
use crate::device::Shared;
use crate::engine::Engine;
use crate::failure;
use crate::ffi::SendList;
use crate::memory::{self, Gather, Memory};
use crate::notice::{self, EPOCHS, What};
use crate::slot::Slot;
use rma::backend::{Chain, Committed, Lack, Missing, Progress};
use rma::{Epoch, Error, Rail, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fmt::Write;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// What is copied together before a lane is posted.
#[derive(Debug)]
pub(crate) struct Packed {
    /// How many puts that are.
    pub(crate) puts: usize,
    pub(crate) copies: Box<[Gather]>,
    pub(crate) buffer: Rc<Memory>,
}

/// The puts to one target on one rail.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) target: Rank,
    pub(crate) rail: Rail,
    pub(crate) connection: ConnectionId,
    pub(crate) slot: Rc<Slot>,
    pub(crate) their_slot: u32,
    pub(crate) packed: Option<Packed>,
    /// What one list has no room for, in lists of their own.
    pub(crate) before: Box<[SendList]>,
    /// Notifies.
    pub(crate) last: SendList,
    /// For people.
    pub(crate) puts: usize,
    pub(crate) bytes: u128,
    pub(crate) requests: usize,
    pub(crate) gathering: usize,
    pub(crate) inline: usize,
    /// How many lists of this epoch are posted.
    pub(crate) posted: usize,
}

impl Lane {
    /// How many lists have been posted since the commit.
    fn posted_in_all(&self, epoch: Epoch) -> u64 {
        epoch.0.saturating_sub(1) * self.lists() as u64 + self.posted as u64
    }

    fn lists(&self) -> usize {
        self.before.len() + 1
    }

    /// Posts what there is room for. True once all of the epoch is posted.
    ///
    /// # Safety
    /// The target has granted the epoch, or the program has promised that it makes no difference. The sources are not written until
    /// the epoch is done.
    #[expect(unsafe_code, reason = "passes the promise of `Committed::start` on")]
    #[inline(always)]
    unsafe fn post(&mut self, connection: &mut Connection, epoch: Epoch) -> bool {
        // SAFETY: the caller's promise.
        if (self.packed.is_some() || !self.before.is_empty()) && !unsafe { self.post_before(connection) } {
            return false;
        }
        if !connection.has_room(self.last.len()) {
            return false;
        }
        self.posted += 1;
        self.last.immediate(connection.arrival(self.their_slot, epoch.0));
        // SAFETY: the caller's promise.
        unsafe { connection.post(&mut self.last, &self.slot) };
        true
    }

    /// Does all that comes before the last list. True once it is done.
    ///
    /// # Safety
    /// As for [`post`](Self::post).
    #[expect(unsafe_code, reason = "passes the promise of `Committed::start` on")]
    #[inline(never)]
    unsafe fn post_before(&mut self, connection: &mut Connection) -> bool {
        let first = self.before.first().unwrap_or(&self.last);
        if let Some(packed) = self.packed.as_ref().filter(|_| self.posted == 0 && connection.has_room(first.len())) {
            // SAFETY: the sources are mapped as long as the chain; nobody writes them now (the caller's promise); the buffer is this
            // lane's, and its last requests are complete, as an epoch follows a complete one.
            unsafe { memory::gather(&packed.copies, &packed.buffer) };
        }
        while let Some(list) = self.before.get_mut(self.posted).filter(|list| connection.has_room(list.len())) {
            // SAFETY: the caller's promise.
            unsafe { connection.post(list, &self.slot) };
            self.posted += 1;
        }
        self.posted == self.before.len()
    }

    #[inline]
    fn is_complete(&self, epoch: Epoch) -> bool {
        let way = self.slot.way(self.rail);
        way.completed.get() >= epoch.0 * self.lists() as u64
            // Who has closed after all arrivals of this epoch has what was sent, though the acknowledgment is lost.
            || (self.posted == self.lists() && way.closed.get() == Some(epoch.0 % EPOCHS))
    }
}

/// A notification to wait for.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) slot: Rc<Slot>,
    pub(crate) origin: Rank,
    pub(crate) rail: Rail,
}

impl Expected {
    #[inline]
    fn has_arrived(&self, epoch: Epoch) -> bool {
        self.slot.way(self.rail).arrived.get() >= epoch.0
    }
}

/// A rank that writes here, or is written to.
#[derive(Debug)]
pub(crate) struct Partner {
    pub(crate) rank: Rank,
    pub(crate) slot: Rc<Slot>,
    pub(crate) their_slot: u32,
    /// The rail on which it gets its credits, if it writes here.
    pub(crate) credits_on: Option<Rail>,
    pub(crate) connections: Vec<(Rail, ConnectionId)>,
}

impl Partner {
    fn connection(&self, rail: Rail) -> ConnectionId {
        let found = self.connections.iter().find(|(r, _)| *r == rail);
        found.map(|(_, id)| *id).expect("bug: a partner without a connection on its rail")
    }

    /// Finds out whether it is still there, on all ways.
    fn probe(&self, engine: &mut Engine) {
        self.connections.iter().for_each(|&(_, id)| engine.probe(id));
    }
}

/// A committed queue.
#[derive(Debug)]
pub(crate) struct VerbsCommitted {
    shared: Rc<Shared>,
    state: State,
}

/// A chain as lists of requests, and how far the epoch is.
#[derive(Debug)]
struct State {
    chain: Rc<Chain>,
    /// Receives set aside on every connection.
    receives: u32,
    partners: Vec<Partner>,
    /// Where credits go: the connection, and the slot of the origin.
    credits: Vec<(ConnectionId, u32)>,
    lanes: Vec<Lane>,
    expected: Vec<Expected>,
    epoch: Epoch,
    /// The lanes of this epoch that are not posted to the end. Never grows beyond the capacity it got at commit.
    unposted: Vec<usize>,
    /// How many of `expected`, from the front, have come in this epoch ..
    arrived: usize,
    /// .. and how many of `lanes` are complete.
    completed: usize,
    closed: bool,
}

/// Turns of `park` before a rank with a core of its own sleeps.
const PATIENT_TURNS: u32 = 40;
/// Turns of `park`, each after some polls that yield, before a crowded rank sleeps.
const YIELDING_TURNS: u32 = 4;
/// How long a broken connection is given to turn out to be a peer that died, of which the bootstrap knows more.
const BROKEN_OR_DEAD: Duration = Duration::from_secs(3);

impl VerbsCommitted {
    pub(crate) fn new(
        shared: Rc<Shared>,
        chain: Rc<Chain>,
        receives: u32,
        partners: Vec<Partner>,
        lanes: Vec<Lane>,
        expected: Vec<Expected>,
    ) -> Self {
        let credits = partners.iter().filter_map(|partner| Some((partner.connection(partner.credits_on?), partner.their_slot)));
        let state = State {
            credits: credits.collect(),
            unposted: Vec::with_capacity(lanes.len()),
            chain,
            receives,
            partners,
            lanes,
            expected,
            epoch: Epoch(0),
            arrived: 0,
            completed: 0,
            closed: false,
        };
        Self { shared, state }
    }

    /// Sleeps until a completion comes in, at most `limit`.
    fn sleep(&mut self, limit: Duration) {
        let Self { shared, state } = self;
        if shared.rails.iter().any(|rail| rail.completions.arm().is_err()) {
            // Polling goes on; it only costs the core.
            return rustix::thread::sched_yield();
        }
        // What came before the arming makes no event.
        let mut engine = shared.engine();
        if engine.drain(&shared.rails) || state.look(&mut engine) == Progress::Done {
            return;
        }
        drop(engine);
        let mut fds: Vec<_> =
            shared.rails.iter().map(|rail| PollFd::from_borrowed_fd(rail.completions.as_fd(), PollFlags::IN)).collect();
        let limit = Timespec::try_from(limit).ok();
        // Interrupted or not: the caller looks again.
        let _ = rustix::event::poll(&mut fds, limit.as_ref());
        shared.rails.iter().for_each(|rail| rail.completions.clear_events());
    }
}

impl State {
    /// Posts what a lane may post now. True once all of it is.
    ///
    /// # Safety
    /// The sources are not written until the epoch is done.
    #[expect(unsafe_code, reason = "passes the promise of `Committed::start` on")]
    #[inline(always)]
    unsafe fn post(lane: &mut Lane, engine: &mut Engine, credits: bool, epoch: Epoch) -> bool {
        if credits && lane.slot.granted.get() < epoch.0 {
            return false;
        }
        let connection = engine.connection_mut(lane.connection);
        // SAFETY: the sources are the caller's promise, and the credit is there or not needed.
        let posted = unsafe { lane.post(connection, epoch) };
        let failed = connection.failure.is_some();
        engine.any_failed |= failed;
        posted
    }

    #[expect(unsafe_code, reason = "posts what `Committed::start` has promised the sources of")]
    #[inline(never)]
    fn post_waiting(&mut self, engine: &mut Engine) {
        let mut at = 0;
        while at < self.unposted.len() {
            let lane = &mut self.lanes[self.unposted[at]];
            // SAFETY: `start` promised that the sources are left alone until the epoch is done.
            if unsafe { Self::post(lane, engine, self.chain.credits, self.epoch) } {
                self.unposted.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    #[inline(always)]
    fn look(&mut self, engine: &mut Engine) -> Progress {
        if !self.unposted.is_empty() {
            self.post_waiting(engine);
        }
        while let Some(expected) = self.expected.get(self.arrived) {
            if !expected.has_arrived(self.epoch) {
                return Progress::Pending;
            }
            self.arrived += 1;
        }
        while let Some(lane) = self.lanes.get(self.completed) {
            if !lane.is_complete(self.epoch) {
                return Progress::Pending;
            }
            self.completed += 1;
        }
        if self.unposted.is_empty() { Progress::Done } else { Progress::Pending }
    }

    /// The error of an epoch that lacks something a broken connection should have brought.
    #[cold]
    fn failure(&self, shared: &Shared, engine: &Engine) -> Option<Error> {
        let lacking = self.expected.iter().filter(|expected| !expected.has_arrived(self.epoch));
        let arrivals = lacking.map(|expected| (&expected.slot, expected.rail));
        let lanes = self.lanes.iter().filter(|lane| !lane.is_complete(self.epoch)).map(|lane| (&lane.slot, lane.rail));
        // Most often what broke is another queue's: then the network is not looked at, and this queue stays as fast as it is.
        let mut departed = None;
        arrivals.chain(lanes).find_map(|(slot, rail)| {
            let connection = engine.connection(slot.way(rail).connection.get()?);
            let failure = connection.failure?;
            let departed = departed.get_or_insert_with(|| shared.boot.departed());
            // Of who has gone, or has closed the queue, the core knows and says more.
            let explained = slot.any_closed() || departed.iter().any(|(rank, _)| *rank == connection.peer);
            let patient = (explained || failure.cause.may_be_a_death()) && failure.at.elapsed() < BROKEN_OR_DEAD;
            (!patient).then(|| {
                let device = &shared.rails[usize::from(connection.rail.0)].name;
                failure::error(failure.cause, connection.peer, connection.rail, device, self.chain.queue, self.epoch)
            })
        })
    }

    /// Whether nothing of a partner can come any more, nor anything of this rank be on its way to it.
    fn is_quiet(&self, partner: &Partner, engine: &Engine) -> bool {
        // While an acknowledgment is on its way the device may send again, from memory that must be registered until then.
        let delivered = |lane: &Lane| {
            let completed = lane.slot.way(lane.rail).completed.get();
            engine.connection(lane.connection).failure.is_some() || completed >= lane.posted_in_all(self.epoch)
        };
        engine.is_quiet(&partner.slot) && self.lanes.iter().filter(|lane| lane.target == partner.rank).all(delivered)
    }
}

impl Committed for VerbsCommitted {
    #[expect(unsafe_code, reason = "posts what the caller has promised the sources of")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        let Self { shared, state } = self;
        let mut engine = shared.engine();
        state.epoch = epoch;
        (state.arrived, state.completed) = (0, 0);
        for (index, lane) in state.lanes.iter_mut().enumerate() {
            lane.posted = 0;
            // SAFETY: the caller's promise.
            if !unsafe { State::post(lane, &mut engine, state.chain.credits, epoch) } {
                state.unposted.push(index);
            }
        }
        engine.pay_all();
        Ok(())
    }

    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        let Self { shared, state } = self;
        let mut engine = shared.engine();
        engine.pay_all();
        for round in 0..rounds {
            if round > 0 && shared.crowded {
                rustix::thread::sched_yield();
            }
            let news = engine.drain(&shared.rails);
            if (news || round == 0) && state.look(&mut engine) == Progress::Done {
                return Ok(Progress::Done);
            }
        }
        if engine.any_failed
            && !state.closed
            && let Some(error) = state.failure(shared, &engine)
        {
            return Err(error);
        }
        Ok(Progress::Pending)
    }

    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        if self.state.credits.is_empty() {
            return Ok(());
        }
        read_before_granting();
        let mut engine = self.shared.engine();
        for &(connection, slot) in &self.state.credits {
            engine.notify(connection, notice::encode(What::Granted, slot, epoch.0), false);
        }
        Ok(())
    }

    fn grant_with_start(&mut self, epoch: Epoch) -> Result<()> {
        if self.state.credits.is_empty() {
            return Ok(());
        }
        read_before_granting();
        let mut engine = self.shared.engine();
        self.state.credits.iter().for_each(|&(connection, slot)| engine.owe(connection, slot, epoch.0));
        Ok(())
    }

    fn park(&mut self, turn: u32, limit: Duration) {
        let keeps = if self.shared.crowded { YIELDING_TURNS } else { PATIENT_TURNS };
        if turn >= keeps {
            self.sleep(limit);
        } else {
            // Also with a core for every rank: the system may have put two on one.
            rustix::thread::sched_yield();
        }
    }

    fn missing(&self) -> Vec<Missing> {
        // Asked for now and then while something is waited for: that is when to find out whether those are there who say nothing.
        let mut engine = self.shared.engine();
        self.state.partners.iter().for_each(|partner| partner.probe(&mut engine));
        drop(engine);
        let mut missing: Vec<Missing> = Vec::new();
        for lane in &self.state.lanes {
            let slot = &lane.slot;
            let lacks_credit = self.state.chain.credits && slot.granted.get() < self.state.epoch.0;
            let what = match lacks_credit {
                true => Lack::Credit(lane.target),
                false if !lane.is_complete(self.state.epoch) => Lack::Completion(lane.target, lane.rail),
                false => continue,
            };
            if !missing.iter().any(|other| other.what == what) {
                // A target grants an epoch when it is done with the one before.
                let peer_epoch = self.state.chain.credits.then(|| Epoch(slot.granted.get().saturating_sub(1)));
                missing.push(Missing { what, peer_epoch, closed: slot.any_closed() });
            }
        }
        for expected in &self.state.expected {
            if !expected.has_arrived(self.state.epoch) {
                let started = expected.slot.ways().map(|(_, way)| way.arrived.get()).max().unwrap_or(0);
                let closed = expected.slot.way(expected.rail).closed.get().is_some();
                let what = Lack::Arrival(expected.origin, expected.rail);
                missing.push(Missing { what, peer_epoch: Some(Epoch(started)), closed });
            }
        }
        missing
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.state.closed, true) {
            return;
        }
        self.state.unposted.clear();
        let mut engine = self.shared.engine();
        for partner in &self.state.partners {
            for &(rail, connection) in &partner.connections {
                let seen = partner.slot.way(rail).arrived.get();
                engine.notify(connection, notice::encode(What::Closed, partner.their_slot, seen), true);
            }
        }
    }

    fn unclosed(&self) -> Vec<Rank> {
        let mut engine = self.shared.engine();
        engine.drain(&self.shared.rails);
        if self.state.partners.iter().all(|partner| self.state.is_quiet(partner, &engine)) {
            return Vec::new();
        }
        // Who has gone writes no more: its connections are ended from this side.
        let departed = self.shared.boot.departed();
        let mut ranks = Vec::new();
        for partner in &self.state.partners {
            if departed.iter().any(|(rank, _)| *rank == partner.rank) {
                engine.sever(partner.rank);
            } else if !self.state.is_quiet(partner, &engine) {
                partner.probe(&mut engine);
                ranks.push(partner.rank);
            }
        }
        ranks
    }

    fn explain(&self) -> String {
        let mut text = String::new();
        for lane in &self.state.lanes {
            let Lane { target, rail, puts, bytes, requests, gathering, inline, .. } = lane;
            let device = &self.shared.rails[usize::from(rail.0)].name;
            let _ = write!(text, "to {target} on {rail} ({device}): {bytes} bytes in {puts} put(s) as {requests} write request(s)");
            for (count, what) in [(inline, "with the bytes inline"), (gathering, "gathering several pieces")] {
                if *count > 0 {
                    let _ = write!(text, ", {count} {what}");
                }
            }
            if let Some(packed) = &lane.packed {
                let _ = write!(
                    text,
                    ", {} put(s) packed here first ({} copies, {} bytes)",
                    packed.puts,
                    packed.copies.len(),
                    packed.buffer.len_bytes()
                );
            }
            let posts = lane.lists();
            let _ = writeln!(text, "; posted in {posts} call(s), the last request notifies");
        }
        for expected in &self.state.expected {
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

/// What this rank has read of the received ranges, it has read before the device takes the credit out.
#[inline]
fn read_before_granting() {
    // Release: the loads before it stay before the stores that post the credit. On x86 that costs nothing.
    fence(Ordering::Release);
}

impl Drop for VerbsCommitted {
    fn drop(&mut self) {
        // A partner must never wait for a queue that is gone, also not for one whose commit failed.
        self.close();
        let mut engine = self.shared.engine();
        engine.drain(&self.shared.rails);
        for partner in &self.state.partners {
            engine.abandon_slot(&partner.slot);
            for &(_, id) in &partner.connections {
                engine.release(id, self.state.receives, &self.shared);
            }
        }
    }
}
