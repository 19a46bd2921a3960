//! The frames on a connection: a length of four bytes (little endian, as all numbers), one byte of kind, the fields.
//! Owns encoding, decoding and every limit on what may arrive. Knows no sockets, and not what the frames are for.

use crate::bootstrap::Departure;
use crate::bootstrap::failure::{Call, Failure, Kind, Why};
use crate::config::Token;
use crate::{Purpose, Rank};
use std::net::{IpAddr, SocketAddr};

/// The longest frame, without its length. A longer one is refused by the sender, and ends the connection at the receiver.
pub(super) const MAX_FRAME_BYTES: usize = 1 << 30;
/// The longest frame that a connection may send before it has shown the token.
pub(super) const MAX_HELLO_BYTES: usize = 64;
/// What a frame adds to its payload, at most.
pub(super) const MAX_HEADER_BYTES: usize = 32;
/// Longer texts are cut.
const MAX_TEXT_BYTES: usize = 1 << 16;
const LENGTH_BYTES: usize = 4;
/// Opens a hello, so that another protocol, or another version of this one, is told from a wrong token.
const MAGIC: [u8; 4] = *b"rma1";

/// What travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The first frame of whoever dialed.
    Hello(Hello),
    /// Rank 0 to a rank that joined, once all have: where every rank listens.
    Table(Vec<SocketAddr>),
    /// Rank 0 to a rank that cannot join, and why.
    Refused(String),
    /// A round of dissemination in a call.
    Round { seq: u64, call: Call, round: u8, payload: Vec<u8> },
    /// A message of an exchange.
    Message { seq: u64, call: Call, payload: Vec<u8> },
    /// The message of an exchange has arrived.
    Ack { seq: u64, call: Call },
    /// A rank has gone; from that rank itself it is the goodbye. `completed` is how many calls it had ended well, if it said so.
    Gone { rank: Rank, how: Departure, completed: Option<u64> },
    /// The group has failed.
    Failed(Failure),
    /// To rank 0, in a call that takes long: this rank is in it, and perhaps wants to know who is not.
    Present { seq: u64, call: Call, ask: bool },
    /// The answer: the first few ranks that are not in the call, and how many more.
    Missing { seq: u64, ranks: Vec<Rank>, more: u32 },
}

/// Who dials, and the proof that it belongs to the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) token: Token,
    pub(super) rank: Rank,
    pub(super) size: u32,
    /// Where the rank listens, if it joins; `None` from a peer that has joined before.
    pub(super) joins: Option<SocketAddr>,
}

impl Frame {
    /// The call that the frame is part of, and its number.
    pub(super) fn call(&self) -> Option<(u64, Call)> {
        match *self {
            Self::Round { seq, call, .. }
            | Self::Present { seq, call, .. }
            | Self::Message { seq, call, .. }
            | Self::Ack { seq, call } => Some((seq, call)),
            _ => None,
        }
    }

