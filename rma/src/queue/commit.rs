//! The commit of a queue: offers to the targets, their answers with the keys, the backend's own part, and agreement that all of it
//! worked. Owns the order of these steps; what a target accepts is in `agreement`.

use super::agreement::{Accepted, Answer, Expectation, Offer, OfferedPut, Refusal, judge};
use super::{Open, Ready, rails};
use crate::backend::{Chain, Put};
use crate::bootstrap::Messages;
use crate::comm::CommInner;
use crate::layout::RangeSet;
use crate::lifecycle::{Call, Lifecycle};
use crate::window::WindowInner;
use crate::window::claims::{Claim, Exposure, Part};
use crate::{Deadline, Epoch, Error, MsgHandle, Purpose, QueueId, Rail, Rank, Result, WindowId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A put and the rail it takes.
type Placed<'a> = (&'a MsgHandle, Rail);

/// Whether any rank objects, and if so the error for this one. `mine` wins over what others say.
fn agree(comm: &CommInner, queue: QueueId, mine: Option<(Rank, String)>, deadline: Deadline) -> Result<()> {
    let agreed = comm.boot.agree(mine.as_ref().map(|(_, reason)| reason.clone()), deadline);
    // What this rank knows says more than that the others could not be told.
    let problem = match mine {
        Some(mine) => Some(mine),
        None => agreed?.map(|objection| (objection.rank, objection.reason)),
    };
    problem.map_or(Ok(()), |(rank, reason)| Err(Error::CommitRefused { queue, rank, reason }))
}

pub(super) fn commit(open: Open) -> Result<Ready> {
    let comm = open.comm.clone();
    let deadline = Deadline::after(comm.config.setup_timeout).of(Purpose::Commit);
    let id = QueueId(comm.next_queue.get());
    // Every rank counts every attempt, so the numbers stay the same everywhere.
    comm.next_queue.set(id.0 + 1);
    comm.reap();

    let placed = place_puts(&open);
    let (accepted, answers) = exchange_offers(&open, id, &placed, deadline)?;
    let refused = answers.iter().find_map(|(target, answer)| match answer {
        Answer::Refuse(reason) => Some((*target, reason.clone())),
        Answer::Accept(_) => None,
    });
    let (accepted, own_refusal) = match accepted {
        Ok(accepted) => (accepted, None),
        Err(refusals) => (Accepted::default(), refusals.into_iter().next().map(|refusal| (comm.rank, refusal.reason))),
    };

    let mut ready = Ready {
        comm: comm.clone(),
        id,
        exposure: open.exposure,
        timeout: open.timeout,
        life: Rc::new(Cell::new(Lifecycle::default())),
        parts: Vec::new(),
        active: None,
        polls_per_look: comm.backend.caps().polls_per_look.max(1),
        virtual_time: comm.backend.caps().virtual_time,
        watch: None,
        failure: None,
    };
    let mut claims = ClaimsInMaking { queue: id, parts: Vec::new() };
    let mut problem = own_refusal.or(refused);
    if problem.is_none() {
        let added = claims.add_all(&open, &ready.life, &placed, &accepted, deadline);
        problem = added.err().map(|error| (comm.rank, error.full_text()));
    }
    agree(&comm, id, problem, deadline)?;

    // All ranks are in this commit, so what partners cleared before it they have closed: the backend can have its resources again.
    comm.reap();
    let chain = build_chain(&open, id, &placed, accepted, answers)?;
    let committed = comm.backend.commit(Rc::new(chain), &*comm.boot, deadline);
    let problem = committed.as_ref().err().map(|error| (comm.rank, error.full_text()));
    agree(&comm, id, problem, deadline)?;
    ready.parts = std::mem::take(&mut claims.parts);
    if let Ok(life) = ready.life.get().after(Call::Commit) {
        ready.life.set(life);
    }
    let active = ready.active.insert(comm.activate(&ready.life, committed?));
    if open.exposure == Exposure::Early {
        active.committed.borrow_mut().grant(Epoch(1))?;
    }
    Ok(ready)
}

