//! The connections of one rank, all of them without blocking, and no thread behind them: input and output happen while a call
//! pumps. Always reads while it writes, so that full socket buffers on both sides of a connection cannot stop it.
//! Owns sockets, the clock and who may come in. Must not know what a collective call is made of.

use super::link::{Link, Pending};
use super::protocol::{Ended, Output, Protocol, Start};
use super::silence;
use super::wire::{Frame, Hello};
use crate::bootstrap::Departure;
use crate::bootstrap::failure::{Why, timeout};
use crate::bootstrap::idle;
use crate::config::Token;
use crate::{Deadline, Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// The most connections that have not shown their token yet; more wait in the backlog of the listener.
const MAX_PENDING: usize = 256;
/// How long a connection may take to show its token once others wait for its place. Not before: a rank may have its turn on a crowded
/// machine late, and takes whoever hangs up for gone.
const HELLO_PATIENCE: Duration = Duration::from_secs(3);
/// The most connections of one rank: each side may have dialed, and once more to watch, and then some.
const MAX_LINKS_PER_RANK: usize = 6;
/// How long the last frames, or better news, of a rank that has gone without a word may take to arrive.
const GRACE: Duration = Duration::from_millis(300);
/// The longest wait in one poll, after which deadlines and the like are looked at.
const TICK: Duration = Duration::from_millis(25);
/// A call that has not ended after this is a long one.
const LATE: Duration = Duration::from_millis(250);
/// How long a failed call goes on sending the news of it.
const SETTLE: Duration = Duration::from_millis(500);

/// What a rank is in the job while it joins.
#[derive(Debug)]
pub(super) enum Phase {
    /// Rank 0 takes the others in: where each of them listens.
    Admitting(Vec<Option<SocketAddr>>),
    /// Another rank waits for the answer of rank 0: the table, or its refusal.
    Asking(Option<Result<Vec<SocketAddr>, String>>),
    /// All are there.
    Joined(Vec<SocketAddr>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) me: Rank,
    pub(super) size: u32,
    token: Token,
    listener: Option<TcpListener>,
    pub(super) phase: Phase,
    pub(super) protocol: Protocol,
    pending: Vec<Pending>,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    /// The one link on which frames to a rank are sent, so that they stay in order.
    routes: BTreeMap<Rank, u64>,
    unreached: BTreeMap<Rank, Unreached>,
    scratch: Vec<u8>,
}

/// A rank that could not be reached.
#[derive(Debug)]
struct Unreached {
    /// When the doubt is over: until then, better news may come.
    until: Instant,
    /// `None` when the connection was closed before a word was heard.
    cause: Option<String>,
}

impl Mesh {
    pub(super) fn new(me: Rank, size: u32, token: Token, listener: Option<TcpListener>, phase: Phase) -> Result<Self> {
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(|e| Error::os("making the listening socket nonblocking", e))?;
            // All may call while this rank computes, each perhaps twice; whose call is dropped takes this rank for gone.
            let backlog = i32::try_from(size.saturating_mul(2)).unwrap_or(i32::MAX);
            rustix::net::listen(listener, backlog).map_err(|e| Error::os(format!("listening for {size} ranks"), e))?;
        }
        Ok(Self {
            me,
            size,
            token,
            listener,
            phase,
            protocol: Protocol::new(me, size),
            pending: Vec::new(),
            links: BTreeMap::new(),
            next_link: 0,
            routes: BTreeMap::new(),
            unreached: BTreeMap::new(),
            scratch: vec![0; 1 << 16],
        })
    }

    /// Makes one collective call.
    pub(super) fn run(&mut self, start: Start, deadline: Deadline) -> Result<Ended> {
        let call = start.call(deadline.purpose());
        let started = Instant::now();
        let late = LATE.min(deadline.patience() / 4);
        let (mut counted, mut asked, mut suspected) = (false, false, None);
        if let Err(error) = self.protocol.begin(start, deadline.purpose()) {
            self.settle();
            return Err(error);
        }
        loop {
            self.send_outputs();
            if self.protocol.is_done() && self.is_drained() {
                return Ok(self.protocol.finish());
            }
            if deadline.is_over() && !self.protocol.failed_for_good() {
                let error = timeout(call, deadline, self.protocol.missing());
                self.protocol.fail(Why::Other { call, reason: error.to_string() });
                self.protocol.abort();
                self.settle();
                return Err(error);
            }
            if let Some(error) = self.protocol.error() {
                self.settle();
                return Err(error);
            }
            if !counted && started.elapsed() >= late {
                counted = true;
                self.protocol.call_the_roll(false);
            }
            if !asked && deadline.left(deadline.patience()) <= deadline.patience() / 4 {
                asked = true;
                self.protocol.call_the_roll(true);
            }
            match (self.protocol.suspect(), suspected) {
                (None, _) => suspected = None,
                (Some(_), None) => suspected = Some(Instant::now()),
                (Some(_), Some(since)) if since.elapsed() >= GRACE => self.protocol.give_up(),
                (Some(_), Some(_)) => {}
            }
            self.send_outputs();
            let unreachable = self.unreached.iter().find_map(|(rank, Unreached { until, cause })| {
                cause.as_ref().filter(|_| *until <= Instant::now()).map(|cause| format!("no connection to {rank}: {cause}"))
            });
            if let Some(reason) = unreachable {
                self.protocol.fail(Why::Other { call, reason });
                continue;
            }
            if let Err(error) = self.pump(idle::work(deadline.left(TICK))) {
                self.protocol.fail(Why::Other { call, reason: error.full_text() });
                self.protocol.abort();
                self.settle();
                return Err(error);
            }
        }
    }

    /// Reads and writes what can be, waiting at most `wait` until something can.
    pub(super) fn pump(&mut self, wait: Duration) -> Result<()> {
        self.send_outputs();
        self.watch_over_heavy_links();
        let accepts = self.pending.len() < MAX_PENDING;
        let ids: Vec<_> = self.links.keys().copied().collect();
        let listener = self.listener.as_ref().filter(|_| accepts);
        let ready = {
            let mut fds = Vec::with_capacity(ids.len() + self.pending.len() + 1);
            fds.extend(self.links.values().map(|link| PollFd::new(link.stream(), link.interest())));
            fds.extend(self.pending.iter().map(|pending| PollFd::new(pending.stream(), PollFlags::IN)));
            fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
            let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
            match poll(&mut fds, Some(&wait)) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(Error::os(format!("polling {} sockets", fds.len()), error)),
            }
            fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>()
        };
        let (links, others) = ready.split_at(ids.len());
        let (pending, listener) = others.split_at(self.pending.len());
        for (id, _) in ids.into_iter().zip(links).filter(|(_, ready)| **ready) {
            self.serve(id);
        }
        let pending = pending.to_vec();
        let accepts = listener.contains(&true);
        self.hear_pending(pending.iter().copied());
        if accepts {
            self.accept()?;
        }
        self.expire();
        self.send_outputs();
        Ok(())
    }

    /// Opens a connection to rank 0 for joining, over an already connected stream.
    pub(super) fn adopt_root(&mut self, stream: std::net::TcpStream, listens: SocketAddr) -> Result<()> {
        let mut link = Link::accepted(Rank(0), stream).map_err(|e| Error::os("setting up the connection to rank 0", e))?;
        link.queue(Frame::Hello(self.hello(Some(listens))).encode());
        self.add_link(link);
        Ok(())
    }

    /// Sends a frame to every rank there is a connection with; what failed shows at the next pump.
    pub(super) fn send_all(&mut self, frame: &Frame) {
        self.flood(None, frame);
    }

    /// Whether all that was to be sent is with the system.
    pub(super) fn settled(&self) -> bool {
        self.is_drained()
    }

    /// Whether there is still a connection with a rank.
    pub(super) fn is_linked(&self, rank: Rank) -> bool {
        self.links.values().any(|link| link.peer() == rank)
    }

    /// Sends what waits to be sent, for a short time at most.
    pub(super) fn settle(&mut self) {
        let end = Deadline::after(SETTLE);
        self.send_outputs();
        while !self.is_drained() && !end.is_over() {
            if self.pump(end.left(TICK)).is_err() {
                return;
            }
        }
    }

    /// Tells all that this rank goes, and closes every connection so that what was sent before still arrives.
    pub(super) fn leave(&mut self, how: Departure) {
        // Connections that wait to be accepted shall hear it too.
        let _ = self.pump(Duration::ZERO);
        let _ = self.pump(Duration::ZERO);
        let goodbye = self.protocol.goodbye(how).encode();
        for link in self.links.values_mut() {
            link.queue(goodbye.clone());
        }
        self.settle();
        // A socket closed with unread bytes resets the connection, and takes with it what the peer has not read.
        let _ = self.pump(Duration::ZERO);
        for link in self.links.values_mut() {
            link.finish(&mut self.scratch);
        }
    }

    /// Ends all connections without a word, as a killed process does.
    #[cfg(test)]
    pub(super) fn kill(&mut self) {
        self.listener = None;
        self.links.clear();
        self.pending.clear();
    }

    fn hello(&self, joins: Option<SocketAddr>) -> Hello {
        Hello { token: self.token, rank: self.me, size: self.size, joins }
    }

    fn is_drained(&self) -> bool {
        self.links.values().all(|link| link.is_drained() || self.protocol.is_gone(link.peer()))
    }

    fn add_link(&mut self, mut link: Link) -> u64 {
        self.protocol.news().for_each(|frame| link.queue(frame.encode()));
        let id = self.next_link;
        self.next_link += 1;
        self.routes.entry(link.peer()).or_insert(id);
        self.links.insert(id, link);
        id
    }

    /// Carries out what the protocol wants sent, and writes at once what the sockets take.
    fn send_outputs(&mut self) {
        let mut any = false;
        while let Some(output) = self.protocol.output() {
            any = true;
            match output {
                Output::To(rank, frame) => self.send(rank, &frame),
                Output::Flood { except, frame } => self.flood(except, &frame),
            }
        }
        if any {
            let ids: Vec<_> = self.links.iter().filter(|(_, link)| link.can_write()).map(|(id, _)| *id).collect();
            for id in ids {
                // A failure shows again at the next read, after what the peer sent before has been read.
                self.links.get_mut(&id).map(Link::write);
            }
        }
    }

    fn send(&mut self, rank: Rank, frame: &Frame) {
        if self.protocol.is_gone(rank) || self.unreached.contains_key(&rank) {
            return;
        }
        let id = match self.routes.get(&rank) {
            Some(id) => *id,
            None => {
                let Phase::Joined(addrs) = &self.phase else { return };
                let addr = addrs[rank.index()];
                match Link::dial(rank, addr) {
                    Ok(mut link) => {
                        link.queue(Frame::Hello(self.hello(None)).encode());
                        self.add_link(link)
                    }
                    Err(error) => return self.not_reached(rank, Some(error)),
                }
            }
        };
        if let Some(link) = self.links.get_mut(&id) {
            link.queue(frame.encode());
        }
    }

    /// Opens a second connection with each peer that could go unnoticed on the first. Done once: who cannot be watched in this way
    /// may be noticed by others.
    fn watch_over_heavy_links(&mut self) {
        let Phase::Joined(addrs) = &self.phase else { return };
        let asking: Vec<_> = self.links.values_mut().filter_map(|link| link.asks_for_watch().then(|| link.peer())).collect();
        let asking: Vec<_> = asking.into_iter().map(|rank| (rank, addrs[rank.index()])).collect();
        for (rank, addr) in asking {
            let mut others = self.links.values().filter(|link| link.peer() == rank);
            if self.protocol.is_gone(rank) || others.any(Link::is_light) {
                continue;
            }
            match Link::dial_to_watch(rank, addr) {
                Ok(mut link) => {
                    link.queue(Frame::Hello(self.hello(None)).encode());
                    self.add_link(link);
                }
                Err(error) => tracing::warn!(%rank, %addr, %error, "no second connection to watch a rank"),
            }
        }
    }

    fn flood(&mut self, except: Option<Rank>, frame: &Frame) {
        let bytes = frame.encode();
        let ids: Vec<_> = self.routes.iter().filter(|(rank, _)| Some(**rank) != except).map(|(_, id)| *id).collect();
        for id in ids {
            if let Some(link) = self.links.get_mut(&id).filter(|link| !self.protocol.is_gone(link.peer())) {
                link.queue(bytes.clone());
                link.write();
            }
        }
    }

    fn not_reached(&mut self, rank: Rank, error: Option<std::io::Error>) {
        let silent = error.as_ref().is_some_and(silence::is_silence);
        let cause = error.map(|error| {
            let addr = match &self.phase {
                Phase::Joined(addrs) => addrs[rank.index()].to_string(),
                _ => "its address".into(),
            };
            let down = if silent { "its host is down, or " } else { "" };
            format!("{addr}: {error}; {down}its RMA_BIND is no address that its peers reach")
        });
        self.unreached.entry(rank).or_insert(Unreached { until: Instant::now() + GRACE, cause });
    }

    /// Writes to and reads from a link that poll named.
    fn serve(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let peer = link.peer();
        if let Err(error) = link.connected() {
            // The way may only have been down for a moment; or the peer has gone, of which others, who had a connection, know soon.
            if silence::is_silence(&error) && link.redial().is_ok_and(|again| again) {
                return;
            }
            let watches = link.watches();
            self.close(id);
            // Not being able to watch a rank harms nothing that is sent to it.
            return if watches {
                tracing::warn!(rank = %peer, %error, "cannot watch")
            } else {
                self.not_reached(peer, Some(error))
            };
        }
        link.write();
        let open = link.read(&mut self.scratch);
        while let Some(link) = self.links.get_mut(&id) {
            match link.next_frame() {
                Ok(Some(frame)) => self.take_in(peer, frame),
                Ok(None) => break,
                Err(reason) => {
                    self.protocol.fail(Why::Malformed { from: peer, reason });
                    self.close(id);
                    return;
                }
            }
        }
        if !open {
            let Some(link) = self.links.get(&id) else { return };
            let (silent, only_watched) = (link.is_silent(), link.watches() && !link.is_lost());
            self.close(id);
            if only_watched {
                // That the peer ends shows on the connection where it says so.
            } else if silent && !self.protocol.is_gone(peer) {
                // It may have gone in good order before it could accept, with its goodbye on another way.
                self.not_reached(peer, None);
            } else {
                self.protocol.gone(peer, Departure::Died, None, None);
            }
        }
    }

    fn take_in(&mut self, from: Rank, frame: Frame) {
        match (&mut self.phase, frame) {
            (Phase::Asking(answer), Frame::Table(addrs)) if from.0 == 0 => {
                *answer = Some(match addrs.len() {
                    count if count == self.size as usize => Ok(addrs),
                    count => Err(format!("it sent {count} addresses for {} ranks", self.size)),
                });
            }
            (Phase::Asking(answer), Frame::Refused(reason)) if from.0 == 0 => *answer = Some(Err(reason)),
            (_, frame) => self.protocol.receive(from, frame),
        }
    }

    fn close(&mut self, id: u64) {
        self.links.remove(&id);
    }

    fn accept(&mut self) -> Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let before = self.pending.len();
        while self.pending.len() < MAX_PENDING {
            match listener.accept() {
                Ok((stream, addr)) => match Pending::new(stream, addr) {
                    Ok(pending) => self.pending.push(pending),
                    Err(error) => tracing::warn!(%addr, %error, "a connection was lost as it was accepted"),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    let open = self.links.len() + self.pending.len();
                    return Err(Error::os(
                        format!("accepting a connection with {open} open; raise `ulimit -n` if that is many"),
                        error,
                    ));
                }
            }
        }
        let count = self.pending.len();
        self.hear_pending((0..count).map(|i| i >= before));
        Ok(())
    }

    /// Reads the hello of the pending connections that are ready.
    fn hear_pending(&mut self, ready: impl Iterator<Item = bool>) {
        let pending = std::mem::take(&mut self.pending);
        for (mut pending, ready) in pending.into_iter().zip(ready) {
            match if ready { pending.hear() } else { Ok(None) } {
                Ok(None) => self.pending.push(pending),
                Ok(Some(hello)) => self.admit(pending, hello),
                Err(reason) => tracing::warn!(addr = %pending.addr(), %reason, "refused a connection that is none of the job's"),
            }
        }
    }

    /// Decides on a connection that has said who it is.
    fn admit(&mut self, pending: Pending, hello: Hello) {
        let (addr, rank) = (pending.addr(), hello.rank);
        if !same_token(&self.token, &hello.token) {
            tracing::warn!(%addr, "refused a connection with a wrong job token");
            return;
        }
        let refusal = match &self.phase {
            _ if hello.size != self.size => {
                Some(format!("it is rank {} of {} by its RMA_SIZE, but this job has {} ranks", rank.0, hello.size, self.size))
            }
            _ if rank.0 >= self.size || rank == self.me => {
                Some(format!("{rank} cannot join {} of {} ranks; give each process its own RMA_RANK", self.me, self.size))
            }
            Phase::Admitting(addrs) if hello.joins.is_some() && addrs[rank.index()].is_some() => {
                Some(format!("another process has joined as {rank} already; give each process its own RMA_RANK"))
            }
            Phase::Joined(_) if hello.joins.is_some() => {
                Some(format!("the job of {} ranks is complete; a {rank} is there already", self.size))
            }
            _ if self.links.values().filter(|link| link.peer() == rank).count() >= MAX_LINKS_PER_RANK => {
                Some(format!("{rank} has {MAX_LINKS_PER_RANK} connections already"))
            }
            _ => None,
        };
        if let Some(reason) = refusal {
            tracing::warn!(%addr, %reason, "refused a connection");
            pending.refuse(&Frame::Refused(reason).encode());
            return;
        }
        if let (Phase::Admitting(addrs), Some(mut listens)) = (&mut self.phase, hello.joins) {
            if listens.ip().is_unspecified() {
                listens.set_ip(addr.ip());
            }
            addrs[rank.index()] = Some(listens);
        }
        let id = self.add_link(pending.into_link(rank));
        self.serve(id);
    }

    /// Ends the patience with connections that say nothing while others wait, and the doubt about ranks that nothing is heard of.
    fn expire(&mut self) {
        let is_full = self.pending.len() >= MAX_PENDING;
        self.pending.retain(|pending| {
            let kept = !is_full || pending.since().elapsed() < HELLO_PATIENCE;
            if !kept {
                tracing::warn!(addr = %pending.addr(), "refused a connection that did not say who it is");
            }
            kept
        });
        let now = Instant::now();
        let closed = self.unreached.iter().find(|(_, Unreached { until, cause })| cause.is_none() && *until <= now);
        if let Some((&rank, _)) = closed {
            self.unreached.remove(&rank);
            self.protocol.gone(rank, Departure::Died, None, None);
        }
        self.unreached.retain(|rank, _| !self.protocol.is_gone(*rank));
    }
}

