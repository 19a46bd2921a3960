//! What goes wrong on purpose, case by case: which ranks, which options, and what becomes of the lab and the devices afterwards.
//! Owns the table; each case is a function that every rank runs.

use crate::job::{Job, Outcome};
use crate::report::Report;
use crate::{keys, lab, links, lives, receives};
use anyhow::{Context, Result, ensure};
use rma::Comm;

/// A case. Every rank runs it, in a job of its own.
pub(crate) struct Case {
    /// The fact.
    pub(crate) name: &'static str,
    ranks: u32,
    rails: u32,
    env: &'static [(&'static str, &'static str)],
    pub(crate) run: fn(&Comm) -> Result<()>,
}

macro_rules! case {
    ($function:path, $name:literal, $ranks:literal x $rails:literal, $env:expr) => {
        Case { name: $name, ranks: $ranks, rails: $rails, env: &$env, run: $function }
    };
}

/// Of one try for who is impatient: 67 ms.
const QUICK: (&str, &str) = ("RMA_VERBS_TIMEOUT", "14");
const FEW_RECEIVES: (&str, &str) = ("RMA_VERBS_RECEIVES", "16");

pub(crate) const CASES: &[Case] = &[
    case!(
        links::every_byte_arrives_although_one_packet_in_a_hundred_is_lost,
        "every_byte_arrives_although_one_packet_in_a_hundred_is_lost",
        2 x 1,
        [QUICK]
    ),
    case!(links::a_cable_that_is_out_for_a_second_is_survived, "a_cable_that_is_out_for_a_second_is_survived", 2 x 1, []),
    case!(
        links::a_cable_that_is_out_for_a_second_is_survived,
        "one_of_four_cables_that_is_out_for_a_second_is_survived",
        2 x 4,
        []
    ),
    case!(
        links::a_cable_that_stays_out_is_named_and_other_queues_go_on,
        "a_cable_that_stays_out_is_named_and_other_queues_go_on",
        3 x 1,
        []
    ),
    case!(
        links::an_interface_that_goes_down_is_named_and_serves_again_once_it_is_up,
        "an_interface_that_goes_down_is_named_and_serves_again_once_it_is_up",
        3 x 1,
        []
    ),
    case!(
        receives::an_origin_that_finds_no_receive_for_too_long_is_told_so,
        "an_origin_that_finds_no_receive_for_too_long_is_told_so",
        2 x 1,
        [FEW_RECEIVES, ("RMA_VERBS_RNR_RETRIES", "2")]
    ),
    case!(
        receives::an_origin_without_credits_waits_for_a_target_that_is_late,
        "an_origin_without_credits_waits_for_a_target_that_is_late",
        2 x 1,
        [FEW_RECEIVES]
    ),
    case!(
        keys::what_a_device_refuses_is_named_on_both_sides_and_other_queues_go_on,
        "a_wrong_key_is_named_on_both_sides_and_other_queues_go_on",
        3 x 1,
        [("RMA_BACKEND", keys::WRONG_KEY)]
    ),
    case!(
        keys::what_a_device_refuses_is_named_on_both_sides_and_other_queues_go_on,
        "a_range_outside_a_window_is_named_on_both_sides_and_other_queues_go_on",
        3 x 1,
        [("RMA_BACKEND", keys::OUT_OF_RANGE)]
    ),
    case!(
        links::a_late_completion_counts_for_no_other_queue,
        "a_late_completion_counts_for_no_other_queue",
        2 x 1,
        [("RMA_VERBS_TIMEOUT", "15")]
    ),
    case!(lives::lives_leave_nothing_in_the_devices, "lives_leave_nothing_in_the_devices", 2 x 4, []),
];

/// All of them, and that nothing is left after each.
pub(crate) fn run(report: &mut Report) {
    for case in CASES {
        report.test(case.name, || undone(case.job()));
    }
    for (ranks, rails) in [(2, 1), (4, 1), (2, 4)] {
        for body in rma_tests::faults::FAULTS {
            let name = format!("{}::{}", crate::conformance::name((ranks, rails)), body.name);
            report.test(&name, || {
                let before = lab::held()?;
                survivors_name_the_dead(&Job::new(ranks, rails, &["rma-conformance", body.name]).run()?, ranks)?;
                lab::all_is_given_back(&before)
            });
        }
    }
}

impl Case {
    fn job(&self) -> Job {
        let mut job = Job::new(self.ranks, self.rails, &["rma-soft-roce", "rank", self.name]);
        // Tries again only after seconds, the others soon.
        job.timeout_of = self.name.starts_with("a_late_completion").then_some((0, 20));
        self.env.iter().fold(job, |job, (name, value)| job.env(name, value))
    }
}

/// Runs a job whose ranks change the lab; whatever they leave of that is mended.
fn undone(job: Job) -> Result<()> {
    let before = lab::held()?;
    let outcome = job.run().and_then(|outcome| outcome.succeeded());
    lab::mend().context("mending the lab")?;
    outcome?;
    lab::all_is_given_back(&before)
}

/// The survivors check what they are told, and how soon; here, that every one of them got to its end, and that the job failed only
/// for the rank that was killed.
fn survivors_name_the_dead(outcome: &Outcome, ranks: u32) -> Result<()> {
    let survivors = outcome.lines.iter().filter(|line| line.ends_with("survived")).count();
    let text = outcome.text();
    ensure!(outcome.status.code() == Some(128 + 9), "{} is not the status of a killed rank:\n{text}", outcome.status);
    ensure!(survivors + 1 == ranks as usize, "{survivors} survivors of {ranks} ranks got to their end:\n{text}");
    ensure!(!text.contains("Error:"), "a survivor failed:\n{text}");
    Ok(())
}
