//! Waiting for an epoch: fast while something comes, then patient, then with an error that says what is missing.
//! Owns deadlines, stall reports and the look at lost peers; how a core is given away is the backend's.

use super::Ready;
use crate::backend::{Lack, Missing, Progress};
use crate::bootstrap::Departure;
use crate::{Epoch, Error, Rank, Result};
use std::time::{Duration, Instant};

/// How long nothing must have come before peers are looked at, first and later.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LATER_LOOK: Duration = Duration::from_millis(50);

/// How long a partner that closed the queue is given to be seen to have died: a rank that panics closes its queues on the way.
const CLOSED_OR_DEAD: Duration = Duration::from_millis(100);

/// The longest sleep while other queues have something under way that this rank must post.
const WITH_OTHERS: Duration = Duration::from_millis(1);

/// The waiting for one epoch, from the first time that nothing had come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    epoch: Epoch,
    begun: Instant,
    look_at: Duration,
    report_at: Duration,
    /// When a partner was first seen to have closed, though something of it is missing.
    closed_at: Option<Duration>,
}

impl Ready {
    #[inline]
    pub(super) fn wait(&mut self) -> Result<()> {
        match self.poll(self.polls_per_look) {
            Ok(Progress::Done) => Ok(()),
            Ok(Progress::Pending) => self.wait_patiently(),
            Err(error) => Err(self.fail(error)),
        }
    }

    pub(super) fn test(&mut self) -> Result<bool> {
        match self.poll(1) {
            Ok(Progress::Done) => Ok(true),
            Ok(Progress::Pending) => self.look_around(),
            Err(error) => Err(self.fail(error)),
        }
    }

    #[inline]
    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        match &self.active {
            Some(active) => active.committed.borrow_mut().poll(rounds),
            None => Err(self.poisoned()),
        }
    }

    #[cold]
    fn wait_patiently(&mut self) -> Result<()> {
        let mut turn = 0;
        loop {
            if self.look_around()? {
                return Ok(());
            }
            let Some(active) = &self.active else { return Err(self.poisoned()) };
            let others = self.comm.advance_others(active);
            let limit = self.until_next_look().min(if others { WITH_OTHERS } else { LATER_LOOK });
            active.committed.borrow_mut().park(turn, limit);
            turn = turn.saturating_add(1);
            match self.poll(self.polls_per_look) {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::Pending) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// The time until something is to be looked at again.
    fn until_next_look(&self) -> Duration {
        let Some(watch) = &self.watch else { return FIRST_LOOK };
        let next = watch.look_at.min(watch.report_at).min(self.timeout.unwrap_or(Duration::MAX));
        next.saturating_sub(watch.begun.elapsed())
    }

    /// Nothing has come: looks, when it is time, at the peers, at the deadline, and whether to report a stall. True if the epoch
    /// turned out to be complete; an error ends the queue.
    #[cold]
    fn look_around(&mut self) -> Result<bool> {
        let epoch = self.life.get().epoch();
        let report_at = self.comm.config.stall_report;
        let watch = match self.watch {
            Some(watch) if watch.epoch == epoch => watch,
            _ => *self.watch.insert(Watch { epoch, begun: Instant::now(), look_at: FIRST_LOOK, report_at, closed_at: None }),
        };
        let waited = watch.begun.elapsed();
        if waited >= watch.look_at {
            self.edit_watch(|watch| watch.look_at = waited + (waited / 4).clamp(FIRST_LOOK, LATER_LOOK));
            match self.look_at_peers(waited) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        if self.timeout.is_some_and(|timeout| waited >= timeout) {
            let missing = self.missing_text();
            return Err(self.fail(Error::WaitTimeout { queue: self.id, epoch, waited, missing }));
        }
        if waited >= watch.report_at {
            self.edit_watch(|watch| watch.report_at = watch.report_at.saturating_mul(2));
            tracing::warn!(
                rank = self.comm.rank.0,
                queue = self.id.0,
                epoch = epoch.0,
                "still waiting after {:.1} s: {}",
                waited.as_secs_f64(),
                self.missing_text()
            );
        }
        Ok(false)
    }

    fn edit_watch(&mut self, edit: impl FnOnce(&mut Watch)) {
        if let Some(watch) = &mut self.watch {
            edit(watch);
        }
    }

    /// Whether the epoch is done after all; an error if something that is missing can never come.
    fn look_at_peers(&mut self, waited: Duration) -> Result<bool> {
        let departed = self.comm.boot.departed();
        let gone = |lack: &Missing| departed.iter().find(|(rank, _)| *rank == lack.what.peer()).map(|(_, how)| *how);
        let Some(active) = self.active.clone() else { return Err(self.poisoned()) };
        let hopeless = |lack: &Missing| lack.closed || gone(lack).is_some();
        if !active.committed.borrow().missing().iter().any(hopeless) {
            return Ok(false);
        }
        // What a peer did before it closed or left is there by now: look again before giving up on it.
        if active.committed.borrow_mut().poll(1)? == Progress::Done {
            return Ok(true);
        }
        let missing = active.committed.borrow().missing();
        // A death says more than a closed queue, of whichever rank. Who left in good order had cleared its queues before.
        let mut lost = missing.iter().filter_map(|lack| gone(lack).map(|how| (lack, how)));
        if let Some((lack, how)) = lost.find(|(lack, how)| *how == Departure::Died || !lack.closed) {
            return Err(self.peer_lost(lack.what.peer(), how, lack));
        }
        let Some(lack) = missing.iter().find(|lack| lack.closed) else { return Ok(false) };
        let closed_at = self.watch.and_then(|watch| watch.closed_at).unwrap_or(waited);
        self.edit_watch(|watch| watch.closed_at = Some(closed_at));
        if gone(lack).is_none() && waited - closed_at < CLOSED_OR_DEAD {
            self.edit_watch(|watch| watch.look_at = waited + FIRST_LOOK);
            return Ok(false);
        }
        let (rank, missing) = (lack.what.peer(), text_of(&lack.what));
        Err(Error::PeerCleared { rank, queue: self.id, epoch: lack.peer_epoch, missing })
    }

    fn peer_lost(&self, rank: Rank, how: Departure, lack: &Missing) -> Error {
        let waiting =
            format!("{} waited at {} of {} for {}", self.comm.rank, self.life.get().epoch(), self.id, text_of(&lack.what));
        Error::PeerLost { rank, how, waiting }
    }

    /// What the epoch lacks, in words: "no arrival from origin 3 on rail 1 (rank 3 is alive, at epoch 11)".
    fn missing_text(&self) -> String {
        const MOST: usize = 8;
        let all = self.active.as_ref().map(|active| active.committed.borrow().missing()).unwrap_or_default();
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
