//! Every body on ranks that are threads of this process, and what can be seen only there.
#![deny(unsafe_code)]

mod losses;
mod stall;

use anyhow::{Context, ensure};
use rma::bootstrap::Departure;
use rma::fault::{Failure, FaultPlan};
use rma::{Comm, Config, Epoch, Error, Rank};
use rma_tests::{Body, SIZES, check, for_each_body, life};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

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

/// Runs `body` on `size` threads, with the options of these tests.
fn run(name: &str, body: fn(&Comm, u64) -> anyhow::Result<()>, size: u32, seed: u64) {
    run_with(config(), name, size, seed, body);
}

/// A hang ends in a panic after `DEADLINE`, and a failure in one that names the seed.
fn run_with<F>(config: Config, name: &str, size: u32, seed: u64, body: F)
where
    F: Fn(&Comm, u64) -> anyhow::Result<()> + Send + Sync + 'static,
{
    let (done, finished) = mpsc::channel();
    let ranks = std::thread::spawn(move || {
        let results = Comm::threads_with(size, config, |comm| body(&comm, seed));
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

/// The same where the work of other tests would be counted, too.
fn in_a_process_of_its_own(body: &Body) {
    for ranks in ["1", "4"] {
        let output = Command::new(env!("CARGO_BIN_EXE_rma-conformance"))
            .args(["--threads", ranks, body.name])
            .env("RMA_TIMEOUT", "20")
            .env("RMA_SETUP_TIMEOUT", "20")
            .output()
            .expect("rma-conformance starts");
        assert!(output.status.success(), "on {ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
    }
}

macro_rules! tests {
    ($($name:ident: $fewest:literal, $function:path;)*) => {
        $(#[test]
        fn $name() {
            let body = rma_tests::body(stringify!($name)).expect("every body is in the table");
            if body.name == "a_thousand_lives_leave_nothing_behind" { in_a_process_of_its_own(body) } else { run_all(body) }
        })*
    };
}

for_each_body!(tests);

#[test]
fn a_ring_of_64_ranks_makes_steady_progress_on_few_cores() {
    run("a_ring_makes_steady_progress", life::a_ring_makes_steady_progress, 64, seed());
}

/// Rails that start late and overtake each other, and credits that come late.
#[test]
fn delays_and_overtaking_rails_change_nothing() {
    let seed = seed();
    let under_faults = [
        "every_byte_of_contiguous_puts_arrives",
        "every_byte_of_strided_puts_arrives",
        "many_origins_write_one_target",
        "one_origin_writes_many_targets",
        "empty_puts_notify_and_write_nothing",
        "one_queue_uses_many_rails",
        "a_slow_reader_keeps_its_epoch",
        "ranges_exposed_at_start_are_ordinary_memory_between_flights",
        "queues_exposed_at_start_share_ranges",
        "exposures_may_differ_between_ranks",
        "a_credit_travels_while_its_target_waits_for_another_queue",
        "a_wait_moves_on_the_other_queues_in_flight",
        "two_buffers_that_start_after_each_other_keep_every_byte",
        "a_ping_pong_of_starts_after_keeps_every_byte",
        "queues_in_flight_together_keep_their_epochs_apart",
        "every_byte_of_an_exchange_arrives_however_it_is_cut",
        "test_alone_completes_an_epoch",
        "a_cleared_queue_is_committed_again",
        "a_dropped_queue_is_as_good_as_cleared",
    ];
    for name in under_faults {
        let mut config = config();
        config.faults = Some(FaultPlan { seed, delay_polls: 30, victim: None });
        run_with(config, name, 4, seed, rma_tests::body(name).expect("a body in the table").run);
    }
}

/// Every rank waits for its queues in an order of its own, so each needs credits of a rank that waits for something else.
#[test]
fn a_delayed_credit_goes_out_although_its_rank_waits_for_another_queue() {
    let names = ["queues_in_flight_together_keep_their_epochs_apart", "a_credit_travels_while_its_target_waits_for_another_queue"];
    for (name, size) in names.into_iter().flat_map(|name| [2, 4].map(|size| (name, size))) {
        let mut config = config();
        config.faults = Some(FaultPlan { seed: 7, delay_polls: 40, victim: None });
        run_with(config, name, size, 7, rma_tests::body(name).expect("a body in the table").run);
    }
}

#[test]
fn a_start_that_fails_in_the_backend_poisons_its_queue_and_partners_learn_of_the_clear() {
    let mut config = config();
    config.faults = Some(FaultPlan { seed: 1, delay_polls: 0, victim: Some((Rank(0), Epoch(3), Failure::Error)) });
    run_with(config, "a_start_that_fails", 2, 0, |comm, _| {
        let line = check::Line::new(comm, 0, 1)?;
        let mut queue = line.queue(comm)?.commit()?;
        line.step(&mut queue, 1)?;
        line.step(&mut queue, 2)?;
        if comm.rank().0 == 0 {
            let error = check::refused(queue.start().map(drop))?;
            let again = check::refused(queue.start().map(drop))?;
            ensure!(matches!(again, Error::Poisoned { epoch: Epoch(3), .. }), "another error: {again}");
            check::says(&again, &[error.full_text()])?;
        } else {
            let error = check::refused(queue.start()?.wait().map(drop))?;
            ensure!(matches!(error, Error::PeerCleared { rank: Rank(0), .. }), "another error: {error}");
        }
        queue.clear();
        check::ring(comm, 2)
    });
}

/// What was cleared here stays closed to leases until it is cleared by those that may still write it; who asks waits a while for them.
#[test]
fn a_cleared_range_stays_closed_until_its_origin_has_cleared_too() {
    let mut config = config();
    // Three refusals of a lease take this long each, and meanwhile rank 0 waits for a signal, not in a collective call.
    config.setup_timeout = Duration::from_millis(500);
    run_with(config, "a_cleared_range_stays_closed", 2, 0, |comm, _| {
        for at_start in [false, true] {
            let (line, signal) = (check::Line::new(comm, 0, 1)?, check::Line::new(comm, 1, 0)?);
            let mut queue = line.queue(comm)?;
            if at_start {
                queue.expose_at_start();
            }
            let mut queue = queue.commit()?;
            let mut signal_queue = signal.queue(comm)?.commit()?;
            line.step(&mut queue, 1)?;
            if comm.rank().0 == 0 {
                // Keeps its queue, and may write, until rank 1 has tried.
                signal.step(&mut signal_queue, 1)?;
                queue.clear();
            } else {
                let id = queue.id();
                if at_start {
                    // Granted, so it may be written at any time from here on.
                    drop(queue.start()?);
                }
                queue.clear();
                check::refuses_access(&line.inbox, 0..8)?;
                check::says(&check::refused(line.inbox.read::<u8>(..).map(drop))?, &[id.to_string()])?;
                signal.step(&mut signal_queue, 1)?;
                // Waits for rank 0, which is about to clear.
                line.inbox.write::<u64>(..)?[0] = 0;
            }
        }
        Ok(())
    });
}

/// With more ranks than cores a rank that waits for long sleeps; what it waits for must wake it, not its next look at the clock.
#[test]
fn sleeping_ranks_are_woken_by_what_they_wait_for() {
    const ROUNDS: u64 = 9;
    run_with(config(), "sleeping_ranks_are_woken", 8, 0, |comm, _| {
        let (me, size) = (comm.rank().0, comm.size());
        let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
        let mut queue = comm.queue_alloc(&inbox)?;
        if me == 0 {
            for target in 1..size {
                queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, target)?)?;
            }
        } else {
            queue.add_origin(0)?;
        }
        let mut queue = queue.commit()?;
        let mut late = Vec::new();
        for _ in 0..ROUNDS {
            if me == 0 {
                // Long enough for everyone to fall asleep and to look at the clock but rarely.
                let round = Instant::now();
                while round.elapsed() < Duration::from_millis(210) {
                    std::thread::yield_now();
                }
                outbox.write::<u64>(..)?[0] = now_ns();
            }
            let arrived = queue.start()?.wait()?;
            if me != 0 {
                late.push(now_ns().saturating_sub(arrived.read::<u64>(&inbox, ..)?[0]));
            }
        }
        late.sort_unstable();
        let median = Duration::from_nanos(late.get(late.len() / 2).copied().unwrap_or_default());
        ensure!(
            median < Duration::from_millis(10),
            "half of the times a rank woke more than {median:?} after its put: {late:?} ns"
        );
        Ok(())
    });
}

fn now_ns() -> u64 {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[test]
fn a_rank_that_panics_is_named_by_the_others_and_its_panic_is_passed_on() {
    let (sender, errors) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let outcome = std::panic::catch_unwind(|| {
        Comm::threads_with(4, config(), |comm| {
            let line = check::Line::new(&comm, 2, 0)?;
            let mut queue = line.queue(&comm)?.commit()?;
            line.step(&mut queue, 1)?;
            if comm.rank().0 == 2 {
                std::panic::panic_any("an expected panic of rank 2");
            }
            let waited = if comm.rank().0 == 0 { Some(check::refused(queue.start()?.wait().map(drop))?) } else { None };
            let met = check::refused(comm.barrier())?;
            let sender = sender.lock().map_err(|_| anyhow::anyhow!("no lock"))?;
            sender.send((comm.rank().0, waited, met)).context("sending what was seen")
        })
    });
    let panic = outcome.expect_err("the panic is passed on");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"an expected panic of rank 2"));
    let seen: Vec<_> = errors.try_iter().collect();
    assert_eq!(seen.len(), 3, "{seen:?}");
    for (rank, waited, met) in seen {
        let named = match waited {
            Some(Error::PeerLost { rank, how, .. }) => rank.0 == 2 && how == Departure::Died,
            Some(_) => false,
            None => true,
        };
        assert!(named, "rank {rank} waited: {waited:?}");
        // Another rank that has seen it may have left since.
        let expected = matches!(&met, Error::PeerLost { rank, how, .. } if (rank.0 == 2) == (*how == Departure::Died));
        assert!(expected, "rank {rank} met: {met}");
    }
}

#[test]
fn a_collective_call_that_one_rank_never_makes_ends_by_its_deadline_and_names_it() {
    let (done, finished) = mpsc::channel::<()>();
    let finished = std::sync::Mutex::new(finished);
    let mut config = config();
    config.setup_timeout = Duration::from_millis(200);
    let results = Comm::threads_with(3, config, |comm| {
        if comm.rank().0 == 1 {
            // Alive, but busy until both others have given up.
            let finished = finished.lock().map_err(|_| anyhow::anyhow!("no lock"))?;
            for _ in 0..2 {
                finished.recv_timeout(DEADLINE).context("the others")?;
            }
            return Ok(());
        }
        let error = check::refused(comm.barrier());
        done.send(()).context("telling rank 1")?;
        let error = error?;
        // The second to give up may learn it from the first.
        let expected = matches!(error, Error::SetupTimeout { .. } | Error::CollectiveFailed { .. });
        ensure!(expected, "another error: {error}");
        check::says(&error, &["within 0.2 s", "rank 1", "RMA_SETUP_TIMEOUT"])
    });
    for (rank, result) in results.expect("three ranks start").into_iter().enumerate() {
        result.unwrap_or_else(|error| panic!("rank {rank}: {error:#}"));
    }
}
