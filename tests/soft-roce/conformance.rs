//! Every body of the library's promises, on the devices of one machine.
//! Owns which body runs on which lab, and what of the environment differs there.

use crate::job::Job;
use crate::pair::Pair;
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
fn job(bodies: &[&Body], (ranks, rails): Shape, pair: Option<&Pair>) -> Job {
    let names = bodies.iter().map(|body| body.name);
    // What a life leaves behind shows on one shape as well as on all.
    let lives = if (ranks, rails) == (2, 1) { "60" } else { "15" };
    let job = Job::new(ranks, rails, &["rma-conformance"].into_iter().chain(names).collect::<Vec<_>>());
    let job = job.env("RMA_TEST_LIVES", lives);
    if let Some(pair) = pair { pair.part_of(job) } else { job }
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
pub(crate) fn run(report: &mut Report, shape: Shape, pair: Option<&Pair>) {
    let suit = BODIES.iter().filter(|body| body.suits(shape.0) && report.wants(&full_name(body, shape, pair)));
    let (alone, mut together): (Vec<_>, Vec<_>) = suit.partition(|body| ALONE.contains(&body.name));
    // After one that fails the others go on in a new job.
    while !together.is_empty() {
        let done = run_in_one_job(report, &together, shape, pair);
        together.drain(..done);
    }
    for body in alone {
        report.test(&full_name(body, shape, pair), || job(&[body], shape, pair).run()?.succeeded());
    }
}

fn full_name(body: &Body, shape: Shape, pair: Option<&Pair>) -> String {
    format!("{}::{}", group(shape, pair), body.name)
}

fn group(shape: Shape, pair: Option<&Pair>) -> String {
    if pair.is_some() { format!("between_machines::{}", name(shape)) } else { name(shape) }
}

/// Bodies up to the first that fails, at least one. Returns how many.
fn run_in_one_job(report: &mut Report, bodies: &[&Body], shape: Shape, pair: Option<&Pair>) -> usize {
    let mut running = Some(job(bodies, shape, pair).start());
    for (index, body) in bodies.iter().enumerate() {
        report.test(&full_name(body, shape, pair), || {
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
        report.test(&format!("{}::a_job_of_many_bodies_ends_well", group(shape, pair)), || job.finish()?.succeeded());
    }
    bodies.len()
}

/// Programs that know nothing of devices, and check themselves what they receive.
pub(crate) fn run_programs(report: &mut Report, shape: Shape, programs: &[String]) {
    for program in programs {
        let name = format!("{}::the_program_{program}_runs_unchanged", group(shape, None));
        report.test(&name, || Job::new(shape.0, shape.1, &[program]).run()?.succeeded());
    }
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

/// Some of them with late rails and late credits.
pub(crate) fn run_with_delays(report: &mut Report, shape: Shape) {
    for body in BODIES.iter().filter(|body| UNDER_DELAYS.contains(&body.name)) {
        report.test(&format!("{}::delayed::{}", name(shape), body.name), || {
            job(&[body], shape, None).env("RMA_FAULTS", "seed=7,delay=20").run()?.succeeded()
        });
    }
}
