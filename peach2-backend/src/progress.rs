//! Start and wait: heads of chains to the controller, flags, and what the clock makes of them.
//! Owns the hot path. Nothing here allocates, locks or, while every rank has a core, calls the system.
//!
//! # The virtual time
//! Nothing of it depends on when anything happens to be looked at. A channel's time is set aside when a queue is started, for all its
//! chains there in their order. A chain is taken up when that time comes or, if that is later, when its credit is there; it takes its
//! place in the order all the same, so one that waited is not before those that precede it, and nobody waits for it. What arrives
//! carries its time along. This rank's clock moves on to the end of an epoch when the program has waited for it.

use crate::address::Address;
use crate::board::{DmaError, Flag, FlagMemory};
use crate::channel::Timetable;
use crate::clock::Time;
use crate::commit::{Holdings, refused};
use crate::descriptor::{FlagPlace, Placement, Request};
use crate::device::{Shared, node_of};
use crate::placement::CHANNELS;
use rma::backend::{Chain, Committed, Lack, Missing, Progress};
use rma::{Epoch, Rail, Rank, Result, VirtualSpan};
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

/// A flag that was found at commit, of this or another board.
#[derive(Clone, Debug)]
pub(crate) struct FlagRef {
    memory: Rc<FlagMemory>,
    place: FlagPlace,
}

impl FlagRef {
    /// Panics where there is none: the place was checked.
    pub(crate) fn new(memory: Rc<FlagMemory>, place: FlagPlace) -> Self {
        assert!(memory.flag(place).is_some(), "bug: no flag at {place:?}");
        Self { memory, place }
    }

    #[inline]
    fn get(&self) -> &Flag {
        self.memory.flag(self.place).unwrap_or_else(|| unreachable!("bug: `new` has looked"))
    }
}

/// The chain of the puts to one target on one channel.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) target: Rank,
    pub(crate) rail: Rail,
    pub(crate) head: Address,
    pub(crate) placement: Placement,
    /// In the own board: the target's credits, and what of this chain is complete.
    pub(crate) granted: FlagRef,
    pub(crate) sent: FlagRef,
    /// In the target's board.
    pub(crate) arrived: FlagRef,
    /// What the chains before it on its channel take, and what it takes itself.
    pub(crate) after: Time,
    pub(crate) took: Time,
    /// When it was taken up in this epoch, once it was.
    pub(crate) begun: Option<Time>,
}

/// A notification to wait for, in the own board.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) origin: Rank,
    pub(crate) rail: Rail,
    pub(crate) flag: FlagRef,
}

/// A rank that writes here, or is written to.
#[derive(Debug)]
pub(crate) struct Partner {
    pub(crate) rank: Rank,
    /// Where an origin looks for its credits.
    pub(crate) credit: Option<FlagRef>,
}

/// Chains of descriptors, ready to be started.
#[derive(Debug)]
pub(crate) struct Peach2Committed {
    chain: Rc<Chain>,
    epoch: Epoch,
    closed: bool,
    /// By ascending target and rail.
    lanes: Vec<Lane>,
    /// What all lanes of each channel take together.
    busy: [Time; CHANNELS],
    /// When each channel takes this queue up in this epoch.
    turn: [Time; CHANNELS],
    /// The lanes of this epoch that still lack their credit. Never grows beyond the capacity it got at commit.
    unposted: Vec<usize>,
    expected: Vec<Expected>,
    /// How many of `expected`, from the front, have come in this epoch, and when the last of them came.
    arrived: usize,
    latest: Time,
    partners: Vec<Partner>,
    begun: Time,
    /// The first thing that the controller could not do: every later poll fails with it.
    failure: Option<(String, DmaError)>,
    holdings: Holdings,
    shared: Rc<Shared>,
}

impl Peach2Committed {
    pub(crate) fn new(
        shared: Rc<Shared>,
        chain: Rc<Chain>,
        lanes: Vec<Lane>,
        expected: Vec<Expected>,
        partners: Vec<Partner>,
        holdings: Holdings,
    ) -> Self {
        let mut busy = [Time::default(); CHANNELS];
        for lane in &lanes {
            busy[lane.rail.index()] = busy[lane.rail.index()] + lane.took;
        }
        Self {
            chain,
            epoch: Epoch(0),
            closed: false,
            unposted: Vec::with_capacity(lanes.len()),
            lanes,
            busy,
            turn: [Time::default(); CHANNELS],
            expected,
            arrived: 0,
            latest: Time::default(),
            partners,
            begun: Time::default(),
            failure: None,
            holdings,
            shared,
        }
    }

