//! The collective calls as a state machine: frames in, frames out. Knows no sockets and no clock, so tests step it.
//!
//! Every call ends with a dissemination: in round k a rank sends to the rank 2^k after it, and waits for the rank 2^k before it.
//! After log2(size) rounds it has heard, through others, from all. The rounds carry the parts of an allgather and the lowest
//! objection of an agree. An exchange first sends its messages straight to their targets and waits for the acknowledgments, so
//! that the end of the dissemination means: all messages of all ranks have arrived.

use super::wire::{Decoded, Frame, MAX_FRAME_BYTES, MAX_HEADER_BYTES, Reader, put_text, put_u32};
use crate::bootstrap::failure::{Call, Failure, Kind, Why, check_outgoing, list_ranks};
use crate::bootstrap::{Departure, Messages, Objection};
use crate::{Error, Purpose, Rank, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The longest payload of a round or of a message.
pub(super) const MAX_PAYLOAD_BYTES: usize = MAX_FRAME_BYTES - MAX_HEADER_BYTES;
/// The most frames one rank may be ahead of this one: the rounds for 2^32 ranks, a message, and what asks for the missing.
const MAX_EARLY: usize = 40;
/// The most missing ranks that rank 0 names in an answer.
const NAMED: usize = 8;

/// A call to begin.
#[derive(Debug)]
pub(super) enum Start {
    Allgather(Vec<u8>),
    Exchange(Messages),
    Agree(Option<String>),
    Barrier,
}

impl Start {
    fn kind(&self) -> Kind {
        match self {
            Self::Allgather(_) => Kind::Allgather,
            Self::Exchange(_) => Kind::Exchange,
            Self::Agree(_) => Kind::Agree,
            Self::Barrier => Kind::Barrier,
        }
    }

    pub(super) fn call(&self, purpose: Purpose) -> Call {
        self.kind().of(purpose)
    }
}

/// What a call gave; each kind of call fills its own field.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) gathered: Vec<Vec<u8>>,
    pub(super) incoming: Messages,
    pub(super) objection: Option<Objection>,
}

/// A frame to be sent.
#[derive(Debug)]
pub(super) enum Output {
    To(Rank, Frame),
    /// To everyone there is a connection with, but for the rank it came from.
    Flood {
        except: Option<Rank>,
        frame: Frame,
    },
}

/// One rank's side.
#[derive(Debug)]
pub(super) struct Protocol {
    me: Rank,
    size: u32,
    /// The number of the running call, or else of the next one.
    seq: u64,
    /// How many calls have ended well.
    completed: u64,
    running: Option<Running>,
    /// Frames of the call after this one, by sender.
    early: BTreeMap<Rank, Vec<Frame>>,
    gone: BTreeMap<Rank, Gone>,
    failure: Option<Failure>,
    outbox: VecDeque<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gone {
    how: Departure,
    /// How many calls it had ended well, if it could still say so.
    completed: Option<u64>,
}

#[derive(Debug)]
struct Running {
    call: Call,
    /// The round whose frame is awaited; `rounds` of them in all.
    round: u8,
    rounds: u8,
    /// By round: payloads that came and are not used yet.
    arrived: BTreeMap<u8, Vec<u8>>,
    /// Whether the dissemination has begun.
    spreading: bool,
    unacked: BTreeSet<Rank>,
    inbox: BTreeMap<Rank, Vec<u8>>,
    /// The parts of this rank, the rank before it, and so on around.
    gathered: Vec<Vec<u8>>,
    objection: Option<Objection>,
    /// Who is known to be in the call, by its own frames.
    heard: BTreeSet<Rank>,
    /// The answer of rank 0 to who is not.
    missing: Option<(Vec<Rank>, u32)>,
}

impl Protocol {
    pub(super) fn new(me: Rank, size: u32) -> Self {
        Self {
            me,
            size,
            seq: 0,
            completed: 0,
            running: None,
            early: BTreeMap::new(),
            gone: BTreeMap::new(),
            failure: None,
            outbox: VecDeque::new(),
        }
    }

