//! The same exchange by persistent sends and receives: a baseline to compare one-sided communication with, and nothing else.
//! A receive that is posted is the credit, and its end the arrival; there is a message for every put.
//!
//! Of the contract it leaves out what a comparison does not need: an epoch may be done at its origin before its target has granted
//! it, as MPI keeps small messages for later; a partner that closes is not named; and every put takes a tag for good.

use crate::ffi::{Bytes, Communicator, Memory, Outcome, Persistent, Refused, Turn};
use crate::plan;
use crate::{TWO_SIDED, malformed, meeting};
use rma::backend::{Backend, Caps, Chain, Committed, Lack, Missing, Progress, WindowMem, WindowSpec};
use rma::bootstrap::all_or_none;
use rma::layout::Blocks;
use rma::provider::Provider;
use rma::{Bootstrap, Config, Deadline, Epoch, Error, Hosts, Rail, Rank, Result};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt::Write;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// What is offered.
#[derive(Debug)]
pub(crate) struct Baseline;

impl Provider for Baseline {
    fn name(&self) -> &'static str {
        TWO_SIDED
    }

    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Rc<dyn Backend>> {
        let (communicator, turn) = meeting::communicator_of(&**boot, hosts, deadline)?;
        let mut caps = Caps::new(TWO_SIDED, config.rails.unwrap_or(1));
        caps.gathers_freely = false;
        let here = (0..boot.size()).map(Rank).filter(|&rank| hosts.is_here(rank)).collect();
        let shared = Rc::new(Shared {
            rank: boot.rank(),
            communicator,
            crowded: hosts.crowded(),
            ranks_here: here,
            windows: RefCell::default(),
            next_tag: Cell::new(FIRST_TAG),
            _turn: turn,
        });
        let waiting = Rc::downgrade(&shared);
        rma::bootstrap::while_waiting(move || {
            if let Some(shared) = waiting.upgrade() {
                shared.communicator.progress();
            }
        });
        Ok(Rc::new(TwoSided { shared, caps }))
    }
}

#[derive(Debug)]
struct TwoSided {
    shared: Rc<Shared>,
    caps: Caps,
}

#[derive(Debug)]
struct Shared {
    rank: Rank,
    communicator: &'static Communicator,
    crowded: bool,
    ranks_here: Vec<Rank>,
    /// By the number that is their key, the same on every rank.
    windows: RefCell<Vec<Weak<Part>>>,
    /// Tags are not used twice: what was sent to a queue that is gone must not reach another.
    next_tag: Cell<c_int>,
    _turn: Turn,
}

const FIRST_TAG: c_int = 1;
/// The largest tag that every MPI has.
const LAST_TAG: c_int = 32_767;

/// This rank's part of a window.
#[derive(Debug)]
struct Part {
    number: u32,
    memory: Memory,
    /// Last, as with it goes the right to use MPI.
    _shared: Rc<Shared>,
}

impl WindowMem for Part {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    fn key(&self) -> Vec<u8> {
        self.number.to_le_bytes().to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A message that its origin will send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Announced {
    tag: c_int,
    rail: Rail,
    window: Vec<u8>,
    blocks: Blocks,
}

impl Backend for TwoSided {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn admit(&self, spec: &WindowSpec<'_>) -> Result<()> {
        spec.check_memory(|rank| self.shared.ranks_here.contains(&rank))
    }

