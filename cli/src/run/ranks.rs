//! The ranks of this host as processes: who has ended and how, signals to all they have started, and that nothing of it is left.
//! Owns the processes; decides nothing.

use super::guard::Guard;
use super::supervise::{Charges, Ended};
use super::{End, spawn::Starter};
use anyhow::Result;
use rma::Rank;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin};
use std::time::Instant;

/// The processes of the ranks.
///
/// None is reaped before the end: while a rank is a zombie, the number of its process group can belong to nobody else, so a
/// signal sent to the group cannot hit a stranger.
pub(super) struct Ranks {
    first: u32,
    ranks: Vec<RankProcess>,
    guard: Guard,
}

struct RankProcess {
    process: Child,
    pid: Pid,
    end: Option<End>,
}

/// The ends of the pipes of processes that were started together, in their order.
#[derive(Default)]
pub(super) struct Streams {
    /// Of the first process, if it has one.
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdouts: Vec<OwnedFd>,
    pub(super) stderrs: Vec<OwnedFd>,
}

impl Streams {
    /// Takes the pipes out of a process that was just started.
    pub(super) fn add(&mut self, process: &mut Child) {
        self.stdin = self.stdin.take().or(process.stdin.take());
        self.stdouts.extend(process.stdout.take().map(OwnedFd::from));
        self.stderrs.extend(process.stderr.take().map(OwnedFd::from));
    }
}

impl Ranks {
    /// Starts `count` ranks from `first` on. When one cannot be started, those that run are ended.
    pub(super) fn start(starter: &mut Starter<'_>, first: u32, count: u32) -> Result<(Self, Streams)> {
        let (mut ranks, mut streams) = (Self { first, ranks: Vec::new(), guard: Guard::start()? }, Streams::default());
        for rank in first..first + count {
            let mut process = starter.start(rank)?;
            streams.add(&mut process);
            ranks.add(process);
        }
        Ok((ranks, streams))
    }

    fn add(&mut self, process: Child) {
        let pid = Pid::from_child(&process);
        self.guard.watch(pid);
        self.ranks.push(RankProcess { process, pid, end: None });
    }

    fn numbered(&self) -> impl Iterator<Item = (Rank, &RankProcess)> {
        (self.first..).map(Rank).zip(&self.ranks)
    }
}

impl Charges for Ranks {
    fn running(&self) -> Vec<Rank> {
        self.numbered().filter(|(_, rank)| rank.end.is_none()).map(|(number, _)| number).collect()
    }

    fn are_over(&self) -> bool {
        self.ranks.iter().all(|rank| rank.end.is_some())
    }

    fn ended(&mut self, _: Instant) -> Vec<Ended> {
        let mut ended = Vec::new();
        for (number, rank) in (self.first..).map(Rank).zip(&mut self.ranks).filter(|(_, rank)| rank.end.is_none()) {
            let Some(end) = end_of(rank.pid) else { continue };
            rank.end = Some(end);
            ended.push(Ended::rank(number, end));
        }
        ended
    }

    /// To every process of every rank's group, also of those that have ended: what they started may run.
    fn signal_all(&mut self, signal: Signal) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
    }

    fn end_rest_of(&mut self, ended: &Ended) {
        let rank = ended.ranks.first().and_then(|rank| rank.0.checked_sub(self.first)).and_then(|nth| self.ranks.get(nth as usize));
        if let Some(rank) = rank {
            rank.signal(Signal::KILL);
        }
    }

    fn ranks_of(&self, source: usize) -> Vec<Rank> {
        vec![Rank(self.first + source as u32)]
    }

    fn end(&mut self) {
        self.signal_all(Signal::KILL);
        // Before the numbers are given back.
        self.guard.done();
        for mut rank in self.ranks.drain(..) {
            let _ = rank.process.wait();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.end();
    }
}

impl RankProcess {
    fn signal(&self, signal: Signal) {
        // A group without living processes is no error.
        let _ = kill_process_group(self.pid, signal);
        if self.end.is_none() && rustix::process::getpgid(Some(self.pid)).is_ok_and(|group| group != self.pid) {
            // The rank itself moved to another group.
            let _ = kill_process(self.pid, signal);
        }
    }
}

/// How a child ended, if it has. It stays to be waited for.
pub(super) fn end_of(child: Pid) -> Option<End> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    match waitid(WaitId::Pid(child), look) {
        Ok(None) | Err(rustix::io::Errno::INTR) => None,
        Ok(Some(status)) => Some(match status.terminating_signal() {
            Some(signal) => End::Killed { signal, core_dumped: status.dumped() },
            None => End::Exited(status.exit_status().unwrap_or(0)),
        }),
        Err(error) => panic!("bug: process {} is no child of its launcher: {error}", child.as_raw_pid()),
    }
}