    /// The frame with its length, ready to be sent.
    pub(super) fn encode(&self) -> Vec<u8> {
        let payload_bytes = match self {
            Self::Round { payload, .. } | Self::Message { payload, .. } => payload.len(),
            _ => MAX_HELLO_BYTES,
        };
        let mut w = Vec::with_capacity(LENGTH_BYTES + MAX_HEADER_BYTES + payload_bytes);
        w.extend([0; LENGTH_BYTES]);
        match self {
            Self::Hello(Hello { token, rank, size, joins }) => {
                w.push(1);
                w.extend(MAGIC);
                w.extend(token.0);
                put_u32(&mut w, rank.0);
                put_u32(&mut w, *size);
                match joins {
                    None => w.push(0),
                    Some(addr) => put_addr(&mut w, addr),
                }
            }
            Self::Table(addrs) => {
                w.push(2);
                put_u32(&mut w, addrs.len() as u32);
                addrs.iter().for_each(|addr| put_addr(&mut w, addr));
            }
            Self::Refused(reason) => {
                w.push(3);
                put_text(&mut w, reason);
            }
            Self::Round { seq, call, round, payload } => {
                w.push(4);
                put_u64(&mut w, *seq);
                w.extend([call_code(*call), *round]);
                w.extend(payload);
            }
            Self::Message { seq, call, payload } => {
                w.push(5);
                put_u64(&mut w, *seq);
                w.push(call_code(*call));
                w.extend(payload);
            }
            Self::Ack { seq, call } => {
                w.push(6);
                put_u64(&mut w, *seq);
                w.push(call_code(*call));
            }
            Self::Gone { rank, how, completed } => {
                w.push(7);
                put_u32(&mut w, rank.0);
                w.push(how_code(*how));
                w.push(completed.is_some().into());
                completed.iter().for_each(|completed| put_u64(&mut w, *completed));
            }
            Self::Failed(failure) => {
                w.push(8);
                put_failure(&mut w, failure);
            }
            Self::Present { seq, call, ask } => {
                w.push(9);
                put_u64(&mut w, *seq);
                w.extend([call_code(*call), u8::from(*ask)]);
            }
            Self::Missing { seq, ranks, more } => {
                w.push(10);
                put_u64(&mut w, *seq);
                put_u32(&mut w, *more);
                ranks.iter().for_each(|rank| put_u32(&mut w, rank.0));
            }
        }
        let len = (w.len() - LENGTH_BYTES) as u32;
        w[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
        w
    }

    /// The frame in `body`, which is all of it but its length.
    pub(super) fn decode(body: &[u8]) -> Decoded<Self> {
        let mut r = Reader(body);
        let frame = match r.u8()? {
            1 => {
                if r.take(MAGIC.len())? != MAGIC {
                    return Err("not a hello of this protocol and version".into());
                }
                let mut token = Token([0; 16]);
                token.0.copy_from_slice(r.take(16)?);
                Self::Hello(Hello { token, rank: Rank(r.u32()?), size: r.u32()?, joins: r.addr()? })
            }
            2 => {
                let count = r.u32()?;
                // Grows with what is there: the count is only believed as long as there are bytes for it.
                let mut addrs = Vec::new();
                for _ in 0..count {
                    addrs.push(r.addr()?.ok_or("an address without a family")?);
                }
                Self::Table(addrs)
            }
            3 => Self::Refused(r.text()?),
            4 => Self::Round { seq: r.u64()?, call: r.call()?, round: r.u8()?, payload: r.rest().to_vec() },
            5 => Self::Message { seq: r.u64()?, call: r.call()?, payload: r.rest().to_vec() },
            6 => Self::Ack { seq: r.u64()?, call: r.call()? },
            7 => Self::Gone { rank: Rank(r.u32()?), how: r.how()?, completed: if r.flag()? { Some(r.u64()?) } else { None } },
            8 => Self::Failed(r.failure()?),
            9 => Self::Present { seq: r.u64()?, call: r.call()?, ask: r.flag()? },
            10 => {
                let (seq, more) = (r.u64()?, r.u32()?);
                let (ranks, odd) = r.rest().as_chunks::<4>();
                if !odd.is_empty() {
                    return Err(format!("a rank in {} bytes", odd.len()));
                }
                Self::Missing { seq, more, ranks: ranks.iter().map(|rank| Rank(u32::from_le_bytes(*rank))).collect() }
            }
            kind => return Err(format!("unknown kind {kind}")),
        };
        match r.0.len() {
            0 => Ok(frame),
            left => Err(format!("{left} bytes after its end")),
        }
    }
}

/// A value, or what is wrong with its bytes.
pub(super) type Decoded<T> = Result<T, String>;

/// The bytes that arrived on a connection, until they make up frames. Grows with what arrives, not with what is announced.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: Vec<u8>,
    at: usize,
}