    fn register(&self, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
        let len_bytes = spec.bytes_by_rank.get(self.shared.rank.index()).copied().unwrap_or(0) as usize;
        let memory = Memory::zeroed(len_bytes).map_err(|refused| failed(format!("allocating {len_bytes} bytes"), refused))?;
        let mut windows = self.shared.windows.borrow_mut();
        let part = Rc::new(Part { number: windows.len() as u32, memory, _shared: self.shared.clone() });
        windows.push(Rc::downgrade(&part));
        Ok(part)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        let shared = &self.shared;
        let mut sends = Vec::new();
        let mut announced: BTreeMap<Rank, Vec<Announced>> = BTreeMap::new();
        let sending = chain.puts.iter().try_for_each(|put| {
            let tag = shared.take_tag()?;
            let message = Announced { tag, rail: put.rail, window: put.key.to_vec(), blocks: put.target_blocks };
            announced.entry(put.target).or_default().push(message);
            sends.push(shared.send(put.target, put.rail, tag, put.source.base().as_ptr(), &put.source_blocks)?);
            Ok(())
        });
        let cards = announced
            .iter()
            .map(|(&target, messages)| (target, postcard::to_stdvec(messages).expect("bug: messages cannot be encoded")));
        let cards = boot.exchange(cards.collect(), deadline);
        let receives = sending.and(cards).and_then(|cards| shared.receive_all(cards));
        let receives = all_or_none(boot, "commit", receives, deadline)?;
        Ok(Box::new(Exchange { chain, epoch: Epoch(0), sends, receives, shared: shared.clone() }))
    }
}

impl Shared {
    fn take_tag(&self) -> Result<c_int> {
        let tag = self.next_tag.get();
        if tag > LAST_TAG {
            return Err(Error::Limit {
                what: "the number of puts that were ever committed on this rank",
                asked: tag as u64,
                limit: LAST_TAG as u64,
                mend: "each takes a tag of MPI in this baseline; use RMA_BACKEND=mpi, which has no such limit".into(),
            });
        }
        self.next_tag.set(tag + 1);
        Ok(tag)
    }

    /// One message, in one piece: a baseline need not be able to do everything.
    #[expect(unsafe_code, reason = "declares messages from window memory")]
    fn send(&self, target: Rank, rail: Rail, tag: c_int, base: *const u8, blocks: &Blocks) -> Result<Message> {
        let (offset, bytes) = one_piece(blocks, target)?;
        // SAFETY: the chain keeps the memory, and `Committed::start` promises that it is left alone.
        let made =
            unsafe { Persistent::send(self.communicator, target.0 as c_int, tag, base.wrapping_add(offset as usize), bytes) };
        let request = made.map_err(|refused| failed(format!("declaring a message to {target}"), refused))?;
        Ok(Message { peer: target, rail, request, _memory: None })
    }

    #[expect(unsafe_code, reason = "declares messages into window memory")]
    fn receive_all(&self, cards: Vec<(Rank, Vec<u8>)>) -> Result<Vec<Message>> {
        let mut receives = Vec::new();
        for (origin, card) in cards {
            let messages: Vec<Announced> = postcard::from_bytes(&card).map_err(|cause| malformed("message", origin, cause))?;
            for Announced { tag, rail, window, blocks } in messages {
                let number = window.as_slice().try_into().map(u32::from_le_bytes).ok();
                let part = number.and_then(|number| self.windows.borrow().get(number as usize)?.upgrade());
                let part = part.ok_or_else(|| malformed("message", origin, "a window that is gone"))?;
                if blocks.span().end > part.len_bytes() as u128 {
                    return Err(malformed("message", origin, "more bytes than the window has"));
                }
                let (offset, bytes) = one_piece(&blocks, origin)?;
                let to = part.base().as_ptr().wrapping_add(offset as usize);
                // SAFETY: inside the window, checked above; the message keeps it, and is started with the credit for its bytes.
                let made = unsafe { Persistent::receive(self.communicator, origin.0 as c_int, tag, to, bytes) };
                let request = made.map_err(|refused| failed(format!("declaring a message from {origin}"), refused))?;
                receives.push(Message { peer: origin, rail, request, _memory: Some(part) });
            }
        }
        Ok(receives)
    }
}

/// The bytes of a put as one message.
fn one_piece(blocks: &Blocks, peer: Rank) -> Result<(u64, Bytes)> {
    let layout = match plan::pieces(blocks, blocks).as_slice() {
        [] => Ok((blocks.offset, plan::Layout::Contiguous { bytes: 0 })),
        [piece] => Ok((piece.source_offset, piece.source)),
        pieces => Err(Error::Limit {
            what: "the length in bytes of a put",
            asked: u64::try_from(blocks.total_bytes()).unwrap_or(u64::MAX),
            limit: 1 << 30,
            mend: format!("this baseline sends {peer} one message a put, not {}; use RMA_BACKEND=mpi", pieces.len()),
        }),
    };
    let (offset, layout) = layout?;
    Ok((offset, Bytes::new(layout).map_err(|refused| failed("describing the bytes of a message", refused))?))
}

#[derive(Debug)]
struct Message {
    peer: Rank,
    rail: Rail,
    request: Persistent,
    _memory: Option<Rc<Part>>,
}

#[derive(Debug)]
struct Exchange {
    chain: Rc<Chain>,
    epoch: Epoch,
    sends: Vec<Message>,
    receives: Vec<Message>,
    /// Last, as with it goes the right to use MPI.
    shared: Rc<Shared>,
}

const POLLS_PER_LOOK: u32 = 200;

impl Exchange {
    #[expect(unsafe_code, reason = "starts what the core has opened")]
    fn open(&mut self, epoch: Epoch) -> Result<()> {
        for Message { peer, request, .. } in &mut self.receives {
            // SAFETY: the core opens the received ranges of this epoch now, and leaves them alone until it is done.
            unsafe { request.start() }.map_err(|refused| failed(format!("receiving from {peer} in {epoch}"), refused))?;
        }
        Ok(())
    }

