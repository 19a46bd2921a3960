//! The one-way stream: rank 0 starts its chains again and again, as fast as rank 1 gives the credits for them.

use super::chain::Chain;
use super::measure::{Times, measure};
use super::report::Report;
use super::{Options, StreamOptions};
use anyhow::{Result, ensure};
use rma::{Comm, Rank, Ready, RmaQueue};

const ORIGIN: Rank = Rank(0);
const TARGET: Rank = Rank(1);

pub(super) fn run(comm: &Comm, options: &StreamOptions) -> Result<()> {
    let &StreamOptions { common: ref options, ref bytes, puts, queues } = options;
    ensure!(comm.size() == 2, "{} ranks: a stream has 2", comm.size());
    let turns = if queues == 1 { "one queue".to_owned() } else { format!("{queues} queues in turn") };
    let what = format!("one-way stream over {turns}, time of a chain of {puts} puts");
    let report = Report::begin("stream", &what, comm, options, puts);
    for &bytes in bytes {
        report.row(bytes, &stream(comm, options, puts, queues, bytes)?);
    }
    Ok(())
}

fn stream(comm: &Comm, options: &Options, puts: u32, queues: u8, bytes: usize) -> Result<Times> {
    let chains = (0..queues).map(|_| Chain::declare(comm, |_| TARGET, puts, bytes, options.rails_of(comm)));
    let chains = chains.collect::<Result<Vec<_>>>()?;
    let committed = chains.iter().map(|chain| commit(comm, options, chain));
    let mut committed = committed.collect::<rma::Result<Vec<_>>>()?;
    // What the target's wait returns is dropped at once: that is the credit for the next chain.
    let times = measure(comm, options.repeats, options.batch(), |iterations| match &mut committed[..] {
        [queue] => (0..iterations).try_for_each(|_| queue.start()?.wait().map(drop)),
        [even, odd] => {
            let mut flight = even.start()?;
            for _ in 1..iterations.div_ceil(2) {
                let next = odd.start()?;
                flight.wait()?;
                flight = even.start()?;
                next.wait()?;
            }
            let last = if iterations % 2 == 0 { Some(odd.start()?) } else { None };
            flight.wait()?;
            last.map_or(Ok(()), |last| last.wait().map(drop))
        }
        _ => unreachable!("bug: {queues} queues"),
    })?;
    drop(committed);
    for chain in chains {
        // The queue of a second chain may not have been started at all.
        if comm.rank() == TARGET && times.iterations > 1 {
            chain.check(|_| ORIGIN)?;
        }
        chain.free()?;
    }
    Ok(times)
}

fn commit(comm: &Comm, options: &Options, chain: &Chain) -> rma::Result<RmaQueue<Ready>> {
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
    queue.commit()
}
