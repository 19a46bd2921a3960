//! Whole lives: many epochs, ranks that end at once, and a thousand times from allocation to free with nothing left behind.

use crate::check::{PATIENCE, ring};
use crate::exchange::Exchange;
use crate::plan::{Plan, Shape, all_pairs};
use anyhow::{Context, bail, ensure};
use rma::{Comm, Deadline};

/// Thousands of epochs in which every rank waits for its neighbor. With more ranks than cores, none may starve.
pub fn a_ring_makes_steady_progress(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    ring(comm, if comm.size() > 16 { 300 } else { 3000 })
}

/// No rank waits for another after its last epoch; queues and windows are dropped where they are.
pub fn ranks_may_end_as_soon_as_their_last_wait_is_over(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &Shape::strided(all_pairs(comm.size()))))?;
    let mut queue = exchange.queue(|_| true)?.commit()?;
    exchange.run(&mut queue, 1, 1 + seed % 5)
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    virtual_kib: u64,
    resident_kib: u64,
}

/// Collective: rank after rank, so that ranks of one process do not count each other's look.
fn held(comm: &Comm) -> anyhow::Result<Held> {
    let mut own = None;
    for rank in 0..comm.size() {
        comm.barrier()?;
        if comm.rank().0 == rank {
            let status = std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
            let kib = |name: &str| {
                let line =
                    status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name} in {status}"))?;
                line.trim().trim_end_matches(" kB").parse::<u64>().with_context(|| format!("{name} is {line}"))
            };
            let descriptors = std::fs::read_dir("/proc/self/fd").context("listing /proc/self/fd")?.count();
            own = Some(Held { descriptors, virtual_kib: kib("VmSize:")?, resident_kib: kib("VmRSS:")? });
        }
    }
    comm.barrier()?;
    own.context("bug: no rank is this one")
}

fn lives(comm: &Comm, count: u64) -> anyhow::Result<()> {
    const BYTES: usize = 64 << 10;
    let (me, size) = (comm.rank().0, comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    for life in 0..count {
        let (outbox, inbox) = (comm.window_alloc(BYTES)?, comm.window_alloc(BYTES)?);
        let put = comm.declare_write(&inbox, 0, &outbox, 0, BYTES, next)?;
        let mut queue = comm.queue_alloc(&inbox)?;
        // Further queues, that what is kept of a queue and not of a window shows, too.
        for _ in 0..4 {
            queue.push(&put)?.add_origin(previous)?;
            queue = queue.commit()?.clear();
            queue.expose(&inbox)?;
        }
        queue.push(&put)?.add_origin(previous)?;
        let mut queue = queue.commit()?;
        for epoch in 0..2 {
            outbox.write::<u64>(..)?.fill(life << 8 | epoch);
            let arrived = queue.start()?.wait()?;
            let wrong = arrived.read::<u64>(&inbox, ..)?.iter().copied().find(|&found| found != life << 8 | epoch);
            ensure!(wrong.is_none(), "life {life}, epoch {epoch}: {wrong:?}");
        }
        queue.clear();
        drop(put);
        inbox.free()?;
        outbox.free()?;
    }
    Ok(())
}

/// How many lives: `RMA_TEST_LIVES` where a life takes long, as in an emulated machine.
fn how_many(comm: &Comm) -> anyhow::Result<u64> {
    match std::env::var("RMA_TEST_LIVES") {
        Ok(text) => text.parse().with_context(|| format!("RMA_TEST_LIVES={text:?}: expected a whole number")),
        // A quarter of them where many ranks share few cores: what leaks in each life shows in those, too.
        Err(_) => Ok(if comm.size() > 4 { 250 } else { 1000 }),
    }
}

/// To be run in a process of its own: other work in the process would be counted, too.
pub fn a_thousand_lives_leave_nothing_behind(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let count = how_many(comm)?;
    // Allocators take memory from the system in steps, whenever it may be; what is left behind in each life shows in every round.
    const ROUNDS: u32 = 4;
    lives(comm, count.min(50))?;
    let mut before = held(comm)?;
    for _ in 0..ROUNDS {
        lives(comm, count)?;
        let after = held(comm)?;
        ensure!(after.descriptors == before.descriptors, "descriptors have grown: {before:?}, {after:?}");
        // A window kept in each of a thousand lives would be 64,000 KiB, a page 4,000, and 24 bytes for each of its five queues 117.
        let grown = |before: u64, after: u64| after.saturating_sub(before);
        let is_flat = grown(before.resident_kib, after.resident_kib) < 500 && grown(before.virtual_kib, after.virtual_kib) < 64;
        let grown = (!is_flat).then(|| format!("memory has grown: {before:?}, {after:?}"));
        if comm.bootstrap().agree(grown, Deadline::after(PATIENCE))?.is_none() {
            return Ok(());
        }
        before = after;
    }
    bail!("memory has grown in each of {ROUNDS} times {count} lives, on one rank or another, here now to {before:?}")
}
