//! The boundary to the backends: one call an exchange, never one a put; the loops are inside the backend.
//! The core validates before it calls, so a backend trusts what it gets. Knows no interface types.
//!
//! # Contract
//! 1. [`Backend::register`] and [`Backend::commit`] are collective: every rank calls them in the same order, and a backend may talk
//!    over the bootstrap in them. When a rank's part fails, the core drops the parts of all others.
//! 2. The keys in a chain came from [`WindowMem::key`] of the target, through the core, to the ranks that write there and to no others.
//! 3. Epochs count 1, 2, 3, ..; `start(k + 1)` comes only after `poll` said [`Progress::Done`] for k.
//! 4. Nothing of epoch k is written into a target before that target's `grant(k)`, unless the chain is without credits. `start`
//!    does not block for a credit: `poll` posts what waited.
//! 5. Puts on one rail to one target arrive in the order of the chain; the notification of an epoch on a rail comes after all its
//!    puts there, and is counted, never inferred from data. Each (target, rail) with at least one put, even an empty one, notifies.
//! 6. Done means: the puts of this rank have left their sources, and every arrival that the chain names has come for this epoch.
//! 7. After `close` nothing more is written by this rank; a partner learns of it through `missing` and `unclosed`.
//!    Dropping a [`Committed`] before `unclosed` is empty must stay safe: what a partner may still write stays mapped.
//! 8. A `poll` that has failed fails again. `poll` may come at any time after the commit, also between two epochs.
//! 9. `start`, `poll` and `grant` do not allocate, lock or call the system while ranks have a core each.
//! 10. A rank's backend, with all that it makes, is used by the thread that opened it and by no other: it needs neither locks nor
//!     `Send`, and may rest on libraries that are bound to a thread.
//! 11. A backend with [`Caps::virtual_time`] keeps a clock for each rank, which moves by what the program does and by nothing else:
//!     [`Committed::settle`] says that the program has waited for the end of an epoch. `poll` may come at any time, and moves it not.

use crate::layout::Blocks;
use crate::memory::available_bytes;
use crate::{Bootstrap, Deadline, Epoch, Error, QueueId, Rail, Rank, Result, VirtualSpan, WindowId};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

/// What a backend can do: plain data.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// Its name in errors, reports and on the command line.
    pub name: &'static str,
    /// How many rails it has.
    pub rails: u16,
    /// Whether rails are devices that work at the same time, so that puts which leave the choice open are spread over them.
    /// Otherwise such puts go to rail 0, which saves notifications.
    pub rails_work_in_parallel: bool,
    /// Whether puts that gather many short blocks into one range of the target take no longer than copying the blocks: the processor does so
    /// anyway, or the backend packs them and sends one piece. If not, it may be better to pack them before the start.
    pub gathers_freely: bool,
    /// How many times a wait polls before it looks at the clock.
    pub polls_per_look: u32,
    /// The largest window of one rank.
    pub max_window_bytes: u64,
    /// The most puts of one chain on one rank.
    pub max_chain_puts: u64,
    /// Whether it emulates a device and keeps that device's time.
    pub virtual_time: bool,
}

impl Caps {
    /// The capabilities of a backend with this name and so many rails; everything else at its usual value.
    pub fn new(name: &'static str, rails: u16) -> Self {
        Self {
            name,
            rails,
            rails_work_in_parallel: false,
            gathers_freely: true,
            polls_per_look: 1000,
            max_window_bytes: 1 << 46,
            max_chain_puts: 1 << 24,
            virtual_time: false,
        }
    }
}

/// A window to be registered.
#[derive(Clone, Debug)]
pub struct WindowSpec<'a> {
    /// Its id, the same on every rank.
    pub id: WindowId,
    /// The length of every rank's part.
    pub bytes_by_rank: &'a [u64],
}

impl WindowSpec<'_> {
    /// Refuses more memory than this host has left for the parts of all ranks that run here: a first look for [`Backend::admit`].
    pub fn check_memory(&self, is_here: impl Fn(Rank) -> bool) -> Result<()> {
        let here = (0..).map(Rank).zip(self.bytes_by_rank).filter(|(rank, _)| is_here(*rank));
        let asked = here.fold(0u64, |sum, (_, &bytes)| sum.saturating_add(bytes));
        match available_bytes() {
            Some(limit) if asked > limit => Err(Error::Limit {
                what: "the length in bytes of all ranks' parts of the window on this host,",
                asked,
                limit,
                mend: "that is the memory left; allocate less, run fewer ranks here, or free memory".into(),
            }),
            _ => Ok(()),
        }
    }
}

/// This rank's part of a registered window. Dropping it unregisters.
pub trait WindowMem: Debug {
    /// The first byte, aligned to at least 64 bytes. Stays valid as long as this object.
    fn base(&self) -> NonNull<u8>;
    /// How many bytes there are.
    fn len_bytes(&self) -> usize;
    /// What a peer's backend needs to write here.
    fn key(&self) -> Vec<u8>;
    /// For the backend's own use of what it registered.
    fn as_any(&self) -> &dyn Any;
}

