//! What bodies share: a put between two ranks in three lines, and errors compared with what they promise to say.
//! Knows only the public interface.

use anyhow::{Context, bail, ensure};
use rma::{Comm, Error, InFlight, Open, Ready, RmaQueue, RmaWindow};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long anything here may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The error of a call that must fail.
pub fn refused<T: Debug>(result: rma::Result<T>) -> anyhow::Result<Error> {
    match result {
        Ok(value) => bail!("no error but {value:?}"),
        Err(error) => Ok(error),
    }
}

/// That an error's text, with its causes, has all these words in it.
pub fn says(error: &Error, words: &[impl AsRef<str>]) -> anyhow::Result<()> {
    let text = error.full_text();
    for word in words {
        ensure!(text.contains(word.as_ref()), "{:?} is missing in: {text}", word.as_ref());
    }
    Ok(())
}

/// The bytes of a window that are exposed must be refused, with a reason, to reading and writing.
pub fn refuses_access(window: &RmaWindow, bytes: std::ops::Range<usize>) -> anyhow::Result<()> {
    for result in [window.read::<u8>(bytes.clone()).map(drop), window.write::<u8>(bytes.clone()).map(drop)] {
        let error = refused(result).with_context(|| format!("bytes {bytes:?} of {}", window.id()))?;
        ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
        says(&error, &[window.id().to_string()])?;
    }
    Ok(())
}

/// Looks again and again until something is so. Gives the core away in between; an error when it takes too long.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        std::thread::yield_now();
    }
    Ok(())
}

/// The error that ends a loop of nothing but `test`.
pub fn tests_until_refused(mut flight: InFlight<'_>) -> anyhow::Result<Error> {
    let begin = Instant::now();
    loop {
        match flight.test() {
            Err(error) => return Ok(error),
            Ok(done) => ensure!(!done, "an epoch that lacks its put is complete"),
        }
        ensure!(begin.elapsed() < PATIENCE, "no error from test within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// A put of 8 bytes from one rank to another, in windows of its own; other ranks take part in what is collective.
#[derive(Debug)]
pub struct Line {
    /// Who writes.
    pub origin: u32,
    /// Who is written.
    pub target: u32,
    /// What is read.
    pub outbox: RmaWindow,
    /// What is written.
    pub inbox: RmaWindow,
    me: u32,
}

impl Line {
    /// Collective.
    pub fn new(comm: &Comm, origin: u32, target: u32) -> rma::Result<Self> {
        Ok(Self { origin, target, outbox: comm.window_alloc(8)?, inbox: comm.window_alloc(8)?, me: comm.rank().0 })
    }

    /// An uncommitted queue with the put and its origin.
    pub fn queue(&self, comm: &Comm) -> rma::Result<RmaQueue<Open>> {
        self.queue_on(comm, None)
    }

    /// The same on a rail.
    pub fn queue_on(&self, comm: &Comm, rail: Option<u16>) -> rma::Result<RmaQueue<Open>> {
        let mut queue = comm.queue_alloc(&self.inbox)?;
        if self.me == self.origin {
            let put = comm.declare_write(&self.inbox, 0, &self.outbox, 0, 8, self.target)?;
            queue.push(&if let Some(rail) = rail { put.rail(rail)? } else { put })?;
        }
        if self.me == self.target {
            queue.add_origin(self.origin)?;
        }
        Ok(queue)
    }

    /// One epoch that moves `number`.
    pub fn step(&self, queue: &mut RmaQueue<Ready>, number: u64) -> anyhow::Result<()> {
        if self.me == self.origin {
            self.outbox.write::<u64>(..)?[0] = number;
        }
        let arrived = queue.start()?.wait()?;
        if self.me == self.target {
            let found = arrived.read::<u64>(&self.inbox, ..)?[0];
            ensure!(found == number, "rank {} received {found} instead of {number} at {}", self.me, arrived.epoch());
        }
        Ok(())
    }
}

/// Collective: a ring of all ranks is committed, moves a few numbers and is given back. Nothing before has harmed the Comm.
pub fn everything_still_works(comm: &Comm) -> anyhow::Result<()> {
    ring(comm, 3).context("a good exchange afterwards")
}

/// Collective: every rank writes to the next, `epochs` times.
pub fn ring(comm: &Comm, epochs: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
    let mut queue = comm.queue_alloc(&inbox)?;
    queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, next)?)?.add_origin(previous)?;
    let mut queue = queue.commit()?;
    for epoch in 1..=epochs {
        outbox.write::<u64>(..)?[0] = epoch << 32 | u64::from(me);
        let arrived = queue.start()?.wait()?;
        ensure!(arrived.epoch().0 == epoch, "{} instead of epoch {epoch}", arrived.epoch());
        let found = arrived.read::<u64>(&inbox, ..)?[0];
        ensure!(found == epoch << 32 | u64::from(previous), "rank {me} received {found:#x} from rank {previous} at epoch {epoch}");
    }
    queue.clear();
    outbox.free()?;
    inbox.free()?;
    Ok(())
}
