//! Who has which region: one table for all thread ranks of a process, or one a process, filled by handed-over descriptors.
//! Owns the numbering of regions, and what is known of the ranks that have them; knows neither windows nor queues.

use super::handover::Handover;
use super::patience::Patience;
use super::region::Region;
use crate::config::Token;
use crate::hosts::{Hosts, own_cores};
use crate::{Bootstrap, Deadline, Error, QueueId, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A region of a rank: numbered alike by no two regions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegionId(pub u32);

/// The regions of ranks that share an address space: one is made for all threads of a job.
#[derive(Debug)]
pub struct ThreadSpace {
    size: u32,
    regions: Table,
    /// The number of the next region of any rank.
    next: Arc<AtomicU32>,
}

impl ThreadSpace {
    /// For so many ranks.
    pub fn new(size: u32) -> Arc<Self> {
        Arc::new(Self { size, regions: Table::default(), next: Arc::default() })
    }
}

type Regions = HashMap<(Rank, RegionId), Weak<Region>>;

/// Regions that are alive. Their users keep them alive, not the table.
#[derive(Clone, Debug, Default)]
struct Table(Arc<Mutex<Regions>>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, Regions> {
        // Every change is one insert or one removal, so a panic elsewhere leaves the table whole.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, rank: Rank, id: RegionId, region: &Arc<Region>) {
        let mut table = self.lock();
        if table.len() == table.capacity() {
            table.retain(|_, region| region.strong_count() > 0);
        }
        table.insert((rank, id), Arc::downgrade(region));
    }
}

/// The regions that this rank can reach, on one host with all others: what shared memory is made of, and every backend whose ranks
/// write each other's memory as shared memory does.
#[derive(Debug)]
pub struct Space {
    rank: Rank,
    regions: Table,
    next: Arc<AtomicU32>,
    /// How regions come from other processes; `None` where all ranks are threads.
    handover: Option<Handover>,
    /// The processes of the ranks; empty where all are threads of one.
    processes: Vec<Pid>,
    crowded: bool,
}

impl Space {
    /// For a rank that is one of the threads of this process.
    pub(super) fn threads(shared: &ThreadSpace, rank: Rank) -> Self {
        let crowded = shared.size > own_cores().count_ones();
        let (regions, next) = (shared.regions.clone(), shared.next.clone());
        Self { rank, regions, next, handover: None, processes: Vec::new(), crowded }
    }

    /// Collective: for a rank that is a process. Refuses when the ranks are not all on this host.
    pub(super) fn processes(boot: &dyn Bootstrap, hosts: &Hosts, token: Token, deadline: Deadline) -> Result<Self> {
        if let Some(rank) = hosts.elsewhere() {
            return Err(Error::Launch(format!(
                "{} runs on another host than {rank}: shared memory does not reach across; start all ranks on one host (and in one \
                 container), or use a backend for several: build the program with one (rma-verbs for RDMA devices), and unset \
                 RMA_BACKEND or name it there",
                boot.rank()
            )));
        }
        let handover = Some(Handover::open(boot, token, deadline)?);
        let (rank, processes, crowded) = (boot.rank(), hosts.processes(), hosts.crowded());
        Ok(Self { rank, regions: Table::default(), next: Arc::default(), handover, processes, crowded })
    }

    /// Collective: for ranks that are threads or processes, as `hosts` says. Refuses when they are not all on this host.
    pub fn open(boot: &dyn Bootstrap, hosts: &Hosts, deadline: Deadline) -> Result<Self> {
        if let Some(space) = hosts.thread_space() {
            return Ok(Self::threads(space, boot.rank()));
        }
        let tokens = boot.allgather(&Token::random()?.0, deadline)?;
        let token = tokens.first().and_then(|token| token.as_slice().try_into().ok()).map(Token);
        let malformed = || Error::Malformed { what: "token", from: Rank(0).to_string(), reason: "it has not 16 bytes".into() };
        Self::processes(boot, hosts, token.ok_or_else(malformed)?, deadline)
    }

    /// How this rank waits for the others.
    pub fn patience(&self) -> Patience {
        Patience::new(self.crowded)
    }

    /// Whether a rank's process has ended, so that it certainly writes no more. A thread is never said to have ended: it closes
    /// its queues when it does.
    pub fn has_ended(&self, rank: Rank) -> bool {
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

    /// A new region of this rank, for peers to reach.
    pub fn make(&self, len_bytes: usize) -> Result<(RegionId, Arc<Region>)> {
        let region = match self.handover {
            None => Region::private(len_bytes),
            Some(_) => Region::shareable(len_bytes),
        };
        let region = Arc::new(region?);
        let id = RegionId(self.next.fetch_add(1, Ordering::Relaxed));
        self.regions.add(self.rank, id, &region);
        Ok((id, region))
    }

    /// A region of a rank, if it is alive and known here.
    pub fn find(&self, rank: Rank, id: RegionId) -> Option<Arc<Region>> {
        self.regions.lock().get(&(rank, id)).and_then(Weak::upgrade)
    }

    /// A region of a rank, of which this one will write `span`: an error, what is wrong with it, if it is not there or not so long.
    pub fn written(&self, rank: Rank, id: RegionId, span: &Range<u128>) -> Result<Arc<Region>> {
        let malformed = |reason| Error::Malformed { what: "key", from: rank.to_string(), reason };
        let region = self.find(rank, id).ok_or_else(|| malformed(format!("region {} is gone", id.0)))?;
        if span.end > region.len_bytes() as u128 {
            return Err(malformed(format!("a window of {} bytes, shorter than it said", region.len_bytes())));
        }
        // A peer's memory that is mapped here a second time is not in this rank's page tables yet.
        if self.handover.is_some() {
            region.populate(span.start as usize..span.end as usize)?;
        }
        Ok(region)
    }

    /// The regions of a peer that were handed over before, held so that they stay.
    pub(super) fn known(&self, peer: Rank) -> Vec<(RegionId, Arc<Region>)> {
        if self.handover.is_none() {
            return Vec::new();
        }
        let table = self.regions.lock();
        let of_peer = table.iter().filter(|((rank, _), _)| *rank == peer);
        of_peer.filter_map(|((_, id), region)| Some((*id, region.upgrade()?))).collect()
    }

    /// Collective among partners: hands own regions to `outgoing` and receives, and keeps, those of `incoming`.
    pub fn hand_over(
        &self,
        queue: QueueId,
        outgoing: &[(Rank, RegionId)],
        incoming: &[(Rank, RegionId)],
        boot: &dyn Bootstrap,
        deadline: Deadline,
    ) -> Result<Vec<Arc<Region>>> {
        let Some(handover) = &self.handover else { return Ok(Vec::new()) };
        // The core keeps what it gave a key for alive; who asks for anything else waits for it in vain.
        let outgoing: Vec<_> = outgoing.iter().filter_map(|&(to, id)| Some((to, id, self.find(self.rank, id)?))).collect();
        let received = handover.exchange(queue, &outgoing, incoming, boot, deadline)?;
        let keep = |(from, id, region): (Rank, RegionId, Region)| {
            let region = Arc::new(region);
            self.regions.add(from, id, &region);
            region
        };
        Ok(received.into_iter().map(keep).collect())
    }
}
