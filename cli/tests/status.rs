//! How a job is started, and what its exit status and its messages say.

mod common;

use common::{Running, TemporaryDirectory, finish, rma, run_sh};
use std::collections::BTreeSet;
use std::net::TcpStream;

#[test]
fn the_exit_status_is_that_of_the_first_rank_to_fail() {
    let done = finish(run_sh(&["-n", "3"], "[ $RMA_RANK = 1 ] && exit 3; exit 0"));
    assert_eq!(done.code, 3);
    assert_eq!(done.err(), "rma run: rank 1 exited with status 3\n");
}

#[test]
fn a_rank_killed_by_a_signal_is_named_and_ends_the_others() {
    // Rank 0 ends only when told to.
    let done = finish(run_sh(&["-n", "2", "--grace", "0"], "[ $RMA_RANK = 1 ] && kill -KILL $$; exec sleep 1000"));
    assert_eq!(done.code, 137, "{done:?}");
    let err = done.err();
    let expected = "rma run: rank 1 was killed by signal 9 (SIGKILL)\n\
                    rma run: rank 0 did not end within 0 s of the first failure; sending SIGTERM\n";
    assert_eq!(err, expected);
}

#[test]
fn within_the_grace_others_end_by_themselves() {
    // Rank 0 ends when the process of rank 1 is gone, and would tell of a signal.
    let script = "trap 'echo signalled' TERM; if [ $RMA_RANK = 1 ]; then read x < $0; exit 4; fi; \
                  echo > $0; echo by itself; exit 5";
    let directory = TemporaryDirectory::new("grace");
    let fifo = directory.fifo("fifo");
    let mut command = run_sh(&["-n", "2", "--grace", "1000"], script);
    command.arg(&fifo);
    let done = finish(command);
    assert!(matches!(done.code, 4 | 5), "{done:?}");
    assert_eq!(done.out(), "[0] by itself\n");
    assert!(!done.err().contains("SIGTERM"), "{}", done.err());
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = "[ $RMA_RANK = 1 ] && read x < $0 && exit 7; trap '' TERM; echo > $0; while :; do sleep 1000; done";
    let directory = TemporaryDirectory::new("ignores");
    let fifo = directory.fifo("fifo");
    let mut command = run_sh(&["-n", "2", "--grace", "0"], script);
    command.arg(&fifo);
    let done = finish(command);
    assert_eq!(done.code, 7, "{done:?}");
    assert!(done.err().ends_with("rma run: rank 0 did not end after SIGTERM; killed\n"), "{}", done.err());
}

#[test]
fn every_rank_gets_its_place_and_the_secret_of_the_job() {
    let script = "echo $RMA_SIZE $RMA_ROOT $RMA_TOKEN $RMA_BIND; echo rank $RMA_RANK listens on ${RMA_LISTEN_FD:-nothing}";
    let mut command = run_sh(&["-n", "4"], script);
    // What a launcher around this one has set does not reach the ranks.
    command.env("RMA_LISTEN_FD", "99").env("RMA_TOKEN", "0").env("RMA_BIND", "0.0.0.0");
    let done = finish(command);
    let lines = done.sorted();
    let common: BTreeSet<_> = lines.iter().filter(|line| !line.contains("listens")).map(|line| &line[4..]).collect();
    assert_eq!(common.len(), 1, "{lines:?}");
    let words: Vec<_> = common.first().unwrap().split(' ').collect();
    assert_eq!((words[0], words[2].len(), words[3]), ("4", 32, "127.0.0.1"), "{words:?}");
    let listening: Vec<_> = lines.iter().filter(|line| line.contains("listens") && !line.ends_with("nothing")).collect();
    assert!(listening.len() == 1 && listening[0].starts_with("[0] rank 0"), "{lines:?}");
    assert!(!listening[0].ends_with(" 99"), "{lines:?}");
    let again = finish(run_sh(&["-n", "1"], "echo $RMA_TOKEN"));
    assert_ne!(again.out()[4..].trim(), words[2], "two jobs with one secret");
}

#[test]
fn rank_0_holds_a_listener_at_the_root_address() {
    let script = "if [ $RMA_RANK = 0 ]; then readlink /proc/$$/fd/$RMA_LISTEN_FD; echo $RMA_ROOT; read x; fi; \
                  ls -l /proc/$$/fd | grep -c socket";
    let mut running = Running::with_stdin(run_sh(&["-n", "2"], script));
    let mut lines = vec![running.line(), running.line(), running.line()];
    // Rank 1 has no socket at all.
    let position = lines.iter().position(|line| line.starts_with("[1]")).unwrap();
    assert_eq!(lines.remove(position), "[1] 0");
    assert!(lines[0].starts_with("[0] socket:"), "{lines:?}");
    TcpStream::connect(&lines[1][4..]).unwrap();
    running.feed(b"\n".to_vec());
    assert_eq!(running.finish().out(), "[0] 1\n");
}

