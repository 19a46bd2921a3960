//! Parts of a job that are started by hand, each by a launcher of its own, on loopback addresses.

mod common;

use common::{DEADLINE, Finished, Running, finish, pid_in, rma};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::Command;

const RMA: &str = env!("CARGO_BIN_EXE_rma");

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
