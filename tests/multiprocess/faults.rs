//! Ranks and launchers that are killed, and launchers that disagree. Nobody hangs, everybody says who is missing, nothing is left.

use crate::bodies::run_all;
use crate::job::{Job, Outcome, all_end, command, turn};
use rma_tests::{SIZES, faults};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::{Duration, Instant};

fn kill(id: i32) {
    let pid = Pid::from_raw(id).expect("a process id");
    kill_process(pid, Signal::KILL).unwrap_or_else(|error| panic!("killing process {id}: {error}"));
}

/// The survivors check what they are told, and how soon; here, that every one of them got to its end, and that the job failed only
/// for the rank that was killed.
fn survivors_name_the_dead(body: &str) {
    let _turn = turn();
    for size in SIZES.into_iter().filter(|&size| size > 1) {
        let outcome = Job::start(command(size, body, 1)).finish();
        let text = outcome.text();
        assert!(!outcome.status.success(), "a job with a killed rank succeeded:\n{text}");
        assert_eq!(outcome.status.code(), Some(128 + 9), "not the status of a killed rank:\n{text}");
        assert_eq!(survivors(&outcome), size as usize - 1, "not every survivor of {size} got to its end:\n{text}");
        assert!(!text.contains("Error:"), "a survivor failed:\n{text}");
    }
}

fn survivors(outcome: &Outcome) -> usize {
    outcome.lines.iter().filter(|line| line.ends_with("survived")).count()
}

#[test]
fn a_killed_origin_is_named_within_a_second() {
    survivors_name_the_dead("a_killed_origin_is_named_within_a_second");
}

#[test]
fn a_killed_origin_is_named_to_who_only_tests() {
    survivors_name_the_dead("a_killed_origin_is_named_to_who_only_tests");
}

#[test]
fn a_commit_without_descriptors_fails_on_every_rank() {
    run_all(&faults::WITHOUT_DESCRIPTORS);
}

#[test]
fn a_killed_target_is_named_within_a_second() {
    survivors_name_the_dead("a_killed_target_is_named_within_a_second");
}

#[test]
fn a_killed_rank_ends_collective_calls_within_a_second() {
    survivors_name_the_dead("a_killed_rank_ends_collective_calls_within_a_second");
}

#[test]
fn a_rank_killed_from_outside_ends_the_job_and_nothing_is_left() {
    let _turn = turn();
    let mut job = Job::start(command(4, faults::WAITS_FOR_EVER.name, 1));
    let ids = job.process_ids(4);
    kill(ids[2]);
    let begin = Instant::now();
    // Rank 0 reads its input to the end before it waits.
    drop(job.child.stdin.take());
    let outcome = job.finish();
    assert!(!outcome.status.success(), "{}", outcome.text());
    assert!(outcome.text().contains("died"), "nobody says that a rank died:\n{}", outcome.text());
    assert!(begin.elapsed() < Duration::from_secs(10), "only after {:?}:\n{}", begin.elapsed(), outcome.text());
    all_end(&ids);
}

#[test]
fn a_killed_launcher_leaves_no_ranks() {
    let _turn = turn();
    let mut job = Job::start(command(3, faults::WAITS_FOR_EVER.name, 1));
    let ids = job.process_ids(3);
    kill(job.child.id().try_into().expect("a process id"));
    all_end(&ids);
    job.finish();
}

#[test]
fn a_finished_job_leaves_no_processes() {
    let _turn = turn();
    let mut job = Job::start(command(4, faults::WAITS_FOR_EVER.name, 1));
    let ids = job.process_ids(4);
    drop(job.child.stdin.take());
    // Rank 0 leaves after an epoch and the others, which wait for it, end with an error.
    let outcome = job.finish();
    assert!(outcome.text().contains("rank 0"), "nobody names rank 0:\n{}", outcome.text());
    all_end(&ids);
}

#[test]
fn two_launchers_that_disagree_are_both_named() {
    let _turn = turn();
    let mut disagreeing = command(2, "a_queue_without_puts_and_origins_completes", 1);
    let outcome = Job::start({
        disagreeing.env("OMPI_COMM_WORLD_SIZE", "4");
        disagreeing
    })
    .finish();
    assert!(!outcome.status.success());
    for words in ["OMPI_COMM_WORLD_SIZE=4", "RMA_SIZE=2"] {
        assert!(outcome.text().contains(words), "{words} is missing in:\n{}", outcome.text());
    }
}

#[test]
fn a_foreign_launcher_alone_is_told_what_to_use() {
    for (name, size) in [("OMPI_COMM_WORLD_SIZE", "4"), ("PMI_SIZE", "3"), ("SLURM_STEP_NUM_TASKS", "2")] {
        let outcome = Job::start({
            let mut command = Command::new(env!("CARGO_BIN_EXE_rma-conformance"));
            command.arg("a_queue_without_puts_and_origins_completes").env(name, size);
            command
        })
        .finish();
        assert!(!outcome.status.success(), "{name}={size} was ignored");
        let mend = format!("rma run -n {size}");
        assert!(outcome.text().contains(name) && outcome.text().contains(&mend), "{mend:?} is missing in:\n{}", outcome.text());
    }
}

#[test]
fn half_of_a_place_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rma-conformance"));
    command.arg("a_queue_without_puts_and_origins_completes").env("RMA_RANK", "0").env("RMA_SIZE", "2");
    let outcome = Job::start(command).finish();
    assert!(!outcome.status.success());
    assert!(outcome.text().contains("RMA_ROOT, RMA_TOKEN not set"), "{}", outcome.text());
}
