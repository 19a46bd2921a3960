//! What a queue becomes: chains of descriptors, and the flags of every partner.
//! Owns the cards that partners exchange, and the checks on them; the hot path is in `progress`.

use crate::address::Address;
use crate::board::{CREDIT_TAG, FlagMemory, OWN_HALF, SLOTS};
use crate::channel::Timetable;
use crate::clock::Time;
use crate::descriptor::{FlagPlace, Request};
use crate::device::{Shared, node_of};
use crate::malformed;
use crate::placement::Placed;
use crate::plan::{self, Announcement, Move};
use crate::progress::{Expected, FlagRef, Lane, Partner, Peach2Committed};
use crate::window::{self, Key};
use rma::backend::{Chain, Committed, Put};
use rma::bootstrap::{all_or_none, conversation};
use rma::shm::{Region, RegionId};
use rma::{Bootstrap, Deadline, Error, QueueId, Rail, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// What a rank tells a partner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    queue: QueueId,
    /// Where the partner writes the flags of this queue.
    slot: u16,
    /// Memory of the partner that this rank will write and does not have yet.
    wants: Vec<RegionId>,
}

/// What both sides of a partnership have said, by the partner.
type Cards = BTreeMap<Rank, (Card, Card)>;

/// What a committed queue has of the board. Given back in two steps: descriptors when it is closed, the rest when no partner writes
/// here any more.
#[derive(Debug)]
pub(crate) struct Holdings {
    shared: Rc<Shared>,
    slots: Vec<u16>,
    chains: Vec<Placed>,
    windows: Vec<Address>,
}

impl Holdings {
    fn new(shared: &Rc<Shared>) -> Self {
        Self { shared: shared.clone(), slots: Vec::new(), chains: Vec::new(), windows: Vec::new() }
    }

    fn take_slot(&mut self) -> Result<u16> {
        let board = &self.shared.board;
        let slot = board.slots.borrow_mut().take(&board.flags).ok_or_else(|| Error::Limit {
            what: "number of partners of all queues of a rank together,",
            asked: u64::from(SLOTS),
            limit: u64::from(SLOTS) - 1,
            mend: "a PEACH2 board has a slot of flags for each: clear queues that are not needed, or join several in one".into(),
        })?;
        self.slots.push(slot);
        Ok(slot)
    }

    fn reach(&mut self, begin: Address, region: &Arc<Region>) {
        self.shared.board.reach(begin, region);
        self.windows.push(begin);
    }

    /// Nothing is started any more: others may have the descriptors.
    pub(crate) fn give_chains_back(&mut self) {
        let mut descriptors = self.shared.board.descriptors.borrow_mut();
        self.chains.drain(..).for_each(|chain| descriptors.give_back(&chain));
        drop(descriptors);
        self.windows.drain(..).for_each(|begin| self.shared.board.unreach(begin));
    }

    /// No partner writes the flags any more.
    pub(crate) fn give_slots_back(&mut self) {
        let mut slots = self.shared.board.slots.borrow_mut();
        self.slots.drain(..).for_each(|slot| slots.give_back(slot));
    }

    pub(crate) fn chains(&self) -> &[Placed] {
        &self.chains
    }
}

impl Drop for Holdings {
    /// Slots that are still here may yet be written: nobody else gets them.
    fn drop(&mut self) {
        self.give_chains_back();
    }
}