/// A put of a chain.
#[derive(Clone, Debug)]
pub struct Put {
    /// Who is written to.
    pub target: Rank,
    /// Over which rail.
    pub rail: Rail,
    /// The memory it is read from.
    pub source: Rc<dyn WindowMem>,
    /// Which bytes of that.
    pub source_blocks: Blocks,
    /// The window that is written.
    pub window: WindowId,
    /// Which bytes of the target's part; as many blocks of the same length as the source has.
    pub target_blocks: Blocks,
    /// The target's key for the window.
    pub key: Rc<[u8]>,
}

/// The notifications expected from one origin in every epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Who writes here.
    pub origin: Rank,
    /// On which rails, ascending: one notification each.
    pub rails: Vec<Rail>,
}

/// A committed queue as a backend sees it.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The queue.
    pub queue: QueueId,
    /// Whether origins wait for credits. If not, the program promises that it makes no difference.
    pub credits: bool,
    /// The puts in the order they were pushed.
    pub puts: Vec<Put>,
    /// The arrivals of an epoch, by ascending origin.
    pub incoming: Vec<Incoming>,
}

impl Chain {
    /// The ranks written to, ascending, each once.
    pub fn targets(&self) -> Vec<Rank> {
        let mut targets: Vec<_> = self.puts.iter().map(|put| put.target).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// The puts of each (target, rail), in the order they were pushed.
    pub fn lanes(&self) -> BTreeMap<(Rank, Rail), Vec<&Put>> {
        let mut lanes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for put in &self.puts {
            lanes.entry((put.target, put.rail)).or_default().push(put);
        }
        lanes
    }

    /// The ranks of which this rank is an origin or a target, ascending, each once.
    pub fn partners(&self) -> Vec<Rank> {
        let mut partners = self.targets();
        partners.extend(self.incoming.iter().map(|incoming| incoming.origin));
        partners.sort_unstable();
        partners.dedup();
        partners
    }
}

/// How far an epoch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something is missing.
    Pending,
    /// All own puts are complete and everything expected has arrived.
    Done,
}

/// Something that an epoch still lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What.
    pub what: Lack,
    /// The epoch its peer is in, as far as that can be seen from here.
    pub peer_epoch: Option<Epoch>,
    /// Whether the peer has closed the queue, so that it will never come.
    pub closed: bool,
}

/// The kinds of things that can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The notification of an origin on a rail.
    Arrival(Rank, Rail),
    /// The credit of a target; the puts to it wait here.
    Credit(Rank),
    /// The completion of own puts to a target on a rail.
    Completion(Rank, Rail),
}

impl Lack {
    /// The rank that could mend it.
    pub const fn peer(&self) -> Rank {
        match *self {
            Self::Arrival(rank, _) | Self::Credit(rank) | Self::Completion(rank, _) => rank,
        }
    }
}

/// A way to move bytes.
pub trait Backend {
    /// What it can do.
    fn caps(&self) -> &Caps;

    /// Whether the memory for all ranks' parts can be had. Called on every rank before any rank registers its part.
    fn admit(&self, _window: &WindowSpec<'_>) -> Result<()> {
        Ok(())
    }

    /// Makes this rank's part of a window: zeroed memory, and the key that lets a peer write it.
    fn register(&self, window: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>>;

    /// Builds everything an exchange needs, so that starting it is one call.
    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>>;

    /// This rank's time on the emulated device, for a backend with [`Caps::virtual_time`].
    fn virtual_now(&self) -> Option<Duration> {
        None
    }
}

/// A chain, native and prebuilt.
pub trait Committed {
    /// Posts what may go now.
    ///
    /// # Safety
    /// Until `poll` says done for this epoch, the source ranges are not written. Epochs are consecutive.
    #[expect(unsafe_code, reason = "declares a contract; contains no unsafe operation")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()>;

    /// Posts what waited for a credit, counts completions and arrivals; up to `rounds` times, sooner when done.
    fn poll(&mut self, rounds: u32) -> Result<Progress>;

    /// The program has waited for the epoch: this rank's virtual clock is not before its end from here on. Called once an epoch that is
    /// waited for, some time after `poll` has said [`Progress::Done`], where there is [`Caps::virtual_time`].
    fn settle(&mut self) {}

    /// When the epoch was under way on the virtual clock, once `poll` has said [`Progress::Done`].
    fn virtual_span(&self) -> Option<VirtualSpan> {
        None
    }

    /// Gives every origin the credit for `epoch`.
    fn grant(&mut self, epoch: Epoch) -> Result<()>;

    /// The same when a `start` of this rank follows at once: what goes to the same partner may take the credit along. It must be
    /// out when that start returns, or at the latest with the next `poll` of this queue.
    fn grant_with_start(&mut self, epoch: Epoch) -> Result<()> {
        self.grant(epoch)
    }

    /// Gives the core away, in the way that suits the backend and how long (`turn` looks at the clock in a row) nothing has come.
    /// Returns at the latest after `limit`, and at once when there is something to poll.
    fn park(&mut self, turn: u32, limit: Duration);

    /// What the epoch still lacks, for error texts.
    fn missing(&self) -> Vec<Missing>;

    /// Ends this rank's part: nothing more is written, and the partners are told.
    fn close(&mut self);

    /// The partners that have not closed their part, and so may still write here.
    fn unclosed(&self) -> Vec<Rank>;

    /// What was built, for people.
    fn explain(&self) -> String;
}
