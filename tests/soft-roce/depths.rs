//! Queues that are deeper than the device's, and ranks that send nothing but notices, where a connection takes few requests.

use crate::duplex::Duplex;
use anyhow::Result;
use rma::Comm;
use rma_tests::check::Line;

/// Of the driver's choice, for `RMA_VERBS_SENDS`.
pub(crate) const SENDS: &str = "16";

/// Every put is a request of its own; both sides and both queues want the connection at once.
pub(crate) fn a_queue_deeper_than_the_device_goes_out_in_pieces(comm: &Comm) -> Result<()> {
    let deep = Duplex::new(comm, [0, 1], &[24; 150])?;
    let other = Duplex::new(comm, [0, 1], &[200; 40])?;
    let (mut deep_queue, mut other_queue) = (deep.commit(comm)?, other.commit(comm)?);
    for number in 1..20 {
        deep.fill(number)?;
        let flight = deep_queue.start()?;
        // Its requests wait for the same room.
        other.run(&mut other_queue, number..number + 1)?;
        deep.check(&flight.wait()?, number)?;
    }
    Ok(())
}

/// A target that never puts gives one credit an epoch, far more than its connection takes at once.
pub(crate) fn credits_alone_never_fill_a_connection(comm: &Comm) -> Result<()> {
    let line = Line::new(comm, 0, 1)?;
    let mut queue = line.queue(comm)?.commit()?;
    (0..500).try_for_each(|number| line.step(&mut queue, number))
}
