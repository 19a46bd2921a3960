//! What a queue becomes: connections with every partner, slots for what they tell, and prebuilt lists of requests.
//! Owns the cards that partners exchange, and the checks on them; the hot path is in `progress`.

use crate::connection::{Connection, ConnectionId, NOTICES, USED_RECEIVES};
use crate::device::{RailDevice, Shared, failed, message_bytes};
use crate::ffi::{Patience, Region, Route, SendList};
use crate::gid::{self, Gid};
use crate::memory::Memory;
use crate::options::Options;
use crate::plan::{self, Addressed, Limits, Packing};
use crate::progress::{Expected, Lane, Packed, Partner, VerbsCommitted};
use crate::slot::Slot;
use crate::window::{Key, VerbsWindow};
use rma::backend::{Chain, Committed, Put};
use rma::bootstrap::{all_or_none, conversation};
use rma::{Bootstrap, Deadline, Error, QueueId, Rail, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a rank tells a partner first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    queue: QueueId,
    /// Where notices for this queue and partner go.
    slot: u32,
    /// Every rail on which the two have something for each other, ascending.
    rails: Vec<RailCard>,
}

/// What a partner must know of a rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RailCard {
    rail: Rail,
    /// The numbers of both ends of the connection that works already.
    connected: Option<(u32, u32)>,
    ethernet: bool,
    lid: u16,
    mtu_bytes: u32,
    gids: Vec<Gid>,
}

/// What it tells next: its new ends, by rail.
type NewEnds = Vec<(Rail, End)>;

/// A new end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    number: u32,
    /// The number of its first packet, drawn at random: what is left of an earlier connection must not fit.
    first_packet: u32,
}

pub(crate) fn commit(
    shared: &Rc<Shared>,
    chain: &Rc<Chain>,
    boot: &dyn Bootstrap,
    deadline: Deadline,
) -> Result<Box<dyn Committed>> {
    let mut making = Making::new(shared, chain);
    let cards = making.take_slots().map(|()| making.cards());
    let cards = conversation(boot, "card", &making.partners(), cards, deadline);
    let ends = cards.and_then(|cards| making.make_ends(&cards));
    let ends = conversation(boot, "list of queue pairs", &making.partners(), ends, deadline);
    let built = ends.and_then(|ends| making.connect(&ends)).and_then(|()| making.build_lanes());
    // Nobody may count on a connection of which the other end was not made.
    let lanes = all_or_none(boot, "commit", built, deadline)?;
    Ok(Box::new(making.finish(lanes)))
}

fn malformed(what: &'static str, peer: Rank, reason: &str) -> Error {
    Error::Malformed { what, from: peer.to_string(), reason: reason.into() }
}

/// A partner while the queue is being made.
#[derive(Debug)]
struct Draft {
    slot: Rc<Slot>,
    /// Where its notices are to go.
    their_slot: u32,
    /// The rails on which it writes to this rank, ascending.
    from: Vec<Rail>,
    /// All that one of the two uses, ascending, with the connection once it is there.
    connections: Vec<(Rail, Option<ConnectionId>)>,
    /// Those of them that are new, and how to reach the other end.
    routes: Vec<(ConnectionId, End, Route)>,
}

/// Everything that a commit takes from the rank, given back unless it succeeds.
struct Making<'a> {
    shared: &'a Rc<Shared>,
    chain: &'a Rc<Chain>,
    drafts: BTreeMap<Rank, Draft>,
    finished: bool,
}

/// Notices of one queue and partner that may be under way at once: an arrival, a credit, a closing.
const RECEIVES: u32 = 3;
/// The same without credits, where the origin may be ahead; beyond that the device holds it back.
const RECEIVES_UNCREDITED: u32 = 8;

impl<'a> Making<'a> {
    fn new(shared: &'a Rc<Shared>, chain: &'a Rc<Chain>) -> Self {
        Self { shared, chain, drafts: BTreeMap::new(), finished: false }
    }

    fn partners(&self) -> Vec<Rank> {
        self.chain.partners()
    }

    fn receives(&self) -> u32 {
        if self.chain.credits { RECEIVES } else { RECEIVES_UNCREDITED }
    }

