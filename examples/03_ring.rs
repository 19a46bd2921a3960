//! A ring with origin waits: every rank's block travels once around, and each rank waits for its predecessor alone.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use rma::{Comm, Rank, Result};

const NUMBERS: usize = 1000;
const BYTES: usize = NUMBERS * size_of::<f64>();

fn main() -> Result<()> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    Comm::launch(4, |comm| {
        let (me, size) = (comm.rank().0, comm.size());
        let (next, previous) = (Rank((me + 1) % size), Rank((me + size - 1) % size));
        let (outbox, inbox) = (comm.window_alloc(BYTES)?, comm.window_alloc(BYTES)?);

        let mut queue = comm.queue_alloc(&inbox)?;
        queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, BYTES, next)?)?;
        queue.add_origin(previous)?;
        let mut queue = queue.commit()?;

        outbox.write::<f64>(..)?.fill(f64::from(me));
        let mut sum = f64::from(me);
        for step in 1..size {
            // wait returns when the own put is complete and the predecessor's has arrived; nobody waits for all.
            let arrived = queue.start()?.wait()?;
            let block = arrived.read::<f64>(&inbox, ..)?;
            assert!(block.iter().all(|&number| number == f64::from((me + size - step) % size)));
            sum += block[0];
            outbox.write::<f64>(..)?.copy_from_slice(&block);
        }
        assert_eq!(sum, f64::from(size * (size - 1) / 2));
        println!("rank {me} of {size}: after {} steps the sum of all blocks is {sum}", size - 1);
        Ok(())
    })
}
