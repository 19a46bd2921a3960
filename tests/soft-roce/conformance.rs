//! Every body of the library's promises, on the devices of one machine.
//! Owns which body runs on which lab, and what of the environment differs there.

use crate::harness::{Report, bodies};
use crate::job::Job;
use crate::pair::Pair;
use rma_tests::Body;

/// Ranks and rails.
pub(crate) type Shape = (u32, u32);

/// As in 4x1: four ranks, one rail.
pub(crate) fn shape(text: &str) -> Result<Shape, String> {
    let numbers = text.split_once('x').and_then(|(ranks, rails)| Some((ranks.parse().ok()?, rails.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text:?}: use ranks and rails, as in 4x1"))
}

/// As a part of a test's name.
pub(crate) fn name((ranks, rails): Shape) -> String {
    format!("{ranks}_ranks_{rails}_rail{}", if rails == 1 { "" } else { "s" })
}

/// A job that runs bodies.
fn job(bodies: &[&Body], (ranks, rails): Shape, pair: Option<&Pair>) -> Job {
    let names = bodies.iter().map(|body| body.name);
    // What a life leaves behind shows on one shape as well as on all.
    let lives = if (ranks, rails) == (2, 1) && pair.is_none() { "60" } else { "15" };
    let job = Job::new(ranks, rails, &["rma-conformance"].into_iter().chain(names).collect::<Vec<_>>());
    let job = job.env("RMA_TEST_LIVES", lives);
    if let Some(pair) = pair { pair.part_of(job) } else { job }
}

/// All bodies.
pub(crate) fn run(report: &mut Report, shape: Shape, pair: Option<&Pair>) {
    bodies::run_all(report, &group(shape, pair), shape.0, |bodies| job(bodies, shape, pair).start());
}

fn group(shape: Shape, pair: Option<&Pair>) -> String {
    if pair.is_some() { format!("between_machines::{}", name(shape)) } else { name(shape) }
}

/// Programs that know nothing of devices, and check themselves what they receive.
pub(crate) fn run_programs(report: &mut Report, shape: Shape, programs: &[String]) {
    for program in programs {
        let name = format!("{}::the_program_{program}_runs_unchanged", group(shape, None));
        report.test(&name, || Job::new(shape.0, shape.1, &[program]).run()?.succeeded());
    }
}

/// Some of them with late rails and late credits.
pub(crate) fn run_with_delays(report: &mut Report, shape: Shape) {
    let (name, value) = bodies::DELAYS;
    bodies::run_with_delays(report, &group(shape, None), |bodies| job(bodies, shape, None).env(name, value).start());
}