pub(crate) fn commit(
    shared: &Rc<Shared>,
    chain: &Rc<Chain>,
    boot: &dyn Bootstrap,
    deadline: Deadline,
) -> Result<Box<dyn Committed>> {
    let mut holdings = Holdings::new(shared);
    let written = write_cards(shared, chain, &mut holdings);
    let cards = conversation(boot, "card", &chain.partners(), written, deadline).and_then(|cards| check_cards(chain, cards));
    // Memory changes hands between partners alone, so all must know first whether all are ready for it.
    let cards = match all_or_none(boot, "commit", cards, deadline) {
        Ok(cards) => cards,
        Err(error) => {
            // Nobody builds anything, so nobody will write these flags.
            holdings.give_slots_back();
            return Err(error);
        }
    };
    let wants = |of: &Card, peer: Rank| of.wants.iter().map(move |&region| (peer, region)).collect::<Vec<_>>();
    let outgoing: Vec<_> = cards.iter().flat_map(|(&peer, (_, theirs))| wants(theirs, peer)).collect();
    let incoming: Vec<_> = cards.iter().flat_map(|(&peer, (mine, _))| wants(mine, peer)).collect();
    let _held = shared.space.hand_over(chain.queue, &outgoing, &incoming, boot, deadline)?;
    build(shared, chain, &cards, holdings)
}

/// Takes a slot for every partner, and writes down what this rank lacks.
fn write_cards(shared: &Shared, chain: &Chain, holdings: &mut Holdings) -> Result<BTreeMap<Rank, Card>> {
    let mut cards = BTreeMap::new();
    for peer in chain.partners() {
        let mut wants = Vec::new();
        if peer != shared.rank {
            for put in chain.puts.iter().filter(|put| put.target == peer) {
                wants.push(Key::read(peer, &put.key)?.1);
            }
            wants.push(board_of(shared, peer)?);
            wants.sort_unstable();
            wants.dedup();
            wants.retain(|&region| shared.space.find(peer, region).is_none());
        }
        cards.insert(peer, Card { queue: chain.queue, slot: holdings.take_slot()?, wants });
    }
    Ok(cards)
}

/// The memory in which the flags of a rank's board are.
fn board_of(shared: &Shared, peer: Rank) -> Result<RegionId> {
    let handle = shared.handles.get(peer.index()).ok_or_else(|| malformed("card", peer, "a rank without a board"))?;
    Ok(handle.region())
}

/// Refuses what no partner of this queue says.
fn check_cards(chain: &Chain, cards: Cards) -> Result<Cards> {
    for (&peer, (_, theirs)) in &cards {
        if theirs.queue != chain.queue {
            return Err(malformed("card", peer, format!("it is of {}, not {}", theirs.queue, chain.queue)));
        }
        if !(1..SLOTS).contains(&theirs.slot) {
            return Err(malformed("card", peer, format!("slot {} is none of 1 to {}", theirs.slot, SLOTS - 1)));
        }
    }
    Ok(cards)
}

/// The chain of a (target, rail), before it has a place.
struct Planned {
    target: Rank,
    rail: Rail,
    slots: (u16, u16),
    requests: Vec<Request>,
}

