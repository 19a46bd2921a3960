//! What a queue becomes: copies with addresses, and the counters of every partner.
//! Owns the cards that partners exchange, and the checks on them; the hot path is in `progress`.

use super::board::{self, Slot};
use super::copy::Copy;
use super::counters::{Bell, Counter};
use super::device::Shared;
use super::progress::{Credit, Expected, Lane, ShmCommitted, Taken};
use super::region::Region;
use super::space::RegionId;
use super::window::region_of;
use crate::backend::{Chain, Committed};
use crate::bootstrap::{all_or_none, conversation};
use crate::{Bootstrap, Deadline, Error, QueueId, Rail, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// What a rank tells a partner: where the partner's counters are, and which regions still have to change hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    queue: QueueId,
    bell: Slot,
    /// Where this rank writes the epoch it has started, for the partner's error texts.
    started: Slot,
    /// For an origin: its counter for each rail it uses here.
    arrivals: Vec<(Rail, Slot)>,
    /// For a target: its counter for credits.
    credit: Option<Slot>,
    /// Regions of the partner that this rank knows already ..
    knows: Vec<RegionId>,
    /// .. and those of its windows that this rank writes.
    writes: Vec<RegionId>,
}

impl Card {
    /// The chunks of the sender's board in which something of this card lies.
    fn chunks(&self) -> impl Iterator<Item = RegionId> {
        let slots = [Some(self.bell), Some(self.started), self.credit];
        slots.into_iter().flatten().map(|slot| slot.region).chain(self.arrivals.iter().map(|(_, slot)| slot.region))
    }
}

/// The cards of each partnership: this rank's, and the partner's.
type Cards = BTreeMap<Rank, (Card, Card)>;

pub(super) fn commit(
    shared: &Rc<Shared>,
    chain: &Rc<Chain>,
    boot: &dyn Bootstrap,
    deadline: Deadline,
) -> Result<Box<dyn Committed>> {
    let mut taken = Taken::new(shared.clone());
    let mut held = Vec::new();
    let written = write_cards(shared, chain, &mut taken, &mut held);
    let cards = conversation(boot, "card", &chain.partners(), written, deadline).and_then(|cards| check_queue(chain, cards));
    // Regions change hands between partners alone, so all must know first whether all are ready for it.
    let cards = match all_or_none(boot, "commit", cards, deadline) {
        Ok(cards) => cards,
        Err(error) => {
            // Nobody builds anything, so nobody will write these counters.
            taken.give_back();
            return Err(error);
        }
    };
    held.extend(hand_over(shared, chain, &cards, boot, deadline)?);
    let mut reach = Reach { shared, used: Vec::new() };

    let mut built = ShmCommitted::new(chain.clone(), shared.space.patience(), reach.own(taken.started()?)?, reach.own_bell()?);
    for (&peer, (mine, theirs)) in &cards {
        let bell = reach.bell(peer, theirs.bell)?;
        built.peers.push((peer, reach.counter(peer, theirs.started)?));
        for &(rail, slot) in &mine.arrivals {
            built.expected.push(Expected { counter: reach.own(slot)?, origin: peer, rail });
        }
        if let Some(slot) = theirs.credit {
            built.credits.push(Credit { counter: reach.counter(peer, slot)?, bell });
        }
    }
    let chain_bytes = chain.puts.iter().map(|put| put.target_blocks.total_bytes()).sum();
    for ((target, rail), puts) in chain.lanes() {
        let (mine, theirs) = cards.get(&target).ok_or_else(|| malformed(target, "no card"))?;
        let slot = theirs.arrivals.iter().find(|(r, _)| *r == rail).map(|(_, slot)| *slot);
        let arrived = reach.counter(target, slot.ok_or_else(|| malformed(target, "no counter for a rail"))?)?;
        let granted = reach.own(mine.credit.ok_or_else(|| malformed(target, "no credit counter"))?)?;
        let mut copies = Vec::with_capacity(puts.len());
        for put in puts {
            let region = region_of(&put.key).ok_or_else(|| malformed(target, "a key that is no region"))?;
            let window = reach.written(target, region, &put.target_blocks.span())?;
            copies.push(Copy::new(put, window.base(), window.len_bytes(), chain_bytes));
        }
        let bell = reach.bell(target, theirs.bell)?;
        built.lanes.push(Lane { granted, arrived, bell, copies: copies.into(), target, rail });
    }
    built.seal(taken, reach.used);
    Ok(Box::new(built))
}

/// Takes counters for every partner and writes down where they are. The regions that the cards say are known are `held`.
fn write_cards(shared: &Shared, chain: &Chain, taken: &mut Taken, held: &mut Vec<Arc<Region>>) -> Result<BTreeMap<Rank, Card>> {
    let (bell, started) = (taken.bell()?, taken.started()?);
    let targets = chain.targets();
    let mut cards = BTreeMap::new();
    for peer in chain.partners() {
        let rails = chain.incoming.iter().find(|incoming| incoming.origin == peer).map(|incoming| incoming.rails.as_slice());
        let arrivals = rails.unwrap_or_default().iter().map(|&rail| Ok((rail, taken.take(peer)?))).collect::<Result<_>>()?;
        let credit = if targets.contains(&peer) { Some(taken.take(peer)?) } else { None };
        let mut writes: Vec<_> = chain.puts.iter().filter(|put| put.target == peer).filter_map(|put| region_of(&put.key)).collect();
        writes.sort_unstable();
        writes.dedup();
        let (knows, regions): (Vec<_>, Vec<_>) = shared.space.known(peer).into_iter().unzip();
        held.extend(regions);
        cards.insert(peer, Card { queue: chain.queue, bell, started, arrivals, credit, knows, writes });
    }
    Ok(cards)
}

