//! Handing shared memory from process to process: descriptors over a datagram socket in the abstract namespace.
//! Owns that socket and the checks on what arrives; nothing of it has a name in the file system.
//!
//! Who does not know the job's token is not listened to. A message that belongs to another commit is dropped, and the descriptor
//! in it closed.

use super::region::Region;
use super::space::RegionId;
use crate::config::Token;
use crate::{Bootstrap, Deadline, Error, QueueId, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Token, sender, queue, region and length: what goes along with a descriptor.
const HEADER_BYTES: usize = 16 + 4 + 4 + 4 + 8;

/// How often peers are looked at while nothing comes.
const LOOK: Duration = Duration::from_millis(20);

/// How long a rank that has failed tries to tell its partners, all of them together.
const GIVEN_UP_IN: Duration = Duration::from_secs(1);

/// In place of a region: the sender has given up.
const NOTHING: RegionId = RegionId(u32::MAX);

/// How many messages of strangers are dropped before the deadline is looked at again.
const MOST_FOREIGN: usize = 64;

#[derive(Debug)]
pub(super) struct Handover {
    rank: Rank,
    token: Token,
    socket: OwnedFd,
    /// The socket of every rank.
    addresses: Vec<SocketAddrUnix>,
}

#[derive(Debug, PartialEq, Eq)]
struct Header {
    from: Rank,
    queue: QueueId,
    region: RegionId,
    len_bytes: u64,
}

impl Handover {
    /// Collective: opens this rank's socket and learns those of the others.
    pub(super) fn open(boot: &dyn Bootstrap, token: Token, deadline: Deadline) -> Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
                .map_err(|cause| Error::os("opening a local socket to hand memory over", cause))?;
        let name = format!("rma-{}", Token::random()?.to_hex());
        let bound = address_of(name.as_bytes()).and_then(|address| rustix::net::bind(&socket, &address));
        bound.map_err(|cause| Error::os("naming a local socket to hand memory over", cause))?;
        let names = boot.allgather(name.as_bytes(), deadline)?;
        let addresses = (0..).map(Rank).zip(&names).map(|(rank, name)| {
            address_of(name).map_err(|_| Error::Malformed {
                what: "socket name",
                from: rank.to_string(),
                reason: format!("{} bytes are too many for one", name.len()),
            })
        });
        Ok(Self { rank: boot.rank(), token, socket, addresses: addresses.collect::<Result<_>>()? })
    }

    /// Sends each region of `outgoing` to its rank and receives all of `incoming`, in any order, without filling up.
    pub(super) fn exchange(
        &self,
        queue: QueueId,
        outgoing: &[(Rank, RegionId, Arc<Region>)],
        incoming: &[(Rank, RegionId)],
        boot: &dyn Bootstrap,
        deadline: Deadline,
    ) -> Result<Vec<(Rank, RegionId, Region)>> {
        let exchanged = self.try_exchange(queue, outgoing, incoming, boot, deadline);
        if exchanged.is_err() {
            let mut partners: Vec<_> = outgoing.iter().map(|(to, ..)| *to).chain(incoming.iter().map(|(from, _)| *from)).collect();
            partners.sort_unstable();
            partners.dedup();
            let patience = Deadline::after(GIVEN_UP_IN.min(deadline.left(GIVEN_UP_IN)));
            partners.into_iter().for_each(|partner| self.give_up(queue, partner, patience));
        }
        exchanged
    }

    fn try_exchange(
        &self,
        queue: QueueId,
        outgoing: &[(Rank, RegionId, Arc<Region>)],
        incoming: &[(Rank, RegionId)],
        boot: &dyn Bootstrap,
        deadline: Deadline,
    ) -> Result<Vec<(Rank, RegionId, Region)>> {
        let mut received: Vec<(Rank, RegionId, Region)> = Vec::with_capacity(incoming.len());
        let mut to_send = outgoing.iter().peekable();
        let mut expected = incoming.to_vec();
        while to_send.peek().is_some() || !expected.is_empty() {
            let mut moved = false;
            while let Some((to, id, region)) = to_send.peek() {
                if !self.send(queue, *to, *id, region)? {
                    break;
                }
                to_send.next();
                moved = true;
            }
            while let Some((header, descriptor)) = self.receive()? {
                moved = true;
                let Some(descriptor) = descriptor else {
                    if header.queue == queue {
                        let reason = "it could not hand memory over, and says why itself".into();
                        return Err(Error::CollectiveFailed { call: "commit", rank: header.from, reason });
                    }
                    continue;
                };
                let key = (header.from, header.region);
                if let Some(at) = expected.iter().position(|&wanted| wanted == key && header.queue == queue) {
                    let len_bytes = usize::try_from(header.len_bytes).unwrap_or(usize::MAX);
                    let region = Region::received(&descriptor, len_bytes)?;
                    received.push((key.0, key.1, region));
                    expected.swap_remove(at);
                }
            }
            if !moved {
                self.check(&expected, to_send.peek().map(|(to, ..)| *to), boot, deadline)?;
                // A full socket of the receiver cannot be polled for, so sending is simply tried again soon.
                let pause = if to_send.peek().is_some() { Duration::from_millis(1) } else { LOOK };
                self.pause(deadline.left(pause))?;
            }
        }
        Ok(received)
    }

    /// Nothing moves: gives up when somebody who is needed has gone, or the time is over.
    fn check(&self, expected: &[(Rank, RegionId)], blocked: Option<Rank>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<()> {
        let needed = |rank: &Rank| expected.iter().any(|(from, _)| from == rank) || blocked == Some(*rank);
        if let Some((rank, how)) = boot.departed().into_iter().find(|(rank, _)| needed(rank)) {
            return Err(Error::PeerLost { rank, how, waiting: format!("{} exchanged memory with it", self.rank) });
        }
        if deadline.is_over() {
            let from = expected.iter().map(|(from, _)| *from).chain(blocked).next().unwrap_or(self.rank);
            return Err(Error::SetupTimeout {
                call: "handing over memory",
                patience: deadline.patience(),
                missing: format!("{from} does not take part"),
            });
        }
        Ok(())
    }

    /// Tells a partner that this rank's part has failed. Its socket may be full, of what this rank sent before: it makes room as long
    /// as it takes part, and if it does not, it needs no telling.
    fn give_up(&self, queue: QueueId, to: Rank, patience: Deadline) {
        let Some(address) = self.addresses.get(to.index()) else { return };
        let header = Header { from: self.rank, queue, region: NOTHING, len_bytes: 0 }.encode(self.token);
        loop {
            let mut control = SendAncillaryBuffer::default();
            let sent =
                rustix::net::sendmsg_addr(&self.socket, address, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL);
            if !matches!(sent, Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS)) || patience.is_over() {
                return;
            }
            std::thread::park_timeout(patience.left(Duration::from_millis(1)));
        }
    }

    /// Whether the receiver had room.
    fn send(&self, queue: QueueId, to: Rank, id: RegionId, region: &Region) -> Result<bool> {
        let Some(descriptor) = region.descriptor() else { panic!("bug: a region of another rank was to be handed over") };
        let Some(address) = self.addresses.get(to.index()) else { panic!("bug: a region was to be handed to {to}") };
        let header = Header { from: self.rank, queue, region: id, len_bytes: region.len_bytes() as u64 }.encode(self.token);
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            panic!("bug: no room for one descriptor");
        }
        match rustix::net::sendmsg_addr(&self.socket, address, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            // Full, or as many descriptors under way as the system allows a user: room comes as the others receive.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
            // Its socket is gone: whether the rank is, too, the caller finds out.
            Err(Errno::CONNREFUSED) => Ok(false),
            Err(cause) => Err(Error::os(format!("handing memory to {to} (too many open files? raise `ulimit -n`)"), cause)),
        }
    }

    /// The next good message, if there is one among the next few. Without a descriptor it says that its sender has given up.
    fn receive(&self) -> Result<Option<(Header, Option<OwnedFd>)>> {
        for _ in 0..MOST_FOREIGN {
            let mut bytes = [0; HEADER_BYTES + 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let message = match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(message) => message,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(cause) => return Err(Error::os("receiving memory (too many open files? raise `ulimit -n`)", cause)),
            };
            // All descriptors are taken over, so that those of a bad message are closed.
            let mut descriptors: Vec<OwnedFd> = control
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                    _ => None,
                })
                .flatten()
                .collect();
            let Some(header) = Header::decode(&bytes[..message.bytes.min(bytes.len())], self.token) else {
                tracing::warn!(rank = self.rank.0, "dropped a message that is not from this job on the memory socket");
                continue;
            };
            let descriptor = descriptors.pop();
            if descriptor.is_none() && header.region != NOTHING {
                let reason = "its descriptor was lost; too many open files? raise `ulimit -n`".into();
                return Err(Error::Malformed { what: "shared memory", from: header.from.to_string(), reason });
            }
            return Ok(Some((header, descriptor)));
        }
        Ok(None)
    }

    fn pause(&self, time: Duration) -> Result<()> {
        let time = Timespec::try_from(time).ok();
        match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(cause) => Err(Error::os("waiting for memory of a peer", cause)),
        }
    }
}

impl Header {
    fn encode(&self, token: Token) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..16].copy_from_slice(&token.0);
        bytes[16..20].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.queue.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], token: Token) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.try_into().ok()?;
        // Compared as a whole, so that the time tells nothing about where they differ.
        let differs = bytes[..16].iter().zip(token.0).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 {
            return None;
        }
        let word = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte));
        let len_bytes = u64::from(word(28)) | u64::from(word(32)) << 32;
        Some(Self { from: Rank(word(16)), queue: QueueId(word(20)), region: RegionId(word(24)), len_bytes })
    }
}

fn address_of(name: &[u8]) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_way_and_a_foreign_one_is_refused() {
        let token = Token([7; 16]);
        let header = Header { from: Rank(3), queue: QueueId(9), region: RegionId(1 << 30), len_bytes: (1 << 40) + 5 };
        let bytes = header.encode(token);
        assert_eq!(Header::decode(&bytes, token), Some(header));
        assert_eq!(Header::decode(&bytes, Token([8; 16])), None);
        assert_eq!(Header::decode(&bytes[..35], token), None);
    }
}
