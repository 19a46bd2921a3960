//! A decorator for any backend that makes things go wrong on purpose, the same way for the same seed.
//! Delays what goes over a rail, lets rails overtake each other, holds credits back, and lets a rank fail. For tests.
//!
//! Every chain is committed rail by rail, so that each rail can be started and polled by itself.
//! On a [virtual clock](crate::Comm::virtual_now) what is held back begins when it goes out, so with delays that clock is of each run's own.

use crate::backend::{Backend, Caps, Chain, Committed, Incoming, Missing, Progress, WindowMem, WindowSpec};
use crate::{Bootstrap, Deadline, Epoch, Error, Rail, Rank, Result, VirtualSpan};
use fastrand::Rng;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

/// What goes wrong. As text: `seed=7,delay=100,fail=2@5`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The seed of all that is left to chance; every rank draws its own from it.
    pub seed: u64,
    /// The most polls by which a rail's start, and a credit, are held back.
    pub delay_polls: u32,
    /// The rank that fails, the epoch it fails in, and how.
    pub victim: Option<(Rank, Epoch, Failure)>,
}

/// How a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// `fail=RANK@EPOCH`: its start returns an error.
    Error,
    /// `kill=RANK@EPOCH`: its process is killed at its start.
    Kill,
}

impl FromStr for FaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let expected = || format!("{part:?} is none of seed=N, delay=POLLS, fail=RANK@EPOCH, kill=RANK@EPOCH");
            let (name, value) = part.split_once('=').ok_or_else(expected)?;
            let victim = |failure| {
                let (rank, epoch) = value.split_once('@')?;
                Some((Rank(rank.parse().ok()?), Epoch(epoch.parse().ok()?), failure))
            };
            match name {
                "seed" => plan.seed = value.parse().map_err(|_| expected())?,
                "delay" => plan.delay_polls = value.parse().map_err(|_| expected())?,
                "fail" => plan.victim = Some(victim(Failure::Error).ok_or_else(expected)?),
                "kill" => plan.victim = Some(victim(Failure::Kill).ok_or_else(expected)?),
                _ => return Err(expected()),
            }
        }
        Ok(plan)
    }
}

/// A backend with faults.
pub struct Faulty {
    inner: Rc<dyn Backend>,
    plan: FaultPlan,
    rank: Rank,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Faulty({}, {:?})", self.inner.caps().name, self.plan)
    }
}

impl Faulty {
    /// Follows `plan` on this rank. All ranks must follow the same one.
    pub fn new(inner: Rc<dyn Backend>, rank: Rank, plan: FaultPlan) -> Self {
        Self { inner, plan, rank }
    }
}

impl Backend for Faulty {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn admit(&self, window: &WindowSpec<'_>) -> Result<()> {
        self.inner.admit(window)
    }

    fn register(&self, window: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
        self.inner.register(window)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        let rails = (0..self.caps().rails).map(|rail| {
            let committed = self.inner.commit(Rc::new(only_rail(&chain, Rail(rail))), boot, deadline)?;
            Ok(OneRail { committed, start_in: None, grants: Vec::new(), done: true })
        });
        let random = Rng::with_seed(self.plan.seed ^ (u64::from(self.rank.0) << 32) ^ u64::from(chain.queue.0));
        let rails = rails.collect::<Result<_>>()?;
        Ok(Box::new(FaultyCommitted { rails, random, plan: self.plan, rank: self.rank, epoch: Epoch(0) }))
    }

    fn virtual_now(&self) -> Option<Duration> {
        self.inner.virtual_now()
    }
}

fn only_rail(chain: &Chain, rail: Rail) -> Chain {
    let uses = |incoming: &&Incoming| incoming.rails.contains(&rail);
    Chain {
        queue: chain.queue,
        credits: chain.credits,
        puts: chain.puts.iter().filter(|put| put.rail == rail).cloned().collect(),
        incoming: chain.incoming.iter().filter(uses).map(|i| Incoming { origin: i.origin, rails: vec![rail] }).collect(),
    }
}

struct OneRail {
    committed: Box<dyn Committed>,
    /// How many polls until this epoch starts here; `None` once it has.
    start_in: Option<u32>,
    /// Credits held back, each with its polls left.
    grants: Vec<(Epoch, u32)>,
    done: bool,
}

struct FaultyCommitted {
    rails: Vec<OneRail>,
    random: Rng,
    plan: FaultPlan,
    rank: Rank,
    epoch: Epoch,
}

