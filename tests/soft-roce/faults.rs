//! What goes wrong on purpose, case by case: which ranks, which options, and what becomes of the lab and the devices afterwards.
//! Owns the table; each case is a function that every rank runs.

use crate::harness::{Outcome, Report};
use crate::job::Job;
use crate::{depths, keys, lab, links, lives, receives};
use anyhow::{Context, Result, ensure};
use rma::Comm;

/// A case. Every rank runs it, in a job of its own.
pub(crate) struct Case {
    /// The fact.
    pub(crate) name: &'static str,
    ranks: u32,
    rails: u32,
    env: &'static [(&'static str, &'static str)],
    timeout_of: Option<(u32, u8)>,
    pub(crate) run: fn(&Comm) -> Result<()>,
}

impl Case {
    const fn new(name: &'static str, (ranks, rails): (u32, u32), run: fn(&Comm) -> Result<()>) -> Self {
        Self { name, ranks, rails, env: &[], timeout_of: None, run }
    }

    const fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    /// This rank tries again only after so long.
    const fn patient(self, rank: u32, timeout: u8) -> Self {
        Self { timeout_of: Some((rank, timeout)), ..self }
    }

    fn job(&self) -> Job {
        let mut job = Job::new(self.ranks, self.rails, &["rma-soft-roce", "rank", self.name]);
        job.timeout_of = self.timeout_of;
        self.env.iter().fold(job, |job, (name, value)| job.env(name, value))
    }
}

const FEW_RECEIVES: (&str, &str) = ("RMA_VERBS_RECEIVES", "16");

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "every_byte_arrives_although_one_packet_in_a_hundred_is_lost",
        (2, 1),
        links::every_byte_arrives_although_one_packet_in_a_hundred_is_lost,
    )
    // 67 ms a try.
    .with(&[("RMA_VERBS_TIMEOUT", "14")]),
    Case::new(
        "every_byte_of_strided_puts_arrives_although_one_packet_in_a_hundred_is_lost",
        (2, 1),
        links::every_byte_of_strided_puts_arrives_although_one_packet_in_a_hundred_is_lost,
    )
    .with(&[("RMA_VERBS_TIMEOUT", "14")]),
    Case::new(
        "who_only_receives_is_told_that_the_connection_broke",
        (2, 1),
        links::who_only_receives_is_told_that_the_connection_broke,
    ),
    Case::new("a_cable_that_is_out_for_a_second_is_survived", (2, 1), links::a_cable_that_is_out_for_a_second_is_survived),
    Case::new(
        "one_of_four_cables_that_is_out_for_a_second_is_survived",
        (2, 4),
        links::a_cable_that_is_out_for_a_second_is_survived,
    ),
    Case::new(
        "a_cable_that_stays_out_is_named_and_other_queues_go_on",
        (3, 1),
        links::a_cable_that_stays_out_is_named_and_other_queues_go_on,
    ),
    Case::new(
        "an_interface_that_goes_down_is_named_and_serves_again_once_it_is_up",
        (3, 1),
        links::an_interface_that_goes_down_is_named_and_serves_again_once_it_is_up,
    ),
    // 8.6 s a try, so that no second try tells of what was lost.
    Case::new("a_late_completion_counts_for_no_other_queue", (2, 1), links::a_late_completion_counts_for_no_other_queue)
        .patient(0, 21),
    Case::new(
        "an_origin_that_finds_no_receive_for_too_long_is_told_so",
        (2, 1),
        receives::an_origin_that_finds_no_receive_for_too_long_is_told_so,
    )
    .with(&[FEW_RECEIVES, ("RMA_VERBS_RNR_RETRIES", "2")]),
    Case::new(
        "an_origin_without_credits_waits_for_a_target_that_is_late",
        (2, 1),
        receives::an_origin_without_credits_waits_for_a_target_that_is_late,
    )
    .with(&[FEW_RECEIVES]),
    Case::new(
        "a_wrong_key_is_named_on_both_sides_and_other_queues_go_on",
        (3, 1),
        keys::what_a_device_refuses_is_named_on_both_sides_and_other_queues_go_on,
    )
    .with(&[("RMA_BACKEND", keys::WRONG_KEY)]),
    Case::new(
        "a_range_outside_a_window_is_named_on_both_sides_and_other_queues_go_on",
        (3, 1),
        keys::what_a_device_refuses_is_named_on_both_sides_and_other_queues_go_on,
    )
    .with(&[("RMA_BACKEND", keys::OUT_OF_RANGE)]),
    Case::new(
        "a_queue_deeper_than_the_device_goes_out_in_pieces",
        (2, 4),
        depths::a_queue_deeper_than_the_device_goes_out_in_pieces,
    )
    .with(&[("RMA_VERBS_SENDS", depths::SENDS)]),
    Case::new("credits_alone_never_fill_a_connection", (2, 1), depths::credits_alone_never_fill_a_connection)
        .with(&[("RMA_VERBS_SENDS", depths::SENDS)]),
    Case::new("lives_leave_nothing_in_the_devices", (2, 4), lives::lives_leave_nothing_in_the_devices),
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
