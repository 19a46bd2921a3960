//! Waiting for an epoch: fast while something comes, then patient, then with an error that says what is missing.
//! Owns deadlines, stall reports and the look at lost peers; how a core is given away is the backend's.

use super::Ready;
use crate::backend::{Committed, Lack, Missing, Progress};
use crate::bootstrap::Departure;
use crate::{Error, Rank, Result};
use std::time::{Duration, Instant};

/// How long nothing must have come before peers are looked at, first and later.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LATER_LOOK: Duration = Duration::from_millis(50);

/// After how many fruitless tests in a row peers are looked at.
const TESTS_PER_LOOK: u32 = 4096;

impl Ready {
    #[inline]
    pub(super) fn wait(&mut self) -> Result<()> {
        let polls = self.polls_per_look;
        let polled = match self.committed.as_deref_mut() {
            Some(committed) => committed.poll(polls),
            None => return Err(self.poisoned()),
        };
        match polled {
            Ok(Progress::Done) => Ok(()),
            Ok(Progress::Pending) => self.wait_patiently(),
            Err(error) => Err(self.fail(error)),
        }
    }

    pub(super) fn test(&mut self) -> Result<bool> {
        self.idle_tests += 1;
        let look = self.idle_tests.is_multiple_of(TESTS_PER_LOOK);
        let Some(committed) = self.committed.as_deref_mut() else { return Err(self.poisoned()) };
        let done = committed.poll(1).and_then(|progress| {
            let done = progress == Progress::Done;
            Ok(done || (look && self.look_at_peers()?))
        });
        done.map_err(|error| self.fail(error))
    }

    #[cold]
    fn wait_patiently(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut look_at = FIRST_LOOK;
        let mut report_at = self.comm.config.stall_report;
        let mut turn = 0;
        loop {
            let waited = begun.elapsed();
            let next = [Some(look_at), Some(report_at), self.timeout].into_iter().flatten().min().unwrap_or(look_at);
            let polls = self.polls_per_look;
            let Some(committed) = self.committed.as_deref_mut() else { return Err(self.poisoned()) };
            committed.park(turn, next.saturating_sub(waited));
            turn = turn.saturating_add(1);
            match committed.poll(polls) {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::Pending) => {}
                Err(error) => return Err(self.fail(error)),
            }
            let waited = begun.elapsed();
            if waited >= look_at {
                look_at = waited + (waited / 4).clamp(FIRST_LOOK, LATER_LOOK);
                match self.look_at_peers() {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => return Err(self.fail(error)),
                }
            }
            if self.timeout.is_some_and(|timeout| waited >= timeout) {
                let (queue, epoch, missing) = (self.id, self.life.get().epoch(), self.missing_text());
                return Err(self.fail(Error::WaitTimeout { queue, epoch, waited, missing }));
            }
            if waited >= report_at {
                report_at *= 2;
                tracing::warn!(
                    rank = self.comm.rank.0,
                    queue = self.id.0,
                    epoch = self.life.get().epoch().0,
                    "still waiting after {:.1} s: {}",
                    waited.as_secs_f64(),
                    self.missing_text()
                );
            }
        }
    }

    /// Whether the epoch is done after all; an error if something that is missing can never come.
    fn look_at_peers(&mut self) -> Result<bool> {
        let departed = self.comm.boot.departed();
        let epoch = self.life.get().epoch();
        let Some(committed) = self.committed.as_deref_mut() else { return Err(self.poisoned()) };
        let gone = |lack: &Missing| departed.iter().find(|(rank, _)| *rank == lack.what.peer()).map(|(_, how)| *how);
        if !committed.missing().iter().any(|lack| lack.closed || gone(lack).is_some()) {
            return Ok(false);
        }
        // What a peer did before it closed or left is there by now: look again before giving up on it.
        if committed.poll(1)? == Progress::Done {
            return Ok(true);
        }
        for lack in committed.missing() {
            let peer = lack.what.peer();
            match gone(&lack) {
                Some(how @ Departure::Died) => return Err(self.peer_lost(peer, how, &lack)),
                _ if lack.closed => {
                    let missing = text_of(&lack.what);
                    return Err(Error::PeerCleared { rank: peer, queue: self.id, epoch, missing });
                }
                Some(how) => return Err(self.peer_lost(peer, how, &lack)),
                None => {}
            }
        }
        Ok(false)
    }

    fn peer_lost(&self, rank: Rank, how: Departure, lack: &Missing) -> Error {
        let waiting =
            format!("{} waited at {} of {} for {}", self.comm.rank, self.life.get().epoch(), self.id, text_of(&lack.what));
        Error::PeerLost { rank, how, waiting }
    }

    /// What the epoch lacks, in words: "no arrival from origin 3 on rail 1 (rank 3 is alive, at epoch 11)".
    fn missing_text(&self) -> String {
        const MOST: usize = 8;
        let all = self.committed.as_deref().map(Committed::missing).unwrap_or_default();
        let departed = self.comm.boot.departed();
        let mut words: Vec<String> = all
            .iter()
            .take(MOST)
            .map(|lack| {
                let peer = lack.what.peer();
                let gone = departed.iter().any(|(rank, _)| *rank == peer);
                let state = match (gone, lack.closed) {
                    (true, _) => "has gone",
                    (false, true) => "has cleared the queue",
                    (false, false) => "is alive",
                };
                let at = lack.peer_epoch.map(|epoch| format!(", at {epoch}")).unwrap_or_default();
                format!("no {} ({peer} {state}{at})", text_of(&lack.what))
            })
            .collect();
        if all.len() > MOST {
            words.push(format!("and {} more", all.len() - MOST));
        }
        if words.is_empty() { "nothing, it has just become complete".into() } else { words.join("; ") }
    }
}

fn text_of(lack: &Lack) -> String {
    match lack {
        Lack::Arrival(origin, rail) => format!("arrival from origin {} on {rail}", origin.0),
        Lack::Credit(target) => format!("credit from target {}", target.0),
        Lack::Completion(target, rail) => format!("completion of the puts to target {} on {rail}", target.0),
    }
}
