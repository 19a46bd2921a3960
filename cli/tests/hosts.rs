//! Jobs on several hosts, through a remote shell that goes nowhere: the hosts are loopback addresses.

mod common;

use common::{Running, TemporaryDirectory, finish, pid_in, rma, state, until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::process::Command;

const RMA: &str = env!("CARGO_BIN_EXE_rma");
const HOSTS: &str = "a=127.0.0.1:2,b=127.0.0.2:2";
/// Waits for ever, but for signals.
const WAIT: &str = "while :; do sleep 1000 & wait $!; done";

/// A folder with a remote shell that, as ssh does, joins its arguments for a shell, which starts elsewhere and with nothing of the
/// environment from here, and no signal to the remote shell reaches what it started. Each time it adds the host to a list.
struct Remote(TemporaryDirectory);

impl Remote {
    fn new(name: &str) -> Self {
        let directory = TemporaryDirectory::new(name);
        let script = "echo $1 >> $(dirname $0)/hosts; shift; cd /; env -i PATH=\"$PATH\" setsid sh -c \"$*\"; exit $?\n";
        std::fs::write(directory.path.join("shell"), script).unwrap();
        Self(directory)
    }

    /// Read by a shell, not executed: a file that some process may still hold open for writing cannot be.
    fn shell(&self) -> String {
        format!("sh {}", self.0.path.join("shell").display())
    }

    fn run(&self, options: &[&str], command: &[&str]) -> Command {
        rma(&[&["run", "--remote-shell", &self.shell()], options, &["--"], command].concat())
    }

    fn run_sh(&self, options: &[&str], script: &str) -> Command {
        self.run(options, &["sh", "-c", script])
    }

    /// The hosts that were reached.
    fn hosts(&self) -> Vec<String> {
        let list = std::fs::read_to_string(self.0.path.join("hosts")).unwrap_or_default();
        let mut hosts: Vec<_> = list.lines().map(str::to_owned).collect();
        hosts.sort();
        hosts
    }
}

#[test]
fn ranks_are_spread_in_blocks_and_each_listens_on_the_address_of_its_host() {
    let remote = Remote::new("blocks");
    let options = ["-n", "5", "--hosts", "a=127.0.0.1:2,b=127.0.0.2:2,localhost:2,unused=127.0.0.4:9"];
    let done = finish(remote.run_sh(&options, "echo $RMA_RANK of $RMA_SIZE at $RMA_BIND"));
    assert_eq!((done.code, done.err().as_str()), (0, ""));
    let expected = [(0, 1), (1, 1), (2, 2), (3, 2), (4, 1)].map(|(rank, host)| format!("[{rank}] {rank} of 5 at 127.0.0.{host}"));
    assert_eq!(done.sorted(), expected);
    assert_eq!(remote.hosts(), ["a", "b"], "not the own host, nor one without ranks");
}

#[test]
fn ranks_find_each_other_across_hosts() {
    let remote = Remote::new("bench");
    let bench = [RMA, "bench", "put", "--bytes", "8", "--repeats", "1", "--batch-ms", "1", "--no-bind", "--csv"];
    let done = finish(remote.run(&["-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2"], &bench));
    assert_eq!((done.code, done.err().as_str()), (0, ""));
    assert!(done.out().lines().any(|line| line.starts_with("[0] put,shm,")), "{done:?}");
    assert_eq!(remote.hosts(), ["a", "b"]);
}

#[test]
fn variables_of_rma_and_those_that_are_named_go_along_and_no_others() {
    let remote = Remote::new("variables");
    let mut command = remote.run_sh(
        &["-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2", "--env", "NAMED", "--env", "GIVEN=a 'b'\n$c"],
        "echo \"$RMA_TIMEOUT|$NAMED|$OTHER|$GIVEN|$RMA_REMOTE_SHELL|$RMA_LISTEN_FD|$(pwd)\" | tr '\\n' ' '",
    );
    command.env("RMA_TIMEOUT", "7").env("NAMED", "n").env("OTHER", "o").env("RMA_REMOTE_SHELL", "x").env("RMA_LISTEN_FD", "99");
    command.current_dir(&remote.0.path);
    let done = finish(command);
    let path = remote.0.path.canonicalize().unwrap();
    let lines = done.sorted();
    for line in &lines {
        assert!(line[4..].starts_with("7|n||a 'b' $c||") && line.trim_end().ends_with(path.to_str().unwrap()), "{done:?}");
    }
    // Only rank 0 has a listener, and not that of another launcher.
    assert!(!lines[0].contains("|99|") && lines[1].contains("|||"), "{done:?}");
}

#[test]
fn the_secret_is_on_no_command_line() {
    let remote = Remote::new("secret");
    let mut running =
        Running::with_stdin(remote.run_sh(&["-n", "4", "--hosts", HOSTS], "echo $RMA_TOKEN; read x; echo $RMA_TOKEN"));
    let token = running.line()[4..].to_owned();
    assert_eq!(token.len(), 32);
    let mut seen = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = std::fs::read(process.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains(&token), "{line:?}");
        seen += usize::from(line.contains("__part"));
    }
    assert!(seen >= 2, "{seen} parts");
    running.feed(b"\n".to_vec());
    let done = running.finish();
    assert!(done.code == 0 && done.out().lines().all(|line| line.ends_with(&token)), "{done:?}");
}

