//! Hosts for the tests: a network namespace each, with one rank of a job, plugged into a bridge.
//! Owns the namespaces and the processes; knows nothing of what the ranks are told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Set in a test that runs in namespaces of its own.
const INSIDE: &str = "RMA_TEST_INSIDE";
/// After this long a test has failed, whatever it waits for.
const DEADLINE: Duration = Duration::from_secs(90);
const PORT: u16 = 7000;

/// Runs a test in a user and a network namespace of its own, by starting this program once more for this test alone.
pub(crate) fn in_namespaces(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if let Err(reason) = try_namespaces() {
        return eprintln!("skipped: no network namespaces here: {reason}");
    }
    let program = std::env::current_exe().expect("a running program has a file");
    let output = unshare()
        .arg(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare starts, as it did before");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{test} in its namespaces: {}\n{text}", output.status);
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--"]);
    command
}

/// Whether this user may have namespaces with bridges and cables.
fn try_namespaces() -> Result<(), String> {
    let script = "ip link add cable type veth peer name socket && ip link add bridge type bridge && unshare --net true";
    let output = unshare().args(["sh", "-c", script]).output().map_err(|error| format!("unshare: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

/// The hosts of a job, rank r on host r.
pub(crate) struct Hosts(Vec<Host>);

struct Host {
    rank: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Hosts {
    /// Plugs in so many hosts, and returns when their ranks have found each other.
    pub(crate) fn start(count: u32) -> Self {
        // Addresses are of these namespaces alone, so the port is, too.
        run("ip link set lo up; ip link add bridge type bridge; ip link set bridge up");
        let hosts = Self((0..count).map(|rank| Host::start(rank, count)).collect());
        (0..count).for_each(|rank| assert_eq!(hosts.answer(rank), "joined"));
        hosts
    }

    pub(crate) fn tell(&mut self, rank: u32, order: &str) {
        let orders = self.0[rank as usize].orders.as_mut().expect("open until the end");
        writeln!(orders, "{order}").unwrap_or_else(|error| panic!("telling rank {rank} {order:?}: {error}"));
    }

    pub(crate) fn answer(&self, rank: u32) -> String {
        self.answer_within(rank, DEADLINE).unwrap_or_else(|| panic!("rank {rank} gives no answer within {DEADLINE:?}"))
    }

    /// `None` if there is none in this time.
    pub(crate) fn answer_within(&self, rank: u32, time: Duration) -> Option<String> {
        match self.0[rank as usize].answers.recv_timeout(time) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("rank {rank} has ended"),
        }
    }

    /// The same for every rank.
    pub(crate) fn all(&mut self, order: &str, expected: &str) {
        let ranks = 0..self.0.len() as u32;
        ranks.clone().for_each(|rank| self.tell(rank, order));
        ranks.for_each(|rank| assert_eq!(self.answer(rank), expected, "rank {rank}, {order}"));
    }

    /// Takes out the cable of a host: nothing that it or another sends arrives, and nobody is told.
    pub(crate) fn unplug(&self, rank: u32) {
        run(&format!("ip link set cable{rank} down"));
    }

    pub(crate) fn plug(&self, rank: u32) {
        run(&format!("ip link set cable{rank} up"));
    }
}

impl Host {
    fn start(rank: u32, count: u32) -> Self {
        let address = |rank: u32| format!("10.77.0.{}", rank + 1);
        // The network is there when its first line has come.
        let script = "read ready; ip link set lo up; ip address add $RMA_BIND/24 dev eth; ip link set eth up; exec \"$0\"";
        let mut process = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_rma-network-rank")])
            .env("RMA_RANK", rank.to_string())
            .env("RMA_SIZE", count.to_string())
            .env("RMA_ROOT", format!("{}:{PORT}", address(0)))
            .env("RMA_BIND", address(rank))
            .env("RMA_TOKEN", "000102030405060708090a0b0c0d0e0f")
            .env("RMA_SETUP_TIMEOUT", "60")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let own = std::fs::read_link("/proc/self/ns/net").expect("a process has a network");
        let theirs = format!("/proc/{}/ns/net", process.id());
        while std::fs::read_link(&theirs).is_ok_and(|network| network == own) {
            std::thread::yield_now();
        }
        let pid = process.id();
        run(&format!("ip link add cable{rank} type veth peer name eth netns {pid}; ip link set cable{rank} master bridge up"));
        let mut orders = process.stdin.take().expect("piped");
        writeln!(orders, "ready").expect("the host reads");
        let (sender, answers) = channel();
        let output = BufReader::new(process.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Nobody listens any more once the test is over.
                let _ = sender.send(line);
            }
        });
        Self { rank: process, orders: Some(orders), answers }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &mut self.0 {
            host.orders = None;
            // Also one that waits for others which a failed test has left waiting.
            let _ = host.rank.kill();
            let _ = host.rank.wait();
        }
    }
}

fn run(script: &str) {
    let output = Command::new("sh").args(["-e", "-c", script]).output().expect("sh starts");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}
