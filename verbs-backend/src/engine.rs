//! What all queues of a rank share: its connections, its slots, and the one place where completions are taken.
//! Owns what notices do; knows no puts.

use crate::connection::{Connection, ConnectionId, Tenancy};
use crate::device::{RailDevice, Shared};
use crate::failure::Breakdown;
use crate::ffi::{BATCH, Completion, SendList};
use crate::notice::{self, MAX_SLOTS, Notice, What};
use rma::{Rail, Rank};
use std::collections::HashMap;

/// More batches than a completion queue holds; a limit only against peers that send faster than is taken.
const MOST_BATCHES: usize = 1 << 16;

/// What a queue and one partner have told each other.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    tenancy: Tenancy,
    /// Epochs that have arrived from the partner, by rail.
    pub(crate) arrived: Box<[u64]>,
    /// Lists of this rank that are complete, by rail.
    pub(crate) completed: Box<[u64]>,
    /// Epochs that the partner may be written in.
    pub(crate) granted: u64,
    /// For each rail on which the partner has closed, the epoch modulo [`notice::EPOCHS`] up to which it has seen everything.
    pub(crate) closed: Box<[Option<u64>]>,
    /// The connection on each rail that the two use: what comes over another one is of an earlier queue that had this slot.
    ways: Box<[Option<ConnectionId>]>,
    /// The queue is gone, and only the partner's closing is waited for.
    abandoned: bool,
}

impl Slot {
    /// Whether nothing of the partner comes any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ways.iter().zip(&self.closed).all(|(way, closed)| way.is_none() || closed.is_some())
    }

    pub(crate) fn any_closed(&self) -> bool {
        self.closed.iter().any(Option::is_some)
    }
}

/// What all queues of a rank share.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    connections: Vec<Option<Connection>>,
    /// The connection to use for new queues.
    current: HashMap<(Rank, Rail), ConnectionId>,
    slots: Vec<Option<Slot>>,
    free_slots: Vec<u32>,
    last_tenancy: Tenancy,
    /// Credits that wait for a list that takes them along: the connection, the slot at the other end, the epoch.
    owed: Vec<(ConnectionId, u32, u64)>,
    /// Whether any connection has failed: while none has, nobody looks.
    pub(crate) any_failed: bool,
    /// The rail that is looked at first.
    first_rail: usize,
}

impl Engine {
    /// Takes all that has come in, rail by rail. True if there was anything.
    #[inline]
    pub(crate) fn drain(&mut self, rails: &[RailDevice]) -> bool {
        let mut any = false;
        self.first_rail = if self.first_rail + 1 < rails.len() { self.first_rail + 1 } else { 0 };
        for rail in (self.first_rail..rails.len()).chain(0..self.first_rail) {
            // Who gives a peer up has looked once more, and must then have seen what the peer did last, behind all others.
            for _ in 0..MOST_BATCHES {
                match rails[rail].completions.poll(|completion| self.take(&completion)) {
                    Ok(0) => break,
                    Ok(count) => {
                        any = true;
                        if count < BATCH {
                            break;
                        }
                    }
                    Err(refused) => {
                        any = true;
                        let of_rail = |connection: &&mut Connection| connection.rail.0 as usize == rail;
                        self.connections.iter_mut().flatten().filter(of_rail).for_each(|connection| connection.refused(&refused));
                        self.any_failed = true;
                        break;
                    }
                }
            }
        }
        any
    }

    #[inline]
    fn take(&mut self, completion: &Completion) {
        let Some(Some(connection)) = self.connections.get_mut(completion.id as usize) else { return };
        if completion.status != 0 {
            connection.fail(Breakdown::Completion { status: completion.status, vendor: completion.vendor });
            self.any_failed = true;
            return;
        }
        let rail = usize::from(connection.rail.0);
        let Some(immediate) = completion.immediate else {
            // The acknowledgment may have been late, and the queue gone: its partner's closing said as much.
            if let Some((index, tenancy)) = connection.completed()
                && let Some(Some(slot)) = self.slots.get_mut(index as usize)
                && slot.tenancy == tenancy
            {
                slot.completed[rail] += 1;
            }
            return;
        };
        connection.received();
        let id = connection.id;
        let (first, second) = notice::decode(immediate);
        let heard = self.hear(id, rail, first) && second.is_none_or(|second| self.hear(id, rail, second));
        if !heard {
            self.nonsense(completion.id, immediate);
        }
    }