#[test]
fn the_first_rank_to_fail_is_named_and_ends_those_on_other_hosts() {
    let remote = Remote::new("first");
    let script = "[ $RMA_RANK = 2 ] && kill -KILL $$; exec sleep 1000";
    let done = finish(remote.run_sh(&["-n", "4", "--hosts", HOSTS, "--grace", "0"], script));
    assert_eq!(done.code, 137, "{done:?}");
    let expected = "rma run: rank 2 was killed by signal 9 (SIGKILL)\n\
                    rma run: ranks 0, 1 and 3 did not end within 0 s of the first failure; sending SIGTERM\n";
    assert_eq!(done.err(), expected);
}

#[test]
fn of_failures_on_several_hosts_the_killed_rank_is_the_first_and_the_others_are_listed() {
    let remote = Remote::new("cause");
    let fifo = remote.0.fifo("fifo");
    // Rank 0 gives up because of rank 3, and may be heard of before it.
    let script = "[ $RMA_RANK = 3 ] && { echo > $0; kill -SEGV $$; }; [ $RMA_RANK = 0 ] && { read x < $0; exit 4; }; exit 0";
    let mut command = remote.run_sh(&["-n", "4", "--hosts", HOSTS, "--grace", "1000"], script);
    command.arg(&fifo);
    let done = finish(command);
    assert_eq!(done.code, 139, "{done:?}");
    let said: Vec<_> = done.err().lines().map(str::to_owned).collect();
    assert!(said[0].starts_with("rma run: rank 3 was killed by signal 11 (SIGSEGV)"), "{said:?}");
    assert_eq!(said[1..], ["rma run: rank 0 failed after that"]);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_on_its_host() {
    let remote = Remote::new("ignores");
    let fifo = remote.0.fifo("fifo");
    let script = "[ $RMA_RANK = 0 ] && read x < $0 && exit 7; trap '' TERM; echo pid $$; echo > $0; while :; do sleep 1000; done";
    let mut command = remote.run_sh(&["-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2", "--grace", "0"], script);
    command.arg(&fifo);
    let running = Running::start(command);
    let pid = pid_in(&running.line());
    let done = running.finish();
    assert_eq!(done.code, 7, "{done:?}");
    assert!(done.err().ends_with("rma run: rank 1 did not end after SIGTERM; killed\n"), "{}", done.err());
    assert!(state(pid).is_none(), "it is still there");
}

#[test]
fn signals_reach_the_ranks_of_every_host() {
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::HUP, "HUP"), (Signal::TERM, "TERM")] {
        let remote = Remote::new(name);
        let script = format!("trap 'echo got {name}; exit 0' {name}; echo ready; {WAIT}");
        let running = Running::start(remote.run_sh(&["-n", "4", "--hosts", HOSTS], &script));
        (0..4).for_each(|_| assert!(running.line().ends_with("ready")));
        running.signal(signal);
        let done = running.finish();
        assert_eq!(done.sorted(), (0..4).map(|rank| format!("[{rank}] got {name}")).collect::<Vec<_>>());
        assert_eq!(done.code, 0, "{done:?}");
    }
}