/// Compares in a time that does not tell how much of a guess was right.
fn same_token(ours: &Token, theirs: &Token) -> bool {
    std::hint::black_box(ours.0.iter().zip(&theirs.0).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    #[test]
    fn who_is_late_to_say_its_name_is_hung_up_on_only_when_others_want_its_place() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut mesh = Mesh::new(Rank(0), 1, Token([0; 16]), Some(listener), Phase::Joined(vec![addr])).unwrap();
        let mut connections = Vec::new();
        let mut connect = |mesh: &mut Mesh, count: usize| {
            for have in 0..count {
                connections.push(TcpStream::connect(addr).unwrap());
                // One at a time, as the listener's backlog is for one rank.
                let before = mesh.pending.len();
                let end = Deadline::after(Duration::from_secs(20));
                while mesh.pending.len() == before {
                    assert!(!end.is_over(), "{have} of {count} connections were accepted");
                    mesh.pump(TICK).unwrap();
                }
            }
        };
        connect(&mut mesh, 3);
        mesh.pending.iter_mut().for_each(|pending| pending.age(HELLO_PATIENCE));
        mesh.pump(Duration::ZERO).unwrap();
        assert_eq!(mesh.pending.len(), 3);
        connect(&mut mesh, MAX_PENDING - 3);
        // The last took the last place, so the three that are late have lost theirs.
        assert_eq!(mesh.pending.len(), MAX_PENDING - 3);
    }
}
