//! Bootstrap for ranks that are threads of one process: one lock, one condition variable.
//! Owns the state the ranks share. Must not know what the ranks do between their calls.

use super::failure::{Call, Failure, Kind, Why, check_outgoing, list_ranks, timeout};
use super::{Bootstrap, Departure, Messages, Objection, idle};
use crate::{Deadline, Error, Rank, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One rank's end of a group of threads. Dropping it tells the others that the rank has gone.
#[derive(Debug)]
pub struct ThreadsBootstrap {
    rank: Rank,
    size: u32,
    shared: Arc<Shared>,
}

/// A group of `size` ranks: one end for each, in rank order, to be moved to its thread.
pub fn group(size: u32) -> Vec<ThreadsBootstrap> {
    let count = size as usize;
    let state = State { next: vec![0; count], departed: vec![None; count], rounds: VecDeque::new(), failure: None };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (0..size).map(|rank| ThreadsBootstrap { rank: Rank(rank), size, shared: Arc::clone(&shared) }).collect()
}

impl Bootstrap for ThreadsBootstrap {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn allgather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let me = self.rank.index();
        self.collective(Kind::Allgather, deadline, |round| round.gathered[me] = mine.to_vec(), |round| round.gathered.clone())
    }

    fn exchange(&self, outgoing: Messages, deadline: Deadline) -> Result<Messages> {
        if let Err(error) = check_outgoing(self.size, &outgoing) {
            self.refuse(Kind::Exchange.of(deadline.purpose()), &error);
            return Err(error);
        }
        let post = |round: &mut Round| {
            for (target, message) in outgoing {
                round.inboxes[target.index()].push((self.rank, message));
            }
        };
        let mut incoming =
            self.collective(Kind::Exchange, deadline, post, |round| std::mem::take(&mut round.inboxes[self.rank.index()]))?;
        incoming.sort_unstable_by_key(|(sender, _)| *sender);
        Ok(incoming)
    }

    fn agree(&self, objection: Option<String>, deadline: Deadline) -> Result<Option<Objection>> {
        let post = |round: &mut Round| {
            let Some(reason) = objection else { return };
            if round.objection.as_ref().is_none_or(|lowest| self.rank < lowest.rank) {
                round.objection = Some(Objection { rank: self.rank, reason });
            }
        };
        self.collective(Kind::Agree, deadline, post, |round| round.objection.clone())
    }

    fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.collective(Kind::Barrier, deadline, |_| (), |_| ())
    }

    fn departed(&self) -> Vec<(Rank, Departure)> {
        let state = self.state();
        (0..).map(Rank).zip(&state.departed).filter_map(|(rank, how)| how.map(|how| (rank, how))).collect()
    }
}

impl ThreadsBootstrap {
    /// Tells the others that this rank has gone; the first time counts. Dropping the bootstrap does it, too, but a program may
    /// leak what holds it.
    pub fn leave(&self) {
        let how = if std::thread::panicking() { Departure::Died } else { Departure::Left };
        self.state().departed[self.rank.index()].get_or_insert(how);
        self.shared.changed.notify_all();
    }
}

impl Drop for ThreadsBootstrap {
    fn drop(&mut self) {
        self.leave();
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signaled when a round is complete, a rank has gone, or the group has failed.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// By rank: the number of its next collective call.
    next: Vec<u64>,
    departed: Vec<Option<Departure>>,
    /// The rounds some rank still needs, by number. Two at most while all is well: nobody ends a round before all have entered
    /// it, and so taken the one before.
    rounds: VecDeque<Round>,
    failure: Option<Failure>,
}

/// One collective call of all ranks.
#[derive(Debug)]
struct Round {
    seq: u64,
    call: Call,
    /// Who entered first, and so decided what the call is.
    opener: Rank,
    entered: Vec<bool>,
    missing: usize,
    untaken: usize,
    gathered: Vec<Vec<u8>>,
    inboxes: Vec<Messages>,
    objection: Option<Objection>,
}

impl Round {
    fn new(seq: u64, call: Call, opener: Rank, size: usize) -> Self {
        Self {
            seq,
            call,
            opener,
            entered: vec![false; size],
            missing: size,
            untaken: size,
            gathered: vec![Vec::new(); if call.kind == Kind::Allgather { size } else { 0 }],
            inboxes: vec![Vec::new(); if call.kind == Kind::Exchange { size } else { 0 }],
            objection: None,
        }
    }