#[test]
fn an_interrupt_ends_all_hosts_and_is_no_failure_to_tell_of() {
    let remote = Remote::new("interrupt");
    let running = Running::start(remote.run_sh(&["-n", "4", "--hosts", HOSTS], "echo ready; exec sleep 1000"));
    (0..4).for_each(|_| drop(running.line()));
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!((done.code, done.err().as_str()), (130, ""));
}

#[test]
fn the_input_reaches_rank_0_through_the_remote_shell() {
    let remote = Remote::new("input");
    let mut running = Running::with_stdin(remote.run_sh(&["-n", "4", "--hosts", HOSTS], "cat | wc -c"));
    running.feed(vec![b'x'; 300_000]);
    assert_eq!(running.finish().sorted(), ["[0] 300000", "[1] 0", "[2] 0", "[3] 0"]);
}

#[test]
fn input_that_nobody_reads_stays_where_it_is_and_does_not_hold_up_signals() {
    let remote = Remote::new("unread");
    let script = format!("trap 'echo still here' USR1; trap 'exit 0' TERM; echo ready; {WAIT}");
    let mut running = Running::with_stdin(remote.run_sh(&["-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2"], &script));
    let mut stdin = running.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        // Until nobody can read it any more.
        (1..).find(|_| stdin.write_all(&[b'x'; 1 << 16]).is_err()).unwrap_or(0_usize) << 16
    });
    (0..2).for_each(|_| assert!(running.line().ends_with("ready")));
    for _ in 0..50 {
        running.signal(Signal::USR1);
        (0..2).for_each(|_| assert!(running.line().ends_with("still here")));
    }
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 0);
    let taken_bytes = writer.join().unwrap();
    // What fits into the pipes on the way, and a piece in each hand that passes it on.
    assert!(taken_bytes < 1 << 20, "{taken_bytes} bytes were taken from the input, and nobody read them");
}

#[test]
fn stop_and_continue_reach_the_ranks_of_every_host() {
    let remote = Remote::new("stop");
    let running = Running::start(remote.run_sh(&["-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2"], "echo pid $$; exec sleep 1000"));
    let mut pids = vec![pid_in(&running.line()), pid_in(&running.line())];
    pids.push(Pid::from_child(&running.child).as_raw_pid());
    running.signal(Signal::TSTP);
    until("all have stopped", || pids.iter().all(|&pid| state(pid) == Some('T')));
    running.signal(Signal::CONT);
    until("all go on", || pids.iter().all(|&pid| state(pid) != Some('T')));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 143);
}

#[test]
fn ranks_on_other_hosts_end_when_nobody_reads_their_output() {
    let remote = Remote::new("reader");
    let mut shell = Command::new("bash");
    let script = "\"$0\" run -n 2 --hosts a=127.0.0.1,b=127.0.0.2 --remote-shell \"$1\" -- yes | head -n 3; echo ${PIPESTATUS[0]}";
    shell.args(["-c", script, RMA, &remote.shell()]);
    let done = finish(shell);
    // 128 + SIGPIPE, as `yes` itself would end.
    assert_eq!(done.out().lines().last(), Some("141"), "{done:?}");
}

