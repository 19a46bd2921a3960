//! Every body on ranks that are threads of this process, and what can be seen only there.
#![forbid(unsafe_code)]

use rma::{Comm, Config, Error};
use rma_tests::{Body, SIZES, for_each_body, life};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// After this long a test has failed, whatever it waits for.
const DEADLINE: Duration = Duration::from_secs(50);

fn config() -> Config {
    let mut config = Config::default();
    config.setup_timeout = Duration::from_secs(20);
    config.wait_timeout = Some(Duration::from_secs(20));
    config
}

/// The seed of this run: `RMA_TEST_SEED`, or a new one each time.
fn seed() -> u64 {
    std::env::var("RMA_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

/// Runs `body` on `size` threads. A hang ends in a panic after `DEADLINE`.
fn run(name: &str, body: fn(&Comm, u64) -> anyhow::Result<()>, size: u32, seed: u64) {
    let (done, finished) = mpsc::channel();
    let ranks = std::thread::spawn(move || {
        let results = Comm::threads_with(size, config(), |comm| body(&comm, seed));
        // The receiver is gone only when the deadline is over.
        let _ = done.send(());
        results
    });
    if finished.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("{name} on {size} ranks hangs: not over after {DEADLINE:?}; RMA_TEST_SEED={seed}");
    }
    let results = ranks.join().unwrap_or_else(|_| panic!("{name} on {size} ranks: a rank panicked; RMA_TEST_SEED={seed}"));
    let results = results.unwrap_or_else(|error| panic!("{name} on {size} ranks: {error}; RMA_TEST_SEED={seed}"));
    let mut failures: Vec<_> = results.into_iter().enumerate().filter_map(|(rank, result)| Some((rank, result.err()?))).collect();
    // What only follows from another rank's failure comes last.
    failures.sort_by_key(|(_, error)| error.downcast_ref::<Error>().is_some_and(Error::is_secondary));
    let texts: Vec<_> = failures.iter().map(|(rank, error)| format!("rank {rank}: {error:#}")).collect();
    assert!(texts.is_empty(), "{name} on {size} ranks, RMA_TEST_SEED={seed}:\n{}", texts.join("\n"));
}

/// Runs a body on every size of job that suits it.
fn run_all(body: &Body) {
    let seed = seed();
    for size in SIZES.into_iter().filter(|&size| body.suits(size)) {
        run(body.name, body.run, size, seed);
    }
}

macro_rules! tests {
    ($($name:ident: $fewest:literal, $function:path;)*) => {
        $(#[test]
        fn $name() {
            let body = rma_tests::body(stringify!($name)).expect("every body is in the table");
            // Needs a process of its own, and has a test below.
            if stringify!($name) != "a_thousand_lives_leave_nothing_behind" {
                run_all(body);
            }
        })*
    };
}

for_each_body!(tests);

#[test]
fn a_ring_of_64_ranks_makes_steady_progress_on_few_cores() {
    run("a_ring_makes_steady_progress", life::a_ring_makes_steady_progress, 64, seed());
}

#[test]
fn a_thousand_lives_in_a_process_of_their_own_leave_nothing_behind() {
    for ranks in ["1", "4"] {
        let output = Command::new(env!("CARGO_BIN_EXE_rma-conformance"))
            .args(["--threads", ranks, "a_thousand_lives_leave_nothing_behind"])
            .env("RMA_TIMEOUT", "20")
            .env("RMA_SETUP_TIMEOUT", "20")
            .output()
            .expect("rma-conformance starts");
        assert!(output.status.success(), "on {ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
    }
}
