//! Ranks that are killed, or that the system gives no descriptors: what befalls one process of several, for jobs of processes alone.
//! The moment of death travels in the victim's last epoch, by a clock that all processes of a host share.

use crate::Body;
use crate::check::{PATIENCE, everything_still_works, refused, says, tests_until_refused};
use anyhow::{Context, bail, ensure};
use rma::bootstrap::Departure;
use rma::{Comm, Error, Rank};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// The bodies of this file.
pub static FAULTS: &[Body] = &[
    Body { name: "a_killed_origin_is_named_within_a_second", run: a_killed_origin_is_named_within_a_second, fewest: 2 },
    Body { name: "a_killed_origin_is_named_to_who_only_tests", run: a_killed_origin_is_named_to_who_only_tests, fewest: 2 },
    Body { name: "a_killed_target_is_named_within_a_second", run: a_killed_target_is_named_within_a_second, fewest: 2 },
    Body {
        name: "a_killed_rank_ends_collective_calls_within_a_second",
        run: a_killed_rank_ends_collective_calls_within_a_second,
        fewest: 2,
    },
];

/// A body that leaves every process alive, and needs that each rank has one of its own.
pub static WITHOUT_DESCRIPTORS: Body = Body {
    name: "a_commit_without_descriptors_fails_on_every_rank",
    run: a_commit_without_descriptors_fails_on_every_rank,
    fewest: 2,
};

/// Faults in which the test, not a rank, kills something.
pub static WAITS_FOR_EVER: Body = Body { name: "waits_for_ever", run: waits_for_ever, fewest: 2 };

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// SIGKILL to this process.
fn die() -> anyhow::Result<()> {
    kill_process(getpid(), Signal::KILL)?;
    bail!("SIGKILL did not end this process")
}

/// The error of a survivor names the victim, as one who died, in under a second after it did.
fn names_the_dead(error: &Error, victim: u32, died_ns: u64) -> anyhow::Result<()> {
    let late = Duration::from_nanos(now_ns().saturating_sub(died_ns));
    let Error::PeerLost { rank, how, .. } = error else { bail!("another error: {error}") };
    ensure!(*rank == Rank(victim) && *how == Departure::Died, "{rank} {how:?} instead of rank {victim}, which died: {error}");
    says(error, &[format!("rank {victim} died")])?;
    ensure!(late < Duration::from_secs(1), "only {late:?} after its death: {error}");
    // For the test, which counts them.
    writeln!(std::io::stdout(), "rank {victim} died {late:?} ago, and this rank survived")?;
    Ok(())
}

/// Runs epochs in which the victim writes the time to everyone (or everyone writes to it), then lets it die.
/// Returns what each survivor's next wait said, and when the victim died.
fn epochs_then_death(comm: &Comm, victim: u32, survivors_write: bool, only_tests: bool) -> anyhow::Result<(Error, u64)> {
    const LAST: u64 = 20;
    let (me, size) = (comm.rank().0, comm.size());
    let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8 * size as usize)?);
    let mut queue = comm.queue_alloc(&inbox)?;
    if me == victim {
        for survivor in (0..size).filter(|&rank| rank != victim) {
            queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, survivor)?)?;
            if survivors_write {
                queue.add_origin(survivor)?;
            }
        }
    } else {
        queue.add_origin(victim)?;
        if survivors_write {
            queue.push(&comm.declare_write(&inbox, 8 * me as usize, &outbox, 0, 8, victim)?)?;
        }
    }
    let mut queue = queue.commit()?;
    // What only survivors do goes on.
    let mut others = comm.queue_alloc(&outbox)?;
    let alive: Vec<_> = (0..size).filter(|&rank| rank != victim).collect();
    if let Some(place) = alive.iter().position(|&rank| rank == me) {
        others.add_origin(alive[(place + alive.len() - 1) % alive.len()])?;
        others.push(&comm.declare_write(&outbox, 0, &inbox, 0, 0, alive[(place + 1) % alive.len()])?)?;
    }
    let mut others = others.commit()?;

    let mut died_ns = 0;
    for epoch in 1..=LAST {
        if me == victim {
            outbox.write::<u64>(..)?[0] = now_ns();
        }
        let arrived = queue.start()?.wait()?;
        if me != victim {
            died_ns = arrived.read::<u64>(&inbox, ..8)?[0];
        } else if epoch == LAST {
            // Holds what arrived, so that nobody has a credit for the next epoch.
            die()?;
        }
    }
    let error = if only_tests { tests_until_refused(queue.start()?)? } else { refused(queue.start()?.wait().map(drop))? };
    for _ in 0..100 {
        others.start()?.wait()?;
    }
    Ok((error, died_ns))
}

/// Everyone waits for the next put of a rank that was killed.
pub fn a_killed_origin_is_named_within_a_second(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let victim = comm.size() / 2;
    let (error, died_ns) = epochs_then_death(comm, victim, false, false)?;
    names_the_dead(&error, victim, died_ns)
}