impl FaultyCommitted {
    /// Starts the rails and gives the credits whose time has come, the rails in any order.
    fn advance(&mut self, polls: u32) -> Result<()> {
        let mut order: Vec<usize> = (0..self.rails.len()).collect();
        self.random.shuffle(&mut order);
        for rail in order {
            let OneRail { committed, start_in, grants, .. } = &mut self.rails[rail];
            grants.iter_mut().for_each(|(_, left)| *left = left.saturating_sub(polls));
            while let Some(&(epoch, 0)) = grants.first() {
                committed.grant(epoch)?;
                grants.remove(0);
            }
            match start_in {
                Some(0) => {
                    *start_in = None;
                    start_late(&mut **committed, self.epoch)?;
                }
                Some(left) => *left = left.saturating_sub(polls),
                None => {}
            }
        }
        Ok(())
    }
}

#[allow(unsafe_code, reason = "passes a contract on")]
fn start_late(committed: &mut dyn Committed, epoch: Epoch) -> Result<()> {
    // SAFETY: the caller of `FaultyCommitted::start` promised to leave the sources alone until the epoch is done, and it is not
    // done before every rail is; each rail gets every epoch once, in order.
    unsafe { committed.start(epoch) }
}

impl Committed for FaultyCommitted {
    #[allow(unsafe_code, reason = "takes over a contract")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        self.epoch = epoch;
        match self.plan.victim {
            Some((rank, at, Failure::Kill)) if (rank, at) == (self.rank, epoch) => {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                    .map_err(|cause| Error::os(format!("killing {} at {epoch}, as RMA_FAULTS says", self.rank), cause))?;
            }
            Some((rank, at, Failure::Error)) if (rank, at) == (self.rank, epoch) => {
                let doing = format!("starting {epoch} on {rank}");
                return Err(Error::Backend { backend: "fault injector", doing, cause: "the plan of faults says so".into() });
            }
            _ => {}
        }
        for rail in &mut self.rails {
            rail.start_in = Some(self.random.u32(0..=self.plan.delay_polls));
            rail.done = false;
        }
        self.advance(0)
    }

    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        for _ in 0..rounds {
            self.advance(1)?;
            let mut progress = Progress::Done;
            for rail in &mut self.rails {
                rail.done = rail.done || (rail.start_in.is_none() && rail.committed.poll(1)? == Progress::Done);
                if !rail.done {
                    progress = Progress::Pending;
                }
            }
            if progress == Progress::Done {
                return Ok(progress);
            }
            std::hint::spin_loop();
        }
        Ok(Progress::Pending)
    }

    fn settle(&mut self) {
        self.rails.iter_mut().for_each(|rail| rail.committed.settle());
    }

    fn virtual_span(&self) -> Option<VirtualSpan> {
        self.rails.iter().filter_map(|rail| rail.committed.virtual_span()).reduce(VirtualSpan::join)
    }

    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        for rail in &mut self.rails {
            rail.grants.push((epoch, self.random.u32(0..=self.plan.delay_polls)));
        }
        self.advance(0)
    }

    fn park(&mut self, turn: u32, limit: Duration) {
        // A rail must not sleep for long while another one has something to do.
        const SHORT: Duration = Duration::from_millis(1);
        let held = self.rails.iter().any(|rail| rail.start_in.is_some() || !rail.grants.is_empty());
        if let Some(rail) = self.rails.iter_mut().find(|rail| !rail.done && !held) {
            rail.committed.park(turn, limit.min(SHORT));
        }
    }

    fn missing(&self) -> Vec<Missing> {
        self.rails.iter().filter(|rail| !rail.done && rail.start_in.is_none()).flat_map(|rail| rail.committed.missing()).collect()
    }

    fn close(&mut self) {
        for rail in &mut self.rails {
            // What was granted was granted, however late; an error would come up again, but nothing asks any more.
            rail.grants.drain(..).for_each(|(epoch, _)| drop(rail.committed.grant(epoch)));
            rail.committed.close();
        }
    }

    fn unclosed(&self) -> Vec<Rank> {
        let mut ranks: Vec<_> = self.rails.iter().flat_map(|rail| rail.committed.unclosed()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn explain(&self) -> String {
        let rails: String = self.rails.iter().map(|rail| rail.committed.explain()).collect();
        format!("with faults: {:?}\n{rails}", self.plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_from_text_and_a_bad_one_is_named() {
        let plan: FaultPlan = "seed=7,delay=100,kill=2@5".parse().unwrap();
        assert_eq!(plan, FaultPlan { seed: 7, delay_polls: 100, victim: Some((Rank(2), Epoch(5), Failure::Kill)) });
        for bad in ["seed", "seed=x", "fail=2", "fail=@", "noise=3", "delay=-1"] {
            assert!(bad.parse::<FaultPlan>().unwrap_err().contains("fail=RANK@EPOCH"), "{bad}");
        }
    }
}
