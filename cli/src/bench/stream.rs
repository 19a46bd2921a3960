//! The one-way stream: rank 0 starts its chain again and again, as fast as rank 1 gives the credits for it.

use super::Options;
use super::chain::Chain;
use super::measure::{Times, measure};
use super::report::Report;
use anyhow::{Result, ensure};
use rma::{Comm, Rank};
use std::time::Duration;

const ORIGIN: Rank = Rank(0);
const TARGET: Rank = Rank(1);

pub(super) fn run(comm: &Comm, options: &Options, puts: u32) -> Result<()> {
    ensure!(comm.size() == 2, "{} ranks: a stream has 2", comm.size());
    let what = format!("one-way stream, time of a chain of {puts} puts");
    let report = Report::begin("stream", &what, comm, options, puts);
    for &bytes in &options.bytes {
        report.row(bytes, &stream(comm, options, puts, bytes)?);
    }
    Ok(())
}

fn stream(comm: &Comm, options: &Options, puts: u32, bytes: usize) -> Result<Times> {
    let chain = Chain::declare(comm, TARGET, puts, bytes, options.rails_of(comm))?;
    let mut queue = comm.queue_alloc(&chain.inbox)?;
    if comm.rank() == ORIGIN {
        for put in chain.puts() {
            queue.push(put)?;
        }
    } else {
        queue.add_origin(ORIGIN)?;
    }
    if options.expose_at_start {
        queue.expose_at_start();
    }
    let mut queue = queue.commit()?;
    let times = measure(comm, options.repeats, Duration::from_millis(options.batch_ms), |iterations| {
        for _ in 0..iterations {
            // What the target's wait returns is dropped at once: that is the credit for the next chain.
            queue.start()?.wait()?;
        }
        Ok(())
    })?;
    drop(queue);
    if comm.rank() == TARGET {
        chain.check(ORIGIN)?;
    }
    chain.free()?;
    Ok(times)
}
