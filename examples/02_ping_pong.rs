//! Ping-pong on persistent queues: two ranks put to each other in turn, each time with new data, and time it.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use rma::{Comm, Error, Rank, Result};
use std::time::Instant;

const ROUNDS: u64 = 10_000;
const NUMBERS: usize = 128;
const BYTES: usize = NUMBERS * size_of::<u64>();

fn main() -> Result<()> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    Comm::launch(2, |comm| {
        if comm.size() < 2 {
            return Err(Error::Launch("a ping-pong takes 2 ranks or more; start it with `rma run -n 2`".into()));
        }
        let me = comm.rank();
        let plays = me.0 < 2;
        let (outbox, inbox) = (comm.window_alloc(BYTES)?, comm.window_alloc(BYTES)?);

        // One queue there and one back. Commits are collective, so ranks that only look on take part in them, too.
        let commit = |from: Rank, to: Rank| {
            let mut queue = comm.queue_alloc(&inbox)?;
            if me == from {
                queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, BYTES, to)?)?;
            }
            if me == to {
                queue.add_origin(from)?;
            }
            queue.commit()
        };
        let mut ping = commit(Rank(0), Rank(1))?;
        let mut pong = commit(Rank(1), Rank(0))?;

        let begun = Instant::now();
        let mut sum = 0;
        for round in (0..ROUNDS).filter(|_| plays) {
            if me == Rank(0) {
                outbox.write::<u64>(..)?.fill(round);
                ping.start()?.wait()?;
                sum += pong.start()?.wait()?.read::<u64>(&inbox, ..)?.iter().sum::<u64>();
            } else {
                let arrived = ping.start()?.wait()?;
                let doubled = arrived.read::<u64>(&inbox, ..)?.iter().map(|number| 2 * number).sum::<u64>() / NUMBERS as u64;
                outbox.write::<u64>(..)?.fill(doubled);
                pong.start_after(arrived)?.wait()?; // and rank 0 may write the next ping
            }
        }
        if me == Rank(0) {
            let expected = NUMBERS as u64 * ROUNDS * (ROUNDS - 1);
            assert_eq!(sum, expected);
            let one_way_ns = begun.elapsed().as_nanos() / u128::from(2 * ROUNDS);
            println!("{ROUNDS} rounds of {BYTES} bytes: all correct, {one_way_ns} ns one way with filling and adding up");
        }
        Ok(())
    })
}
