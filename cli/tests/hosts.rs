//! Jobs on several hosts: through a remote shell that goes nowhere, and by hand in parts on loopback addresses.

mod common;

use common::{DEADLINE, Finished, Running, TemporaryDirectory, finish, pid_in, rma, state, until};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
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
fn input_that_nobody_reads_does_not_hold_up_signals() {
    let remote = Remote::new("unread");
    let script = format!("trap 'echo got it; exit 0' TERM; echo ready; {WAIT}");
    let mut running = Running::with_stdin(remote.run_sh(&["-n", "2", "--hosts", "a=127.0.0.1,b=127.0.0.2"], &script));
    running.feed(vec![b'x'; 10 << 20]);
    (0..2).for_each(|_| assert!(running.line().ends_with("ready")));
    running.signal(Signal::TERM);
    let done = running.finish();
    assert_eq!((done.code, done.sorted()), (0, vec!["[0] got it".into(), "[1] got it".into()]));
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

/// A port that nobody else is given while this lives; who says that it may be shared can listen on it.
struct Reserved {
    root: String,
    _socket: OwnedFd,
}

impl Reserved {
    fn new() -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { root: address.to_string(), _socket: socket }
    }
}

const TOKEN: &str = "000102030405060708090a0b0c0d0e0f";

fn part_of(root: &Reserved, options: &[&str], command: &[&str]) -> Command {
    let mut rma = rma(&[&["run", "--root", &root.root], options, &["--"], command].concat());
    rma.env("RMA_TOKEN", TOKEN);
    rma
}

fn finish_both(one: Command, other: Command) -> [Finished; 2] {
    // Neither ends before the other runs.
    let [one, other] = [Running::start(one), Running::start(other)];
    [one.finish(), other.finish()]
}

#[test]
fn parts_by_hand_make_one_job_in_whatever_order_they_start() {
    let bench = [RMA, "bench", "put", "--bytes", "8", "--repeats", "1", "--batch-ms", "1", "--no-bind", "--csv"];
    for [one, other] in [["0", "1"], ["1", "0"]] {
        let root = Reserved::new();
        let part = |number| part_of(&root, &["-n", "2", "--part", number], &bench);
        let done = finish_both(part(one), part(other));
        assert!(done.iter().all(|done| done.code == 0 && done.err().is_empty()), "{done:?}");
        assert_eq!(done.iter().filter(|done| done.out().contains("[0] put,shm,processes,2,")).count(), 1, "{done:?}");
    }
}

#[test]
fn a_part_by_hand_starts_its_own_ranks_and_numbers_them_as_the_whole_job_does() {
    let root = Reserved::new();
    let script = "echo $RMA_RANK of $RMA_SIZE at $RMA_ROOT, here $RMA_BIND, $RMA_TOKEN, fd ${RMA_LISTEN_FD:+is open}";
    let options = ["-n", "12", "--part", "9-10", "--address", "127.0.0.2"];
    let done = finish(part_of(&root, &options, &["sh", "-c", script]));
    let line = |rank| format!("[{rank:>2}] {rank} of 12 at {}, here 127.0.0.2, {TOKEN}, fd", root.root);
    assert_eq!(done.sorted(), [line(9), line(10)]);
    // Without an address it is the one that reaches the root, and rank 0 is at the root itself.
    let done = finish(part_of(&root, &["-n", "2", "--part", "0"], &["sh", "-c", script]));
    assert_eq!(done.out(), format!("[0] 0 of 2 at {0}, here 127.0.0.1, {TOKEN}, fd is open\n", root.root));
    let done = finish(part_of(&root, &["-n", "3", "--part", "1-2"], &["sh", "-c", "echo $RMA_BIND; exit $RMA_RANK"]));
    assert_eq!(done.sorted(), ["[1] 127.0.0.1", "[2] 127.0.0.1"]);
    assert!(done.err().contains("rank 1 exited with status 1") || done.err().contains("rank 2 exited with status 2"), "{done:?}");
}

#[test]
fn a_rank_killed_in_one_part_ends_the_ranks_that_wait_for_it_in_another() {
    let root = Reserved::new();
    // Far longer than the deadline, unless it is told.
    let bench = format!("exec {RMA} bench put --bytes 8 --batch-ms 60000 --repeats 1000 --no-bind");
    let command = |number, script: &str| {
        let mut command = part_of(&root, &["-n", "2", "--part", number], &["sh", "-c", script]);
        command.env("RMA_SETUP_TIMEOUT", (2 * DEADLINE).as_secs().to_string());
        command
    };
    let survivor = Running::start(command("0", &bench));
    let victim = Running::start(command("1", &format!("echo pid $$; {bench}")));
    let pid = pid_in(&victim.line());
    // The table begins once the two have found each other.
    assert!(survivor.line().contains("put: one-way time"));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let (survivor, victim) = (survivor.finish(), victim.finish());
    assert_eq!(victim.code, 137, "{victim:?}");
    assert!(survivor.code == 1 && survivor.err().contains("rank 1 died"), "{survivor:?}");
}
