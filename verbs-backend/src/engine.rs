//! What all queues of a rank share: its connections, its slots, and the one place where completions are taken.
//! Knows no puts.

use crate::connection::{Connection, ConnectionId};
use crate::device::{RailDevice, Shared};
use crate::failure::Breakdown;
use crate::ffi::{Batch, Completion, Refused};
use crate::notice::{self, Notice, What};
use crate::slot::{Slot, Slots};
use rma::{Rail, Rank};
use std::collections::HashMap;
use std::rc::Rc;

/// More batches than a completion queue holds; a limit only against peers that send faster than is taken.
const MOST_BATCHES: usize = 1 << 16;

/// What all queues of a rank share.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    connections: Vec<Option<Connection>>,
    /// The connection to use for new queues.
    current: HashMap<(Rank, Rail), ConnectionId>,
    slots: Slots,
    /// The connections on which a credit waits for a list that takes it along.
    owing: Vec<ConnectionId>,
    /// Those whose used receives are to be posted again.
    thirsty: Vec<ConnectionId>,
    /// Whether any connection has failed: while none has, nobody looks.
    pub(crate) any_failed: bool,
}

impl Engine {
    /// Takes all that has come in, a batch of each rail in turn. True if there was anything.
    #[inline(always)]
    pub(crate) fn drain(&mut self, rails: &[RailDevice]) -> bool {
        let mut any = false;
        // Who gives a peer up has looked once more, and must then have seen what the peer did last, behind all others.
        for _ in 0..MOST_BATCHES {
            let mut more = false;
            for (rail, device) in rails.iter().enumerate() {
                let mut batch = Batch::new();
                if let Err(refused) = device.completions.poll(&mut batch) {
                    any = true;
                    self.rail_refused(rail, &refused);
                } else if !batch.is_empty() {
                    any = true;
                    more |= batch.is_full();
                    self.take_all(&batch);
                }
            }
            if !more {
                break;
            }
        }
        if !any && !self.thirsty.is_empty() {
            self.post_used_receives();
        }
        any
    }

    #[inline(never)]
    fn take_all(&mut self, batch: &Batch) {
        batch.completions().for_each(|completion| self.take(&completion));
    }

    #[cold]
    fn rail_refused(&mut self, rail: usize, refused: &Refused) {
        let of_rail = |connection: &&mut Connection| usize::from(connection.rail.0) == rail;
        self.connections.iter_mut().flatten().filter(of_rail).for_each(|connection| connection.refused(refused));
        self.any_failed = true;
    }

    #[inline]
    fn take(&mut self, completion: &Completion) {
        let Some(Some(connection)) = self.connections.get_mut(completion.id as usize) else { return };
        if completion.status != 0 {
            connection.fail(Breakdown::Completion { status: completion.status, vendor: completion.vendor });
            self.any_failed = true;
            return;
        }
        let rail = connection.rail;
        let Some(immediate) = completion.immediate else {
            if let Some(slot) = connection.completed() {
                let completed = &slot.way(rail).completed;
                completed.set(completed.get() + 1);
            }
            return;
        };
        let id = connection.id;
        if connection.received() {
            self.thirsty.push(id);
        }
        let heard = match notice::decode(immediate) {
            (one, None) => self.hear(id, rail, one),
            (first, Some(second)) => self.hear(id, rail, first) && self.hear(id, rail, second),
        };
        if !heard {
            self.nonsense(id, immediate);
        }
    }

    /// Takes note of what a peer says. False if that cannot be.
    #[inline(always)]
    fn hear(&mut self, id: ConnectionId, rail: Rail, notice: Notice) -> bool {
        let Some(slot) = self.slots.get(notice.slot) else { return false };
        let heard = slot.hear(id, rail, notice);
        if heard && notice.what == What::Closed && slot.is_abandoned() && slot.ways().all(|(_, way)| way.closed.get().is_some()) {
            self.slots.give_back(notice.slot);
        }
        heard
    }

    #[cold]
    fn nonsense(&mut self, id: ConnectionId, immediate: u32) {
        self.connection_mut(id).fail(Breakdown::Nonsense(immediate));
        self.any_failed = true;
    }

    /// The moment for it is when nothing comes in: then nobody waits for what this rank does next.
    #[inline(never)]
    fn post_used_receives(&mut self) {
        while let Some(id) = self.thirsty.pop() {
            if let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) {
                connection.post_used_receives();
                self.any_failed |= connection.failure.is_some();
            }
        }
    }

    /// A slot for a queue and a partner, without a way between them yet; `None` when there are too many.
    pub(crate) fn take_slot(&mut self, rails: usize) -> Option<Rc<Slot>> {
        self.slots.take(rails)
    }

    /// Gives a slot back to which no partner sends.
    pub(crate) fn give_back_slot(&mut self, slot: &Slot) {
        self.slots.give_back(slot.number);
    }

    /// Gives a slot back as soon as the partner has closed on all ways that work.
    pub(crate) fn abandon_slot(&mut self, slot: &Slot) {
        slot.abandon();
        if self.is_quiet(slot) {
            self.give_back_slot(slot);
        }
    }

    /// Whether nothing more can come in for a slot: on each of the ways the partner has closed, or the way is broken.
    pub(crate) fn is_quiet(&self, slot: &Slot) -> bool {
        slot.ways().all(|(id, way)| way.closed.get().is_some() || self.connection(id).failure.is_some())
    }

    /// Takes a connection in, without use for new queues yet.
    pub(crate) fn add_connection(&mut self, make: impl FnOnce(ConnectionId) -> Connection) -> ConnectionId {
        let id = ConnectionId(self.connections.len() as u32);
        self.connections.push(Some(make(id)));
        // So that none of them grows later. A connection may owe for two queues in turn.
        self.thirsty.reserve(self.connections.len());
        self.owing.reserve(2 * self.connections.len());
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
        self.connection_mut(id).owe(slot, epoch);
        self.owing.push(id);
    }

    /// Sends the credits that nothing took along.
    #[inline]
    pub(crate) fn pay_all(&mut self) {
        if !self.owing.is_empty() {
            self.pay_owing();
        }
    }

    #[inline(never)]
    fn pay_owing(&mut self) {
        while let Some(id) = self.owing.pop() {
            let connection = self.connection_mut(id);
            connection.pay();
            self.any_failed |= connection.failure.is_some();
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
        let is_there = |id: ConnectionId| self.connections[id.0 as usize].is_some();
        self.slots.give_back_abandoned(|slot| slot.ways().all(|(id, way)| way.closed.get().is_some() || !is_there(id)));
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