    fn absent(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..).map(Rank).zip(&self.entered).filter_map(|(rank, entered)| (!entered).then_some(rank))
    }
}

impl State {
    /// The round of a number; opened if this is the first rank to enter it.
    fn round(&mut self, seq: u64, call: Call, rank: Rank) -> &mut Round {
        let at = match self.rounds.binary_search_by_key(&seq, |round| round.seq) {
            Ok(at) => at,
            Err(at) => {
                self.rounds.insert(at, Round::new(seq, call, rank, self.next.len()));
                at
            }
        };
        &mut self.rounds[at]
    }
}

impl ThreadsBootstrap {
    /// Enters the next round, waits until all have entered, and takes this rank's part of the result.
    fn collective<T>(
        &self,
        kind: Kind,
        deadline: Deadline,
        post: impl FnOnce(&mut Round),
        take: impl FnOnce(&mut Round) -> T,
    ) -> Result<T> {
        let call = kind.of(deadline.purpose());
        let mut guard = self.state();
        let state = &mut *guard;
        let seq = state.next[self.rank.index()];
        state.next[self.rank.index()] += 1;
        if let Some(failure) = &state.failure {
            return Err(failure.error(self.rank, call, seq));
        }
        let round = state.round(seq, call, self.rank);
        if round.call != call {
            let why = Why::Mismatch { one: (round.opener, round.call), other: (self.rank, call) };
            return Err(self.fail(guard, call, seq, why));
        }
        post(round);
        round.entered[self.rank.index()] = true;
        round.missing -= 1;
        if round.missing == 0 {
            self.shared.changed.notify_all();
        }
        let mut patience = None;
        loop {
            let State { rounds, departed, failure, .. } = &mut *guard;
            let round =
                rounds.iter_mut().find(|round| round.seq == seq).expect("bug: a round ended before all had taken their part");
            // A complete round is delivered whatever has happened since, so that a rank may leave at once after its last call.
            if round.missing == 0 {
                let taken = take(round);
                round.untaken -= 1;
                if round.untaken == 0 {
                    rounds.retain(|round| round.seq != seq);
                }
                return Ok(taken);
            }
            let gone = round.absent().find_map(|rank| departed[rank.index()].map(|how| (rank, how)));
            let over = deadline.is_over();
            match (&*failure, gone) {
                (Some(Failure { why: Why::Other { .. }, .. }), _) if over => {}
                (Some(failure), _) => return Err(failure.error(self.rank, call, seq)),
                (None, Some((rank, how))) => return Err(self.fail(guard, call, seq, Why::Lost { rank, how })),
                (None, None) => {}
            }
            if over {
                let error = timeout(call, deadline, format!("{} not in it", list_ranks(round.absent())));
                self.fail(guard, call, seq, Why::Other { call, reason: error.to_string() });
                return Err(error);
            }
            guard = match patience.take() {
                // Looked at once more after the work, which takes the lock of nobody.
                None => {
                    drop(guard);
                    patience = Some(idle::work(deadline.left(Duration::from_secs(3600))));
                    self.state()
                }
                Some(patience) => self.shared.changed.wait_timeout(guard, patience).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Ends the call of every rank, and all later ones; returns this rank's error.
    fn fail(&self, mut state: MutexGuard<'_, State>, call: Call, seq: u64, why: Why) -> Error {
        let failure = state.failure.get_or_insert(Failure { seq, rank: self.rank, why });
        let error = failure.error(self.rank, call, seq);
        self.shared.changed.notify_all();
        error
    }

    /// The arguments of a call were refused, so the others wait in vain: tells them.
    fn refuse(&self, call: Call, error: &Error) {
        let mut state = self.state();
        let seq = state.next[self.rank.index()];
        state.next[self.rank.index()] += 1;
        self.fail(state, call, seq, Why::Other { call, reason: error.to_string() });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that can panic, so a poisoned lock is no reason to stop.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{Boot, contract};

    fn make(size: u32) -> Vec<Boot> {
        super::group(size).into_iter().map(|boot| Box::new(boot) as Boot).collect()
    }

    contract!(super::make);
}
