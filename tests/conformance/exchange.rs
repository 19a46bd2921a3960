//! A plan, executed: allocates its windows, commits its puts, runs epochs and compares every byte with the oracle.
//! Owns what must be in this rank's memory; knows only the public interface.

use crate::plan::{Plan, Strided};
use anyhow::{Context, ensure};
use rma::{Arrived, Comm, Epoch, MsgHandle, Open, ReadLease, Ready, RmaQueue, RmaWindow};

/// What a wait returns: of a queue, or of an exchange of several.
pub trait Received {
    /// The epoch that has arrived.
    fn epoch(&self) -> Epoch;
    /// All bytes of this rank's part of a window.
    fn bytes<'a>(&'a self, window: &'a RmaWindow) -> rma::Result<ReadLease<'a, u8>>;
}

impl Received for Arrived<'_> {
    fn epoch(&self) -> Epoch {
        self.epoch()
    }

    fn bytes<'a>(&'a self, window: &'a RmaWindow) -> rma::Result<ReadLease<'a, u8>> {
        self.read(window, ..)
    }
}

impl Received for rma_algorithms::Arrived<'_> {
    fn epoch(&self) -> Epoch {
        self.epoch()
    }

    fn bytes<'a>(&'a self, window: &'a RmaWindow) -> rma::Result<ReadLease<'a, u8>> {
        self.read(window, ..)
    }
}

/// A plan on this rank.
#[derive(Debug)]
pub struct Exchange<'c> {
    comm: &'c Comm,
    /// What is moved.
    pub plan: Plan,
    /// Its windows.
    pub windows: Vec<RmaWindow>,
    /// What every byte of this rank's parts must be.
    expected: Vec<Vec<u8>>,
}

impl<'c> Exchange<'c> {
    /// Collective: the windows, filled with the pattern of epoch 0.
    pub fn new(comm: &'c Comm, plan: Plan) -> anyhow::Result<Self> {
        let me = comm.rank().0;
        let mut windows = Vec::new();
        let mut expected = Vec::new();
        for (w, lengths) in plan.lengths.iter().enumerate() {
            let window = comm.window_alloc(lengths[me as usize])?;
            for (rank, &len) in lengths.iter().enumerate() {
                let known = window.len_bytes_of((rank as u32).into())?;
                ensure!(known == len as u64, "window {w} of rank {rank} is said to have {known} bytes instead of {len}");
            }
            let content = plan.prefill(me, w);
            window.write::<u8>(..)?.copy_from_slice(&content);
            windows.push(window);
            expected.push(content);
        }
        Ok(Self { comm, plan, windows, expected })
    }

    fn me(&self) -> u32 {
        self.comm.rank().0
    }

    /// The puts of this rank among `which`, by their place in the plan.
    pub fn puts(&self, which: impl Fn(usize) -> bool) -> anyhow::Result<Vec<MsgHandle>> {
        let own = self.plan.puts.iter().enumerate().filter(|(i, put)| which(*i) && put.origin == self.me());
        own.map(|(i, put)| {
            let (to, from) = (&self.windows[put.to_window], &self.windows[put.from_window]);
            let declared = self.comm.declare_write(to, put.to.offset, from, put.from.offset, put.to.block, put.target);
            let mut handle = declared.with_context(|| format!("declaring put {i}: {put:?}"))?;
            if put.to.count != 1 {
                handle = handle
                    .blocks(put.to.count, put.from.stride, put.to.stride)
                    .with_context(|| format!("blocks of put {i}: {put:?}"))?;
            }
            if let Some(rail) = put.rail {
                handle = handle.rail(rail)?;
            }
            let moved = put.to.bytes().count() as u64;
            ensure!(handle.len_bytes() == moved, "put {i} says {} bytes and moves {moved}: {put:?}", handle.len_bytes());
            Ok(handle)
        })
        .collect()
    }

    /// A queue with the puts among `which`, everything that they need exposed, not yet committed.
    pub fn queue(&self, which: impl Fn(usize) -> bool) -> anyhow::Result<RmaQueue<Open>> {
        let mut queue = self.comm.queue_alloc(&self.windows[0])?;
        self.load(&mut queue, which)?;
        Ok(queue)
    }