    fn test_all(messages: &mut [Message]) -> Outcome<bool> {
        let mut all = true;
        for message in messages {
            all &= message.request.test()?;
        }
        Ok(all)
    }
}

impl Committed for Exchange {
    #[expect(unsafe_code, reason = "takes over a contract")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        self.epoch = epoch;
        if !self.chain.credits {
            self.open(epoch)?;
        }
        for Message { peer, request, .. } in &mut self.sends {
            // SAFETY: the caller's promise.
            unsafe { request.start() }.map_err(|refused| failed(format!("sending to {peer} in {epoch}"), refused))?;
        }
        Ok(())
    }

    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        for _ in 0..rounds.min(POLLS_PER_LOOK) {
            let done = Self::test_all(&mut self.receives).and_then(|received| Ok(Self::test_all(&mut self.sends)? && received));
            if done.map_err(|refused| failed(format!("waiting for {}", self.epoch), refused))? {
                return Ok(Progress::Done);
            }
            if self.shared.crowded {
                rustix::thread::sched_yield();
            }
        }
        Ok(Progress::Pending)
    }

    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        self.open(epoch)
    }

    fn park(&mut self, _turn: u32, _limit: Duration) {
        rustix::thread::sched_yield();
    }

    fn missing(&self) -> Vec<Missing> {
        let active = |messages: &[Message], what: fn(Rank, Rail) -> Lack| {
            let lacks =
                messages.iter().filter(|message| message.request.is_active()).map(|message| what(message.peer, message.rail));
            lacks.map(|what| Missing { what, peer_epoch: None, closed: false }).collect::<Vec<_>>()
        };
        let mut missing = active(&self.sends, Lack::Completion);
        missing.extend(active(&self.receives, Lack::Arrival));
        missing.dedup();
        missing
    }

    fn close(&mut self) {
        // Receives that nothing came for are canceled; what was sent before goes nowhere else, as its tag is not used again.
        self.receives.clear();
    }

    fn unclosed(&self) -> Vec<Rank> {
        // Without a receive nobody writes here.
        Vec::new()
    }

    fn explain(&self) -> String {
        let mut text = String::new();
        for (messages, what) in [(&self.sends, "to"), (&self.receives, "from")] {
            for message in messages {
                let _ = writeln!(text, "{what} {} on {}: one persistent message", message.peer, message.rail);
            }
        }
        text + "two-sided, for comparison only"
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.close();
        if self.sends.iter().any(|message| message.request.is_active()) {
            // Nobody may ever receive them: their memory must stay.
            std::mem::forget(self.chain.clone());
        }
    }
}

/// An error of this baseline with what was tried.
fn failed(doing: impl Into<String>, refused: Refused) -> Error {
    Error::Backend { backend: TWO_SIDED, doing: doing.into(), cause: Box::new(refused) }
}