    /// The next frame to be sent.
    pub(super) fn output(&mut self) -> Option<Output> {
        self.outbox.pop_front()
    }

    /// Begins a call. On an error the call has ended, for the others too.
    pub(super) fn begin(&mut self, start: Start, purpose: Purpose) -> Result<()> {
        let call = start.call(purpose);
        let refused = match &start {
            _ if self.is_broken() => None,
            Start::Allgather(mine) => check_len("part of allgather", mine.len()).err(),
            Start::Exchange(outgoing) => {
                let too_long = outgoing.iter().find_map(|(_, message)| check_len("message of exchange", message.len()).err());
                check_outgoing(self.size, outgoing).err().or(too_long)
            }
            Start::Agree(_) | Start::Barrier => None,
        };
        let mut running = Running {
            call,
            round: 0,
            rounds: self.size.next_power_of_two().trailing_zeros() as u8,
            arrived: BTreeMap::new(),
            spreading: false,
            unacked: BTreeSet::new(),
            inbox: BTreeMap::new(),
            gathered: Vec::new(),
            objection: None,
            heard: BTreeSet::new(),
            missing: None,
        };
        if let Some(error) = refused {
            self.running = Some(running);
            self.fail(Why::Other { call, reason: error.to_string() });
            self.abort();
            return Err(error);
        }
        if let Some((&rank, &Gone { how, .. })) = self.gone.first_key_value() {
            // It cannot have been in this call, which needs this rank too.
            self.fail(Why::Lost { rank, how });
        }
        match start {
            Start::Allgather(mine) => running.gathered.push(mine),
            Start::Agree(reason) => running.objection = reason.map(|reason| Objection { rank: self.me, reason }),
            Start::Exchange(outgoing) if !self.is_broken() => {
                for (target, payload) in outgoing {
                    if target == self.me {
                        running.inbox.insert(target, payload);
                        continue;
                    }
                    running.unacked.insert(target);
                    self.outbox.push_back(Output::To(target, Frame::Message { seq: self.seq, call, payload }));
                }
            }
            Start::Exchange(_) | Start::Barrier => {}
        }
        self.running = Some(running);
        if let Some(error) = self.error() {
            return Err(error);
        }
        self.spread_when_acked();
        for (from, frames) in std::mem::take(&mut self.early) {
            for frame in frames {
                self.receive(from, frame);
            }
        }
        Ok(())
    }

    /// Takes in a frame that came straight from `from`.
    pub(super) fn receive(&mut self, from: Rank, frame: Frame) {
        if let Some((seq, call)) = frame.call() {
            if self.is_broken() {
                return;
            }
            let roll = matches!(frame, Frame::Present { .. });
            match (&self.running, seq.checked_sub(self.seq)) {
                (Some(running), Some(0)) if running.call != call => {
                    self.fail(Why::Mismatch { one: (self.me, running.call), other: (from, call) });
                }
                (Some(_), Some(0)) => {
                    if let Err(reason) = self.apply(from, frame) {
                        self.fail(Why::Malformed { from, reason });
                    }
                }
                (None, Some(0)) | (Some(_), Some(1)) => {
                    let kept = self.early.entry(from).or_default();
                    kept.push(frame);
                    if kept.len() > MAX_EARLY {
                        self.fail(Why::Malformed {
                            from,
                            reason: format!("more than {MAX_EARLY} frames ahead of call {}", self.seq),
                        });
                    }
                }
                // That a rank is in a call may be heard after the call has ended.
                (_, None) if roll => {}
                _ => self.fail(Why::Malformed { from, reason: format!("a frame of call {seq} during call {}", self.seq) }),
            }
            return;
        }
        match frame {
            Frame::Gone { rank, how, completed } if rank.0 < self.size => self.gone(rank, how, completed, Some(from)),
            Frame::Failed(failure) if failure.rank.0 < self.size => self.set_failure(failure, Some(from)),
            Frame::Missing { seq, ranks, more } => {
                if let Some(running) = self.running.as_mut().filter(|_| seq == self.seq && from.0 == 0) {
                    running.missing = Some((ranks, more));
                }
            }
            _ => self.fail(Why::Malformed { from, reason: "a frame out of place".into() }),
        }
    }

