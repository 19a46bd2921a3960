//! One connection: bytes to be sent, bytes that arrived. Nothing here blocks.
//! Must not know what the frames mean, but for the hello that opens a connection.

use super::silence;
use super::wire::{Arriving, Decoded, Frame, Hello, MAX_FRAME_BYTES, MAX_HELLO_BYTES};
use crate::Rank;
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
#[cfg(test)]
use std::time::Duration;
use std::time::Instant;

/// The most bytes that are read from one connection before the others have their turn.
const READ_BYTES: usize = 1 << 20;

/// A connection with a rank of the job.
#[derive(Debug)]
pub(super) struct Link {
    peer: Rank,
    stream: TcpStream,
    /// The system has not said yet whether it could connect.
    connecting: bool,
    /// Where it was dialed by this side.
    dialed: Option<SocketAddr>,
    /// Dialed by this side, and nothing has come from the other.
    silent: bool,
    /// Nothing is sent here; it is for noticing that the peer has gone.
    watches: bool,
    /// The peer may be lost without its machine being told.
    far: bool,
    /// How many bytes were ever to be sent.
    carried: usize,
    /// A watch over this peer was asked for.
    watched: bool,
    /// Reading failed because the peer is silent.
    lost: bool,
    /// Writing has failed; reading may still give what the peer sent before.
    deaf: bool,
    out: VecDeque<Vec<u8>>,
    /// How much of the first of `out` is sent.
    sent: usize,
    arriving: Arriving,
}

impl Link {
    fn new(peer: Rank, stream: TcpStream, dialed: Option<SocketAddr>, far: bool) -> Self {
        Self {
            peer,
            stream,
            connecting: dialed.is_some(),
            dialed,
            silent: dialed.is_some(),
            watches: false,
            far,
            carried: 0,
            watched: false,
            lost: false,
            deaf: false,
            out: VecDeque::new(),
            sent: 0,
            arriving: Arriving::default(),
        }
    }

    /// Begins to connect.
    pub(super) fn dial(peer: Rank, addr: SocketAddr) -> io::Result<Self> {
        Ok(Self::new(peer, begin_to_connect(addr)?, Some(addr), silence::is_far(addr.ip())))
    }

    /// The same for a connection on which nothing will be sent.
    pub(super) fn dial_to_watch(peer: Rank, addr: SocketAddr) -> io::Result<Self> {
        Ok(Self { watches: true, ..Self::dial(peer, addr)? })
    }

    /// Tries once more to connect, with all that is to be sent. False if that was done before.
    pub(super) fn redial(&mut self) -> io::Result<bool> {
        let Some(addr) = self.dialed.take() else { return Ok(false) };
        self.stream = begin_to_connect(addr)?;
        Ok(true)
    }

    /// A connection that stands.
    pub(super) fn accepted(peer: Rank, stream: TcpStream) -> io::Result<Self> {
        let far = prepare(&stream)?;
        Ok(Self::new(peer, stream, None, far))
    }

    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// What poll shall look for.
    pub(super) fn interest(&self) -> PollFlags {
        match () {
            () if self.connecting => PollFlags::OUT,
            () if self.is_drained() => PollFlags::IN,
            () => PollFlags::IN | PollFlags::OUT,
        }
    }

    pub(super) fn watches(&self) -> bool {
        self.watches
    }

    /// Whether reading has failed because the peer is silent.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether the system gives the peer up when it is silent, whatever was sent here.
    pub(super) fn is_light(&self) -> bool {
        self.carried <= silence::LIGHT_BYTES
    }

    /// Whether it takes another connection to notice that the peer has gone; says so once.
    pub(super) fn asks_for_watch(&mut self) -> bool {
        let asks = self.far && !self.is_light() && !self.watched;
        self.watched |= asks;
        asks
    }

    pub(super) fn queue(&mut self, bytes: Vec<u8>) {
        if self.deaf {
            return;
        }
        let was_light = self.is_light();
        self.carried = self.carried.saturating_add(bytes.len());
        if was_light && !self.connecting {
            self.lift_if_heavy();
        }
        self.out.push_back(bytes);
    }