    /// A slot for every partner.
    fn take_slots(&mut self) -> Result<()> {
        let mut engine = self.shared.engine();
        let mut partners: BTreeMap<Rank, (BTreeSet<Rail>, Vec<Rail>)> = BTreeMap::new();
        for put in &self.chain.puts {
            partners.entry(put.target).or_default().0.insert(put.rail);
        }
        for incoming in &self.chain.incoming {
            let (rails, from) = partners.entry(incoming.origin).or_default();
            rails.extend(&incoming.rails);
            from.clone_from(&incoming.rails);
        }
        for (peer, (rails, from)) in partners {
            let slot = engine.take_slot(self.shared.rails.len()).ok_or_else(|| Error::Limit {
                what: "the number of partners of all queues of a rank together,",
                asked: u64::from(crate::notice::MAX_SLOTS) + 1,
                limit: crate::notice::MAX_SLOTS.into(),
                mend: "clear queues that are not used any more".into(),
            })?;
            let connections = rails.into_iter().map(|rail| (rail, None)).collect();
            self.drafts.insert(peer, Draft { slot, their_slot: 0, from, connections, routes: Vec::new() });
        }
        Ok(())
    }

    fn cards(&self) -> BTreeMap<Rank, Card> {
        let engine = self.shared.engine();
        let card = |(&peer, draft): (&Rank, &Draft)| {
            let rails = draft.connections.iter().map(|&(rail, _)| {
                let device = &self.shared.rails[usize::from(rail.0)];
                RailCard {
                    rail,
                    connected: engine.current(peer, rail).map(|there| (there.pair.number(), there.peer_number)),
                    ethernet: device.state.ethernet,
                    lid: device.state.lid,
                    mtu_bytes: mtu_bytes(device, &self.shared.options),
                    gids: device.gids.clone(),
                }
            });
            (peer, Card { queue: self.chain.queue, slot: draft.slot.number, rails: rails.collect() })
        };
        self.drafts.iter().map(card).collect()
    }

    /// Takes the connections that both sides have, and makes new ends for the others.
    fn make_ends(&mut self, cards: &BTreeMap<Rank, (Card, Card)>) -> Result<BTreeMap<Rank, NewEnds>> {
        let receives = self.receives();
        let shared = self.shared;
        let mut ends = BTreeMap::new();
        for (&peer, draft) in &mut self.drafts {
            let (_, card) = cards.get(&peer).ok_or_else(|| malformed("card", peer, "none came"))?;
            if card.queue != self.chain.queue || !card.rails.iter().map(|card| card.rail).eq(draft.connections.iter().map(|c| c.0))
            {
                return Err(malformed("card", peer, "another queue, or other rails"));
            }
            draft.their_slot = card.slot;
            let mut new_ends = NewEnds::new();
            for ((rail, connection), theirs) in draft.connections.iter_mut().zip(&card.rails) {
                let device = &shared.rails[usize::from(rail.0)];
                let mut engine = shared.engine();
                let current = engine.current(peer, *rail);
                let both = current.filter(|there| theirs.connected == Some((there.peer_number, there.pair.number())));
                let id = match both.map(|there| there.id) {
                    Some(id) => id,
                    None => {
                        let route = route(shared, device, peer, theirs)?;
                        let first_packet = first_packet()?;
                        let asked = device.depths(&shared.options);
                        device.take_room(asked.completions())?;
                        let pair = device.new_pair(asked);
                        let (pair, depths) = pair.inspect_err(|_| device.give_room_back(asked.completions()))?;
                        let id = engine.add_connection(|id| Connection::new(id, peer, *rail, pair, 0, depths));
                        let end = End { number: engine.connection(id).pair.number(), first_packet };
                        draft.routes.push((id, end, route));
                        new_ends.push((*rail, end));
                        id
                    }
                };
                *connection = Some(id);
                draft.slot.way(*rail).connection.set(Some(id));
                let there = engine.connection_mut(id);
                there.users += 1;
                there.reserved += receives;
                // Some are always used and not posted again yet.
                let limit = there.depths.receives.saturating_sub(USED_RECEIVES);
                if there.reserved > limit {
                    return Err(Error::Limit {
                        what: "the number of notices that a connection may have to receive at once,",
                        asked: there.reserved.into(),
                        limit: limit.into(),
                        mend: format!("clear queues between {} and {peer}, or raise RMA_VERBS_RECEIVES", shared.rank),
                    });
                }
            }
            ends.insert(peer, new_ends);
        }
        Ok(ends)
    }

