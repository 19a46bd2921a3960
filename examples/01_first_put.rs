//! The first put: every rank writes one number into the next rank's window.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use rma::{Comm, Rank, Result};

fn main() -> Result<()> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    Comm::launch(4, |comm| {
        let (me, size) = (comm.rank().0, comm.size());
        let (next, previous) = (Rank((me + 1) % size), Rank((me + size - 1) % size));

        // Collective: 8 bytes to send from and 8 bytes for others to write into.
        let outbox = comm.window_alloc(8)?;
        let inbox = comm.window_alloc(8)?;

        // Declared once, committed once. Then an exchange is only start and wait.
        let put = comm.declare_write(&inbox, 0, &outbox, 0, 8, next)?;
        let mut queue = comm.queue_alloc(&inbox)?;
        queue.push(&put)?;
        queue.add_origin(previous)?;
        let mut queue = queue.commit()?;

        outbox.write::<u64>(..)?[0] = 100 + u64::from(me);
        let arrived = queue.start()?.wait()?;
        let number = arrived.read::<u64>(&inbox, ..)?[0];
        println!("rank {me} of {size} received {number} from {previous}");
        assert_eq!(number, 100 + u64::from(previous.0));
        Ok(())
    })
}
