//! Signals, and that nothing is left behind however a job ends.

mod common;

use common::{Running, TemporaryDirectory, finish, pid_in, run_sh, state, until};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Instant;

/// Waits for ever, but for signals: a shell looks at them only between its commands.
const WAIT: &str = "while :; do sleep 1000 & wait $!; done";

#[test]
fn signals_reach_every_rank() {
    for (signal, name) in
        [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT"), (Signal::TERM, "TERM")]
    {
        let script = format!("trap 'echo got {name}; exit 0' {name}; echo ready; {WAIT}");
        let running = Running::start(run_sh(&["-n", "3"], &script));
        for _ in 0..3 {
            assert!(running.line().ends_with("ready"));
        }
        running.signal(signal);
        let done = running.finish();
        assert_eq!(done.code, 0, "{done:?}");
        let expected: Vec<_> = (0..3).map(|rank| format!("[{rank}] got {name}")).collect();
        assert_eq!(done.sorted(), expected);
    }
}

#[test]
fn an_interrupt_ends_all_ranks_and_is_no_failure_to_tell_of() {
    let running = Running::start(run_sh(&["-n", "3"], "echo ready; exec sleep 1000"));
    for _ in 0..3 {
        running.line();
    }
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!((done.code, done.err().as_str()), (130, ""));
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let running = Running::start(run_sh(&["-n", "2"], "trap 'echo no' INT; echo ready; while :; do sleep 1000 & wait $!; done"));
    running.line();
    running.line();
    running.signal(Signal::INT);
    assert!(running.line().ends_with("no"));
    assert!(running.line().ends_with("no"));
    let begin = Instant::now();
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.code, 137, "{done:?}");
    assert_eq!(done.err(), "rma run: ranks 0 and 1 did not end after SIGINT; killed\n");
    assert!(begin.elapsed().as_secs() < 4, "waited for the first one's time to be over");
}

#[test]
fn what_does_not_end_after_sigterm_is_killed() {
    let running = Running::start(run_sh(&["-n", "1"], "trap '' TERM; echo ready; while :; do sleep 1000; done"));
    running.line();
    running.signal(Signal::TERM);
    let done = running.finish();
    assert_eq!((done.code, done.err().as_str()), (137, "rma run: rank 0 did not end after SIGTERM; killed\n"));
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let mut shell = std::process::Command::new("sh");
    let rank = format!("trap 'echo unharmed; exit 0' USR1; echo ready; {WAIT}");
    shell.args(["-c", "trap '' HUP; exec \"$0\" run -n 1 -- sh -c \"$1\"", env!("CARGO_BIN_EXE_rma"), &rank]);
    let running = Running::start(shell);
    running.line();
    // The launcher looks at several in the order of their numbers: the second tells that the first had its chance.
    running.signal(Signal::HUP);
    running.signal(Signal::USR1);
    let done = running.finish();
    assert_eq!((done.code, done.out().as_str()), (0, "[0] unharmed\n"));
}

#[test]
fn stop_and_continue_reach_launcher_and_ranks() {
    let running = Running::start(run_sh(&["-n", "2"], "echo pid $$; exec sleep 1000"));
    let ranks = [pid_in(&running.line()), pid_in(&running.line())];
    let launcher = Pid::from_child(&running.child).as_raw_pid();
    running.signal(Signal::TSTP);
    until("all have stopped", || [launcher, ranks[0], ranks[1]].iter().all(|&pid| state(pid) == Some('T')));
    running.signal(Signal::CONT);
    until("all go on", || [launcher, ranks[0], ranks[1]].iter().all(|&pid| state(pid) != Some('T')));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 143);
}

#[test]
fn what_a_rank_started_ends_with_the_job() {
    // The output of the child that is left does not go through the launcher, which would wait for its end.
    let done = finish(run_sh(&["-n", "3"], "sleep 1000 > /dev/null 2>&1 & echo pid $!"));
    assert_eq!((done.code, done.sorted().len()), (0, 3));
    for line in done.out().lines() {
        until("the rank's child has ended", || state(pid_in(line)).is_none());
    }
}

#[test]
fn a_child_that_keeps_the_pipe_open_does_not_keep_the_launcher() {
    let done = finish(run_sh(&["-n", "2"], "sleep 1000 & echo pid $!"));
    assert_eq!((done.code, done.err().as_str()), (0, ""));
    for line in done.out().lines() {
        until("the rank's child has ended", || state(pid_in(line)).is_none());
    }
}

#[test]
fn children_of_a_failed_rank_end_before_the_others_do() {
    // Rank 0 ends when the child of rank 1 is gone, which only the launcher can bring about.
    let script = "if [ $RMA_RANK = 1 ]; then sleep 1000 & echo pid $!; exit 6; fi; read pid; while kill -0 $pid 2> /dev/null && \
                  [ $(cut -d ' ' -f 3 /proc/$pid/stat) != Z ]; do :; done; echo gone";
    let mut running = Running::with_stdin(run_sh(&["-n", "2", "--grace", "1000"], script));
    let pid = pid_in(&running.line());
    running.feed(format!("{pid}\n").into_bytes());
    let done = running.finish();
    assert_eq!((done.code, done.out().as_str()), (6, "[0] gone\n"), "{}", done.err());
}

#[test]
fn a_killed_launcher_leaves_nothing_behind() {
    let script = "sh -c 'echo pid $$; exec sleep 1000' & echo pid $$; wait";
    let mut running = Running::start(run_sh(&["-n", "4"], script));
    let mut pids: Vec<_> = (0..8).map(|_| pid_in(&running.line())).collect();
    let children = children_of(&running);
    // The ranks, and the guard.
    assert_eq!(children.len(), 5, "{children:?}");
    pids.extend(children);
    assert!(pids.iter().all(|&pid| state(pid).is_some()));
    running.child.kill().unwrap();
    until("every process of the job has ended", || pids.iter().all(|&pid| state(pid).is_none()));
}

#[test]
fn ranks_end_with_a_killed_launcher_also_without_its_guard() {
    let mut running = Running::start(run_sh(&["-n", "3"], "echo pid $$; exec sleep 1000"));
    let ranks: Vec<_> = (0..3).map(|_| pid_in(&running.line())).collect();
    let guard: Vec<_> = children_of(&running).into_iter().filter(|pid| !ranks.contains(pid)).collect();
    assert_eq!(guard.len(), 1, "{guard:?}");
    kill_process(Pid::from_raw(guard[0]).unwrap(), Signal::KILL).unwrap();
    until("the guard has ended", || state(guard[0]).is_none());
    assert!(ranks.iter().all(|&pid| state(pid).is_some()));
    running.child.kill().unwrap();
    until("every rank has ended", || ranks.iter().all(|&pid| state(pid).is_none()));
}

fn children_of(running: &Running) -> Vec<i32> {
    let pid = Pid::from_child(&running.child).as_raw_pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_job_leaves_no_file_behind() {
    let directory = TemporaryDirectory::new("empty");
    let path = &directory.path;
    let mut command = run_sh(&["-n", "2"], "exit $RMA_RANK");
    command.current_dir(path).env("TMPDIR", path).env("HOME", path);
    assert_eq!(finish(command).code, 1);
    let left: Vec<_> = std::fs::read_dir(path).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
