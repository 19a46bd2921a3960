//! Every body of the library's promises, on the devices of one machine.
//! Owns which body runs on which lab, and what of the environment differs there.

use crate::job::Job;
use crate::report::Report;
use anyhow::{Context, bail};
use rma_tests::{BODIES, Body};

/// Ranks and rails.
pub(crate) type Shape = (u32, u32);

/// As a part of a test's name.
pub(crate) fn name((ranks, rails): Shape) -> String {
    format!("{ranks}_ranks_{rails}_rail{}", if rails == 1 { "" } else { "s" })
}

/// A job that runs bodies.
fn job(bodies: &[&Body], (ranks, rails): Shape) -> Job {
    let names = bodies.iter().map(|body| body.name);
    // What a life leaves behind shows on one shape as well as on all.
    let lives = if (ranks, rails) == (2, 1) { "60" } else { "15" };
    Job::new(ranks, rails, &["rma-conformance"].into_iter().chain(names).collect::<Vec<_>>()).env("RMA_TEST_LIVES", lives)
}

/// Those that leave their job unusable, or count what its processes hold.
const ALONE: [&str; 5] = [
    "different_collective_calls_are_named_on_every_rank",
    "a_rank_that_left_is_named_in_collective_calls",
    "a_rank_that_left_is_named_by_who_waits_for_it",
    "ranks_may_end_as_soon_as_their_last_wait_is_over",
    "a_thousand_lives_leave_nothing_behind",
];

/// All bodies, in as few jobs as possible: to start one takes longer than most bodies.
pub(crate) fn run(report: &mut Report, shape: Shape) {
    let suit = BODIES.iter().filter(|body| body.suits(shape.0) && report.wants(&full_name(body, shape)));
    let (alone, mut together): (Vec<_>, Vec<_>) = suit.partition(|body| ALONE.contains(&body.name));
    // After one that fails the others go on in a new job.
    while !together.is_empty() {
        let done = run_in_one_job(report, &together, shape);
        together.drain(..done);
    }
    for body in alone {
        report.test(&full_name(body, shape), || job(&[body], shape).run()?.succeeded());
    }
}

fn full_name(body: &Body, shape: Shape) -> String {
    format!("{}::{}", name(shape), body.name)
}

/// Bodies up to the first that fails, at least one. Returns how many.
fn run_in_one_job(report: &mut Report, bodies: &[&Body], shape: Shape) -> usize {
    let mut running = Some(job(bodies, shape).start());
    for (index, body) in bodies.iter().enumerate() {
        report.test(&full_name(body, shape), || {
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
        report.test(&format!("{}::a_job_of_many_bodies_ends_well", name(shape)), || job.finish()?.succeeded());
    }
    bodies.len()
}

/// Bodies in which rails may overtake each other and credits come late.
const UNDER_DELAYS: [&str; 6] = [
    "every_byte_of_strided_puts_arrives",
    "one_queue_uses_many_rails",
    "ranges_exposed_at_start_are_ordinary_memory_between_flights",
    "exposures_may_differ_between_ranks",
    "queues_in_flight_together_keep_their_epochs_apart",
    "a_dropped_queue_is_as_good_as_cleared",
];

/// Some of them with late rails and late credits.
pub(crate) fn run_with_delays(report: &mut Report, shape: Shape) {
    for body in BODIES.iter().filter(|body| UNDER_DELAYS.contains(&body.name)) {
        report.test(&format!("{}::delayed::{}", name(shape), body.name), || {
            job(&[body], shape).env("RMA_FAULTS", "seed=7,delay=20").run()?.succeeded()
        });
    }
}
