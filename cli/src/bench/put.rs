//! The ping-pong: rank 0 puts, rank 1 waits for it and puts back.

use super::Options;
use super::measure::{Times, measure};
use super::report::Report;
use anyhow::{Result, ensure};
use rma::{Comm, Rank};
use std::time::Duration;

pub(super) fn run(comm: &Comm, options: &Options) -> Result<()> {
    ensure!(comm.size() == 2, "{} ranks: a ping-pong has 2", comm.size());
    let report = Report::begin("put", "one-way time", comm, options);
    for &bytes in &options.bytes {
        let round_trip = ping_pong(comm, options, bytes)?;
        let Times { iterations, median_us, min_us, max_us } = round_trip;
        let one_way = Times { iterations, median_us: median_us / 2.0, min_us: min_us / 2.0, max_us: max_us / 2.0 };
        report.row(bytes, bytes, &one_way);
    }
    Ok(())
}

fn ping_pong(comm: &Comm, options: &Options, bytes: usize) -> Result<Times> {
    let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
    let (inbox, outbox) = (comm.window_alloc(bytes)?, comm.window_alloc(bytes)?);
    outbox.write::<u8>(..)?.fill(me.0 as u8 + 1);
    let put = comm.declare_write(&inbox, 0, &outbox, 0, bytes, peer)?;
    let commit = |sender: Rank| {
        let mut queue = comm.queue_alloc(&inbox)?;
        if me == sender {
            queue.push(&put)?;
        } else {
            queue.add_origin(sender)?;
        }
        if options.expose_at_start {
            queue.expose_at_start();
        }
        queue.commit()
    };
    let (mut there, mut back) = (commit(Rank(0))?, commit(Rank(1))?);
    let times = measure(comm, options.repeats, Duration::from_millis(options.batch_ms), |iterations| {
        for _ in 0..iterations {
            there.start()?.wait()?;
            back.start()?.wait()?;
        }
        Ok(())
    })?;
    drop((there, back));
    let wrong = inbox.read::<u8>(..)?.iter().filter(|&&byte| byte != peer.0 as u8 + 1).count();
    ensure!(wrong == 0, "{wrong} of {bytes} bytes from {peer} are wrong");
    inbox.free()?;
    outbox.free()?;
    Ok(times)
}