    /// The peer may take its time to read what is sent here. Not before the connection stands: connecting has its limit.
    fn lift_if_heavy(&self) {
        if self.far && !self.is_light() {
            // A socket that refuses has failed in other ways, which show.
            let _ = silence::lift(&self.stream);
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.out.is_empty()
    }

    pub(super) fn can_write(&self) -> bool {
        !self.connecting && !self.out.is_empty()
    }

    /// After poll: whether the connection stands, if that was in question.
    pub(super) fn connected(&mut self) -> io::Result<()> {
        if self.connecting {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            match self.stream.peer_addr() {
                Ok(_) => {
                    self.connecting = false;
                    self.lift_if_heavy();
                }
                Err(error) if error.kind() == ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what the socket takes. A failure is not told: the peer has closed, which reading shows after all it sent before.
    pub(super) fn write(&mut self) {
        while let Some(bytes) = self.out.front().filter(|_| !self.connecting) {
            match self.stream.write(&bytes[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    if self.sent == bytes.len() {
                        self.out.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.deaf = true;
                    self.out.clear();
                    self.sent = 0;
                    return;
                }
            }
        }
    }

    /// Reads what is there; false once the connection is closed.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> bool {
        if self.connecting {
            return true;
        }
        let mut total = 0;
        while total < READ_BYTES {
            match self.stream.read(scratch) {
                Ok(0) => return false,
                Ok(count) => {
                    self.silent = false;
                    self.arriving.push(&scratch[..count]);
                    total += count;
                    if count < scratch.len() {
                        return true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.lost = silence::is_silence(&error);
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn next_frame(&mut self) -> Decoded<Option<Frame>> {
        self.arriving.next(MAX_FRAME_BYTES)
    }

    /// Ends the sending side, and reads away what came, so that closing does not reset the connection.
    pub(super) fn finish(&mut self, scratch: &mut [u8]) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut total = 0;
        while let Ok(count @ 1..) = self.stream.read(scratch) {
            total += count;
            if total > READ_BYTES {
                break;
            }
        }
    }
}

/// A socket under way to an address.
fn begin_to_connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    silence::limit(&socket, addr.ip())?;
    match connect(&socket, &addr) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Makes a connection that stands one of this job's; says whether its peer is far.
fn prepare(stream: &TcpStream) -> io::Result<bool> {
    let peer = stream.peer_addr()?.ip();
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    silence::limit(stream, peer)?;
    Ok(silence::is_far(peer))
}

/// An accepted connection that has not said yet who it is. It gets room for a hello, and no more.
#[derive(Debug)]
pub(super) struct Pending {
    stream: TcpStream,
    addr: SocketAddr,
    since: Instant,
    far: bool,
    arriving: Arriving,
}

impl Pending {
    pub(super) fn new(stream: TcpStream, addr: SocketAddr) -> io::Result<Self> {
        let far = prepare(&stream)?;
        Ok(Self { stream, addr, since: Instant::now(), far, arriving: Arriving::default() })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// As if it had come so much earlier.
    #[cfg(test)]
    pub(super) fn age(&mut self, by: Duration) {
        self.since -= by;
    }

    /// Reads the hello, and not a byte beyond it: those are for the link.
    pub(super) fn hear(&mut self) -> Decoded<Option<Hello>> {
        let mut bytes = [0; MAX_HELLO_BYTES];
        loop {
            let missing = self.arriving.missing(MAX_HELLO_BYTES)?;
            match self.stream.read(&mut bytes[..missing]) {
                Ok(0) => return Err("closed before it said who it is".into()),
                Ok(count) => self.arriving.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            match self.arriving.next(MAX_HELLO_BYTES)? {
                None => {}
                Some(Frame::Hello(hello)) => return Ok(Some(hello)),
                Some(_) => return Err("its first frame is no hello".into()),
            }
        }
    }

    /// Says no. A few bytes always fit into a fresh socket's buffer.
    pub(super) fn refuse(mut self, answer: &[u8]) {
        let _ = self.stream.write(answer);
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub(super) fn into_link(self, peer: Rank) -> Link {
        Link::new(peer, self.stream, None, self.far)
    }
}
