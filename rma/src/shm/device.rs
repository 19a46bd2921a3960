//! The shared-memory backend as a device: its rails, its cores, and the making of it for threads and for processes.

use super::board::Board;
use super::handover::Handover;
use super::space::{Space, ThreadSpace};
use super::{commit, window};
use crate::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use crate::config::Token;
use crate::{Bootstrap, Config, Deadline, Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::sync::{Arc, Mutex};

/// One copy straight into the target's window, for ranks that are threads of a process or processes of a host.
#[derive(Debug)]
pub struct ShmBackend {
    pub(super) shared: Arc<Shared>,
    caps: Caps,
}

/// What the backend and its committed queues have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rank: Rank,
    pub(super) space: Space,
    pub(super) board: Mutex<Board>,
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
    pub fn processes(boot: &dyn Bootstrap, token: Token, config: &Config, deadline: Deadline) -> Result<Self> {
        let mine = Host { cores: own_cores(), process: rustix::process::getpid(), name: host_name() };
        let hosts = boot.allgather(&mine.encode(), deadline)?;
        let mut cores = mine.cores;
        let mut processes = Vec::with_capacity(hosts.len());
        for (rank, bytes) in (0..).map(Rank).zip(&hosts) {
            let host = Host::decode(bytes).ok_or_else(|| Error::Malformed {
                what: "host description",
                from: rank.to_string(),
                reason: format!("{} bytes", bytes.len()),
            })?;
            if host.name != mine.name {
                return Err(Error::Launch(format!(
                    "{} runs on another host than {rank}: shared memory does not reach across; start all ranks on one host (and in one \
                     container), or use a backend for several",
                    boot.rank()
                )));
            }
            cores.join(&host.cores);
            processes.push(host.process);
        }
        let crowded = boot.size() > cores.count_ones();
        let handover = Handover::open(boot, token, deadline)?;
        Ok(Self::new(boot.rank(), Space::processes(boot.rank(), handover), crowded, processes, config))
    }

    fn new(rank: Rank, space: Space, crowded: bool, processes: Vec<Pid>, config: &Config) -> Self {
        let mut caps = Caps::new("shm", config.rails);
        caps.polls_per_look = if crowded { POLLS_WHEN_CROWDED } else { POLLS_WITH_A_CORE_EACH };
        Self { shared: Arc::new(Shared { rank, space, board: Mutex::new(Board::new()), crowded, processes }), caps }
    }
}

impl Backend for ShmBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn admit(&self, spec: &WindowSpec<'_>) -> Result<()> {
        window::admit(spec)
    }

    fn register(&self, spec: &WindowSpec<'_>) -> Result<Arc<dyn WindowMem>> {
        window::register(&self.shared, spec)
    }

    fn commit(&self, chain: Arc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        commit::commit(&self.shared, &chain, boot, deadline)
    }
}

/// What a rank tells about where it runs.
struct Host {
    cores: Cores,
    process: Pid,
    name: Vec<u8>,
}

impl Host {
    fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.cores.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&self.process.as_raw_nonzero().get().to_le_bytes());
        bytes.extend_from_slice(&self.name);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.split_at_checked(size_of::<Cores>())?;
        let (process, name) = rest.split_first_chunk()?;
        let mut cores = Cores::default();
        for (word, bytes) in cores.0.iter_mut().zip(words.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
        }
        Some(Self { cores, process: Pid::from_raw(i32::from_le_bytes(*process))?, name: name.to_vec() })
    }
}

/// A set of cores, as the scheduler numbers them.
#[derive(Clone, Copy, Debug, Default)]
struct Cores([u64; 16]);

impl Cores {
    fn count_ones(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }
}

/// The cores this thread may run on; one if the system does not say.
fn own_cores() -> Cores {
    let mut cores = Cores::default();
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        (0..1024).filter(|&core| set.is_set(core)).for_each(|core| cores.0[core / 64] |= 1 << (core % 64));
    }
    if cores.count_ones() == 0 {
        cores.0[0] = 1;
    }
    cores
}

/// Tells one boot of one machine from all others; within it, one network namespace, for sockets do not reach out of one.
fn host_name() -> Vec<u8> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network =
        std::fs::read_link("/proc/self/ns/net").map(|link| link.into_os_string().into_encoded_bytes()).unwrap_or_default();
    [boot, network].concat()
}
