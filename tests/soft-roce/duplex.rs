//! Two ranks that write to each other on every rail, in puts of many sizes, every byte compared.
//! Knows only the public interface.

use anyhow::ensure;
use rma::{Arrived, Comm, InFlight, Ready, Result, RmaQueue, RmaWindow};

/// Bytes between two puts, so that they are not joined into one.
const GAP: usize = 3;

/// The exchange; ranks that are not in the pair take part in what is collective, and in nothing else.
#[derive(Debug)]
pub(crate) struct Duplex {
    me: u32,
    pair: [u32; 2],
    sizes: Vec<usize>,
    rails: u16,
    outbox: RmaWindow,
    inbox: RmaWindow,
}

impl Duplex {
    /// Collective: a put of each size on each rail.
    pub(crate) fn new(comm: &Comm, pair: [u32; 2], sizes: &[usize]) -> Result<Self> {
        let rails = comm.rails();
        let bytes = usize::from(rails) * sizes.iter().map(|size| size + GAP).sum::<usize>();
        let bytes = if pair.contains(&comm.rank().0) { bytes } else { 0 };
        let (outbox, inbox) = (comm.window_alloc(bytes)?, comm.window_alloc(bytes)?);
        Ok(Self { me: comm.rank().0, pair, sizes: sizes.into(), rails, outbox, inbox })
    }

    /// Whether this rank is one of the two.
    pub(crate) fn takes_part(&self) -> bool {
        self.pair.contains(&self.me)
    }

    /// The other of the two.
    pub(crate) fn other(&self) -> u32 {
        self.pair[0] + self.pair[1] - self.me
    }

    /// Collective.
    pub(crate) fn commit(&self, comm: &Comm) -> Result<RmaQueue<Ready>> {
        let mut queue = comm.queue_alloc(&self.inbox)?;
        for (rail, at, size) in self.puts().filter(|_| self.takes_part()) {
            queue.push(&comm.declare_write(&self.inbox, at, &self.outbox, at, size, self.other())?.rail(rail)?)?;
        }
        if self.takes_part() {
            queue.add_origin(self.other())?;
        }
        queue.commit()
    }

    /// Rail, offset and length of every put.
    fn puts(&self) -> impl Iterator<Item = (u16, usize, usize)> {
        let of_rails = (0..self.rails).flat_map(|rail| self.sizes.iter().map(move |&size| (rail, size)));
        of_rails.scan(0, |next, (rail, size)| {
            let at = *next;
            *next += size + GAP;
            Some((rail, at, size))
        })
    }

    /// Fills every byte that is sent, for this epoch.
    pub(crate) fn fill(&self, number: u64) -> Result<()> {
        let mut bytes = self.outbox.write::<u8>(..)?;
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(self.me, number, at));
        Ok(())
    }

    /// One epoch. The inner error is that of the library, for who expects one.
    pub(crate) fn step(&self, queue: &mut RmaQueue<Ready>, number: u64) -> anyhow::Result<Result<()>> {
        self.fill(number)?;
        let arrived = match queue.start().and_then(InFlight::wait) {
            Ok(arrived) => arrived,
            Err(error) => return Ok(Err(error)),
        };
        self.check(&arrived, number)?;
        Ok(Ok(()))
    }

    /// Compares every byte that has arrived, and those that must not have.
    pub(crate) fn check(&self, arrived: &Arrived<'_>, number: u64) -> anyhow::Result<()> {
        let found = arrived.read::<u8>(&self.inbox, ..)?;
        for (_, at, size) in self.puts() {
            let wrong = (at..at + size).find(|&at| found[at] != pattern(self.other(), number, at));
            ensure!(wrong.is_none(), "epoch {number}: byte {wrong:?} of {} to rank {} is wrong", found.len(), self.me);
        }
        // Between the puts nothing is written.
        let gap = |&(_, at, size): &(u16, usize, usize)| found[at + size..at + size + GAP].iter().any(|&byte| byte != 0);
        ensure!(!self.puts().any(|put| gap(&put)), "epoch {number}: bytes behind a put to rank {} are written", self.me);
        Ok(())
    }

    /// Collective among the two: so many epochs, which all must do well.
    pub(crate) fn run(&self, queue: &mut RmaQueue<Ready>, numbers: std::ops::Range<u64>) -> anyhow::Result<()> {
        numbers.filter(|_| self.takes_part()).try_for_each(|number| Ok(self.step(queue, number)??))
    }

    /// Collective.
    pub(crate) fn free(self) -> anyhow::Result<()> {
        self.outbox.free()?;
        self.inbox.free()?;
        Ok(())
    }
}

fn pattern(rank: u32, number: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ u64::from(rank) << 40 ^ number << 44).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Never 0, which is what a window has at first.
    (mixed >> 56) as u8 | 1
}