/// Refuses cards of another queue.
fn check_queue(chain: &Chain, cards: Cards) -> Result<Cards> {
    match cards.iter().find(|(_, (_, theirs))| theirs.queue != chain.queue) {
        Some((&peer, (_, theirs))) => Err(malformed(peer, &format!("it is of {}, not {}", theirs.queue, chain.queue))),
        None => Ok(cards),
    }
}

/// Lets the regions change hands that one side needs and does not know yet.
fn hand_over(shared: &Shared, chain: &Chain, cards: &Cards, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Vec<Arc<Region>>> {
    let needs = |of_sender: &Card, of_receiver: &Card| {
        let mut regions: Vec<_> = of_sender.chunks().chain(of_receiver.writes.iter().copied()).collect();
        regions.sort_unstable();
        regions.dedup();
        regions.retain(|region| !of_receiver.knows.contains(region));
        regions
    };
    let others = || cards.iter().filter(|(peer, _)| **peer != shared.rank);
    let outgoing: Vec<_> =
        others().flat_map(|(&peer, (mine, theirs))| needs(mine, theirs).into_iter().map(move |region| (peer, region))).collect();
    let incoming: Vec<_> =
        others().flat_map(|(&peer, (mine, theirs))| needs(theirs, mine).into_iter().map(move |region| (peer, region))).collect();
    shared.space.hand_over(chain.queue, &outgoing, &incoming, boot, deadline)
}

/// Finds the memory behind what partners said, checks it, and keeps all that was found.
struct Reach<'a> {
    shared: &'a Shared,
    used: Vec<Arc<Region>>,
}

impl Reach<'_> {
    fn region(&mut self, peer: Rank, id: RegionId) -> Result<Arc<Region>> {
        let region = self.shared.space.find(peer, id).ok_or_else(|| malformed(peer, &format!("region {} is gone", id.0)))?;
        Ok(self.keep(region))
    }

    /// The region of a window of which this rank will write `span`.
    fn written(&mut self, peer: Rank, id: RegionId, span: &Range<u128>) -> Result<Arc<Region>> {
        let region = self.shared.space.written(peer, id, span)?;
        Ok(self.keep(region))
    }

    fn keep(&mut self, region: Arc<Region>) -> Arc<Region> {
        if !self.used.iter().any(|known| Arc::ptr_eq(known, &region)) {
            self.used.push(region.clone());
        }
        region
    }

    fn counter(&mut self, peer: Rank, slot: Slot) -> Result<NonNull<Counter>> {
        let chunk = self.region(peer, slot.region)?;
        board::check(slot, &chunk, peer)?;
        Ok(board::counter(&chunk, slot))
    }

    fn bell(&mut self, peer: Rank, slot: Slot) -> Result<NonNull<Bell>> {
        let chunk = self.region(peer, slot.region)?;
        board::check(slot, &chunk, peer)?;
        Ok(board::bell(&chunk, slot))
    }

    fn own(&mut self, slot: Slot) -> Result<NonNull<Counter>> {
        self.counter(self.shared.rank, slot)
    }

    fn own_bell(&mut self) -> Result<NonNull<Bell>> {
        let slot = self.shared.board.borrow_mut().bell(&self.shared.space)?;
        self.bell(self.shared.rank, slot)
    }
}

fn malformed(from: Rank, reason: &str) -> Error {
    Error::Malformed { what: "card", from: from.to_string(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_of_a_partner_make_a_counter_outside_its_chunk() {
        let chunk = Region::private(4096).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        let slot = |region, offset| Slot::new(RegionId(region), offset);
        let card = Card {
            queue: QueueId(3),
            bell: slot(0, 0),
            started: slot(0, 128),
            arrivals: vec![(Rail(0), slot(0, 256)), (Rail(1), slot(1, 4088))],
            credit: Some(slot(1, 8)),
            knows: vec![RegionId(7)],
            writes: vec![RegionId(9), RegionId(10)],
        };
        let good = postcard::to_stdvec(&Ok::<_, String>(&card)).unwrap();
        let mut accepted = 0;
        for _ in 0..100_000 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..=bytes.len()));
            let Ok(Ok(card)) = postcard::from_bytes::<Result<Card, String>>(&bytes) else { continue };
            for slot in [Some(card.bell), Some(card.started), card.credit].into_iter().flatten() {
                if board::check(slot, &chunk, Rank(1)).is_ok() {
                    // Panics if it were outside.
                    let _ = board::counter(&chunk, slot);
                    accepted += 1;
                }
            }
        }
        assert!(accepted > 1000, "only {accepted} good slots: the test has lost its teeth");
    }
}
