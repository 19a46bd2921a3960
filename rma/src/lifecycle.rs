//! The life of a queue as a pure state machine: which call may follow which.
//! Owns the rules alone; the types of the interface rest on it, and an interface without types can use it as it is.
//!
//! ```text
//!          Change            Start             Arrive
//!         +------+        +--------> InFlight --------> Arrived
//!         v      | Commit |              |                 |
//!  +---> Open ---+-----> Ready <---------|---- Release ----+
//!  |                      | Fail         | Fail            | Fail
//!  |                      +----------> Failed <------------+
//!  +------ Clear: from everywhere ------/
//! ```

use crate::Epoch;

/// Where a queue is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Puts and origins may be added.
    Open,
    /// Committed; may be started.
    Ready,
    /// Started; own puts or arrivals may be under way.
    InFlight,
    /// All of the epoch has come; the received ranges may be read.
    Arrived,
    /// An error ended it; only `Clear` is left.
    Failed,
}

/// What happens to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// push, add_origin and everything else that changes what will be committed.
    Change,
    /// A commit that succeeded.
    Commit,
    /// start.
    Start,
    /// test or wait found the epoch complete.
    Arrive,
    /// The received ranges are given up and the next credits granted.
    Release,
    /// An error while committed, or a flight that was dropped without a wait.
    Fail,
    /// Back to an empty queue.
    Clear,
}

/// A queue's place in its life, and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    phase: Phase,
    epoch: Epoch,
}

/// A call that is not allowed, and the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub &'static str);

impl Default for Lifecycle {
    fn default() -> Self {
        Self { phase: Phase::Open, epoch: Epoch(0) }
    }
}

impl Lifecycle {
    /// Where the queue is.
    pub const fn phase(self) -> Phase {
        self.phase
    }

    /// The epoch of the newest start; 0 before the first.
    pub const fn epoch(self) -> Epoch {
        self.epoch
    }

    /// The life after `call`, or why there is none.
    #[inline]
    pub const fn after(self, call: Call) -> Result<Self, Refusal> {
        use Phase::{Arrived, Failed, InFlight, Open, Ready};
        let phase = match (call, self.phase) {
            (Call::Start, Ready) => return Ok(Self { phase: InFlight, epoch: self.epoch.next() }),
            (Call::Arrive, InFlight) => Arrived,
            (Call::Release, Arrived) => Ready,
            (Call::Change, Open) => Open,
            (Call::Commit, Open) => return Ok(Self { phase: Ready, epoch: Epoch(0) }),
            (Call::Fail, Ready | InFlight | Arrived) => Failed,
            (Call::Clear, _) => return Ok(Self { phase: Open, epoch: Epoch(0) }),
            (_, Failed) => return Err(Refusal("an error made it unusable; clear it and commit anew")),
            (Call::Change | Call::Commit, _) => return Err(Refusal("it is committed; clear it first")),
            (_, Open) => return Err(Refusal("it is not committed; commit it first")),
            (Call::Start, _) => return Err(Refusal("the epoch before is not over; wait for it and drop what it returned")),
            (Call::Arrive, _) => return Err(Refusal("it is not in flight; start it first")),
            (Call::Release, _) => return Err(Refusal("nothing has arrived that could be released; wait first")),
        };
        Ok(Self { phase, epoch: self.epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Call::*;

    const CALLS: [Call; 7] = [Change, Commit, Start, Arrive, Release, Fail, Clear];

    /// What the rules say, written over the whole history instead of over a state.
    fn allowed(history: &[Call], next: Call) -> bool {
        let life = history.iter().rposition(|&call| call == Clear).map_or(history, |at| &history[at + 1..]);
        let committed = life.contains(&Commit);
        let failed = life.contains(&Fail);
        let count = |call| life.iter().filter(|&&c| c == call).count();
        match next {
            Clear => true,
            _ if failed => false,
            Change | Commit => !committed,
            Start => committed && count(Start) == count(Release),
            Arrive => count(Start) == count(Arrive) + 1,
            Release => count(Arrive) == count(Release) + 1,
            Fail => committed,
        }
    }

    fn walk(history: &mut Vec<Call>, life: Lifecycle, depth: usize, visited: &mut u64) {
        *visited += 1;
        if depth == 0 {
            return;
        }
        for call in CALLS {
            let after = life.after(call);
            assert_eq!(after.is_ok(), allowed(history, call), "{history:?} then {call:?}: {after:?}");
            if let Ok(next) = after {
                history.push(call);
                let starts = history.iter().rev().take_while(|&&c| c != Clear && c != Commit).filter(|&&c| c == Start).count();
                assert_eq!(next.epoch(), Epoch(starts as u64), "{history:?}");
                walk(history, next, depth - 1, visited);
                history.pop();
            }
        }
    }

    #[test]
    fn every_sequence_of_calls_up_to_eleven_follows_the_rules() {
        let mut visited = 0;
        walk(&mut Vec::new(), Lifecycle::default(), 11, &mut visited);
        assert!(visited > 100_000, "only {visited} sequences");
    }

    #[test]
    fn a_refusal_says_the_way_out() {
        let open = Lifecycle::default();
        let ready = open.after(Commit).unwrap();
        let flying = ready.after(Start).unwrap();
        for (life, call, text) in [
            (open, Start, "commit it first"),
            (ready, Change, "clear it first"),
            (ready, Arrive, "start it first"),
            (flying, Start, "wait for it"),
            (flying, Release, "wait first"),
            (flying.after(Fail).unwrap(), Start, "commit anew"),
        ] {
            assert!(life.after(call).unwrap_err().0.contains(text));
        }
    }
}
