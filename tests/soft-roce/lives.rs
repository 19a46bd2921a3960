//! Commit, exchange, clear and free again and again, while the devices are asked what they hold.

use crate::duplex::Duplex;
use crate::lab::{self, Held};
use anyhow::{Context, Result, ensure};
use rma::Comm;

const LIVES: u64 = 40;

fn live(comm: &Comm, life: u64) -> Result<()> {
    // What is packed has a region of its own.
    let duplex = Duplex::new(comm, [0, 1], &[8, 200, 5000])?;
    for turn in 0..3 {
        let mut queue = duplex.commit(comm)?;
        duplex.run(&mut queue, 100 * life + 10 * turn + 1..100 * life + 10 * turn + 3)?;
        queue.clear();
    }
    packed(comm, life)?;
    duplex.free()
}

/// Many small blocks into one range, which are copied together first.
fn packed(comm: &Comm, life: u64) -> Result<()> {
    const BLOCKS: usize = 100;
    let (me, other) = (comm.rank().0, 1 - comm.rank().0);
    let (outbox, inbox) = (comm.window_alloc(BLOCKS * 16)?, comm.window_alloc(BLOCKS * 8)?);
    let mut queue = comm.queue_alloc(&inbox)?;
    queue.push(&comm.declare_write(&inbox, 0, &outbox, 8, 8, other)?.blocks(BLOCKS, 16, 8)?)?.add_origin(other)?;
    let mut queue = queue.commit()?;
    let word = |rank: u32, at: usize| life << 32 | u64::from(rank) << 16 | at as u64;
    outbox.write::<u64>(..)?.iter_mut().enumerate().for_each(|(at, cell)| *cell = word(me, at));
    let arrived = queue.start()?.wait()?;
    let found = arrived.read::<u64>(&inbox, ..)?;
    let wrong = (0..BLOCKS).find(|&block| found[block] != word(other, 2 * block + 1));
    ensure!(wrong.is_none(), "block {wrong:?} is wrong");
    drop(found);
    drop(arrived);
    queue.clear();
    outbox.free()?;
    inbox.free()?;
    Ok(())
}

/// Between the lives of all ranks: what one holds at any moment depends on how far the other is.
fn held(comm: &Comm) -> Result<Held> {
    comm.barrier()?;
    let held = lab::held()?;
    comm.barrier()?;
    Ok(held)
}

pub(crate) fn lives_leave_nothing_in_the_devices(comm: &Comm) -> Result<()> {
    (0..5).try_for_each(|life| live(comm, life))?;
    let before = held(comm)?;
    let queue_pairs: u64 = before.values().filter_map(|kinds| kinds.get("qp")).sum();
    ensure!(queue_pairs > 0, "no queue pair among {before:?}, though ranks are connected");
    (5..LIVES).try_for_each(|life| live(comm, life))?;
    let after = held(comm).context("afterwards")?;
    ensure!(before == after, "after {LIVES} lives the devices hold {after:?}\nbefore it was {before:?}");
    Ok(())
}
