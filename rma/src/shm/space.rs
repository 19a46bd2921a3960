//! Who has which region: one table for all thread ranks of a process, or one a process, filled by handed-over descriptors.
//! Owns the numbering of regions; knows neither windows nor queues.

use super::handover::Handover;
use super::region::Region;
use crate::{Bootstrap, Deadline, QueueId, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A region of a rank: numbered alike by no two regions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct RegionId(pub(super) u32);

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

    pub(super) fn size(&self) -> u32 {
        self.size
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

/// The regions that this rank can reach.
#[derive(Debug)]
pub(super) struct Space {
    rank: Rank,
    regions: Table,
    next: Arc<AtomicU32>,
    /// How regions come from other processes; `None` where all ranks are threads.
    handover: Option<Handover>,
}

impl Space {
    pub(super) fn threads(shared: &ThreadSpace, rank: Rank) -> Self {
        Self { rank, regions: shared.regions.clone(), next: shared.next.clone(), handover: None }
    }

    pub(super) fn processes(rank: Rank, handover: Handover) -> Self {
        Self { rank, regions: Table::default(), next: Arc::default(), handover: Some(handover) }
    }

    /// Whether a peer's memory is mapped here a second time, and so not in this rank's page tables yet.
    pub(super) fn maps_peers_anew(&self) -> bool {
        self.handover.is_some()
    }

    /// A new region of this rank, for peers to reach.
    pub(super) fn make(&self, len_bytes: usize) -> Result<(RegionId, Arc<Region>)> {
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
    pub(super) fn find(&self, rank: Rank, id: RegionId) -> Option<Arc<Region>> {
        self.regions.lock().get(&(rank, id)).and_then(Weak::upgrade)
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
    pub(super) fn hand_over(
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
