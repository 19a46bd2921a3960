//! The ping-pong: rank 0 puts, another rank waits for it and puts back.

use super::PutOptions;
use super::chain::Chain;
use super::measure::{Batch, Times, measure};
use super::report::Report;
use anyhow::{Result, ensure};
use rma::{Comm, Rank, Ready, RmaQueue};

pub(super) fn run(comm: &Comm, options: &PutOptions) -> Result<()> {
    let &PutOptions { common: ref options, ref bytes, puts } = options;
    ensure!(comm.size() == 2, "{} ranks: a ping-pong has 2", comm.size());
    let what = if puts == 1 { "one-way time".to_owned() } else { format!("one-way time of a chain of {puts} puts") };
    let report = Report::begin("put", &what, comm, options, puts);
    for &bytes in bytes {
        let ping_pong = PingPong {
            far: Rank(1),
            puts,
            bytes,
            rails: options.rails_of(comm),
            expose_at_start: options.expose_at_start,
            repeats: options.repeats,
            batch: options.batch(),
        };
        report.row(bytes, &ping_pong.run(comm)?);
    }
    Ok(())
}

/// Chains of puts between rank 0 and a rank further on.
pub(super) struct PingPong {
    pub(super) far: Rank,
    pub(super) puts: u32,
    pub(super) bytes: usize,
    pub(super) rails: u16,
    pub(super) expose_at_start: bool,
    pub(super) repeats: u32,
    pub(super) batch: Batch,
}

impl PingPong {
    /// Collective, also for the ranks that neither put nor receive. Times are one way.
    pub(super) fn run(&self, comm: &Comm) -> Result<Times> {
        let near = Rank(0);
        let peer = match comm.rank() {
            me if me == near => Some(self.far),
            me if me == self.far => Some(near),
            _ => None,
        };
        let puts = if peer.is_some() { self.puts } else { 0 };
        let chain = Chain::declare(comm, |_| peer.unwrap_or(near), puts, self.bytes, self.rails)?;
        let (mut there, mut back) = (self.commit(comm, &chain, near, self.far)?, self.commit(comm, &chain, self.far, near)?);
        let times = measure(comm, self.repeats, self.batch, |iterations| match peer {
            None => Ok(()),
            Some(peer) if peer == near => {
                for _ in 0..iterations {
                    let arrived = there.start()?.wait()?;
                    back.start_after(arrived)?.wait()?;
                }
                Ok(())
            }
            Some(_) => {
                there.start()?.wait()?;
                for _ in 1..iterations {
                    let arrived = back.start()?.wait()?;
                    there.start_after(arrived)?.wait()?;
                }
                back.start()?.wait().map(drop)
            }
        })?;
        drop((there, back));
        if let Some(peer) = peer {
            chain.check(|_| peer)?;
        }
        chain.free()?;
        Ok(times.one_way())
    }

    fn commit(&self, comm: &Comm, chain: &Chain, from: Rank, to: Rank) -> rma::Result<RmaQueue<Ready>> {
        let mut queue = comm.queue_alloc(&chain.inbox)?;
        if comm.rank() == from {
            for put in chain.puts() {
                queue.push(put)?;
            }
        } else if comm.rank() == to {
            queue.add_origin(from)?;
        }
        if self.expose_at_start {
            queue.expose_at_start();
        }
        queue.commit()
    }
}
