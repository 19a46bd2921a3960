//! The shared-memory backend as a device: its rails, its cores, and the making of it for threads and for processes.

use super::board::Board;
use super::handover::Handover;
use super::space::{Space, ThreadSpace};
use super::{commit, window};
use crate::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use crate::config::Token;
use crate::hosts::{Hosts, own_cores};
use crate::{Bootstrap, Config, Deadline, Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

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
    /// Whether there are more ranks than cores, so that waiting must give its core away.
    pub(super) crowded: bool,
    /// The processes of the ranks; empty where all are threads of one.
    processes: Vec<Pid>,
}

impl Shared {
    /// Whether a rank's process has ended, so that it certainly writes no more. A thread is never said to have ended: it closes
    /// its queues when it does.
    pub(super) fn has_ended(&self, rank: Rank) -> bool {
        let Some(&process) = self.processes.get(rank.index()) else { return false };
        match rustix::process::pidfd_open(process, PidfdFlags::empty()) {
            // Readable once the process has ended, also while nobody has asked for its status yet.
            Ok(process) => {
                let mut ended = [PollFd::new(&process, PollFlags::IN)];
                rustix::event::poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Err(cause) => cause == Errno::SRCH,
        }
    }
}

/// Rails cost nothing here but a notification each where they are used.
const DEFAULT_RAILS: u16 = 4;

/// How often a wait polls in a row: spinning for some tens of microseconds with a core each, else yielding in between.
const POLLS_WITH_A_CORE_EACH: u32 = 1000;
const POLLS_WHEN_CROWDED: u32 = 64;

impl ShmBackend {
    /// For a rank that is one of the threads of this process.
    pub fn threads(space: Arc<ThreadSpace>, rank: Rank, config: &Config) -> Self {
        let crowded = space.size() > own_cores().count_ones();
        Self::new(rank, Space::threads(&space, rank), crowded, Vec::new(), config)
    }

    /// Collective: for a rank that is a process. Refuses when the ranks are not all on this host.
    pub fn processes(boot: &dyn Bootstrap, hosts: &Hosts, token: Token, config: &Config, deadline: Deadline) -> Result<Self> {
        if let Some(rank) = hosts.elsewhere() {
            return Err(Error::Launch(format!(
                "{} runs on another host than {rank}: shared memory does not reach across; start all ranks on one host (and in one \
                 container), or use a backend for several: build the program with one (rma-verbs for RDMA devices), and unset \
                 RMA_BACKEND or name it there",
                boot.rank()
            )));
        }
        let handover = Handover::open(boot, token, deadline)?;
        Ok(Self::new(boot.rank(), Space::processes(boot.rank(), handover), hosts.crowded(), hosts.processes(), config))
    }

    fn new(rank: Rank, space: Space, crowded: bool, processes: Vec<Pid>, config: &Config) -> Self {
        let mut caps = Caps::new(super::NAME, config.rails.unwrap_or(DEFAULT_RAILS));
        caps.polls_per_look = if crowded { POLLS_WHEN_CROWDED } else { POLLS_WITH_A_CORE_EACH };
        Self { shared: Rc::new(Shared { rank, space, board: RefCell::new(Board::new()), crowded, processes }), caps }
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