#[test]
fn bound_ranks_run_on_one_core_each_in_turn() {
    let cores = |options: &[&str]| {
        let script = "echo $(grep Cpus_allowed_list /proc/self/status | cut -f 2)";
        finish(run_sh(&[&["-n", "5"], options].concat(), script)).sorted()
    };
    let free = cores(&[]);
    let allowed: Vec<usize> = free[0][4..].split(',').flat_map(range).collect();
    let expected: Vec<_> = (0..5).map(|rank| format!("[{rank}] {}", allowed[rank % allowed.len()])).collect();
    assert_eq!(cores(&["--bind"]), expected);
}

fn range(text: &str) -> std::ops::RangeInclusive<usize> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    first.parse().unwrap()..=last.parse().unwrap()
}

#[test]
fn wrong_command_lines_are_refused_with_the_limit_or_the_mend() {
    let refused: &[(&[&str], i32, &str)] = &[
        (&["run", "-n", "0", "--", "true"], 2, "a job has at least 1 rank"),
        (&["run", "-n", "4097", "--", "true"], 2, "at most 4096 ranks"),
        (&["run", "-n", "-1", "--", "true"], 2, "expected a whole number, 1 to 4096"),
        (&["run", "-n", "many", "--", "true"], 2, "expected a whole number, 1 to 4096"),
        (&["run", "-n", "2"], 2, "PROGRAM"),
        (&["run", "--", "true"], 2, "--ranks <N>"),
        (&["run", "-n", "2", "--grace", "-1", "--", "true"], 2, "expected seconds"),
        (&["run", "-n", "2", "--", "no-such-program"], 127, "cannot run \"no-such-program\": no such program in PATH"),
        (&["run", "-n", "2", "--", "/no/such/program"], 127, "cannot run \"/no/such/program\": no such file"),
        (&["run", "-n", "2", "--", "/"], 126, "cannot run \"/\": it is a directory"),
        (&["run", "-n", "2", "--", "/proc/self/status"], 126, "permission denied"),
    ];
    for (args, code, text) in refused {
        let done = finish(rma(args));
        assert!(done.code == *code && done.err().contains(text) && done.stdout.is_empty(), "{args:?}: {done:?}");
    }
}

#[test]
fn a_program_that_exec_refuses_is_named() {
    let directory = TemporaryDirectory::new("exec");
    let script = directory.path.join("script");
    // Written by a process that has ended: while any process, also one that another test has just forked from this one, holds
    // the file open for writing, it cannot be executed.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "echo '#!/no/such/interpreter' > \"$0\"; chmod +x \"$0\""]).arg(&script);
    assert_eq!(finish(shell).code, 0);
    let done = finish(rma(&["run", "-n", "1", "--", script.to_str().unwrap()]));
    assert_eq!(done.code, 127, "{done:?}");
    assert!(done.err().contains("[0] rma run: cannot run") && done.err().contains("script"), "{}", done.err());
}

#[test]
fn more_ranks_than_open_files_allow_are_refused_with_the_limit_and_else_keep_theirs() {
    let limited = |limits: &str, n: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("{limits}; exec \"$0\" run -n {n} -- sh -c 'ulimit -n'"), env!("CARGO_BIN_EXE_rma")]);
        finish(shell)
    };
    let done = limited("ulimit -n 100", "64");
    assert_eq!((done.code, done.out()), (1, String::new()));
    assert!(done.err().contains("64 ranks need 168 open files here, and the limit is 100"), "{}", done.err());
    let done = limited("ulimit -Sn 100", "64");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.sorted().iter().all(|line| line.ends_with("] 100")) && done.sorted().len() == 64, "{done:?}");
}

#[test]
fn help_shows_an_example_and_hides_the_inner_commands() {
    let help = finish(rma(&["--help"])).out();
    assert!(help.contains("run") && !help.contains("__"), "{help}");
    let help = finish(rma(&["run", "--help"])).out();
    assert!(help.contains("rma run -n 4 -- ./stencil") && help.contains("RMA_RANK"), "{help}");
    assert!(help.lines().all(|line| line.len() <= 100), "{help}");
}