#[test]
fn lines_stay_whole_and_bytes_unchanged() {
    let remote = Remote::new("lines");
    let script = "i=0; while [ $i -lt 300 ]; do printf 'line '; echo $i of $RMA_RANK abcdefghijklmnopqrstuvwxyz; i=$((i+1)); done; \
                  echo end >&2; printf last";
    let done = finish(remote.run_sh(&["-n", "4", "--hosts", HOSTS], script));
    let whole = |line: &&str| line[4..].starts_with("line ") && line.ends_with(" abcdefghijklmnopqrstuvwxyz");
    assert_eq!(done.out().lines().filter(whole).count(), 1200, "{done:?}");
    assert_eq!(done.out().lines().filter(|line| line.ends_with("] last")).count(), 4);
    assert_eq!(done.err().lines().filter(|line| line.ends_with("] end")).count(), 4);
    let done = finish(remote.run_sh(&["-n", "1", "--hosts", "a=127.0.0.1", "--no-prefix"], "printf 'a\\000\\377\\nb'"));
    assert_eq!(done.stdout, b"a\0\xff\nb");
}

/// The ranks' processes and their parts', by what each rank prints.
fn started(running: &Running, ranks: usize) -> (Vec<i32>, Vec<i32>) {
    let lines: Vec<_> = (0..ranks).map(|_| running.line()).collect();
    let number = |line: &String, nth| line.split(' ').nth(nth).unwrap().parse::<i32>().unwrap();
    let mut lines: Vec<_> = lines.iter().map(|line| (line[..4].to_owned(), number(line, 1), number(line, 2))).collect();
    lines.sort();
    (lines.iter().map(|line| line.1).collect(), lines.iter().map(|line| line.2).collect())
}

#[test]
fn a_killed_launcher_leaves_nothing_on_any_host() {
    let remote = Remote::new("launcher");
    let mut running = Running::start(remote.run_sh(&["-n", "4", "--hosts", HOSTS], "sleep 1000 & echo $$ $PPID; wait"));
    let (ranks, parts) = started(&running, 4);
    running.child.kill().unwrap();
    until("every process has ended", || ranks.iter().chain(&parts).all(|&pid| state(pid).is_none()));
}

#[test]
fn a_part_that_is_killed_is_named_and_ends_the_others() {
    let remote = Remote::new("part");
    let running = Running::start(remote.run_sh(&["-n", "4", "--hosts", HOSTS, "--grace", "0"], "echo $$ $PPID; exec sleep 1000"));
    let (ranks, parts) = started(&running, 4);
    kill_process(Pid::from_raw(parts[2]).unwrap(), Signal::KILL).unwrap();
    let done = running.finish();
    assert_ne!(done.code, 0);
    let said = done.err();
    assert!(
        said.lines().any(|line| line.starts_with("rma run: sh on b ") && line.ends_with("before ranks 2 and 3 had ended")),
        "{said}"
    );
    assert!(said.contains("ranks 0 and 1 did not end within 0 s"), "{said}");
    until("every rank has ended", || ranks.iter().all(|&pid| state(pid).is_none()));
}

#[test]
fn a_remote_shell_that_cannot_reach_a_host_ends_the_job_with_its_status() {
    let directory = TemporaryDirectory::new("unreachable");
    let script = directory.path.join("shell");
    std::fs::write(&script, "[ $1 = b ] && { echo no way to b >&2; exit 255; }; shift; exec \"$@\"\n").unwrap();
    let shell = format!("sh {}", script.display());
    let hosts = ["run", "-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2", "--remote-shell", &shell, "--", "sleep", "1000"];
    let done = finish(rma(&hosts));
    assert_eq!(done.code, 255, "{done:?}");
    assert!(
        done.err().contains("no way to b\n") && done.err().contains("sh on b exited with status 255 before rank 1"),
        "{done:?}"
    );
}

#[test]
fn a_remote_shell_that_does_nothing_is_no_success() {
    let done = finish(rma(&["run", "-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2", "--remote-shell", "true", "--", "true"]));
    assert_eq!(done.code, 1, "{done:?}");
    let said = |host, rank| done.err().contains(&format!("true on {host} exited with status 0 before rank {rank} had ended"));
    assert!(said("a", 0) || said("b", 1), "{done:?}");
}