    /// A rank has gone. The first news of it are passed on, and better news that follow.
    pub(super) fn gone(&mut self, rank: Rank, how: Departure, completed: Option<u64>, from: Option<Rank>) {
        let known = self.gone.get(&rank);
        if rank == self.me || known.is_some_and(|known| known.completed.is_some() || completed.is_none()) {
            return;
        }
        self.gone.insert(rank, Gone { how, completed });
        self.outbox.push_back(Output::Flood { except: from, frame: Frame::Gone { rank, how, completed } });
        // A rank that ended this call has sent all that others need from it.
        if completed.is_some_and(|completed| completed <= self.seq) && self.running.is_some() && !self.is_done() {
            self.fail(Why::Lost { rank, how });
        }
    }

    pub(super) fn departed(&self) -> impl Iterator<Item = (Rank, Departure)> + '_ {
        self.gone.iter().map(|(rank, gone)| (*rank, gone.how))
    }

    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        self.gone.contains_key(&rank)
    }

    /// A rank that died in a running call, nobody knows at which point of it. If it was past the end, then this rank's end is
    /// a matter of frames that are on their way; so one waits for them a little, and then calls [`give_up`](Self::give_up).
    pub(super) fn suspect(&self) -> Option<Rank> {
        let running = self.running.is_some() && !self.is_done() && !self.is_broken();
        self.gone.iter().find(|(_, gone)| running && gone.completed.is_none()).map(|(rank, _)| *rank)
    }

    /// The suspect must be missed.
    pub(super) fn give_up(&mut self) {
        if let Some(rank) = self.suspect() {
            self.fail(Why::Lost { rank, how: Departure::Died });
        }
    }

    /// Ends the running call for everyone.
    pub(super) fn fail(&mut self, why: Why) {
        self.set_failure(Failure { seq: self.seq, rank: self.me, why }, None);
    }

    /// Says what has failed, if it was nothing that a longer patience could mend.
    pub(super) fn failed_for_good(&self) -> bool {
        self.is_broken() && self.failure.as_ref().is_some_and(|failure| !matches!(failure.why, Why::Other { .. }))
    }

    /// The error of the running call if it can go on no more; the call has then ended.
    pub(super) fn error(&mut self) -> Option<Error> {
        let running = self.running.as_ref().filter(|_| self.is_broken() && !self.is_done())?;
        let error = self.failure.as_ref()?.error(self.me, running.call, self.seq);
        self.abort();
        Some(error)
    }

    /// Ends the running call without a result.
    pub(super) fn abort(&mut self) {
        if self.running.take().is_some() {
            self.seq += 1;
        }
    }

    /// Whether the running call has all it needs.
    pub(super) fn is_done(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.spreading && running.round == running.rounds)
    }

    /// Ends a call that is done.
    pub(super) fn finish(&mut self) -> Ended {
        let done = self.is_done();
        let Some(mut running) = self.running.take().filter(|_| done) else { panic!("bug: a call ended before it was done") };
        self.seq += 1;
        self.completed += 1;
        // Parts stand backward from this rank; in rank order the one of rank 0 comes first.
        running.gathered.reverse();
        if !running.gathered.is_empty() {
            running.gathered.rotate_left((self.size - 1 - self.me.0) as usize);
        }
        Ended { gathered: running.gathered, incoming: running.inbox.into_iter().collect(), objection: running.objection }
    }

    /// What a rank at a new connection shall hear first: all that was spread before. The failure comes before the departures
    /// that may have followed from it, here as everywhere, so that its cause is what a rank hears of first.
    pub(super) fn news(&self) -> impl Iterator<Item = Frame> + '_ {
        let gone = self.gone.iter().map(|(&rank, &Gone { how, completed })| Frame::Gone { rank, how, completed });
        self.failure.clone().map(Frame::Failed).into_iter().chain(gone)
    }

    /// What the others shall hear when this rank goes.
    pub(super) fn goodbye(&self, how: Departure) -> Frame {
        Frame::Gone { rank: self.me, how, completed: Some(self.completed) }
    }

    /// The call takes long: lets rank 0 know who is in it, and with `ask` asks it who is not.
    pub(super) fn call_the_roll(&mut self, ask: bool) {
        if let Some(running) = self.running.as_ref().filter(|_| self.me.0 != 0 && !self.is_broken()) {
            self.outbox.push_back(Output::To(Rank(0), Frame::Present { seq: self.seq, call: running.call, ask }));
        }
    }

    /// Who is not in the running call, as far as this rank can know.
    pub(super) fn missing(&self) -> String {
        let Some(running) = &self.running else { return "nobody is missing".into() };
        let unacked = running.unacked.iter().next();
        let awaited = unacked.copied().unwrap_or_else(|| self.before(running.round.min(running.rounds.saturating_sub(1))));
        match &running.missing {
            _ if self.me.0 == 0 => match list_ranks(absent(running, self.me, self.size)) {
                absent if absent.is_empty() => format!("all ranks are in it, {awaited} does not go on"),
                absent => format!("{absent} not in it"),
            },
            Some((ranks, _)) if ranks.is_empty() => format!("all ranks are in it, {awaited} does not go on"),
            Some((ranks, 0)) => format!("{} not in it", list_ranks(ranks.iter().copied())),
            Some((ranks, more)) => format!("{} and {more} more not in it", list_ranks(ranks.iter().copied())),
            None if running.heard.contains(&Rank(0)) => format!("{awaited} does not answer"),
            None => "rank 0, and perhaps others, not in it".into(),
        }
    }

    /// Whether the group has failed, as far as this rank has come: a rank that is ahead may have failed in the next call, while
    /// this one still ends the call before it.
    fn is_broken(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.seq <= self.seq)
    }

    /// Keeps and passes on the failure of the earliest call, of equals the first heard of.
    fn set_failure(&mut self, failure: Failure, except: Option<Rank>) {
        if self.failure.as_ref().is_some_and(|known| known.seq <= failure.seq) {
            return;
        }
        self.early.clear();
        self.outbox.push_back(Output::Flood { except, frame: Frame::Failed(failure.clone()) });
        self.failure = Some(failure);
    }

    /// A frame of the running call.
    fn apply(&mut self, from: Rank, frame: Frame) -> Decoded<()> {
        let (size, me, seq) = (self.size, self.me, self.seq);
        let Some(running) = &mut self.running else { return Ok(()) };
        running.heard.insert(from);
        match frame {
            Frame::Round { round, payload, .. } => {
                if round >= running.rounds || from != before(me, size, round) {
                    return Err(format!("round {round} of {} is not {from}'s to send to {me}", running.rounds));
                }
                if round < running.round || running.arrived.insert(round, payload).is_some() {
                    return Err(format!("round {round} twice"));
                }
                self.advance()
            }
            Frame::Message { call, payload, .. } => {
                if running.inbox.insert(from, payload).is_some() {
                    return Err("two messages in one exchange".into());
                }
                self.outbox.push_back(Output::To(from, Frame::Ack { seq, call }));
                Ok(())
            }
            Frame::Ack { .. } => {
                if !running.unacked.remove(&from) {
                    return Err("an acknowledgment of nothing".into());
                }
                self.spread_when_acked();
                self.advance()
            }
            Frame::Present { ask, .. } => {
                if ask && me.0 == 0 {
                    let mut absent = absent(running, me, size);
                    let ranks: Vec<_> = absent.by_ref().take(NAMED).collect();
                    let more = absent.count() as u32;
                    self.outbox.push_back(Output::To(from, Frame::Missing { seq, ranks, more }));
                }
                Ok(())
            }
            _ => Err("a frame out of place".into()),
        }
    }

    fn spread_when_acked(&mut self) {
        let Some(running) = &mut self.running else { return };
        if running.unacked.is_empty() && !running.spreading {
            running.spreading = true;
            self.send_round();
        }
    }

    /// Uses the rounds that have come, in their order.
    fn advance(&mut self) -> Decoded<()> {
        while let Some(running) = &mut self.running {
            if !running.spreading {
                break;
            }
            let Some(payload) = running.arrived.remove(&running.round) else { break };
            absorb(running, self.size, &payload)?;
            running.round += 1;
            self.send_round();
        }
        Ok(())
    }

    /// Sends what is known so far to the partner of this round.
    fn send_round(&mut self) {
        let Some(running) = self.running.as_ref().filter(|running| running.round < running.rounds) else { return };
        let (round, call) = (running.round, running.call);
        let mut payload = Vec::new();
        match call.kind {
            Kind::Allgather => {
                let parts = &running.gathered[..parts_in(round, self.size)];
                let len_bytes = parts.iter().map(|part| part.len() + 4).sum::<usize>();
                if let Err(error) = check_len("all parts of allgather", len_bytes) {
                    return self.fail(Why::Other { call, reason: error.to_string() });
                }
                payload.reserve(len_bytes);
                for part in parts {
                    put_u32(&mut payload, part.len() as u32);
                    payload.extend(part);
                }
            }
            Kind::Agree => {
                if let Some(Objection { rank, reason }) = &running.objection {
                    put_u32(&mut payload, rank.0);
                    put_text(&mut payload, reason);
                }
            }
            Kind::Exchange | Kind::Barrier => {}
        }
        let after = (u64::from(self.me.0) + (1 << round)) % u64::from(self.size);
        self.outbox.push_back(Output::To(Rank(after as u32), Frame::Round { seq: self.seq, call, round, payload }));
    }

    fn before(&self, round: u8) -> Rank {
        before(self.me, self.size, round)
    }
}

