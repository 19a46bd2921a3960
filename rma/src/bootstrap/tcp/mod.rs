//! Bootstrap over TCP, for ranks that are processes. Rank 0 listens at an address all ranks know; the others connect to it,
//! show the token of the job, and get the addresses of all. Connections between the others are opened when first needed.
//! Owns the way in and the lock. Knows no launcher.
//!
//! The token keeps strangers out. It travels in clear, so it does not keep out who can read the network.
//!
//! No thread runs behind this: a rank takes part in the spreading of news, and notices a loss, while it is in a call. Every rank has a
//! connection with rank 0, and with each rank that it ever exchanged messages with, so with all partners of its queues. It notices
//! by itself that one of those has gone, also without a word, and spreads the news to all.

mod link;
mod mesh;
mod protocol;
mod silence;
mod wire;

use super::failure::list_ranks;
use super::{Bootstrap, Departure, Messages, Objection, idle};
use crate::config::Place;
use crate::{Deadline, Error, Rank, Result};
use mesh::{Mesh, Phase};
use protocol::{Ended, Start};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use wire::Frame;

/// How long a rank waits before it tries again to reach rank 0.
const RETRY: Duration = Duration::from_millis(10);
/// The longest wait for one attempt to connect, and in one poll while joining.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The longest wait in one poll while joining.
const TICK: Duration = Duration::from_millis(25);

/// One rank's connections with the others. Dropping it tells them that the rank has gone.
#[derive(Debug)]
pub struct TcpBootstrap {
    rank: Rank,
    size: u32,
    mesh: Mutex<Mesh>,
    /// The departed as of the last look at the network, for who asks during a call.
    seen: Mutex<Vec<(Rank, Departure)>>,
}

impl TcpBootstrap {
    /// Takes this rank's place in the job: returns once every rank has. Rank 0 listens on `listener`, which it may have from its
    /// launcher, or else on the host and port of `place.root`.
    pub fn join(place: &Place, listener: Option<TcpListener>, deadline: Deadline) -> Result<Self> {
        let Place { rank, size, .. } = *place;
        if rank.0 >= size {
            return Err(Error::NoSuchRank { what: "joining a job", rank, size });
        }
        let mesh = match rank {
            Rank(0) if size == 1 => Mesh::new(rank, size, place.token, None, Phase::Joined(Vec::new()))?,
            Rank(0) => admit_all(place, listener, deadline)?,
            _ => ask(place, deadline)?,
        };
        Ok(Self { rank, size, mesh: Mutex::new(mesh), seen: Mutex::new(Vec::new()) })
    }

    fn call(&self, start: Start, deadline: Deadline) -> Result<Ended> {
        let mut mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = mesh.run(start, deadline);
        self.note(&mesh);
        ended
    }

    fn note(&self, mesh: &Mesh) -> Vec<(Rank, Departure)> {
        let departed: Vec<_> = mesh.protocol.departed().collect();
        self.seen().clone_from(&departed);
        departed
    }

    /// Ends all connections, with the word that this rank has died. In the middle of a call nothing can be said.
    pub(super) fn give_up(&self) {
        match self.mesh.try_lock() {
            Ok(mut mesh) => mesh.leave(Departure::Died),
            Err(TryLockError::Poisoned(mesh)) => mesh.into_inner().leave(Departure::Died),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn seen(&self) -> MutexGuard<'_, Vec<(Rank, Departure)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn allgather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.call(Start::Allgather(mine.to_vec()), deadline).map(|ended| ended.gathered)
    }

    fn exchange(&self, outgoing: Messages, deadline: Deadline) -> Result<Messages> {
        self.call(Start::Exchange(outgoing), deadline).map(|ended| ended.incoming)
    }

    fn agree(&self, objection: Option<String>, deadline: Deadline) -> Result<Option<Objection>> {
        self.call(Start::Agree(objection), deadline).map(|ended| ended.objection)
    }

    fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.call(Start::Barrier, deadline).map(|_| ())
    }

    fn departed(&self) -> Vec<(Rank, Departure)> {
        let mut mesh = match self.mesh.try_lock() {
            Ok(mesh) => mesh,
            Err(TryLockError::Poisoned(mesh)) => mesh.into_inner(),
            Err(TryLockError::WouldBlock) => return self.seen().clone(),
        };
        if let Err(error) = mesh.pump(Duration::ZERO) {
            tracing::warn!(error = error.full_text(), "looking for departed ranks");
        }
        self.note(&mesh)
    }
}

impl Drop for TcpBootstrap {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { Departure::Died } else { Departure::Left };
        self.mesh.get_mut().unwrap_or_else(PoisonError::into_inner).leave(how);
    }
}