#[test]
fn a_remote_shell_that_hangs_is_given_up() {
    let directory = TemporaryDirectory::new("hangs");
    let script = directory.path.join("shell");
    std::fs::write(&script, "echo pid $$; exec sleep 1000\n").unwrap();
    let shell = format!("sh {}", script.display());
    let running =
        Running::start(rma(&["run", "-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2", "--remote-shell", &shell, "--", "true"]));
    let pids = [pid_in(&running.line()), pid_in(&running.line())];
    // One asks, one kills, one gives up; two that come at once may be seen as one.
    until("it has ended", || {
        running.signal(Signal::INT);
        pids.iter().all(|&pid| state(pid).is_none())
    });
    let done = running.finish();
    assert_eq!(done.code, 130, "{done:?}");
    assert!(done.err().contains("a cannot be reached any more; ranks may be left there"), "{done:?}");
}

#[test]
fn a_program_that_a_host_lacks_is_named_with_the_host() {
    let remote = Remote::new("lacks");
    let done = finish(remote.run(&["-n", "4", "--hosts", HOSTS], &["no-such-program"]));
    assert_eq!((done.code, done.out().as_str()), (127, ""));
    let said = done.err();
    assert!(said.starts_with("rma run: on a: cannot run \"no-such-program\": no such program in PATH\n"), "{said}");
    assert!(!said.contains("SIGTERM"), "what never started was asked to end: {said}");
}

#[test]
fn wrong_hosts_and_parts_are_refused_with_the_mend() {
    let refused: &[(&[&str], i32, &str)] = &[
        (&["-n", "4", "--hosts", "a:1,b:2"], 1, "3 slots for 4 ranks"),
        (&["-n", "4", "--hosts", "a:b"], 2, "expected a host, as in node1"),
        (&["-n", "4", "--hosts", "no-such-host.invalid"], 1, "as in no-such-host.invalid=10.0.0.1"),
        (&["-n", "4", "--hosts", "a=127.0.0.1", "--remote-shell", "no-such-shell"], 127, "cannot run \"no-such-shell\""),
        (&["-n", "4", "--hosts", "a=127.0.0.1", "--remote-shell", " "], 1, "name a command, as in 'ssh'"),
        (&["-n", "4", "--remote-shell", "ssh"], 2, "--hosts"),
        (&["-n", "4", "--part", "0-1"], 2, "--root"),
        (&["-n", "4", "--root", "127.0.0.1:7000"], 2, "--part"),
        (&["-n", "4", "--part", "0-1", "--root", "127.0.0.1:7000", "--hosts", "a"], 2, "cannot be used with"),
        (&["-n", "4", "--part", "1-0", "--root", "127.0.0.1:7000"], 2, "as in 2-3"),
        (&["-n", "4", "--part", "2-4", "--root", "127.0.0.1:7000"], 1, "--part 2-4 of 4 ranks: they count from 0 to 3"),
        (&["-n", "4", "--part", "2-3", "--root", "127.0.0.1"], 1, "expected HOST:PORT"),
        (&["-n", "4", "--part", "2-3", "--root", "127.0.0.1:0"], 1, "have to know the address and the port"),
        (&["-n", "4", "--part", "2-3", "--root", "0.0.0.0:7000"], 1, "have to know the address and the port"),
        (&["-n", "4", "--part", "2-3", "--root", "127.0.0.1:7000"], 1, "RMA_TOKEN must be the same 32 hexadecimal digits"),
        (&["-n", "1", "--env", "NOT_SET_HERE"], 1, "as in NOT_SET_HERE=1"),
    ];
    for (options, code, text) in refused {
        let done = finish(rma(&[&["run"], *options, &["--", "true"]].concat()));
        assert!(done.code == *code && done.err().contains(text) && done.stdout.is_empty(), "{options:?}: {done:?}");
    }
}