    /// Hands the head of a lane's chain to the controller, if its target has granted the epoch.
    ///
    /// # Safety
    /// The sources are not written until the epoch is done.
    #[inline]
    #[expect(unsafe_code, reason = "passes a promise on")]
    unsafe fn post(&mut self, index: usize) -> bool {
        let lane = &mut self.lanes[index];
        let credit = match self.chain.credits {
            false => Time::default(),
            true => match lane.granted.get().since(self.epoch) {
                Some(at) => at,
                None => return false,
            },
        };
        let begun = self.turn[lane.rail.index()].max(credit) + lane.after;
        lane.begun = Some(begun);
        // SAFETY: the credit is there, or the program has promised that it is not needed; the sources are the caller's promise.
        if let Err(cause) = unsafe { self.shared.board.run(lane.head, self.epoch, begun + lane.took) } {
            let doing = format!("working through the chain to {} on {} in {}", lane.target, lane.rail, self.epoch);
            self.failure.get_or_insert((doing, cause));
        }
        self.shared.space.patience().ring(lane.arrived.memory.bell());
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
    }

    #[inline]
    fn look(&mut self) -> Progress {
        if !self.unposted.is_empty() {
            self.post_waiting();
        }
        while let Some(expected) = self.expected.get(self.arrived) {
            let Some(at) = expected.flag.get().since(self.epoch) else { return Progress::Pending };
            self.latest = self.latest.max(at);
            self.arrived += 1;
        }
        let is_complete = |lane: &Lane| lane.sent.get().since(self.epoch).is_some();
        if self.unposted.is_empty() && self.lanes.iter().all(is_complete) { Progress::Done } else { Progress::Pending }
    }

    /// When the last of the puts and arrivals of an epoch that is done came.
    fn ended(&self) -> Time {
        let sent = self.lanes.iter().filter_map(|lane| lane.sent.get().since(self.epoch));
        sent.fold(self.latest, Time::max)
    }

    /// All flags of the own board that partners write, with who does.
    fn written_by_partners(&self) -> impl Iterator<Item = (Rank, &FlagRef)> {
        let arrivals = self.expected.iter().map(|expected| (expected.origin, &expected.flag));
        arrivals.chain(self.lanes.iter().map(|lane| (lane.target, &lane.granted)))
    }

    /// What partners look at.
    fn written_for_partners(&self) -> impl Iterator<Item = &FlagRef> {
        let arrivals = self.lanes.iter().map(|lane| &lane.arrived);
        arrivals.chain(self.partners.iter().filter_map(|partner| partner.credit.as_ref()))
    }

    /// The epoch that a partner is in, as far as its flags say.
    fn peer_epoch(&self, peer: Rank) -> Option<Epoch> {
        let started = self.expected.iter().filter(|expected| expected.origin == peer).map(|expected| expected.flag.get().look().0);
        // Who has granted an epoch is done with the one before.
        let granted = self.lanes.iter().filter(|lane| lane.target == peer && self.chain.credits);
        started.chain(granted.map(|lane| Epoch(lane.granted.get().look().0.0.saturating_sub(1)))).max()
    }
}