impl Arriving {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// How many bytes are still missing until the next frame that may have at most `limit` bytes is complete.
    pub(super) fn missing(&self, limit: usize) -> Decoded<usize> {
        let bytes = &self.bytes[self.at..];
        let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(LENGTH_BYTES - bytes.len()) };
        let len = u32::from_le_bytes(*length) as usize;
        if len == 0 || len > limit {
            return Err(format!("a frame of {len} bytes, allowed are 1 to {limit}"));
        }
        Ok((LENGTH_BYTES + len).saturating_sub(bytes.len()))
    }

    /// The next complete frame.
    pub(super) fn next(&mut self, limit: usize) -> Decoded<Option<Frame>> {
        let held = self.bytes.len() - self.at;
        if self.missing(limit)? > 0 || held <= LENGTH_BYTES {
            self.compact();
            return Ok(None);
        }
        let body = &self.bytes[self.at + LENGTH_BYTES..];
        let len = self.bytes[self.at..].first_chunk::<LENGTH_BYTES>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let frame = Frame::decode(&body[..len])?;
        self.at += LENGTH_BYTES + len;
        Ok(Some(frame))
    }

    fn compact(&mut self) {
        const KEPT_BYTES: usize = 1 << 20;
        self.bytes.drain(..self.at);
        self.at = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES);
        }
    }
}

/// Reads fields off the front of bytes, never beyond their end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| format!("a field of {len} bytes where {} are left", self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Decoded<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Decoded<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Text up to the end.
    pub(super) fn text(&mut self) -> Decoded<String> {
        let text = self.rest();
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("a text of {} bytes, allowed are {MAX_TEXT_BYTES}", text.len()));
        }
        std::str::from_utf8(text).map(Into::into).map_err(|_| "a text that is not UTF-8".into())
    }

    fn flag(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            flag => Err(format!("a flag of value {flag}")),
        }
    }

    fn addr(&mut self) -> Decoded<Option<SocketAddr>> {
        let ip = match self.u8()? {
            0 => return Ok(None),
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            family => return Err(format!("an address of family {family}")),
        };
        Ok(Some(SocketAddr::new(ip, self.u16()?)))
    }

    fn call(&mut self) -> Decoded<Call> {
        let code = self.u8()?;
        let (kind, purpose) = (KINDS.get(usize::from(code & 15)), PURPOSES.get(usize::from(code >> 4)));
        kind.zip(purpose).map(|(kind, purpose)| kind.of(*purpose)).ok_or_else(|| format!("unknown call {code}"))
    }

    fn how(&mut self) -> Decoded<Departure> {
        Ok(if self.flag()? { Departure::Left } else { Departure::Died })
    }

    fn failure(&mut self) -> Decoded<Failure> {
        let (seq, rank) = (self.u64()?, Rank(self.u32()?));
        let why = match self.u8()? {
            0 => Why::Lost { rank: Rank(self.u32()?), how: self.how()? },
            1 => {
                let (one, other) = ((Rank(self.u32()?), self.call()?), (Rank(self.u32()?), self.call()?));
                if one.1 == other.1 {
                    return Err("a mismatch of equal calls".into());
                }
                Why::Mismatch { one, other }
            }
            2 => Why::Malformed { from: Rank(self.u32()?), reason: self.text()? },
            3 => Why::Other { call: self.call()?, reason: self.text()? },
            why => return Err(format!("unknown failure {why}")),
        };
        Ok(Failure { seq, rank, why })
    }
}

const KINDS: [Kind; 4] = [Kind::Allgather, Kind::Exchange, Kind::Agree, Kind::Barrier];
const PURPOSES: [Purpose; 6] =
    [Purpose::Program, Purpose::SetUp, Purpose::WindowAlloc, Purpose::Commit, Purpose::Free, Purpose::Barrier];

/// The kind in the low four bits, the purpose above.
fn call_code(call: Call) -> u8 {
    let kind = match call.kind {
        Kind::Allgather => 0,
        Kind::Exchange => 1,
        Kind::Agree => 2,
        Kind::Barrier => 3,
    };
    let purpose = match call.purpose {
        Purpose::Program => 0,
        Purpose::SetUp => 1,
        Purpose::WindowAlloc => 2,
        Purpose::Commit => 3,
        Purpose::Free => 4,
        Purpose::Barrier => 5,
    };
    purpose << 4 | kind
}

fn how_code(how: Departure) -> u8 {
    match how {
        Departure::Died => 0,
        Departure::Left => 1,
    }
}

pub(super) fn put_u32(w: &mut Vec<u8>, value: u32) {
    w.extend(value.to_le_bytes());
}

fn put_u64(w: &mut Vec<u8>, value: u64) {
    w.extend(value.to_le_bytes());
}

