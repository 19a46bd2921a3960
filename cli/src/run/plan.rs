//! When the ranks of a job are asked to end, and when they are made to. Pure: told of failures and signals with the time of
//! each, it answers with what to do; it holds no process and reads no clock.

use std::time::{Duration, Instant};

/// After SIGINT or SIGTERM from outside, what the ranks have to end.
pub(crate) const INTERRUPT_WAIT: Duration = Duration::from_secs(5);
/// After the SIGTERM that follows a failure's grace, what they have.
pub(crate) const TERM_WAIT: Duration = Duration::from_secs(2);
/// After SIGKILL was sent, what a part of the job on another host has to say that its ranks are gone.
pub(crate) const KILL_WAIT: Duration = Duration::from_secs(3);

/// Where a job is between running and killed.
#[derive(Debug)]
pub(crate) struct Plan {
    grace: Duration,
    phase: Phase,
    interrupted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A rank failed; the others may end by themselves until then.
    Grace(Instant),
    /// All have been asked to end; what runs then is killed.
    Asked(Instant),
    /// What then has not ended is out of reach.
    Killed(Instant),
    Abandoned,
}

/// What to do with every rank that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Terminate,
    Kill,
    /// No more than this host can be cleaned up.
    Abandon,
}

impl Plan {
    /// A job whose ranks have `grace` to end once one has failed.
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, phase: Phase::Running, interrupted: false }
    }

    /// A rank failed.
    pub(crate) fn failed(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            self.phase = Phase::Grace(now + self.grace);
        }
    }

    /// SIGINT or SIGTERM came, and was passed on to the ranks. Asking twice does not buy time.
    pub(crate) fn asked(&mut self, interrupt: bool, now: Instant) -> Option<Step> {
        if interrupt && self.interrupted {
            let killed = matches!(self.phase, Phase::Killed(_) | Phase::Abandoned);
            self.phase = if killed { Phase::Abandoned } else { Phase::Killed(now + KILL_WAIT) };
            return Some(if killed { Step::Abandon } else { Step::Kill });
        }
        self.interrupted |= interrupt;
        let until = now + INTERRUPT_WAIT;
        self.phase = match self.phase {
            Phase::Running | Phase::Grace(_) => Phase::Asked(until),
            Phase::Asked(before) => Phase::Asked(before.min(until)),
            killed @ (Phase::Killed(_) | Phase::Abandoned) => killed,
        };
        None
    }

    /// What the time itself brings.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Step> {
        match self.phase {
            Phase::Grace(until) if until <= now => {
                self.phase = Phase::Asked(now + TERM_WAIT);
                Some(Step::Terminate)
            }
            Phase::Asked(until) if until <= now => {
                self.phase = Phase::Killed(now + KILL_WAIT);
                Some(Step::Kill)
            }
            Phase::Killed(until) if until <= now => {
                self.phase = Phase::Abandoned;
                Some(Step::Abandon)
            }
            _ => None,
        }
    }

    /// When [`Self::due`] has something next.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.phase {
            Phase::Grace(until) | Phase::Asked(until) | Phase::Killed(until) => Some(until),
            Phase::Running | Phase::Abandoned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(300);

    #[test]
    fn a_failure_brings_grace_then_terminate_then_kill_then_abandon() {
        let (mut plan, t0) = (Plan::new(GRACE), Instant::now());
        assert_eq!((plan.next(), plan.due(t0)), (None, None));
        plan.failed(t0);
        plan.failed(t0 + GRACE / 2);
        assert_eq!(plan.next(), Some(t0 + GRACE));
        assert_eq!(plan.due(t0 + GRACE / 2), None);
        let t1 = t0 + GRACE;
        assert_eq!(plan.due(t1), Some(Step::Terminate));
        assert_eq!(plan.due(t1), None);
        let t2 = t1 + TERM_WAIT;
        assert_eq!((plan.due(t2), plan.due(t2)), (Some(Step::Kill), None));
        assert_eq!(plan.due(t2 + KILL_WAIT), Some(Step::Abandon));
        assert_eq!((plan.next(), plan.due(t2 + KILL_WAIT)), (None, None));
    }

    #[test]
    fn a_second_interrupt_kills_and_a_second_terminate_buys_no_time() {
        let (mut plan, t0) = (Plan::new(GRACE), Instant::now());
        assert_eq!(plan.asked(false, t0), None);
        assert_eq!(plan.asked(true, t0 + Duration::from_secs(1)), None);
        assert_eq!(plan.next(), Some(t0 + INTERRUPT_WAIT));
        let t1 = t0 + Duration::from_secs(2);
        assert_eq!(plan.asked(true, t1), Some(Step::Kill));
        assert_eq!(plan.next(), Some(t1 + KILL_WAIT));
        assert_eq!((plan.asked(true, t1), plan.next()), (Some(Step::Abandon), None));
    }

    #[test]
    fn a_failure_after_an_interrupt_does_not_change_the_plan() {
        let (mut plan, t0) = (Plan::new(GRACE), Instant::now());
        assert_eq!(plan.asked(true, t0), None);
        plan.failed(t0);
        assert_eq!(plan.next(), Some(t0 + INTERRUPT_WAIT));
        assert_eq!(plan.due(t0 + INTERRUPT_WAIT), Some(Step::Kill));
    }
}