impl Committed for Peach2Committed {
    #[expect(unsafe_code, reason = "takes over a contract")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        (self.epoch, self.arrived) = (epoch, 0);
        self.begun = self.shared.now.get();
        self.latest = self.begun;
        for channel in 0..CHANNELS {
            // Also for no time: what takes none has its turn all the same, and does not begin before this.
            self.turn[channel] = self.shared.channels.reserve(channel, self.begun, self.busy[channel]);
        }
        for index in 0..self.lanes.len() {
            self.lanes[index].begun = None;
            // SAFETY: the caller's promise.
            if !unsafe { self.post(index) } {
                self.unposted.push(index);
            }
        }
        Ok(())
    }

    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        for round in 0..rounds {
            if round > 0 {
                self.shared.space.patience().relax();
            }
            if self.look() == Progress::Done {
                return Ok(Progress::Done);
            }
        }
        match &self.failure {
            None => Ok(Progress::Pending),
            Some((doing, cause)) => Err(refused(doing.clone(), *cause)),
        }
    }

    fn settle(&mut self) {
        self.shared.now.set(self.shared.now.get().max(self.ended()));
    }

    fn virtual_span(&self) -> Option<VirtualSpan> {
        Some(VirtualSpan { begun: self.begun.duration(), ended: self.ended().duration() })
    }

    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        // The flag's Release keeps what this rank has read of the received ranges before the credit.
        for Partner { rank, credit } in &self.partners {
            if let Some(credit) = credit {
                credit.get().publish(epoch, self.shared.pio_to(*rank));
                self.shared.space.patience().ring(credit.memory.bell());
            }
        }
        Ok(())
    }

    fn park(&mut self, turn: u32, limit: Duration) {
        let shared = self.shared.clone();
        shared.space.patience().park(turn, limit, shared.board.flags.bell(), || self.look() == Progress::Done);
    }

    fn missing(&self) -> Vec<Missing> {
        let mut missing: Vec<Missing> = Vec::new();
        for lane in self.unposted.iter().map(|&index| &self.lanes[index]) {
            let (granted, closed) = lane.granted.get().look();
            let what = Lack::Credit(lane.target);
            if granted < self.epoch && !missing.iter().any(|other| other.what == what) {
                missing.push(Missing { what, peer_epoch: self.peer_epoch(lane.target), closed });
            }
        }
        for Expected { origin, rail, flag } in &self.expected {
            let (arrived, closed) = flag.get().look();
            if arrived < self.epoch {
                let what = Lack::Arrival(*origin, *rail);
                missing.push(Missing { what, peer_epoch: self.peer_epoch(*origin), closed });
            }
        }
        missing
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.unposted.clear();
        for flag in self.written_for_partners() {
            flag.get().close();
            self.shared.space.patience().ring(flag.memory.bell());
        }
        // Now, not when partners have closed, too: which places the next queue finds must not depend on them.
        self.holdings.give_chains_back();
    }

    fn unclosed(&self) -> Vec<Rank> {
        let open = self.written_by_partners().filter(|(_, flag)| !flag.get().look().1);
        let mut ranks: Vec<_> = open.map(|(rank, _)| rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        // Who has ended does not write any more.
        ranks.retain(|&rank| !self.shared.space.has_ended(rank));
        ranks
    }

    fn explain(&self) -> String {
        let mut text = String::new();
        let planned = self.lanes.iter().any(|lane| lane.begun.is_none());
        let _ = match planned {
            true => writeln!(text, "times in us from the start of an epoch, if all credits are there"),
            false => writeln!(text, "times in us from the start of {} at {}", self.epoch, self.begun),
        };
        let mut lanes: Vec<_> = self.lanes.iter().collect();
        lanes.sort_by_key(|lane| (lane.rail, lane.after));
        for lane in lanes {
            let begun = lane.begun.filter(|_| !planned).map_or(lane.after, |begun| Time(begun.0 - self.begun.0));
            self.explain_lane(lane, begun, &mut text);
        }
        for Expected { origin, rail, .. } in &self.expected {
            let _ = writeln!(text, "from {origin} on {rail}: one notification");
        }
        let (registers, internal) = self.shared.board.descriptors.borrow().free();
        let registers = registers.map(|free| free.to_string()).join(", ");
        let _ =
            writeln!(text, "free for descriptors on this board: {registers} registers by channel, {internal} in internal memory");
        let _ = write!(text, "waiting: {}", self.shared.space.patience().describe());
        text
    }
}

/// How many descriptors of a chain are listed, at its beginning.
const LISTED: usize = 8;

impl Peach2Committed {
    /// A chain, and when each of its puts is under way if it is taken up at `begun`.
    fn explain_lane(&self, lane: &Lane, begun: Time, text: &mut String) {
        let hops = self.shared.hops(lane.target);
        let path = self.shared.topology.describe_path(self.shared.board.node, node_of(lane.target));
        let puts = self.chain.puts.iter().filter(|put| (put.target, put.rail) == (lane.target, lane.rail));
        let (puts, bytes) = puts.fold((0, 0), |(puts, bytes), put| (puts + 1, bytes + put.target_blocks.total_bytes()));
        let place = match lane.placement {
            Placement::Registers => "registers",
            Placement::Internal => "internal memory",
            Placement::Host => "host memory",
        };
        // A queue that was closed has no descriptors any more.
        let chain = if self.closed { Vec::new() } else { self.shared.board.survey(lane.head).unwrap_or_default() };
        let _ = writeln!(
            text,
            "channel {}, to {} over {path}: {bytes} bytes in {puts} put(s), {} descriptor(s) in {place}; then one notification",
            lane.rail.0,
            lane.target,
            chain.len(),
        );
        let timetable = Timetable::of(&chain, hops, self.shared.memory(), &self.shared.options.constants);
        for ((_, request), (from, to)) in chain.iter().zip(&timetable.puts).take(LISTED) {
            let _ = writeln!(text, "  {:>10} .. {:>10}  {}", begun + *from, begun + *to, describe(request));
        }
        if let Some(more) = chain.len().checked_sub(LISTED).filter(|&more| more > 0) {
            let _ = writeln!(text, "  {:>10} .. {:>10}  and {more} more", "", begun + timetable.end);
        }
    }
}

fn describe(request: &Request) -> String {
    let shape = request.shape;
    match shape.count {
        1 => format!("copy of {} bytes", shape.block_bytes),
        count => format!(
            "{count} blocks of {} bytes, {} apart there and {} here",
            shape.block_bytes, shape.target_pitch, shape.source_pitch
        ),
    }
}

impl Drop for Peach2Committed {
    fn drop(&mut self) {
        // A partner must never wait for a queue that is gone, also not for one whose commit failed.
        self.close();
        // Flags that a partner may still write are not given to anybody else.
        if self.unclosed().is_empty() {
            self.holdings.give_slots_back();
        }
    }
}