fn put_addr(w: &mut Vec<u8>, addr: &SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => {
            w.push(4);
            w.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            w.push(6);
            w.extend(ip.octets());
        }
    }
    w.extend(addr.port().to_le_bytes());
}

/// Puts text that ends the frame, cut to what the other side takes.
pub(super) fn put_text(w: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(MAX_TEXT_BYTES)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    w.extend(&text.as_bytes()[..end]);
}

fn put_failure(w: &mut Vec<u8>, failure: &Failure) {
    put_u64(w, failure.seq);
    put_u32(w, failure.rank.0);
    match &failure.why {
        Why::Lost { rank, how } => {
            w.push(0);
            put_u32(w, rank.0);
            w.push(how_code(*how));
        }
        Why::Mismatch { one, other } => {
            w.push(1);
            for (rank, call) in [one, other] {
                put_u32(w, rank.0);
                w.push(call_code(*call));
            }
        }
        Why::Malformed { from, reason } => {
            w.push(2);
            put_u32(w, from.0);
            put_text(w, reason);
        }
        Why::Other { call, reason } => {
            w.push(3);
            w.push(call_code(*call));
            put_text(w, reason);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bootstrap::contract::Seed;

    fn text(rng: &mut fastrand::Rng) -> String {
        (0..rng.usize(..30)).map(|_| rng.char(..)).collect()
    }

    fn call(rng: &mut fastrand::Rng) -> Call {
        KINDS[rng.usize(..KINDS.len())].of(PURPOSES[rng.usize(..PURPOSES.len())])
    }

    fn how(rng: &mut fastrand::Rng) -> Departure {
        if rng.bool() { Departure::Died } else { Departure::Left }
    }

    fn addr(rng: &mut fastrand::Rng) -> SocketAddr {
        let ip: IpAddr = if rng.bool() { rng.u32(..).to_le_bytes().into() } else { rng.u128(..).to_le_bytes().into() };
        (ip, rng.u16(..)).into()
    }

    /// Any frame; its numbers are small, so that some of them fit a job.
    pub(in super::super) fn any_frame(rng: &mut fastrand::Rng) -> Frame {
        let (seq, rank) = (rng.u64(..3), Rank(rng.u32(..5)));
        let payload: Vec<_> = (0..rng.usize(..40)).map(|_| if rng.bool() { 0 } else { rng.u8(..) }).collect();
        let why = match rng.u8(..4) {
            0 => Why::Lost { rank, how: how(rng) },
            1 => {
                let call = |kind: Kind| kind.of(Purpose::Program);
                Why::Mismatch { one: (rank, call(Kind::Agree)), other: (Rank(rng.u32(..5)), call(Kind::Barrier)) }
            }
            2 => Why::Malformed { from: rank, reason: text(rng) },
            _ => Why::Other { call: call(rng), reason: text(rng) },
        };
        match rng.u8(..10) {
            0 => Frame::Hello(Hello {
                token: Token(rng.u128(..).to_le_bytes()),
                rank,
                size: rng.u32(..),
                joins: rng.bool().then(|| addr(rng)),
            }),
            1 => Frame::Table((0..rng.usize(..6)).map(|_| addr(rng)).collect()),
            2 => Frame::Refused(text(rng)),
            3 => Frame::Round { seq, call: call(rng), round: rng.u8(..4), payload },
            4 => Frame::Message { seq, call: call(rng), payload },
            5 => Frame::Ack { seq, call: call(rng) },
            6 => Frame::Gone { rank, how: how(rng), completed: rng.bool().then_some(seq) },
            7 => Frame::Failed(Failure { seq, rank, why }),
            8 => Frame::Present { seq, call: call(rng), ask: rng.bool() },
            _ => Frame::Missing { seq, ranks: (0..rng.u32(..9)).map(Rank).collect(), more: rng.u32(..) },
        }
    }

    /// The bytes that a frame holds on the heap.
    fn weight(frame: &Frame) -> usize {
        match frame {
            Frame::Table(addrs) => addrs.capacity() * size_of::<SocketAddr>(),
            Frame::Refused(text) => text.capacity(),
            Frame::Round { payload, .. } | Frame::Message { payload, .. } => payload.capacity(),
            Frame::Failed(Failure { why: Why::Malformed { reason, .. } | Why::Other { reason, .. }, .. }) => reason.capacity(),
            Frame::Missing { ranks, .. } => ranks.capacity() * size_of::<Rank>(),
            _ => 0,
        }
    }

    /// Pushes `bytes` in pieces and gives the frames up to the first refusal.
    fn arrive(bytes: &[u8], rng: &mut fastrand::Rng) -> (Vec<Frame>, Decoded<()>) {
        let (mut arriving, mut frames, mut rest) = (Arriving::default(), Vec::new(), bytes);
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(rng.usize(1..=rest.len()));
            rest = later;
            arriving.push(piece);
            loop {
                match arriving.next(MAX_FRAME_BYTES) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(reason) => return (frames, Err(reason)),
                }
            }
            assert!(arriving.bytes.capacity() <= 2 * bytes.len() + 64, "{} for {}", arriving.bytes.capacity(), bytes.len());
        }
        (frames, Ok(()))
    }

    #[test]
    fn every_frame_arrives_as_it_was_sent_however_it_is_cut() {
        let seed = Seed::new();
        let mut rng = seed.rng(0);
        for _ in 0..20_000 {
            let sent: Vec<_> = (0..rng.usize(..5)).map(|_| any_frame(&mut rng)).collect();
            let bytes: Vec<_> = sent.iter().flat_map(Frame::encode).collect();
            assert_eq!(arrive(&bytes, &mut rng), (sent, Ok(())));
        }
    }

    #[test]
    fn mutated_and_random_frames_are_refused_or_read_but_cost_no_more_than_they_are_long() {
        let seed = Seed::new();
        let mut rng = seed.rng(0);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..300_000 {
            let mut bytes = any_frame(&mut rng).encode();
            match rng.u8(..4) {
                0 => rng.fill(&mut bytes[4..]),
                1 => rng.fill(&mut bytes),
                2 => bytes.truncate(rng.usize(..bytes.len())),
                _ => bytes.extend(any_frame(&mut rng).encode()),
            }
            for _ in 0..rng.usize(..4) {
                if !bytes.is_empty() {
                    let at = rng.usize(..bytes.len());
                    bytes[at] = *rng.choice(&[0, 1, 0x7f, 0xff, rng.clone().u8(..)]).unwrap();
                }
            }
            let (frames, end) = arrive(&bytes, &mut rng);
            let held: usize = frames.iter().map(weight).sum();
            assert!(held <= 16 * bytes.len(), "{held} bytes from {}: {bytes:?}", bytes.len());
            read += frames.len();
            refused += usize::from(end.is_err());
        }
        assert!(read > 10_000 && refused > 10_000, "{read} read, {refused} refused");
    }

    #[test]
    fn an_announced_length_is_refused_before_its_bytes_come() {
        for (len, limit) in [(0, 64), (65, 64), (u32::MAX, MAX_FRAME_BYTES), (MAX_FRAME_BYTES as u32 + 1, MAX_FRAME_BYTES)] {
            let mut arriving = Arriving::default();
            arriving.push(&len.to_le_bytes());
            let reason = arriving.next(limit).unwrap_err();
            assert_eq!(reason, format!("a frame of {len} bytes, allowed are 1 to {limit}"));
        }
        let mut arriving = Arriving::default();
        arriving.push(&(MAX_FRAME_BYTES as u32).to_le_bytes());
        assert_eq!(arriving.next(MAX_FRAME_BYTES), Ok(None));
        assert!(arriving.bytes.capacity() < 100);
    }

    #[test]
    fn the_longest_hello_fits_its_limit_and_long_texts_are_cut_between_characters() {
        let joins = Some("[2001:db8::1]:65535".parse().unwrap());
        let hello = Frame::Hello(Hello { token: Token([255; 16]), rank: Rank(u32::MAX), size: u32::MAX, joins });
        assert!(hello.encode().len() <= LENGTH_BYTES + MAX_HELLO_BYTES);
        let Frame::Refused(text) = Frame::decode(&Frame::Refused("\u{20ac}".repeat(MAX_TEXT_BYTES)).encode()[4..]).unwrap() else {
            panic!()
        };
        assert_eq!(text, "\u{20ac}".repeat(MAX_TEXT_BYTES / 3));
    }
}
