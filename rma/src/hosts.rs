//! Where the ranks of a job run: on which hosts, in which processes, on how many cores.
//! Owns what every rank tells the others about it, once at start-up; knows no backend.

use crate::shm::ThreadSpace;
use crate::{Bootstrap, Deadline, Error, Rank, Result};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What every rank said about where it runs.
#[derive(Debug)]
pub struct Hosts {
    rank: Rank,
    places: Vec<Whereabouts>,
    /// The address space that all ranks share, where they are threads.
    thread_space: Option<Arc<ThreadSpace>>,
}

/// What one rank says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Whereabouts {
    cores: Cores,
    process: i32,
    host: Vec<u8>,
    /// The backend that its `RMA_BACKEND` names.
    backend: Option<String>,
}

impl Hosts {
    /// Collective: tells where this rank runs and which backend it was told to use, and learns it of all others. Refuses when they
    /// were told to use different ones.
    pub(crate) fn gather(boot: &dyn Bootstrap, backend: Option<&str>, deadline: Deadline) -> Result<Self> {
        let rank = boot.rank();
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let mine = Whereabouts { cores: own_cores(), process, host: host_name(), backend: backend.map(str::to_owned) };
        let encoded = postcard::to_stdvec(&mine).map_err(|cause| Error::Launch(format!("bug: whereabouts: {cause}")))?;
        let mut places = Vec::with_capacity(boot.size() as usize);
        for (peer, bytes) in (0..).map(Rank).zip(boot.allgather(&encoded, deadline)?) {
            let place: Whereabouts = postcard::from_bytes(&bytes).map_err(|cause| Error::Malformed {
                what: "whereabouts",
                from: peer.to_string(),
                reason: format!("{} bytes: {cause}", bytes.len()),
            })?;
            if place.backend != mine.backend {
                let name = |backend: &Option<String>| backend.clone().unwrap_or("not set".into());
                return Err(Error::Launch(format!(
                    "RMA_BACKEND is {} on {rank} and {} on {peer}: give every rank the same",
                    name(&mine.backend),
                    name(&place.backend)
                )));
            }
            places.push(place);
        }
        Ok(Self { rank, places, thread_space: None })
    }

    /// The same where all ranks are threads of this process.
    pub(crate) fn of_threads(self, space: &Arc<ThreadSpace>) -> Self {
        Self { thread_space: Some(space.clone()), ..self }
    }

    /// Ranks on hosts of these names, as `rank` sees them.
    #[cfg(test)]
    pub(crate) fn of_names(rank: Rank, names: &[&str]) -> Self {
        let place = |name: &&str| Whereabouts { cores: own_cores(), process: 1, host: (*name).into(), backend: None };
        Self { rank, places: names.iter().map(place).collect(), thread_space: None }
    }

    /// A rank that does not run on this host, if there is one.
    pub fn elsewhere(&self) -> Option<Rank> {
        (0..self.places.len() as u32).map(Rank).find(|&rank| !self.is_here(rank))
    }

    /// Whether a rank runs on this host: in the same boot of the machine and the same network namespace.
    pub fn is_here(&self, rank: Rank) -> bool {
        let here = self.places.get(self.rank.index()).map(|place| &place.host);
        here.is_some() && here == self.places.get(rank.index()).map(|place| &place.host)
    }

    /// How many ranks of lower number run on this host.
    pub fn local_rank(&self) -> u32 {
        (0..self.rank.0).map(Rank).filter(|&rank| self.is_here(rank)).count() as u32
    }

    /// Whether more ranks run on this host than their cores are, so that waiting must give its core away.
    pub fn crowded(&self) -> bool {
        let mut cores = Cores::default();
        let mut ranks = 0;
        for (rank, place) in (0..).map(Rank).zip(&self.places) {
            if self.is_here(rank) {
                cores.join(&place.cores);
                ranks += 1;
            }
        }
        ranks > cores.count_ones()
    }

    /// Whether any two ranks are threads of one process.
    pub fn share_a_process(&self) -> bool {
        let mut processes: Vec<_> = self.places.iter().map(|place| (&place.host, place.process)).collect();
        processes.sort_unstable();
        processes.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// The address space that all ranks share, where they are threads.
    pub(crate) fn thread_space(&self) -> Option<&ThreadSpace> {
        self.thread_space.as_deref()
    }

    /// The process of every rank.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        self.places.iter().filter_map(|place| Pid::from_raw(place.process)).collect()
    }
}

/// A set of cores, as the scheduler numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cores([u64; 16]);

impl Cores {
    pub(crate) fn count_ones(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }
}

/// The cores this thread may run on; one if the system does not say.
pub(crate) fn own_cores() -> Cores {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn on(host: &str, cores: u64) -> Whereabouts {
        let mut set = Cores::default();
        set.0[0] = cores;
        Whereabouts { cores: set, process: 1, host: host.into(), backend: None }
    }

    #[test]
    fn only_ranks_of_this_host_crowd_its_cores() {
        let hosts = Hosts { rank: Rank(2), places: vec![on("a", 3), on("b", 1), on("a", 3), on("b", 2)], thread_space: None };
        assert!(!hosts.crowded());
        assert_eq!((hosts.elsewhere(), hosts.local_rank()), (Some(Rank(1)), 1));
        let hosts = Hosts { rank: Rank(1), places: vec![on("a", 1), on("a", 1)], thread_space: None };
        assert!(hosts.crowded());
        assert_eq!((hosts.elsewhere(), hosts.local_rank()), (None, 1));
    }

    #[test]
    fn one_number_of_a_process_on_two_hosts_is_two_processes() {
        let two = Hosts { rank: Rank(0), places: vec![on("a", 1), on("b", 1)], thread_space: None };
        assert!(!two.share_a_process());
        let one = Hosts { rank: Rank(0), places: vec![on("a", 1), on("b", 1), on("a", 1)], thread_space: None };
        assert!(one.share_a_process());
    }
}
