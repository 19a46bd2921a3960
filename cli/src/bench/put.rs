//! The ping-pong: rank 0 puts, rank 1 waits for it and puts back.

use super::Options;
use super::chain::Chain;
use super::measure::{Times, measure};
use super::report::Report;
use anyhow::{Result, ensure};
use rma::{Comm, Rank};

pub(super) fn run(comm: &Comm, options: &Options, puts: u32) -> Result<()> {
    ensure!(comm.size() == 2, "{} ranks: a ping-pong has 2", comm.size());
    let what = if puts == 1 { "one-way time".to_owned() } else { format!("one-way time of a chain of {puts} puts") };
    let report = Report::begin("put", &what, comm, options, puts);
    for &bytes in &options.bytes {
        report.row(bytes, &ping_pong(comm, options, puts, bytes)?);
    }
    Ok(())
}

fn ping_pong(comm: &Comm, options: &Options, puts: u32, bytes: usize) -> Result<Times> {
    let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
    let chain = Chain::declare(comm, peer, puts, bytes, options.rails_of(comm))?;
    let commit = |sender: Rank| {
        let mut queue = comm.queue_alloc(&chain.inbox)?;
        if me == sender {
            for put in chain.puts() {
                queue.push(put)?;
            }
        } else {
            queue.add_origin(sender)?;
        }
        if options.expose_at_start {
            queue.expose_at_start();
        }
        queue.commit()
    };
    let (mut there, mut back) = (commit(Rank(0))?, commit(Rank(1))?);
    let times = measure(comm, options.repeats, options.batch(), |iterations| {
        if me == Rank(1) {
            for _ in 0..iterations {
                let arrived = there.start()?.wait()?;
                back.start_after(arrived)?.wait()?;
            }
            return Ok(());
        }
        there.start()?.wait()?;
        for _ in 1..iterations {
            let arrived = back.start()?.wait()?;
            there.start_after(arrived)?.wait()?;
        }
        back.start()?.wait()?;
        Ok(())
    })?;
    drop((there, back));
    chain.check(peer)?;
    chain.free()?;
    Ok(times.one_way())
}
