//! Sums over all ranks: each puts its part to every other, and all add up all parts in the same order, so that they get the same bits.

use rma::{Comm, Ready, Result, RmaQueue, RmaWindow};

/// What one rank writes of another's inbox: whole cache lines, so that no two ranks write the same one.
const LINE_BYTES: usize = 64;

/// A sum of `N` numbers over all ranks, committed once. Two queues take turns, so that the credits of one travel while the other is used.
#[derive(Debug)]
pub struct Sum<const N: usize> {
    rank: usize,
    outbox: RmaWindow,
    turns: [Turn; 2],
}

#[derive(Debug)]
struct Turn {
    inbox: RmaWindow,
    queue: RmaQueue<Ready>,
}

impl<const N: usize> Sum<N> {
    const BYTES: usize = N * size_of::<f64>();
    const SLOT_BYTES: usize = Self::BYTES.next_multiple_of(LINE_BYTES);

    /// Collective: to be called on every rank.
    pub fn new(comm: &Comm) -> Result<Self> {
        let (me, size) = (comm.rank().0, comm.size());
        let outbox = comm.window_alloc(Self::BYTES)?;
        let turn = || -> Result<Turn> {
            let inbox = comm.window_alloc(Self::SLOT_BYTES * size as usize)?;
            let mut queue = comm.queue_alloc(&inbox)?;
            for other in (0..size).filter(|&rank| rank != me) {
                queue.push(&comm.declare_write(&inbox, Self::SLOT_BYTES * me as usize, &outbox, 0, Self::BYTES, other)?)?;
                queue.add_origin(other)?;
            }
            Ok(Turn { queue: queue.commit()?, inbox })
        };
        let turns = [turn()?, turn()?];
        Ok(Self { rank: me as usize, outbox, turns })
    }

    /// Collective: the sums over the `parts` of all ranks, the same on each of them.
    pub fn of(&mut self, parts: [f64; N]) -> Result<[f64; N]> {
        self.turns.reverse();
        let [Turn { inbox, queue }, _] = &mut self.turns;
        self.outbox.write::<f64>(..)?.copy_from_slice(&parts);
        let arrived = queue.start()?.wait()?;
        let received = arrived.read::<f64>(inbox, ..)?;
        let mut sums = [0.0; N];
        for (rank, slot) in received.chunks_exact(Self::SLOT_BYTES / size_of::<f64>()).enumerate() {
            let parts = if rank == self.rank { &parts } else { slot };
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::from_minus_one_to_one;

    #[test]
    fn every_rank_gets_the_same_bits_as_adding_up_in_the_order_of_ranks() {
        // So different in size that another order gives other bits.
        let part = |rank: usize, round: usize| from_minus_one_to_one(round as u64, rank) * 10f64.powi(5 * rank as i32);
        for size in [1, 2, 5] {
            let sums = Comm::threads(size, |comm| {
                let (mut sum, me) = (Sum::<2>::new(&comm).unwrap(), comm.rank().0 as usize);
                (0..100).map(|round| sum.of([part(me, round), 1.0]).unwrap()).collect::<Vec<_>>()
            });
            let expected = |round| [(0..size as usize).map(|rank| part(rank, round)).sum(), f64::from(size)];
            let expected: Vec<[f64; 2]> = (0..100).map(expected).collect();
            for (rank, sums) in sums.unwrap().into_iter().enumerate() {
                assert!(sums == expected, "rank {rank} of {size}");
            }
        }
    }
}