    /// Connects the new ends with those of the partners.
    fn connect(&mut self, ends: &BTreeMap<Rank, (NewEnds, NewEnds)>) -> Result<()> {
        let options = &self.shared.options;
        let patience =
            Patience { timeout: options.timeout, retries: options.retries, not_ready_retries: options.not_ready_retries };
        for (&peer, draft) in &self.drafts {
            for (id, mine, route) in &draft.routes {
                let mut engine = self.shared.engine();
                let connection = engine.connection_mut(*id);
                let device = &self.shared.rails[usize::from(connection.rail.0)];
                let end = ends.get(&peer).and_then(|(_, ends)| ends.iter().find(|(rail, _)| *rail == connection.rail));
                let &(_, End { number, first_packet }) =
                    end.ok_or_else(|| malformed("list of queue pairs", peer, "a rail is missing"))?;
                let route = Route { peer_number: number, first_packet, ..*route };
                connection.peer_number = number;
                let receives = connection.depths.receives;
                let connected = connection
                    .pair
                    .initialize(device.port)
                    .and_then(|()| connection.pair.receive_from(&route))
                    .and_then(|()| connection.post_receives(receives))
                    .and_then(|()| connection.pair.send_with(&patience, mine.first_packet));
                connected.map_err(|refused| {
                    let to = route.global.map(|(index, to)| format!(", GID {index} to {}", std::net::Ipv6Addr::from(to)));
                    let to = to.unwrap_or_default();
                    failed(format!("connecting {} with queue pair {number} of {peer}{to}", device.name), refused)
                })?;
            }
        }
        Ok(())
    }

    /// The lists of requests, by target and rail.
    fn build_lanes(&self) -> Result<Vec<Lane>> {
        self.chain.lanes().into_iter().map(|((target, rail), puts)| self.build_lane(target, rail, &puts)).collect()
    }

    fn build_lane(&self, target: Rank, rail: Rail, puts: &[&Put]) -> Result<Lane> {
        let index = usize::from(rail.0);
        let device = &self.shared.rails[index];
        let draft = &self.drafts[&target];
        let id = draft.connections.iter().find(|(r, _)| *r == rail).and_then(|(_, id)| *id);
        let id = id.ok_or_else(|| malformed("card", target, "a rail is missing"))?;
        let depths = self.shared.engine().connection(id).depths;
        let limits = Limits {
            pieces: depths.pieces as usize,
            inline_bytes: depths.inline_bytes.into(),
            message_bytes: message_bytes(&device.state),
        };
        let mut sources: Vec<Rc<Region>> = Vec::new();
        let mut addressed = Vec::with_capacity(puts.len());
        for put in puts {
            let key: Key = postcard::from_bytes(&put.key).map_err(|cause| malformed("key", target, &cause.to_string()))?;
            if put.target_blocks.span().end > key.len_bytes.into() || (key.len_bytes > 0 && index >= key.keys.len()) {
                return Err(malformed("key", target, "of a window that is shorter or has fewer rails than it said"));
            }
            let source = put.source.as_any().downcast_ref::<VerbsWindow>().expect("bug: a window of another backend");
            let region = source.regions.get(index);
            if let Some(region) = region.filter(|region| !sources.iter().any(|other| Rc::ptr_eq(other, region))) {
                sources.push(region.clone());
            }
            addressed.push(Addressed {
                from: source.address(),
                from_key: region.map_or(0, |region| region.local_key()),
                source: put.source_blocks,
                to: key.address,
                to_key: key.keys.get(index).copied().unwrap_or(0),
                target: put.target_blocks,
            });
        }
        let packing = Packing::of(&addressed, limits);
        let mut buffer = (0, 0);
        let mut packed = None;
        if packing.bytes > 0 {
            let bytes = packing.bytes;
            let memory = Memory::new(bytes).map_err(|cause| Error::os(format!("mapping {bytes} bytes for packing"), cause))?;
            let memory = Rc::new(memory);
            let region = Region::new(&device.domain, &memory, false)
                .map_err(|refused| failed(format!("registering {bytes} bytes for packing on {}", device.name), refused))?;
            buffer = (memory.address(), region.local_key());
            sources.push(Rc::new(region));
            packed = Some(Packed { puts: packing.count(), copies: packing.copies.as_slice().into(), buffer: memory });
        }
        let writes = plan::writes(&addressed, &packing, buffer, limits);
        // Two lists fit at once, with the room that is kept for notices.
        let longest = (depths.sends.saturating_sub(NOTICES) as usize / 2).max(1);
        let list = |writes, notifies| SendList::new(Connection::request_id(id), writes, notifies, sources.clone());
        let (before, last) = writes.split_at((writes.len() - 1) / longest * longest);
        let (before, last) = (before.chunks(longest).map(|writes| list(writes, false)).collect(), list(last, true));
        let gathering = writes.iter().filter(|write| write.pieces.len() > 1).count();
        let inline = writes.iter().filter(|write| write.inline).count();
        Ok(Lane {
            target,
            rail,
            connection: id,
            slot: draft.slot.clone(),
            their_slot: draft.their_slot,
            packed,
            before,
            last,
            puts: puts.len(),
            bytes: puts.iter().map(|put| put.target_blocks.total_bytes()).sum(),
            requests: writes.len(),
            gathering,
            inline,
            posted: 0,
        })
    }