/// Whose frames of the running call have not come to this rank.
fn absent(running: &Running, me: Rank, size: u32) -> impl Iterator<Item = Rank> + '_ {
    (0..size).map(Rank).filter(move |rank| *rank != me && !running.heard.contains(rank))
}

/// Whose frame a rank awaits in a round.
fn before(me: Rank, size: u32, round: u8) -> Rank {
    Rank(((u64::from(me.0) + u64::from(size) - ((1 << round) % u64::from(size))) % u64::from(size)) as u32)
}

/// How many parts an allgather carries in a round: twice as many each time, and in the last one what is left.
fn parts_in(round: u8, size: u32) -> usize {
    let held = 1 << round;
    held.min(size as usize - held)
}

/// Takes in the payload of the awaited round.
fn absorb(running: &mut Running, size: u32, payload: &[u8]) -> Decoded<()> {
    let mut r = Reader(payload);
    match running.call.kind {
        Kind::Allgather => {
            for _ in 0..parts_in(running.round, size) {
                let len = r.u32()? as usize;
                running.gathered.push(r.take(len)?.to_vec());
            }
        }
        Kind::Agree if payload.is_empty() => {}
        Kind::Agree => {
            let theirs = Objection { rank: Rank(r.u32()?), reason: r.text()? };
            if theirs.rank.0 >= size {
                return Err(format!("an objection of {} in a job of {size}", theirs.rank));
            }
            if running.objection.as_ref().is_none_or(|ours| theirs.rank < ours.rank) {
                running.objection = Some(theirs);
            }
        }
        Kind::Exchange | Kind::Barrier => {}
    }
    match r.rest().len() {
        0 => Ok(()),
        left => Err(format!("{left} bytes too many in round {}", running.round)),
    }
}

fn check_len(what: &'static str, len: usize) -> Result<()> {
    if len <= MAX_PAYLOAD_BYTES {
        return Ok(());
    }
    let (asked, limit) = (len as u64, MAX_PAYLOAD_BYTES as u64);
    Err(Error::Limit { what, asked, limit, mend: "send it in several calls, or through a window".into() })
}