/// A rail for every put, in the order they were pushed.
fn place_puts(open: &Open) -> Vec<Placed<'_>> {
    let caps = open.comm.backend.caps();
    let wishes: Vec<_> = open.puts.iter().map(|put| (put.rail, put.len_bytes())).collect();
    open.puts.iter().zip(rails::assign(&wishes, caps.rails, caps.rails_work_in_parallel)).collect()
}

/// Both rounds of messages: what this rank as a target makes of the offers it got, and what its own targets answered.
#[expect(clippy::type_complexity, reason = "two results of one conversation, taken apart at once")]
fn exchange_offers(
    open: &Open,
    id: QueueId,
    placed: &[Placed<'_>],
    deadline: Deadline,
) -> Result<(Result<Accepted, Vec<Refusal>>, Vec<(Rank, Answer)>)> {
    let comm = &open.comm;
    let credits = open.exposure != Exposure::Uncredited;
    let mut offers: BTreeMap<Rank, Offer> = BTreeMap::new();
    for (put, rail) in placed {
        let offer = offers.entry(put.target).or_insert_with(|| Offer { queue: id, credits, puts: Vec::new() });
        offer.puts.push(OfferedPut { window: put.window.id, blocks: put.target_blocks, rail: *rail });
    }
    let outgoing = offers.iter().map(|(&target, offer)| Ok((target, encode(offer)?))).collect::<Result<Messages>>()?;
    let (offers, mut malformed) = decode_all::<Offer>("offer", comm.boot.exchange(outgoing, deadline)?);

    let origins: Vec<_> = open.origins.iter().copied().collect();
    let windows: Vec<_> = open.windows.iter().map(|window| (window.id, window.mem.len_bytes() as u64)).collect();
    let rails = comm.backend.caps().rails;
    let expected = Expectation { rank: comm.rank, queue: id, credits, rails, origins: &origins, windows: &windows };
    let mut accepted = judge(&expected, &offers);
    if !malformed.is_empty() {
        malformed.extend(accepted.err().unwrap_or_default());
        accepted = Err(malformed);
    }

    let mut answers: BTreeMap<Rank, Answer> = BTreeMap::new();
    match &accepted {
        Ok(_) => answers.extend(offers.iter().map(|(origin, offer)| (*origin, Answer::Accept(keys_for(open, offer))))),
        Err(refusals) => {
            for refusal in refusals {
                for &concerned in &refusal.concerned {
                    answers.entry(concerned).or_insert_with(|| Answer::Refuse(refusal.reason.clone()));
                }
            }
            for (origin, _) in &offers {
                answers.entry(*origin).or_insert_with(|| Answer::Refuse(refusals[0].reason.clone()));
            }
        }
    }
    let outgoing = answers.iter().map(|(&origin, answer)| Ok((origin, encode(answer)?))).collect::<Result<Messages>>()?;
    let (mut answers, malformed) = decode_all::<Answer>("answer", comm.boot.exchange(outgoing, deadline)?);
    answers.extend(malformed.into_iter().map(|refusal| (refusal.concerned[0], Answer::Refuse(refusal.reason))));
    Ok((accepted, answers))
}

/// The keys of the windows that an origin writes, and of no others.
fn keys_for(open: &Open, offer: &Offer) -> Vec<(WindowId, Vec<u8>)> {
    let written = |window: &&Rc<WindowInner>| offer.puts.iter().any(|put| put.window == window.id);
    open.windows.iter().filter(written).map(|window| (window.id, window.mem.key())).collect()
}

fn build_chain(open: &Open, id: QueueId, placed: &[Placed<'_>], accepted: Accepted, answers: Vec<(Rank, Answer)>) -> Result<Chain> {
    let mut keys: BTreeMap<(Rank, WindowId), Rc<[u8]>> = BTreeMap::new();
    for (target, answer) in answers {
        if let Answer::Accept(windows) = answer {
            keys.extend(windows.into_iter().map(|(window, key)| ((target, window), key.into())));
        }
    }
    let puts = placed.iter().map(|(put, rail)| {
        let key = keys.get(&(put.target, put.window.id)).cloned().ok_or_else(|| Error::Malformed {
            what: "answer",
            from: put.target.to_string(),
            reason: format!("no key for {} in {id}", put.window.id),
        })?;
        Ok(Put {
            target: put.target,
            rail: *rail,
            source: put.source.mem.clone(),
            source_blocks: put.source_blocks,
            window: put.window.id,
            target_blocks: put.target_blocks,
            key,
        })
    });
    Ok(Chain {
        queue: id,
        credits: open.exposure != Exposure::Uncredited,
        puts: puts.collect::<Result<_>>()?,
        incoming: accepted.incoming,
    })
}

/// Claims that are taken back unless the commit succeeds.
struct ClaimsInMaking {
    queue: QueueId,
    parts: Vec<Part>,
}

impl ClaimsInMaking {
    /// Claims, on every window of this rank that the queue touches, what it reads and what others write.
    fn add_all(
        &mut self,
        open: &Open,
        life: &Rc<Cell<Lifecycle>>,
        placed: &[Placed<'_>],
        accepted: &Accepted,
        deadline: Deadline,
    ) -> Result<()> {
        let mut windows: BTreeMap<WindowId, &Rc<WindowInner>> = BTreeMap::new();
        let (sources, filled) = (placed.iter().map(|(put, _)| &put.source), open.filled.iter().map(|(window, _)| window));
        windows.extend(open.windows.iter().chain(sources).chain(filled).map(|window| (window.id, window)));
        for (window_id, window) in windows {
            if window.freed.get() {
                let reason = format!("{window_id} was freed; queue only windows that are alive");
                return Err(Error::Invalid { what: "window of commit", reason });
            }
            let read = placed.iter().filter(|(put, _)| put.source.id == window_id);
            let sources = RangeSet::from_iter(read.flat_map(|(put, _)| put.source_blocks.ranges()));
            let filled = open.filled.iter().filter(|(window, _)| window.id == window_id);
            let filled = RangeSet::from_iter(filled.flat_map(|(_, bytes)| bytes.iter().cloned()));
            let received = accepted.ranges.get(&window_id).cloned().unwrap_or_default();
            let busy = |bytes: Range<u64>, reason: &str| Error::RangeBusy {
                rank: open.comm.rank,
                window: window_id,
                bytes: bytes.start as usize..bytes.end as usize,
                access: "committed",
                reason: reason.into(),
            };
            if let Some(bytes) = filled.overlap_set(&received) {
                return Err(busy(
                    bytes,
                    "this queue both receives them and is to let this rank fill them; leave out one of the two",
                ));
            }
            let incoming = received.union(&filled);
            if let Some(bytes) = sources.overlap_set(&incoming) {
                return Err(busy(bytes, "this queue both sends and receives them; receive into other bytes, or use two queues"));
            }
            let claim = Rc::new(Claim {
                queue: self.queue,
                exposure: open.exposure,
                life: life.clone(),
                sources,
                incoming,
                filled,
                retiring: Cell::new(false),
                rivals: Cell::new(0),
            });
            window.add_claim(&claim, deadline)?;
            self.parts.push(Part { window: window.clone(), claim });
        }
        Ok(())
    }
}

impl Drop for ClaimsInMaking {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| part.window.remove_claim(self.queue));
    }
}

fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|cause| Error::Invalid { what: "message of commit", reason: cause.to_string() })
}

/// The messages, and as refusals those that are none.
fn decode_all<T: DeserializeOwned>(what: &str, messages: Messages) -> (Vec<(Rank, T)>, Vec<Refusal>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (rank, bytes) in messages {
        match postcard::take_from_bytes::<T>(&bytes) {
            Ok((message, [])) => good.push((rank, message)),
            Ok((_, rest)) => bad.push((rank, format!("{} bytes too many", rest.len()))),
            Err(cause) => bad.push((rank, cause.to_string())),
        }
    }
    let refusal = |(rank, reason)| Refusal { concerned: vec![rank], reason: format!("malformed {what} from {rank}: {reason}") };
    (good, bad.into_iter().map(refusal).collect())
}
