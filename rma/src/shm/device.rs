//! The shared-memory backend as a device: its rails, its cores, and the making of it for threads and for processes.

use super::board::Board;
use super::space::{Space, ThreadSpace};
use super::{commit, window};
use crate::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use crate::config::Token;
use crate::hosts::Hosts;
use crate::{Bootstrap, Config, Deadline, Rank, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// One copy straight into the target's window, for ranks that are threads of a process or processes of a host.
#[derive(Debug)]
pub struct ShmBackend {
    pub(super) shared: Rc<Shared>,
    caps: Caps,
}

/// What the backend and its committed queues have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rank: Rank,
    pub(super) space: Space,
    pub(super) board: RefCell<Board>,
}

/// Rails cost nothing here but a notification each where they are used.
const DEFAULT_RAILS: u16 = 4;

impl ShmBackend {
    /// For a rank that is one of the threads of this process.
    pub fn threads(space: &ThreadSpace, rank: Rank, config: &Config) -> Self {
        Self::new(rank, Space::threads(space, rank), config)
    }

    /// Collective: for a rank that is a process. Refuses when the ranks are not all on this host.
    pub fn processes(boot: &dyn Bootstrap, hosts: &Hosts, token: Token, config: &Config, deadline: Deadline) -> Result<Self> {
        Ok(Self::new(boot.rank(), Space::processes(boot, hosts, token, deadline)?, config))
    }

    fn new(rank: Rank, space: Space, config: &Config) -> Self {
        let mut caps = Caps::new(super::NAME, config.rails.unwrap_or(DEFAULT_RAILS));
        caps.polls_per_look = space.patience().polls_per_look();
        Self { shared: Rc::new(Shared { rank, space, board: RefCell::new(Board::new()) }), caps }
    }
}

impl Backend for ShmBackend {
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
}