    /// Takes note of what a peer says. False if that cannot be.
    #[inline]
    fn hear(&mut self, id: ConnectionId, rail: usize, notice: Notice) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(notice.slot as usize) else { return false };
        let expected = match notice.what {
            What::Arrived => slot.arrived[rail] + 1,
            What::Granted => slot.granted + 1,
            What::Closed => notice.epoch,
        };
        // The modulus is a power of two, and a division would be the longest step of all.
        if slot.ways[rail] != Some(id) || notice.epoch != expected & (notice.modulus - 1) {
            return false;
        }
        match notice.what {
            What::Arrived => slot.arrived[rail] = expected,
            What::Granted => slot.granted = expected,
            What::Closed => {
                slot.closed[rail] = Some(notice.epoch);
                if slot.abandoned && slot.is_quiet() {
                    self.give_back_slot(notice.slot);
                }
            }
        }
        true
    }

    #[cold]
    fn nonsense(&mut self, id: u64, immediate: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(id as usize) {
            connection.fail(Breakdown::Nonsense(immediate));
            self.any_failed = true;
        }
    }

    pub(crate) fn slot(&self, index: u32) -> &Slot {
        self.slots[index as usize].as_ref().expect("bug: a slot is gone while its queue is alive")
    }

    /// A slot for a queue and a partner, without a way between them yet; `None` when there are too many.
    pub(crate) fn take_slot(&mut self, rails: usize) -> Option<u32> {
        self.last_tenancy.0 += 1;
        let slot = Slot {
            tenancy: self.last_tenancy,
            arrived: vec![0; rails].into(),
            completed: vec![0; rails].into(),
            granted: 0,
            closed: vec![None; rails].into(),
            ways: vec![None; rails].into(),
            abandoned: false,
        };
        let index = self.free_slots.pop().or_else(|| {
            let next = u32::try_from(self.slots.len()).ok().filter(|&next| next < MAX_SLOTS)?;
            self.slots.push(None);
            Some(next)
        })?;
        self.slots[index as usize] = Some(slot);
        Some(index)
    }

    /// The connection over which the partner of a slot is heard on a rail, and on which it will close.
    pub(crate) fn set_way(&mut self, index: u32, rail: Rail, id: ConnectionId) {
        if let Some(slot) = &mut self.slots[index as usize] {
            slot.ways[usize::from(rail.0)] = Some(id);
        }
    }

    /// Gives a slot back to which no partner sends.
    pub(crate) fn give_back_slot(&mut self, index: u32) {
        self.slots[index as usize] = None;
        self.free_slots.push(index);
    }

    /// Gives a slot back as soon as the partner has closed on all ways that work.
    pub(crate) fn abandon_slot(&mut self, index: u32) {
        if self.is_quiet(index) {
            self.give_back_slot(index);
        } else if let Some(slot) = &mut self.slots[index as usize] {
            slot.abandoned = true;
        }
    }

    /// Whether nothing more can come in for a slot: on each of the ways the partner has closed, or the way is broken.
    pub(crate) fn is_quiet(&self, index: u32) -> bool {
        let slot = self.slot(index);
        let ways = slot.ways.iter().zip(&slot.closed);
        ways.filter_map(|(way, closed)| way.map(|id| (id, closed)))
            .all(|(id, closed)| closed.is_some() || self.connection(id).failure.is_some())
    }

    /// Takes a connection in, without use for new queues yet.
    pub(crate) fn add_connection(&mut self, make: impl FnOnce(ConnectionId) -> Connection) -> ConnectionId {
        let id = ConnectionId(self.connections.len() as u32);
        self.connections.push(Some(make(id)));
        id
    }

    pub(crate) fn connection(&self, id: ConnectionId) -> &Connection {
        self.connections[id.0 as usize].as_ref().expect("bug: a connection is gone while a queue uses it")
    }

    pub(crate) fn connection_mut(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections[id.0 as usize].as_mut().expect("bug: a connection is gone while a queue uses it")
    }

    /// The connection for new queues, if it works.
    pub(crate) fn current(&self, peer: Rank, rail: Rail) -> Option<&Connection> {
        let connection = self.connections.get(self.current.get(&(peer, rail))?.0 as usize)?.as_ref()?;
        connection.failure.is_none().then_some(connection)
    }

    /// Posts a list that there is room for.
    ///
    /// # Safety
    /// As for [`Connection::post`].
    #[expect(unsafe_code, reason = "passes the promise of `Committed::start` on")]
    #[inline]
    pub(crate) unsafe fn post(&mut self, id: ConnectionId, list: &mut SendList, slot: u32) {
        let owner = Some((slot, self.slot(slot).tenancy));
        let connection = self.connection_mut(id);
        // SAFETY: the caller's promise.
        unsafe { connection.post(list, owner) };
        self.any_failed |= connection.failure.is_some();
    }

    /// Sends a notice, now or as soon as there is room.
    #[inline]
    pub(crate) fn notify(&mut self, id: ConnectionId, immediate: u32, sure: bool) {
        let connection = self.connection_mut(id);
        connection.notify(immediate, sure);
        self.any_failed |= connection.failure.is_some();
    }

    /// Holds a credit back until the next list to the same partner, or until [`pay_all`](Self::pay_all).
    #[inline]
    pub(crate) fn owe(&mut self, id: ConnectionId, slot: u32, epoch: u64) {
        self.owed.push((id, slot, epoch));
    }

    /// The immediate of a list that tells of an arrival, and of a credit on the same way if one is owed there.
    #[inline]
    pub(crate) fn arrival(&mut self, id: ConnectionId, slot: u32, epoch: u64) -> u32 {
        if !self.owed.is_empty()
            && let Some(index) = self.owed.iter().position(|(owed, ..)| *owed == id)
        {
            let (_, credit_slot, credit_epoch) = self.owed[index];
            if let Some(both) = notice::encode_both((slot, epoch), (credit_slot, credit_epoch)) {
                self.owed.swap_remove(index);
                return both;
            }
        }
        notice::encode(What::Arrived, slot, epoch)
    }

    /// Sends the credits that nothing took along.
    #[inline]
    pub(crate) fn pay_all(&mut self) {
        while let Some((id, slot, epoch)) = self.owed.pop() {
            self.notify(id, notice::encode(What::Granted, slot, epoch), false);
        }
    }

    /// Uses a connection for new queues from now on.
    pub(crate) fn make_current(&mut self, id: ConnectionId, shared: &Shared) {
        let connection = self.connection(id);
        let replaced = self.current.insert((connection.peer, connection.rail), id);
        if let Some(replaced) = replaced.filter(|&replaced| replaced != id) {
            self.drop_unused(replaced, shared);
        }
    }

    /// A queue uses a connection no more.
    pub(crate) fn release(&mut self, id: ConnectionId, receives: u32, shared: &Shared) {
        let connection = self.connection_mut(id);
        connection.users -= 1;
        connection.reserved -= receives;
        self.drop_unused(id, shared);
    }

    /// Drops a connection that no queue uses, if it has failed or was replaced.
    fn drop_unused(&mut self, id: ConnectionId, shared: &Shared) {
        let Some(Some(connection)) = self.connections.get(id.0 as usize) else { return };
        let replaced = self.current.get(&(connection.peer, connection.rail)) != Some(&id);
        if connection.users == 0 && (connection.failure.is_some() || replaced) {
            if !replaced {
                self.current.remove(&(connection.peer, connection.rail));
            }
            shared.rails[usize::from(connection.rail.0)].give_room_back(connection.depths.completions());
            self.connections[id.0 as usize] = None;
            self.give_back_unreachable_slots();
            self.any_failed = self.connections.iter().flatten().any(|connection| connection.failure.is_some());
        }
    }

    /// Gives back the abandoned slots whose partner cannot close any more, as its ways have gone.
    fn give_back_unreachable_slots(&mut self) {
        let is_there = |id: &ConnectionId| self.connections[id.0 as usize].is_some();
        let is_quiet = |slot: &Slot| {
            slot.ways.iter().zip(&slot.closed).all(|(way, closed)| closed.is_some() || !way.as_ref().is_some_and(is_there))
        };
        let unreachable = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.abandoned && is_quiet(slot));
        let indices: Vec<_> = (0..).zip(&self.slots).filter(|(_, slot)| unreachable(slot)).map(|(index, _)| index).collect();
        indices.into_iter().for_each(|index| self.give_back_slot(index));
    }

    /// Finds out whether a partner is still there of whom nothing has come for a while.
    pub(crate) fn probe(&mut self, id: ConnectionId) {
        let connection = self.connection_mut(id);
        connection.probe();
        self.any_failed |= connection.failure.is_some();
    }

    /// Ends all connections with a peer that has gone.
    pub(crate) fn sever(&mut self, peer: Rank) {
        for connection in self.connections.iter_mut().flatten().filter(|connection| connection.peer == peer) {
            connection.fail(Breakdown::Severed);
            self.any_failed = true;
        }
    }

    /// Whether everything sent has been delivered, but to those that cannot be reached.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.iter().flatten().all(Connection::is_idle)
    }

    /// The peers of connections that still have something on its way.
    pub(crate) fn busy_peers(&self) -> Vec<Rank> {
        self.connections.iter().flatten().filter(|connection| !connection.is_idle()).map(|connection| connection.peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::EPOCHS;

    fn notice(what: What, slot: u32, epoch: u64) -> Notice {
        Notice { what, slot, epoch, modulus: EPOCHS }
    }

    #[test]
    fn what_is_left_of_an_earlier_queue_is_not_taken_for_news_of_the_next() {
        let mut engine = Engine::default();
        let (broken, anew, rail) = (ConnectionId(0), ConnectionId(1), 1);
        let slot = engine.take_slot(2).unwrap();
        engine.set_way(slot, Rail(1), broken);
        assert!(engine.hear(broken, rail, notice(What::Arrived, slot, 1)));
        engine.give_back_slot(slot);
        assert!(!engine.hear(broken, rail, notice(What::Arrived, slot, 2)));

        assert_eq!(engine.take_slot(2), Some(slot));
        engine.set_way(slot, Rail(1), anew);
        for what in [What::Arrived, What::Granted, What::Closed] {
            assert!(!engine.hear(broken, rail, notice(what, slot, 1)), "{what:?}");
            assert!(!engine.hear(anew, 0, notice(what, slot, 1)), "{what:?} on a rail that is not used");
        }
        assert_eq!((engine.slot(slot).arrived[rail], engine.slot(slot).granted), (0, 0));
        assert!(!engine.slot(slot).any_closed());
        assert!(engine.hear(anew, rail, notice(What::Arrived, slot, 1)));
    }
}
