//! Bodies of promises as tests, in as few jobs as possible: to start one takes longer than most bodies.
//! Owns which bodies need a job of their own; how a job is started is the caller's.

use super::{Report, Running};
use anyhow::{Context, bail};
use rma_tests::{BODIES, Body};

/// Those that leave their job unusable, or count what its processes hold.
const ALONE: [&str; 5] = [
    "different_collective_calls_are_named_on_every_rank",
    "a_rank_that_left_is_named_in_collective_calls",
    "a_rank_that_left_is_named_by_who_waits_for_it",
    "ranks_may_end_as_soon_as_their_last_wait_is_over",
    "a_thousand_lives_leave_nothing_behind",
];

/// All bodies that suit so many ranks, named in `group`, in jobs that `start` starts.
pub(crate) fn run_all(report: &mut Report, group: &str, ranks: u32, start: impl Fn(&[&Body]) -> anyhow::Result<Running>) {
    let suit = BODIES.iter().filter(|body| body.suits(ranks) && report.wants(&full_name(group, body)));
    let (alone, mut together): (Vec<_>, Vec<_>) = suit.partition(|body| ALONE.contains(&body.name));
    // After one that fails the others go on in a new job.
    while !together.is_empty() {
        let done = run_in_one_job(report, group, &together, &start);
        together.drain(..done);
    }
    for body in alone {
        report.test(&full_name(group, body), || start(&[body])?.finish()?.succeeded());
    }
}

fn full_name(group: &str, body: &Body) -> String {
    format!("{group}::{}", body.name)
}

/// Bodies up to the first that fails, at least one. Returns how many.
fn run_in_one_job(
    report: &mut Report,
    group: &str,
    bodies: &[&Body],
    start: impl Fn(&[&Body]) -> anyhow::Result<Running>,
) -> usize {
    let mut running = Some(start(bodies));
    for (index, body) in bodies.iter().enumerate() {
        report.test(&full_name(group, body), || {
            let mut job = running.take().context("bug: a job that has ended")??;
            if job.says(&format!("passed: {}", body.name))? {
                running = Some(Ok(job));
                return Ok(());
            }
            let outcome = job.finish()?;
            bail!("{}:\n{}", outcome.status, outcome.text());
        });
        if running.is_none() {
            return index + 1;
        }
    }
    if let Some(Ok(job)) = running {
        report.test(&format!("{group}::a_job_of_many_bodies_ends_well"), || job.finish()?.succeeded());
    }
    bodies.len()
}

/// Bodies in which rails may overtake each other and credits come late.
const UNDER_DELAYS: [&str; 8] = [
    "every_byte_of_strided_puts_arrives",
    "one_queue_uses_many_rails",
    "ranges_exposed_at_start_are_ordinary_memory_between_flights",
    "exposures_may_differ_between_ranks",
    "two_buffers_that_start_after_each_other_keep_every_byte",
    "a_ping_pong_of_starts_after_keeps_every_byte",
    "queues_in_flight_together_keep_their_epochs_apart",
    "a_dropped_queue_is_as_good_as_cleared",
];

/// What makes rails and credits late.
pub(crate) const DELAYS: (&str, &str) = ("RMA_FAULTS", "seed=7,delay=20");

/// Some of them with late rails and late credits: `start` is to set [`DELAYS`].
pub(crate) fn run_with_delays(report: &mut Report, group: &str, start: impl Fn(&[&Body]) -> anyhow::Result<Running>) {
    for body in BODIES.iter().filter(|body| UNDER_DELAYS.contains(&body.name)) {
        report.test(&format!("{group}::delayed::{}", body.name), || start(&[body])?.finish()?.succeeded());
    }
}