    /// The commit has succeeded everywhere: what was taken stays, and new connections serve all queues from now on.
    fn finish(mut self, lanes: Vec<Lane>) -> VerbsCommitted {
        self.finished = true;
        let mut engine = self.shared.engine();
        self.drafts.values().flat_map(|draft| &draft.routes).for_each(|(id, ..)| engine.make_current(*id, self.shared));
        drop(engine);
        let partners = self.drafts.iter().map(|(&rank, draft)| Partner {
            rank,
            slot: draft.slot.clone(),
            their_slot: draft.their_slot,
            credits_on: draft.from.first().copied(),
            connections: draft.connections.iter().filter_map(|&(rail, id)| id.map(|id| (rail, id))).collect(),
        });
        let expected = self.chain.incoming.iter().flat_map(|incoming| {
            let slot = &self.drafts[&incoming.origin].slot;
            incoming.rails.iter().map(|&rail| Expected { slot: slot.clone(), origin: incoming.origin, rail })
        });
        let (partners, expected) = (partners.collect(), expected.collect());
        VerbsCommitted::new(self.shared.clone(), self.chain.clone(), self.receives(), partners, lanes, expected)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let receives = self.receives();
        let mut engine = self.shared.engine();
        for draft in self.drafts.values() {
            engine.give_back_slot(&draft.slot);
            for id in draft.connections.iter().filter_map(|(_, id)| *id) {
                engine.release(id, receives, self.shared);
            }
        }
    }
}

/// 24 random bits.
fn first_packet() -> Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|cause| Error::os("getting 4 random bytes for a connection", cause))?;
    Ok(u32::from_le_bytes(bytes) >> 8)
}

/// The most bytes of a packet that this side would send. Both ends of a connection must use the same.
fn mtu_bytes(device: &RailDevice, options: &Options) -> u32 {
    options.mtu_bytes.map_or(device.state.mtu_bytes, |most| most.min(device.state.mtu_bytes))
}

/// How to reach a partner's port.
fn route(shared: &Shared, device: &RailDevice, peer: Rank, theirs: &RailCard) -> Result<Route> {
    if device.state.ethernet != theirs.ethernet {
        return Err(Error::Launch(format!(
            "{} of {} and the same rail of {peer} are not both Ethernet or both InfiniBand; name the ports that are connected with \
             RMA_VERBS_DEVICES",
            device.name, shared.rank
        )));
    }
    let chosen = gid::choose(&device.gids, &theirs.gids);
    // Within one InfiniBand subnet local numbers are enough.
    let local = !device.state.ethernet && chosen.is_none_or(|(own, peer)| own.address[..8] == peer.address[..8]);
    if let Some((own, to)) = chosen.filter(|_| !device.state.ethernet && !local) {
        return Err(Error::Launch(format!(
            "{} of {} ({own}) and the same rail of {peer} ({to}) are in different InfiniBand subnets, and routes between those are not \
             known here; name ports of one subnet with RMA_VERBS_DEVICES",
            device.name, shared.rank
        )));
    }
    let global = match chosen {
        _ if local => None,
        Some((own, to)) => {
            tracing::info!(rank = shared.rank.0, "{} reaches {peer} from {own} at {to}", device.name);
            Some((own.index as u8, to.address))
        }
        None => {
            let list = |gids: &[Gid]| gids.iter().map(Gid::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::Launch(format!(
                "{} of {} and the same rail of {peer} have no addresses of one kind: {} here, {} there; give the interfaces IPv4 \
                 addresses, or name an entry with RMA_VERBS_GID_INDEX",
                device.name,
                shared.rank,
                list(&device.gids),
                list(&theirs.gids)
            )));
        }
    };
    let options = &shared.options;
    Ok(Route {
        port: device.port,
        mtu_bytes: mtu_bytes(device, options).min(theirs.mtu_bytes),
        peer_number: 0,
        first_packet: 0,
        peer_lid: theirs.lid,
        global,
        service_level: options.service_level,
        traffic_class: options.traffic_class,
        not_ready_timer: options.not_ready_timer,
    })
}
