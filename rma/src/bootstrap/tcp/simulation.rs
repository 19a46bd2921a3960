//! Steps the protocols of a whole job in random orders, without sockets and without a clock.
//! Frames between two ranks stay in order, as on a connection; between all else any order may happen.

use super::protocol::{Ended, Output, Protocol, Start};
use super::wire::Frame;
use super::wire::tests::any_frame;
use crate::bootstrap::contract::Seed;
use crate::bootstrap::{Departure, Messages, Objection};
use crate::{Error, Purpose, Rank, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

struct Job {
    size: u32,
    ranks: Vec<Protocol>,
    /// What travels from a rank to another.
    wires: BTreeMap<(u32, u32), VecDeque<Frame>>,
    /// Who has a connection with whom; everybody has one with rank 0.
    linked: BTreeSet<(u32, u32)>,
    left: BTreeSet<u32>,
}

impl Job {
    fn new(size: u32) -> Self {
        let ranks = (0..size).map(|rank| Protocol::new(Rank(rank), size)).collect();
        let linked = (1..size).flat_map(|rank| [(0, rank), (rank, 0)]).collect();
        Self { size, ranks, wires: BTreeMap::new(), linked, left: BTreeSet::new() }
    }

    fn send(&mut self, from: u32, to: u32, frame: Frame) {
        if !self.left.contains(&to) {
            self.wires.entry((from, to)).or_default().push_back(frame);
        }
    }

    fn carry_out(&mut self, rank: u32) {
        while let Some(output) = self.ranks[rank as usize].output() {
            match output {
                Output::To(to, frame) => {
                    for (from, to) in [(rank, to.0), (to.0, rank)] {
                        if self.linked.insert((from, to)) {
                            let news: Vec<_> = self.ranks[from as usize].news().collect();
                            news.into_iter().for_each(|frame| self.send(from, to, frame));
                        }
                    }
                    self.send(rank, to.0, frame);
                }
                Output::Flood { except, frame } => self.flood(rank, except, &frame),
            }
        }
    }

    fn flood(&mut self, from: u32, except: Option<Rank>, frame: &Frame) {
        for to in (0..self.size).filter(|to| Some(Rank(*to)) != except) {
            if self.linked.contains(&(from, to)) {
                self.send(from, to, frame.clone());
            }
        }
    }

    /// Delivers one frame; false if none travels.
    fn deliver(&mut self, rng: &mut fastrand::Rng) -> bool {
        self.wires.retain(|(_, to), frames| !frames.is_empty() && !self.left.contains(to));
        let Some((from, to)) = rng.choice(self.wires.keys().copied().collect::<Vec<_>>()) else { return false };
        let frame = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
        self.ranks[to as usize].receive(Rank(from), frame);
        self.carry_out(to);
        true
    }

    fn leave(&mut self, rank: u32, how: Departure) {
        let goodbye = self.ranks[rank as usize].goodbye(how);
        self.flood(rank, None, &goodbye);
        self.left.insert(rank);
    }

    /// Lets each rank make its calls, `calls(rank)` of them, and leave; gives the results by rank. Panics if nobody can go on.
    fn play(&mut self, rng: &mut fastrand::Rng, calls: impl Fn(u32) -> Vec<Start>) -> Vec<Vec<Result<Ended>>> {
        let mut results: Vec<Vec<_>> = (0..self.size).map(|_| Vec::new()).collect();
        let mut todo: Vec<VecDeque<_>> = (0..self.size).map(|rank| calls(rank).into()).collect();
        let mut idle: BTreeSet<_> = (0..self.size).collect();
        loop {
            // Mostly deliver, sometimes let a rank go on, so that some ranks are far ahead of others.
            if !idle.is_empty() && rng.u8(..6) == 0 {
                let rank = rng.choice(idle.iter().copied().collect::<Vec<_>>()).unwrap();
                idle.remove(&rank);
                match todo[rank as usize].pop_front() {
                    None => self.leave(rank, Departure::Left),
                    Some(start) => {
                        let begun = self.ranks[rank as usize].begin(start, Purpose::Program);
                        self.carry_out(rank);
                        if let Err(error) = begun {
                            results[rank as usize].push(Err(error));
                            todo[rank as usize].clear();
                            idle.insert(rank);
                        }
                    }
                }
            } else if !self.deliver(rng) && idle.is_empty() {
                break;
            }
            for rank in 0..self.size {
                let protocol = &mut self.ranks[rank as usize];
                if protocol.is_done() {
                    results[rank as usize].push(Ok(protocol.finish()));
                    idle.insert(rank);
                } else if let Some(error) = protocol.error() {
                    results[rank as usize].push(Err(error));
                    todo[rank as usize].clear();
                    idle.insert(rank);
                }
            }
        }
        assert_eq!(self.left.len(), self.size as usize, "ranks hang: {:?}", self.ranks);
        results
    }
}

/// The calls of all ranks, drawn alike whoever asks, and what they must give.
#[derive(Clone, Debug)]
enum Plan {
    Allgather(Vec<Vec<u8>>),
    Exchange(Vec<Messages>),
    Agree(Vec<Option<String>>),
    Barrier,
}

impl Plan {
    fn draw(rng: &mut fastrand::Rng, size: u32) -> Self {
        let bytes = |rng: &mut fastrand::Rng| (0..rng.usize(..20)).map(|_| rng.u8(..)).collect::<Vec<_>>();
        match rng.u8(..4) {
            0 => Self::Allgather((0..size).map(|_| bytes(rng)).collect()),
            1 => {
                let density = rng.f64();
                let targets = |rng: &mut fastrand::Rng| (0..size).map(Rank).filter(|_| rng.f64() < density).collect::<Vec<_>>();
                Self::Exchange((0..size).map(|_| targets(rng).into_iter().map(|rank| (rank, bytes(rng))).collect()).collect())
            }
            2 => Self::Agree((0..size).map(|rank| (rng.u32(..size) == 0).then(|| format!("no from {rank}"))).collect()),
            _ => Self::Barrier,
        }
    }

    fn start(&self, rank: u32) -> Start {
        match self {
            Self::Allgather(parts) => Start::Allgather(parts[rank as usize].clone()),
            Self::Exchange(messages) => Start::Exchange(messages[rank as usize].clone()),
            Self::Agree(objections) => Start::Agree(objections[rank as usize].clone()),
            Self::Barrier => Start::Barrier,
        }
    }

    fn check(&self, rank: u32, ended: &Ended) {
        let mut expected = Ended::default();
        match self {
            Self::Allgather(parts) => expected.gathered.clone_from(parts),
            Self::Exchange(messages) => {
                for (from, sent) in (0..).map(Rank).zip(messages) {
                    let mine = sent.iter().filter(|(to, _)| to.0 == rank);
                    expected.incoming.extend(mine.map(|(_, message)| (from, message.clone())));
                }
            }
            Self::Agree(objections) => {
                let objections = (0..).map(Rank).zip(objections);
                let mut objections = objections.filter_map(|(rank, reason)| Some(Objection { rank, reason: reason.clone()? }));
                expected.objection = objections.next();
            }
            Self::Barrier => {}
        }
        assert_eq!(ended.gathered, expected.gathered);
        assert_eq!(ended.incoming, expected.incoming);
        assert_eq!(ended.objection, expected.objection);
    }
}

#[test]
fn in_any_order_all_calls_give_what_they_must_and_leaving_breaks_nobody() {
    let seed = Seed::new();
    for round in 0..1500 {
        let mut rng = seed.rng(round);
        let size = rng.u32(1..=11);
        let plans: Vec<_> = (0..rng.usize(1..6)).map(|_| Plan::draw(&mut rng, size)).collect();
        let results = Job::new(size).play(&mut rng, |rank| plans.iter().map(|plan| plan.start(rank)).collect());
        for (rank, results) in (0..).zip(results) {
            assert_eq!(results.len(), plans.len());
            for (plan, result) in plans.iter().zip(results) {
                plan.check(rank, &result.unwrap());
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_early_fails_exactly_the_first_call_it_did_not_make() {
    let seed = Seed::new();
    for round in 0..1500 {
        let mut rng = seed.rng(round);
        let size = rng.u32(2..=11);
        let plans: Vec<_> = (0..rng.usize(2..6)).map(|_| Plan::draw(&mut rng, size)).collect();
        let (gone, made) = (rng.u32(..size), rng.usize(..plans.len()));
        let results = Job::new(size).play(&mut rng, |rank| {
            plans.iter().take(if rank == gone { made } else { plans.len() }).map(|plan| plan.start(rank)).collect()
        });
        for (rank, mut results) in (0..).zip(results) {
            if rank != gone {
                let error = results.pop().unwrap().unwrap_err();
                assert!(matches!(error, Error::PeerLost { rank, how: Departure::Left, .. } if rank.0 == gone), "{error}");
            }
            assert_eq!(results.len(), made, "round {round}: {results:?}");
            for (plan, result) in plans.iter().zip(results) {
                plan.check(rank, &result.unwrap());
            }
        }
    }
}

#[test]
fn a_rank_in_another_call_is_named_on_all_in_that_call() {
    let seed = Seed::new();
    for round in 0..1500 {
        let mut rng = seed.rng(round);
        let size = rng.u32(2..=11);
        let before: Vec<_> = (0..rng.usize(..3)).map(|_| Plan::draw(&mut rng, size)).collect();
        let odd = rng.u32(..size);
        let results = Job::new(size).play(&mut rng, |rank| {
            let last = if rank == odd { Start::Agree(None) } else { Start::Allgather(vec![1]) };
            before.iter().map(|plan| plan.start(rank)).chain([last]).collect()
        });
        for (rank, mut results) in (0..).zip(results) {
            let error = results.pop().unwrap().unwrap_err();
            let Error::CollectiveMismatch { rank: me, ours, peer, theirs } = &error else { panic!("{rank} of {size}: {error}") };
            assert_eq!(*me, Rank(rank));
            assert!((rank == odd) != (peer.0 == odd), "{error}");
            assert_ne!(ours, theirs);
            assert!(results.iter().all(Result::is_ok));
        }
    }
}

#[test]
fn whatever_frames_come_nothing_panics_and_the_call_ends_or_waits() {
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let mut failed = 0;
    for _ in 0..60_000 {
        let size = rng.u32(1..6);
        let mut protocol = Protocol::new(Rank(rng.u32(..size)), size);
        for _ in 0..3 {
            let _ = protocol.begin(Plan::draw(&mut rng, size).start(0), Purpose::Program);
            for _ in 0..rng.usize(..12) {
                protocol.receive(Rank(rng.u32(..size)), any_frame(&mut rng));
                protocol.call_the_roll(rng.bool());
                protocol.missing();
                if rng.u8(..8) == 0 {
                    protocol.give_up();
                }
            }
            if protocol.is_done() {
                protocol.finish();
            } else if protocol.error().is_some() {
                failed += 1;
            } else {
                protocol.abort();
            }
            while protocol.output().is_some() {}
        }
    }
    assert!(failed > 10_000, "{failed}");
}