    /// The same into a queue that is there.
    pub fn load(&self, queue: &mut RmaQueue<Open>, which: impl Fn(usize) -> bool) -> anyhow::Result<()> {
        for window in &self.windows {
            queue.expose(window)?;
        }
        for put in self.puts(&which)? {
            queue.push(&put)?;
        }
        for (_, put) in self.plan.puts.iter().enumerate().filter(|(i, put)| which(*i) && put.target == self.me()) {
            queue.add_origin(put.origin)?;
        }
        Ok(())
    }

    /// Fills the sources of this rank for `epoch`.
    pub fn fill(&mut self, epoch: u64) -> anyhow::Result<()> {
        for (w, window) in self.windows.iter().enumerate() {
            let bytes = self.plan.source(epoch, self.comm.rank().0, w);
            self.expected[w][..bytes.len()].copy_from_slice(&bytes);
            window.write::<u8>(..bytes.len())?.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Writes over every byte of this rank's windows, received ranges too: possible only while nothing is exposed.
    pub fn overwrite(&mut self, epoch: u64) -> anyhow::Result<()> {
        for (w, window) in self.windows.iter().enumerate() {
            let mut bytes = window.write::<u8>(..)?;
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = self.plan.pattern(epoch, self.comm.rank().0, w, at);
            }
            self.expected[w].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// From here on the puts of `epoch` among `which` must have been done.
    pub fn expect(&mut self, epoch: u64, which: impl Fn(usize) -> bool) {
        self.plan.apply(epoch, self.me(), which, &mut self.expected);
    }

    /// Compares every byte of every window of this rank.
    pub fn check_all(&self, arrived: &impl Received) -> anyhow::Result<()> {
        for (w, window) in self.windows.iter().enumerate() {
            self.compare(w, 0, &arrived.bytes(window)?, arrived.epoch().0)?;
        }
        Ok(())
    }

    /// The same when no queue stands in the way.
    pub fn check_at_rest(&self) -> anyhow::Result<()> {
        for (w, window) in self.windows.iter().enumerate() {
            self.compare(w, 0, &window.read::<u8>(..)?, 0)?;
        }
        Ok(())
    }

    /// Compares what the puts among `which` have written here.
    pub fn check_received(&self, arrived: &Arrived<'_>, which: impl Fn(usize) -> bool) -> anyhow::Result<()> {
        for (_, put) in self.plan.puts.iter().enumerate().filter(|(i, put)| which(*i) && put.target == self.me()) {
            let Strided { offset, block, count, stride } = put.to;
            for at in (0..count).map(|i| offset + i * stride).filter(|_| block > 0) {
                let bytes = arrived.read::<u8>(&self.windows[put.to_window], at..at + block)?;
                self.compare(put.to_window, at, &bytes, arrived.epoch().0)?;
            }
        }
        Ok(())
    }

    fn compare(&self, window: usize, offset: usize, found: &[u8], epoch: u64) -> anyhow::Result<()> {
        let expected = &self.expected[window][offset..offset + found.len()];
        if let Some(at) = (0..found.len()).find(|&i| found[i] != expected[i]) {
            let wrong = (0..found.len()).filter(|&i| found[i] != expected[i]).count();
            let byte = offset + at;
            let put =
                self.plan.puts.iter().find(|put| {
                    put.target == self.me() && put.to_window == window && put.to.bytes().any(|written| written == byte)
                });
            anyhow::bail!(
                "epoch {epoch}, rank {}, window {window}: byte {byte} is {} instead of {} ({wrong} bytes are wrong); written by {put:?}",
                self.me(),
                found[at],
                expected[at]
            );
        }
        Ok(())
    }

    /// Fills, starts, waits and compares every byte for epochs from `first` on, `epochs` times.
    pub fn run(&mut self, queue: &mut RmaQueue<Ready>, first: u64, epochs: u64) -> anyhow::Result<()> {
        for epoch in first..first + epochs {
            self.fill(epoch)?;
            let arrived = queue.start()?.wait()?;
            self.expect(epoch, |_| true);
            self.check_all(&arrived)?;
        }
        Ok(())
    }

    /// Collective: frees all windows.
    pub fn free(self) -> anyhow::Result<()> {
        for window in self.windows {
            window.free()?;
        }
        Ok(())
    }
}

/// The whole life of a plan: a commit, `epochs` epochs with different data each, every byte compared, and everything given back.
pub fn complete(comm: &Comm, plan: Plan, epochs: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, plan)?;
    let mut queue = exchange.queue(|_| true)?.commit()?;
    exchange.run(&mut queue, 1, epochs)?;
    queue.clear();
    exchange.check_at_rest()?;
    exchange.free()
}
