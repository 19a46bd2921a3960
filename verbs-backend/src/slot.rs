//! What a queue and one partner have told each other, under the number by which the partner names the two.
//! Knows no device.

use crate::connection::ConnectionId;
use crate::notice::{MAX_SLOTS, Notice, What};
use rma::Rail;
use std::cell::Cell;
use std::rc::Rc;

/// A queue and one partner.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    /// Epochs that the partner may be written in.
    pub(crate) granted: Cell<u64>,
    /// By rail.
    ways: Box<[Way]>,
    /// The queue is gone, and only the partner's closing is waited for.
    abandoned: Cell<bool>,
}

/// The same on one rail.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// What comes over another connection is of an earlier queue that had this number. `None`: the two do not use the rail.
    pub(crate) connection: Cell<Option<ConnectionId>>,
    /// Epochs that have arrived from the partner.
    pub(crate) arrived: Cell<u64>,
    /// Lists of this rank that are complete.
    pub(crate) completed: Cell<u64>,
    /// Once the partner has closed, the epoch modulo [`EPOCHS`](crate::notice::EPOCHS) up to which it has seen everything.
    pub(crate) closed: Cell<Option<u64>>,
}

impl Slot {
    #[inline]
    pub(crate) fn way(&self, rail: Rail) -> &Way {
        &self.ways[usize::from(rail.0)]
    }

    /// The ways that are used, each with its connection.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (ConnectionId, &Way)> {
        self.ways.iter().filter_map(|way| way.connection.get().map(|id| (id, way)))
    }

    pub(crate) fn any_closed(&self) -> bool {
        self.ways.iter().any(|way| way.closed.get().is_some())
    }

    /// The queue is gone; the number stays taken until the partner has closed.
    pub(crate) fn abandon(&self) {
        self.abandoned.set(true);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// Takes note of what the partner says. False if that cannot be.
    #[inline(always)]
    pub(crate) fn hear(&self, id: ConnectionId, rail: Rail, notice: Notice) -> bool {
        let way = self.way(rail);
        let expected = match notice.what {
            What::Arrived => way.arrived.get() + 1,
            What::Granted => self.granted.get() + 1,
            What::Closed => notice.epoch,
        };
        // The modulus is a power of two, and a division would be the longest step of all.
        if way.connection.get() != Some(id) || notice.epoch != expected & (notice.modulus - 1) {
            return false;
        }
        match notice.what {
            What::Arrived => way.arrived.set(expected),
            What::Granted => self.granted.set(expected),
            What::Closed => way.closed.set(Some(expected)),
        }
        true
    }
}

/// The slots of a rank by their numbers, which go from queue to queue.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    taken: Vec<Option<Rc<Slot>>>,
    free: Vec<u32>,
}

impl Slots {
    /// A slot for a queue and a partner, without a way between them yet; `None` when there are too many.
    pub(crate) fn take(&mut self, rails: usize) -> Option<Rc<Slot>> {
        let number = self.free.pop().or_else(|| {
            let next = u32::try_from(self.taken.len()).ok().filter(|&next| next < MAX_SLOTS)?;
            self.taken.push(None);
            Some(next)
        })?;
        let ways = (0..rails).map(|_| Way::default()).collect();
        let slot = Rc::new(Slot { number, granted: Cell::new(0), ways, abandoned: Cell::new(false) });
        self.taken[number as usize] = Some(slot.clone());
        Some(slot)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Slot> {
        self.taken.get(number as usize)?.as_deref()
    }

    pub(crate) fn give_back(&mut self, number: u32) {
        self.taken[number as usize] = None;
        self.free.push(number);
    }

    /// Gives back the abandoned ones for which nothing comes any more.
    pub(crate) fn give_back_abandoned(&mut self, is_quiet: impl Fn(&Slot) -> bool) {
        for (number, slot) in (0..).zip(&mut self.taken) {
            if slot.take_if(|slot| slot.is_abandoned() && is_quiet(slot)).is_some() {
                self.free.push(number);
            }
        }
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
        let mut slots = Slots::default();
        let (broken, anew, rail) = (ConnectionId(0), ConnectionId(1), Rail(1));
        let earlier = slots.take(2).unwrap();
        let number = earlier.number;
        earlier.way(rail).connection.set(Some(broken));
        assert!(earlier.hear(broken, rail, notice(What::Arrived, number, 1)));
        slots.give_back(number);
        assert!(slots.get(number).is_none());

        let next = slots.take(2).unwrap();
        assert_eq!(next.number, number);
        next.way(rail).connection.set(Some(anew));
        for what in [What::Arrived, What::Granted, What::Closed] {
            assert!(!next.hear(broken, rail, notice(what, number, 1)), "{what:?}");
            assert!(!next.hear(anew, Rail(0), notice(what, number, 1)), "{what:?} on a rail that is not used");
        }
        assert_eq!((next.way(rail).arrived.get(), next.granted.get(), next.any_closed()), (0, 0, false));
        assert!(next.hear(anew, rail, notice(What::Arrived, number, 1)));
        assert_eq!((earlier.way(rail).arrived.get(), next.way(rail).arrived.get()), (1, 1));
    }

    #[test]
    fn only_abandoned_slots_that_are_quiet_are_given_back() {
        let mut slots = Slots::default();
        let (used, quiet, heard) = (slots.take(1).unwrap(), slots.take(1).unwrap(), slots.take(1).unwrap());
        quiet.abandon();
        heard.abandon();
        slots.give_back_abandoned(|slot| slot.number != heard.number);
        assert!(slots.get(used.number).is_some() && slots.get(quiet.number).is_none() && slots.get(heard.number).is_some());
        assert_eq!(slots.take(1).unwrap().number, quiet.number);
    }
}
