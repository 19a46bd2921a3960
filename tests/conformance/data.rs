//! Puts of every form arrive byte for byte, and nothing else changes. Plans are drawn from the seed; the oracle is in `plan`.

use crate::exchange::{Exchange, complete};
use crate::plan::{Plan, PlannedPut, RailChoice, Shape, Strided, all_pairs};
use anyhow::ensure;
use rma::Comm;

const EPOCHS: u64 = 4;

/// How many plans a body draws.
const PLANS: u64 = 5;

fn drawn(comm: &Comm, seed: u64, shape: &Shape) -> anyhow::Result<()> {
    for i in 0..PLANS {
        complete(comm, Plan::draw(seed.wrapping_add(i), comm.size(), shape), EPOCHS)?;
    }
    Ok(())
}

/// Contiguous puts between all ranks.
pub fn every_byte_of_contiguous_puts_arrives(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    drawn(comm, seed, &Shape::contiguous(all_pairs(comm.size())))
}

/// Blocks at distances that differ between the two sides, interleaved with each other.
pub fn every_byte_of_strided_puts_arrives(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    drawn(comm, seed, &Shape::strided(all_pairs(comm.size())))
}

/// Only puts of a rank to itself.
pub fn a_rank_can_put_to_itself(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    drawn(comm, seed, &Shape::strided((0..comm.size()).map(|rank| (rank, rank)).collect()))
}

/// Everyone writes one rank.
pub fn many_origins_write_one_target(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let target = (seed % u64::from(comm.size())) as u32;
    drawn(comm, seed, &Shape { puts: 1..=8, ..Shape::strided((0..comm.size()).map(|origin| (origin, target)).collect()) })
}

/// One rank writes everyone.
pub fn one_origin_writes_many_targets(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let origin = (seed % u64::from(comm.size())) as u32;
    drawn(comm, seed, &Shape { puts: 1..=8, ..Shape::strided((0..comm.size()).map(|target| (origin, target)).collect()) })
}

/// Puts without bytes, alone and between others: the wait needs their notifications, the memory stays as it is.
pub fn empty_puts_notify_and_write_nothing(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let pairs = all_pairs(comm.size());
    // Only puts of no length, only puts of no blocks, and both among others.
    drawn(comm, seed, &Shape { block: 0..=0, ..Shape::contiguous(pairs.clone()) })?;
    drawn(comm, seed, &Shape { count: 0..=0, ..Shape::strided(pairs.clone()) })?;
    drawn(comm, seed, &Shape { block: 0..=2, count: 0..=2, ..Shape::strided(pairs) })
}

/// Every rank's part has its own length, and some have none.
pub fn windows_may_be_uneven_and_empty(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    for hollow in [vec![0], vec![size - 1], (0..size).step_by(2).collect(), (0..size).collect()] {
        let shape = Shape { hollow, ..Shape::strided(all_pairs(size)) };
        complete(comm, Plan::draw(seed, size, &shape), EPOCHS)?;
    }
    Ok(())
}

/// A queue for each rail, all puts of it on this rail.
pub fn every_rail_carries_puts(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    for rail in 0..comm.rails() {
        let mut plan = Plan::draw(seed.wrapping_add(rail.into()), comm.size(), &Shape::strided(all_pairs(comm.size())));
        plan.puts.iter_mut().for_each(|put| put.rail = Some(rail));
        complete(comm, plan, EPOCHS)?;
    }
    Ok(())
}

/// Puts of one queue on several rails: the notification of each has to come.
pub fn one_queue_uses_many_rails(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let strided = Shape { puts: 1..=9, ..Shape::strided(all_pairs(comm.size())) };
    drawn(comm, seed, &Shape { rails: RailChoice::Any(comm.rails()), ..strided.clone() })?;
    drawn(comm, seed, &Shape { rails: RailChoice::Mixed(comm.rails()), ..strided })
}

/// P0, trap (h): on a ring of two the left and the right neighbor are one rank, and on a ring of one this rank itself.
pub fn two_neighbors_that_are_one_rank_get_both_puts(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let part = |offset| Strided { offset, block: 16, count: 1, stride: 16 };
    let mut puts = Vec::new();
    for origin in 0..size {
        // Rings of two: ranks 2k and 2k + 1; the last of an odd number is a ring of one.
        let partner = if origin ^ 1 < size { origin ^ 1 } else { origin };
        for side in 0..2 {
            let rail = (comm.rails() > 1).then_some(side as u16);
            let put = PlannedPut {
                origin,
                target: partner,
                from_window: 0,
                from: part(16 * side),
                to_window: 0,
                to: part(32 + 16 * side),
                rail,
            };
            puts.push(put);
        }
    }
    let ranks = size as usize;
    complete(comm, Plan { seed, sources: vec![vec![32; ranks]], lengths: vec![vec![64; ranks]], puts }, EPOCHS)
}

/// Puts of several pages, at odd offsets.
pub fn large_puts_arrive_whole(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let (len, odd) = (70_001, 13);
    let whole = |offset, block| Strided { offset, block, count: 1, stride: block };
    let puts = (0..size)
        .map(|origin| PlannedPut {
            origin,
            target: (origin + 1) % size,
            from_window: 0,
            from: whole(odd, len),
            to_window: 0,
            to: whole(odd + len + 1, len),
            rail: None,
        })
        .collect();
    let ranks = size as usize;
    let plan = Plan { seed, sources: vec![vec![odd + len; ranks]], lengths: vec![vec![odd + 2 * len + 8; ranks]], puts };
    complete(comm, plan, 2)
}

/// Also memory that was used and given back before.
pub fn fresh_windows_are_zero(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    for _ in 0..4 {
        let exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &Shape::contiguous(all_pairs(comm.size()))))?;
        exchange.free()?;
        let window = comm.window_alloc(5000)?;
        ensure!(window.read::<u8>(..)?.iter().all(|&byte| byte == 0), "a fresh window is not zero");
        window.write::<u8>(..)?.fill(0xff);
        window.free()?;
    }
    Ok(())
}