fn build(shared: &Rc<Shared>, chain: &Rc<Chain>, cards: &Cards, mut holdings: Holdings) -> Result<Box<dyn Committed>> {
    let mut planned = Vec::new();
    for ((target, rail), puts) in chain.lanes() {
        let (mine, theirs) = cards.get(&target).ok_or_else(|| malformed("card", target, "there is none"))?;
        let slots = (mine.slot, theirs.slot);
        let requests = plan_lane(shared, (target, rail), &puts, slots, &mut holdings)?;
        planned.push(Planned { target, rail, slots, requests });
    }
    let chains: Vec<_> = planned.iter_mut().map(|lane| (lane.rail.index(), std::mem::take(&mut lane.requests))).collect();
    let board = &shared.board;
    let placed = board.descriptors.borrow_mut().place(shared.options.placement, &chains, &mut board.host.borrow_mut());
    holdings.chains = placed.ok_or_else(|| Error::Limit {
        what: "number of descriptors in host memory that this rank has ever had,",
        asked: chains.iter().map(|(_, requests)| requests.len() as u64).sum(),
        limit: 1 << 50,
        mend: "commit fewer queues in one run".into(),
    })?;

    let mut lanes = Vec::with_capacity(planned.len());
    let mut offsets: BTreeMap<Rail, Time> = BTreeMap::new();
    for (planned, placed) in planned.iter().zip(holdings.chains()) {
        let Planned { target, rail, slots: (mine, theirs), .. } = *planned;
        let Some(head) = placed.head() else { unreachable!("bug: a lane without a descriptor") };
        // The walk that checks what the controller will find, at every start, finds it now, too.
        let survey = board.survey(head).map_err(|cause| refused(format!("reading the chain to {target} on {rail}"), cause))?;
        let hops = shared.hops(target);
        let took = Timetable::of(&survey, hops, shared.memory(), &shared.options.constants).end;
        let offset = offsets.entry(rail).or_default();
        let far = flags_of(shared, target)?;
        let tag = rail.0 as u8;
        lanes.push(Lane {
            target,
            rail,
            head,
            placement: placed.placement,
            granted: FlagRef::new(board.flags.clone(), FlagPlace { slot: mine, tag: CREDIT_TAG }),
            sent: FlagRef::new(board.flags.clone(), FlagPlace { slot: mine, tag: tag | OWN_HALF }),
            arrived: FlagRef::new(far, FlagPlace { slot: theirs, tag }),
            after: *offset,
            took,
            begun: None,
        });
        *offset = *offset + took;
    }
    let mut partners = Vec::with_capacity(cards.len());
    for (&rank, (_, theirs)) in cards {
        let is_origin = chain.incoming.iter().any(|incoming| incoming.origin == rank);
        let place = FlagPlace { slot: theirs.slot, tag: CREDIT_TAG };
        let credit = if is_origin { Some(FlagRef::new(flags_of(shared, rank)?, place)) } else { None };
        partners.push(Partner { rank, credit });
    }
    let own = |slot, rail: Rail| FlagRef::new(board.flags.clone(), FlagPlace { slot, tag: rail.0 as u8 });
    let expected = chain.incoming.iter().flat_map(|incoming| {
        let slot = cards.get(&incoming.origin).map(|(mine, _)| mine.slot);
        let rails = incoming.rails.iter().filter_map(move |&rail| Some((slot?, rail)));
        rails.map(move |(slot, rail)| Expected { origin: incoming.origin, rail, flag: own(slot, rail) })
    });
    let expected = expected.collect();
    Ok(Box::new(Peach2Committed::new(shared.clone(), chain.clone(), lanes, expected, partners, holdings)))
}

/// The puts to one target on one channel as descriptors, with the windows that they reach within reach.
fn plan_lane(
    shared: &Shared,
    (target, rail): (Rank, Rail),
    puts: &[&Put],
    (own_slot, slot): (u16, u16),
    holdings: &mut Holdings,
) -> Result<Vec<Request>> {
    let mut moves = Vec::with_capacity(puts.len());
    for put in puts {
        let source = window::source(&*put.source);
        let (begin, region) = Key::read(target, &put.key)?;
        let memory = shared.space.written(target, region, &put.target_blocks.span())?;
        holdings.reach(source.begin, &source.region);
        holdings.reach(begin, &memory);
        let (source_blocks, target_blocks) = (&put.source_blocks, &put.target_blocks);
        moves.push(Move { source: source.begin, source_blocks, target: begin, target_blocks });
    }
    let announcement = Announcement { at: FlagPlace { slot, tag: rail.0 as u8 }, own_slot };
    plan::chain(&moves, announcement, shared.options.pipeline)
        .ok_or_else(|| malformed("key", target, "a window that reaches past the end of its node's memory"))
}

/// The flags of a partner's board, of which this rank takes note when it first has them.
fn flags_of(shared: &Shared, peer: Rank) -> Result<Rc<FlagMemory>> {
    let board = &shared.board;
    if let Some(flags) = board.peer(node_of(peer)) {
        return Ok(flags);
    }
    let region = shared.space.find(peer, board_of(shared, peer)?);
    let flags = region.and_then(FlagMemory::new).ok_or_else(|| malformed("board handle", peer, "no memory for flags behind it"))?;
    Ok(board.meet(node_of(peer), flags))
}

/// An error of the emulated controller.
pub(crate) fn refused(doing: String, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Backend { backend: crate::NAME, doing, cause: Box::new(cause) }
}