/// Rank 0: waits for all others, and tells each where all are.
fn admit_all(place: &Place, listener: Option<TcpListener>, deadline: Deadline) -> Result<Mesh> {
    let listener = match listener {
        Some(listener) => listener,
        None => TcpListener::bind(&place.root).map_err(|e| Error::os(format!("listening at RMA_ROOT={}", place.root), e))?,
    };
    let own = listener.local_addr().map_err(|e| Error::os("asking the listening socket for its address", e))?;
    let mut addrs = vec![None; place.size as usize];
    addrs[0] = Some(own);
    let mut mesh = Mesh::new(place.rank, place.size, place.token, Some(listener), Phase::Admitting(addrs))?;
    loop {
        let Phase::Admitting(addrs) = &mesh.phase else { panic!("bug: rank 0 stopped admitting by itself") };
        let missing: Vec<_> = (0..).map(Rank).zip(addrs).filter(|(_, addr)| addr.is_none()).map(|(rank, _)| rank).collect();
        let gone = mesh.protocol.departed().next();
        let error = match gone {
            Some((rank, how)) => {
                Some(Error::PeerLost { rank, how, waiting: format!("the job of {} ranks was being set up", place.size) })
            }
            None if missing.is_empty() => break,
            None if deadline.is_over() => Some(Error::SetupTimeout {
                call: "joining",
                patience: deadline.patience(),
                missing: format!("{} not connected to {own}", list_ranks(missing)),
            }),
            None => mesh.pump(idle::work(deadline.left(TICK))).err(),
        };
        if let Some(error) = error {
            mesh.send_all(&Frame::Refused(error.full_text()));
            mesh.settle();
            return Err(error);
        }
    }
    if let Phase::Admitting(addrs) = &mesh.phase {
        let addrs: Vec<_> = addrs.iter().flatten().copied().collect();
        mesh.send_all(&Frame::Table(addrs.clone()));
        mesh.phase = Phase::Joined(addrs);
    }
    while !mesh.settled() && !deadline.is_over() {
        mesh.pump(idle::work(deadline.left(TICK)))?;
    }
    Ok(mesh)
}

/// Another rank: finds rank 0, shows the token, and waits for the addresses.
fn ask(place: &Place, deadline: Deadline) -> Result<Mesh> {
    let bind = SocketAddr::new(place.bind, 0);
    let listener = TcpListener::bind(bind).map_err(|e| Error::os(format!("listening for peers at RMA_BIND={}", place.bind), e))?;
    let own = listener.local_addr().map_err(|e| Error::os("asking the listening socket for its address", e))?;
    let mut mesh = Mesh::new(place.rank, place.size, place.token, Some(listener), Phase::Asking(None))?;
    mesh.adopt_root(connect_root(&place.root, deadline)?, own)?;
    loop {
        let Phase::Asking(answer) = &mut mesh.phase else { panic!("bug: a rank joined by itself") };
        match answer.take() {
            Some(Ok(addrs)) => {
                mesh.phase = Phase::Joined(addrs);
                return Ok(mesh);
            }
            Some(Err(reason)) => return Err(Error::Launch(format!("rank 0 at {} refused {}: {reason}", place.root, place.rank))),
            None => {}
        }
        if !mesh.is_linked(Rank(0)) {
            return Err(Error::Launch(format!(
                "rank 0 at {} closed the connection of {} without a word: it has another RMA_TOKEN, or it has ended",
                place.root, place.rank
            )));
        }
        if deadline.is_over() {
            return Err(Error::SetupTimeout {
                call: "joining",
                patience: deadline.patience(),
                missing: format!("rank 0 at {} has not said yet that all {} ranks are there", place.root, place.size),
            });
        }
        mesh.pump(idle::work(deadline.left(TICK)))?;
    }
}

/// Tries until somebody listens at `root`.
fn connect_root(root: &str, deadline: Deadline) -> Result<TcpStream> {
    loop {
        let cause = match connect_once(root, deadline) {
            Ok(stream) => return Ok(stream),
            Err(cause) => cause,
        };
        if deadline.is_over() {
            let missing = format!("rank 0 does not answer at RMA_ROOT={root} ({cause})");
            return Err(Error::SetupTimeout { call: "joining", patience: deadline.patience(), missing });
        }
        std::thread::sleep(idle::work(deadline.left(RETRY)));
    }
}

fn connect_once(root: &str, deadline: Deadline) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for addr in root.to_socket_addrs()? {
        // The standard library refuses a wait of zero.
        let wait = deadline.left(ATTEMPT).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&addr, wait) {
            // With nobody listening, a port that the system hands out can connect to itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => last = std::io::ErrorKind::ConnectionRefused.into(),
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
