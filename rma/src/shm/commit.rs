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
use crate::bootstrap::all_or_none;
use crate::{Bootstrap, Deadline, Error, QueueId, Rail, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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

/// The cards of both sides of a partnership.
struct Partner {
    mine: Card,
    theirs: Card,
    /// Regions held so that they stay known until the queue has them.
    _held: Vec<Arc<Region>>,
}

pub(super) fn commit(
    shared: &Rc<Shared>,
    chain: &Rc<Chain>,
    boot: &dyn Bootstrap,
    deadline: Deadline,
) -> Result<Box<dyn Committed>> {
    let mut taken = Taken::new(shared.clone());
    let cards = write_cards(shared, chain, &mut taken);
    let partners = exchange_cards(chain, cards, boot, deadline);
    // Regions change hands between partners alone, so all must know first whether all are ready for it.
    let partners = match all_or_none(boot, "commit", partners, deadline) {
        Ok(partners) => partners,
        Err(error) => {
            // Nobody builds anything, so nobody will write these counters.
            taken.give_back();
            return Err(error);
        }
    };
    let started = partners.started;
    let partners = partners.by_rank;
    let received = hand_over(shared, chain, &partners, boot, deadline)?;
    let mut reach = Reach { shared, used: Vec::new() };

    let mut built = ShmCommitted::new(chain.clone(), shared.space.patience(), reach.own(started)?, reach.own_bell()?);
    for (&peer, partner) in &partners {
        let bell = reach.bell(peer, partner.theirs.bell)?;
        built.peers.push((peer, reach.counter(peer, partner.theirs.started)?));
        for &(rail, slot) in &partner.mine.arrivals {
            built.expected.push(Expected { counter: reach.own(slot)?, origin: peer, rail });
        }
        if let Some(slot) = partner.theirs.credit {
            built.credits.push(Credit { counter: reach.counter(peer, slot)?, bell });
        }
    }
    let chain_bytes = chain.puts.iter().map(|put| put.target_blocks.total_bytes()).sum();
    for ((target, rail), puts) in puts_by_lane(chain) {
        let partner = partners.get(&target).ok_or_else(|| malformed(target, "no card"))?;
        let slot = partner.theirs.arrivals.iter().find(|(r, _)| *r == rail).map(|(_, slot)| *slot);
        let arrived = reach.counter(target, slot.ok_or_else(|| malformed(target, "no counter for a rail"))?)?;
        let granted = reach.own(partner.mine.credit.ok_or_else(|| malformed(target, "no credit counter"))?)?;
        let mut copies = Vec::with_capacity(puts.len());
        for put in puts {
            let region = region_of(&put.key).ok_or_else(|| malformed(target, "a key that is no region"))?;
            let window = reach.region(target, region)?;
            let span = put.target_blocks.span();
            if span.end > window.len_bytes() as u128 {
                return Err(malformed(target, "a window shorter than it said"));
            }
            if shared.space.maps_peers_anew() {
                window.populate(span.start as usize..span.end as usize)?;
            }
            copies.push(Copy::new(put, window.base(), window.len_bytes(), chain_bytes));
        }
        let bell = reach.bell(target, partner.theirs.bell)?;
        built.lanes.push(Lane { granted, arrived, bell, copies: copies.into(), target, rail });
    }
    built.seal(taken, reach.used);
    drop(received);
    Ok(Box::new(built))
}

/// The cards of this rank, by partner, with the regions that they say are known.
struct Cards {
    started: Slot,
    by_rank: BTreeMap<Rank, (Card, Vec<Arc<Region>>)>,
}

/// All partners, and where this rank writes the epoch it has started.
struct Partners {
    started: Slot,
    by_rank: BTreeMap<Rank, Partner>,
}

/// Takes counters for every partner and writes down where they are.
fn write_cards(shared: &Shared, chain: &Chain, taken: &mut Taken) -> Result<Cards> {
    let bell = taken.bell()?;
    let started = taken.take(shared.rank)?;
    let targets = chain.targets();
    let mut by_rank = BTreeMap::new();
    for peer in chain.partners() {
        let rails = chain.incoming.iter().find(|incoming| incoming.origin == peer).map(|incoming| incoming.rails.as_slice());
        let arrivals = rails.unwrap_or_default().iter().map(|&rail| Ok((rail, taken.take(peer)?))).collect::<Result<_>>()?;
        let credit = if targets.contains(&peer) { Some(taken.take(peer)?) } else { None };
        let mut writes: Vec<_> = chain.puts.iter().filter(|put| put.target == peer).filter_map(|put| region_of(&put.key)).collect();
        writes.sort_unstable();
        writes.dedup();
        let (knows, held): (Vec<_>, Vec<_>) = shared.space.known(peer).into_iter().unzip();
        let card = Card { queue: chain.queue, bell, started, arrivals, credit, knows, writes };
        by_rank.insert(peer, (card, held));
    }
    Ok(Cards { started, by_rank })
}

/// Tells every partner where its counters are, or why there are none, and learns where this rank's own are.
fn exchange_cards(chain: &Chain, cards: Result<Cards>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Partners> {
    let messages = chain.partners().into_iter().map(|peer| {
        let card = match &cards {
            Ok(cards) => cards.by_rank.get(&peer).map(|(card, _)| card).ok_or_else(|| "no card".to_owned()),
            Err(error) => Err(error.full_text()),
        };
        let bytes = postcard::to_stdvec(&card).unwrap_or_default();
        (peer, bytes)
    });
    let incoming = boot.exchange(messages.collect(), deadline);
    let mut cards = cards?;
    let mut by_rank = BTreeMap::new();
    for (peer, bytes) in incoming? {
        let card: Result<Card, String> = postcard::from_bytes(&bytes).map_err(|cause| malformed(peer, &cause.to_string()))?;
        let theirs = card.map_err(|reason| Error::CollectiveFailed { call: "commit", rank: peer, reason })?;
        let Some((mine, held)) = cards.by_rank.remove(&peer) else { return Err(malformed(peer, "it is no partner of this queue")) };
        if theirs.queue != chain.queue {
            return Err(malformed(peer, &format!("it is of {}, not {}", theirs.queue, chain.queue)));
        }
        by_rank.insert(peer, Partner { mine, theirs, _held: held });
    }
    match cards.by_rank.keys().next() {
        Some(&silent) => Err(malformed(silent, "there is none")),
        None => Ok(Partners { started: cards.started, by_rank }),
    }
}

/// Lets the regions change hands that one side needs and does not know yet.
fn hand_over(
    shared: &Shared,
    chain: &Chain,
    partners: &BTreeMap<Rank, Partner>,
    boot: &dyn Bootstrap,
    deadline: Deadline,
) -> Result<Vec<Arc<Region>>> {
    let needs = |of_sender: &Card, of_receiver: &Card| {
        let mut regions: Vec<_> = of_sender.chunks().chain(of_receiver.writes.iter().copied()).collect();
        regions.sort_unstable();
        regions.dedup();
        regions.retain(|region| !of_receiver.knows.contains(region));
        regions
    };
    let others = || partners.iter().filter(|(peer, _)| **peer != shared.rank);
    let outgoing: Vec<_> =
        others().flat_map(|(&peer, p)| needs(&p.mine, &p.theirs).into_iter().map(move |region| (peer, region))).collect();
    let incoming: Vec<_> =
        others().flat_map(|(&peer, p)| needs(&p.theirs, &p.mine).into_iter().map(move |region| (peer, region))).collect();
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
        if !self.used.iter().any(|known| Arc::ptr_eq(known, &region)) {
            self.used.push(region.clone());
        }
        Ok(region)
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

/// The puts of each (target, rail), in the order they were pushed.
fn puts_by_lane(chain: &Chain) -> BTreeMap<(Rank, Rail), Vec<&crate::backend::Put>> {
    let mut lanes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for put in &chain.puts {
        lanes.entry((put.target, put.rail)).or_default().push(put);
    }
    lanes
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
