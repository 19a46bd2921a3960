//! What the ranks print and read, through the launcher.

mod common;

use common::{Running, TemporaryDirectory, finish, pid_in, run_sh, state, until};
use std::collections::BTreeMap;

#[test]
fn every_line_begins_with_its_rank_on_the_stream_it_was_written_to() {
    let done = finish(run_sh(&["-n", "3"], "echo out $RMA_RANK of $RMA_SIZE; echo err $RMA_RANK >&2"));
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.sorted(), ["[0] out 0 of 3", "[1] out 1 of 3", "[2] out 2 of 3"]);
    let err = done.err();
    let mut err: Vec<_> = err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["[0] err 0", "[1] err 1", "[2] err 2"]);
}

#[test]
fn prefixes_are_as_wide_as_that_of_the_last_rank() {
    let done = finish(run_sh(&["-n", "11"], "echo x"));
    let lines = done.sorted();
    assert_eq!((lines.len(), lines[0].as_str(), lines[10].as_str()), (11, "[ 0] x", "[10] x"));
}

#[test]
fn lines_of_64_ranks_stay_whole_and_each_rank_in_order() {
    const LINES: usize = 200;
    // Written in parts, so that a merge by arrival would cut them.
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do printf 'line '; printf '%s of ' $i; echo $RMA_RANK abcdefghijklmnopqrstuvwxyz; i=$((i+1)); done"
    );
    let done = finish(run_sh(&["-n", "64"], &script));
    assert_eq!(done.code, 0, "{}", done.err());
    let mut next = BTreeMap::new();
    for line in done.out().lines() {
        let rank: usize = line[1..3].trim().parse().unwrap_or_else(|_| panic!("{line:?}"));
        let number = next.entry(rank).or_insert(0);
        assert_eq!(line, format!("[{rank:>2}] line {number} of {rank} abcdefghijklmnopqrstuvwxyz"));
        *number += 1;
    }
    assert_eq!(next, (0..64).map(|rank| (rank, LINES)).collect());
}

#[test]
fn a_line_is_held_until_it_is_whole() {
    let directory = TemporaryDirectory::new("held");
    let fifo = directory.fifo("fifo");
    let script = "if [ $RMA_RANK = 1 ]; then read x < $0; echo between; else printf 'first, '; echo > $0; read x; echo second; fi";
    let mut command = run_sh(&["-n", "2"], script);
    command.arg(fifo);
    let mut running = Running::with_stdin(command);
    assert_eq!(running.line(), "[1] between");
    running.feed(b"\n".to_vec());
    assert_eq!(running.finish().out(), "[0] first, second\n");
}

#[test]
fn a_last_line_without_newline_is_printed_and_finished() {
    let done = finish(run_sh(&["-n", "2"], "printf 'first\\nlast'"));
    assert_eq!(done.sorted(), ["[0] first", "[0] last", "[1] first", "[1] last"]);
    assert!(done.out().ends_with("last\n"), "{:?}", done.out());
}

#[test]
fn without_prefix_the_bytes_of_a_rank_are_unchanged() {
    let done = finish(run_sh(&["-n", "1", "--no-prefix"], "printf 'a\\000\\377\\nb'"));
    assert_eq!(done.stdout, b"a\0\xff\nb");
}

#[test]
fn bytes_that_are_not_utf_8_pass_through() {
    let done = finish(run_sh(&["-n", "1"], "printf '\\377\\000\\200\\r\\n'"));
    assert_eq!(done.stdout, b"[0] \xff\0\x80\r\n");
}

#[test]
fn a_line_of_a_megabyte_is_not_lost() {
    let done = finish(run_sh(&["-n", "1"], "head -c 1048576 /dev/zero | tr '\\000' x; echo; echo end"));
    assert!(done.stdout == [b"[0] ".to_vec(), vec![b'x'; 1 << 20], b"\n[0] end\n".to_vec()].concat(), "{}", done.stdout.len());
}

#[test]
fn two_streams_into_one_file_keep_their_lines_whole() {
    let script = "i=0; while [ $i -lt 500 ]; do echo o12345678; echo e12345678 >&2; i=$((i+1)); done";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec \"$0\" run -n 4 -- sh -c \"$1\" 2>&1", env!("CARGO_BIN_EXE_rma"), script]);
    let done = finish(shell);
    let whole = |line: &&str| line.len() == 13 && (line.ends_with("] o12345678") || line.ends_with("] e12345678"));
    assert_eq!(done.out().lines().filter(whole).count(), 4000);
    assert_eq!(done.out().lines().count(), 4000);
}

#[test]
fn the_input_reaches_rank_0_and_no_other() {
    let mut running = Running::with_stdin(run_sh(&["-n", "3"], "cat | wc -c"));
    running.feed(vec![b'x'; 300_000]);
    assert_eq!(running.finish().sorted(), ["[0] 300000", "[1] 0", "[2] 0"]);
}

#[test]
fn an_input_that_stays_open_does_not_keep_the_launcher() {
    let mut running = Running::with_stdin(run_sh(&["-n", "2"], "echo done"));
    let stdin = running.stdin.take();
    assert_eq!(running.finish().sorted(), ["[0] done", "[1] done"]);
    drop(stdin);
}

#[test]
fn input_that_comes_after_the_end_of_rank_0_is_left_to_others() {
    let directory = TemporaryDirectory::new("left");
    let fifo = directory.fifo("fifo");
    let rank = "if [ $RMA_RANK = 0 ]; then echo pid $$; else read x < $0; fi";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$0\" run -n 2 -- sh -c \"$1\" \"$2\"; cat", env!("CARGO_BIN_EXE_rma"), rank]).arg(&fifo);
    let mut running = Running::with_stdin(shell);
    let rank_0 = pid_in(&running.line());
    until("rank 0 has ended", || state(rank_0).is_none());
    running.feed(b"later\n".to_vec());
    std::fs::write(&fifo, "\n").unwrap();
    assert_eq!(running.finish().out(), "later\n");
}

#[test]
fn ranks_end_when_nobody_reads_their_output() {
    let mut shell = std::process::Command::new("bash");
    let script = "\"$0\" run -n 2 -- yes | head -n 3; echo ${PIPESTATUS[0]}";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_rma")]);
    let done = finish(shell);
    // 128 + SIGPIPE, as `yes` itself would end.
    assert_eq!(done.out().lines().last(), Some("141"), "{done:?}");
}

#[test]
fn a_process_that_left_its_group_and_keeps_the_pipe_is_not_waited_for() {
    // The shell exits when the other has left, so that it is not ended with the group.
    let script = "setsid sh -c 'echo pid $$; exec sleep 1000' & \
                  while [ $(ps -o pgid= -p $!) = $$ ]; do :; done; echo left";
    let mut running = Running::start(run_sh(&["-n", "1"], script));
    let lines = [running.line(), running.line()];
    let pid = pid_in(lines.iter().find(|line| line.contains("pid")).unwrap());
    until("the launcher ends", || running.child.try_wait().unwrap().is_some());
    assert!(state(pid).is_some(), "the process that left its group was to stay");
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    let done = running.finish();
    assert!(done.err().contains("stdout of rank 0 is still open in a process that left"), "{}", done.err());
}
