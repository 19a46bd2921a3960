//! The backend as a device: the boards of a job, and what all queues of one have in common.

use crate::address::Node;
use crate::board::{Board, Handle};
use crate::channel::Channels;
use crate::clock::{Memory, Time};
use crate::options::Options;
use crate::placement::CHANNELS;
use crate::route::{MAX_BOARDS, Topology};
use crate::{NAME, commit, window};
use rma::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use rma::bootstrap::all_or_none;
use rma::shm::Space;
use rma::{Bootstrap, Config, Deadline, Error, Hosts, Rank, Result};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Puts over emulated PEACH2 boards, one a rank.
#[derive(Debug)]
pub struct Peach2Backend {
    shared: Rc<Shared>,
    caps: Caps,
}

/// What the backend and its committed queues have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: Rank,
    pub(crate) space: Space,
    pub(crate) board: Board,
    pub(crate) channels: Channels,
    pub(crate) topology: Topology,
    pub(crate) options: Options,
    /// The handles of all boards, by rank.
    pub(crate) handles: Vec<Handle>,
    /// The virtual time: it moves when the program has waited for an epoch.
    pub(crate) now: Cell<Time>,
}

/// The most puts of a queue.
const MAX_CHAIN_PUTS: u64 = 1 << 20;

impl Peach2Backend {
    /// Collective: a board for each rank, all on this host.
    pub fn open(boot: &dyn Bootstrap, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Self> {
        let (rank, size) = (boot.rank(), boot.size());
        // Ranks may have been told different things, so all must hear of it.
        let (options, topology, channels) = all_or_none(boot, "opening the boards", Self::prepare(size, config), deadline)?;
        all_or_none(boot, "opening the boards", options.check_others(boot, deadline), deadline)?;
        let space = Space::open(boot, hosts, deadline)?;
        let board = all_or_none(boot, "opening the boards", Board::new(Node(rank.0 as u8), &space), deadline)?;
        let handles = boot.allgather(bytemuck::bytes_of(&board.handle()), deadline)?;
        let handles = (0..).map(Rank).zip(&handles).map(|(rank, bytes)| Handle::read(rank, bytes)).collect::<Result<_>>()?;
        let mut caps = Caps::new(NAME, channels);
        caps.rails_work_in_parallel = true;
        // Every descriptor takes a start of its own.
        caps.gathers_freely = false;
        caps.polls_per_look = space.patience().polls_per_look();
        caps.max_chain_puts = MAX_CHAIN_PUTS;
        caps.virtual_time = true;
        let channels = Channels::default();
        let shared = Shared { rank, space, board, channels, topology, options, handles, now: Cell::default() };
        Ok(Self { shared: Rc::new(shared), caps })
    }

    /// What this rank alone can find wrong.
    pub(crate) fn prepare(size: u32, config: &Config) -> Result<(Options, Topology, u16)> {
        let options = Options::of(config)?;
        let Some(topology) = Topology::of(size, options.ring) else {
            let limit = options.ring.map_or(MAX_BOARDS, |ring| 2 * u32::from(ring)).into();
            let mend = "two rings of 16 are the most: use fewer ranks, and a longer RMA_PEACH2_RING if it is set to 8".into();
            return Err(Error::Limit { what: "number of PEACH2 boards", asked: size.into(), limit, mend });
        };
        let channels = config.rails.unwrap_or(CHANNELS as u16);
        if usize::from(channels) > CHANNELS {
            let mend = "a rail is a DMA channel, of which a board has 4: lower RMA_RAILS".into();
            return Err(Error::Limit { what: "number of rails", asked: channels.into(), limit: CHANNELS as u64, mend });
        }
        Ok((options, topology, channels))
    }
}

impl Backend for Peach2Backend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn admit(&self, spec: &WindowSpec<'_>) -> Result<()> {
        spec.check_memory(|_| true)
    }

    fn register(&self, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
        window::register(&self.shared, spec)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        commit::commit(&self.shared, &chain, boot, deadline)
    }

    fn virtual_now(&self) -> Option<Duration> {
        Some(self.shared.now.get().duration())
    }
}

impl Shared {
    /// How far the board of a rank is.
    pub(crate) fn hops(&self, to: Rank) -> u32 {
        self.topology.hops(self.board.node, node_of(to))
    }

    /// When a store of this rank's processor, made now, is at the board of another.
    pub(crate) fn pio_to(&self, to: Rank) -> Time {
        self.now.get() + self.options.constants.pio(self.hops(to))
    }

    pub(crate) fn memory(&self) -> Memory {
        self.options.memory
    }
}

/// The board of a rank. There are no more ranks than boards have numbers.
pub(crate) fn node_of(rank: Rank) -> Node {
    Node(rank.0 as u8)
}