/// The same where everyone looks again and again, and never waits.
pub fn a_killed_origin_is_named_to_who_only_tests(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let victim = comm.size() / 2;
    let (error, died_ns) = epochs_then_death(comm, victim, false, true)?;
    names_the_dead(&error, victim, died_ns)
}

/// Everyone lacks the next credit, and the next put, of a rank that was killed.
pub fn a_killed_target_is_named_within_a_second(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let victim = comm.size() - 1;
    let (error, died_ns) = epochs_then_death(comm, victim, true, false)?;
    names_the_dead(&error, victim, died_ns)
}

/// Everyone is in a collective call with a rank that was killed. Who hears of it from a survivor that gave up hears it as well.
pub fn a_killed_rank_ends_collective_calls_within_a_second(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let victim = comm.size() - 1;
    let times = comm.bootstrap().allgather(&now_ns().to_ne_bytes(), rma::Deadline::after(PATIENCE))?;
    if comm.rank().0 == victim {
        die()?;
    }
    let died_ns = times[victim as usize].as_slice().try_into().map(u64::from_ne_bytes)?;
    let error = refused(comm.barrier())?;
    names_the_dead(&error, victim, died_ns)
}

/// One rank has no descriptor left, so that the backend cannot make its counters, then one, so that it makes them but cannot take
/// memory over: the commit fails on every rank, on that one with the cause, and with descriptors again the same commit succeeds.
pub fn a_commit_without_descriptors_fails_on_every_rank(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    // More than a socket holds, so that this rank fails before it has handed over all that its partner waits for.
    const WINDOWS: usize = 40;
    let (me, size) = (comm.rank().0, comm.size());
    let poor = size - 1;
    let outbox = comm.window_alloc(8)?;
    let inboxes = (0..WINDOWS).map(|_| comm.window_alloc(8)).collect::<rma::Result<Vec<_>>>()?;
    let commit = || {
        let mut queue = comm.queue_alloc(&outbox)?;
        queue.add_origin((me + size - 1) % size)?;
        for inbox in &inboxes {
            queue.expose(inbox)?.push(&comm.declare_write(inbox, 0, &outbox, 0, 8, (me + 1) % size)?)?;
        }
        queue.commit()
    };
    for left in [0, 1] {
        let few = if me == poor { Some(FewDescriptors::leave(left)?) } else { None };
        let begin = Instant::now();
        let outcome = commit().map(drop);
        let took = begin.elapsed();
        drop(few);
        let error = refused(outcome).with_context(|| format!("with {left} descriptors"))?;
        ensure!(matches!(error, Error::CommitRefused { .. }), "with {left} descriptors another error: {error}");
        if me == poor {
            says(&error, &[format!("refused by rank {poor}"), "open files".into()])?;
        } else {
            // Who exchanged memory may have seen only that its partner gave up.
            let text = error.full_text();
            ensure!(text.contains("open files") || text.contains("could not hand memory over"), "no cause in: {text}");
        }
        ensure!(took < PATIENCE / 6, "with {left} descriptors over only after {took:?}");
        comm.barrier()?;
    }
    commit()?.start()?.wait()?;
    everything_still_works(comm)
}

/// A process that may open only few files, until this is dropped.
struct FewDescriptors {
    held: Vec<File>,
    old: Rlimit,
}

impl FewDescriptors {
    /// Opens files until the system gives this process no more, then closes `left` of them.
    fn leave(left: usize) -> anyhow::Result<Self> {
        const ROOM: u64 = 8;
        let open = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        let mut few = Self { held: Vec::new(), old: getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + ROOM), maximum: few.old.maximum })?;
        while let Ok(file) = File::open("/dev/null") {
            few.held.push(file);
        }
        ensure!(few.held.len() >= left, "only {} descriptors below the limit of {}", few.held.len(), open + ROOM);
        few.held.truncate(few.held.len() - left);
        Ok(few)
    }
}

impl Drop for FewDescriptors {
    fn drop(&mut self) {
        // Back to what it was, which is never refused.
        let _ = setrlimit(Resource::Nofile, self.old);
    }
}

/// Prints its process id and waits for a put that never comes, so that the test can end ranks or the launcher as it likes.
fn waits_for_ever(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let window = comm.window_alloc(8)?;
    let mut queue = comm.queue_alloc(&window)?;
    queue.push(&comm.declare_write(&window, 0, &window, 0, 0, (me + 1) % size)?)?.add_origin((me + size - 1) % size)?;
    queue.timeout(None);
    let mut queue = queue.commit()?;
    writeln!(std::io::stdout(), "pid {}", getpid())?;
    if me == 0 {
        // Rank 0 reads until its input ends, which is when the launcher does.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    loop {
        queue.start()?.wait()?;
        if me == 0 {
            return Ok(());
        }
    }
}
