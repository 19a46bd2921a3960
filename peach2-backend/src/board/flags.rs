//! Flags at (slot, tag): what a board is told by others, an epoch and the virtual time at which it came.
//! Owns the layout of the memory; who writes which flag is the queues' business.
//!
//! A slot is for one queue and one partner. Tags 0 to 3 are its arrivals by channel, 4 is its credit. Tags from 8 on are written by the
//! board itself, in lines of their own: what it has sent to that partner.

use crate::clock::Time;
use crate::descriptor::FlagPlace;
use rma::Epoch;
use rma::shm::{Bell, Counter, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many slots a board has. The first holds the bell.
pub(crate) const SLOTS: u16 = 4096;
const TAGS: u8 = 16;

/// Where a partner says that it may be written.
pub(crate) const CREDIT_TAG: u8 = 4;
/// Set in the tags that the board itself writes.
pub(crate) const OWN_HALF: u8 = 8;

/// A flag. Whoever writes it writes the time first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Flag {
    counter: Counter,
    at: AtomicU64,
}

const _: () = {
    assert!(size_of::<Flag>() == 16 && align_of::<Flag>() == 8);
    assert!(OWN_HALF as usize * size_of::<Flag>() == 128, "each half of a slot fills the lines that prefetchers fetch together");
};

impl Flag {
    /// Says that `epoch` is there, from `at` on. The time is not written again before the reader has used it: the next epoch of a
    /// queue begins only then.
    #[inline]
    pub(crate) fn publish(&self, epoch: Epoch, at: Time) {
        // Relaxed: the counter's Release publishes it.
        self.at.store(at.0, Ordering::Relaxed);
        self.counter.publish(epoch);
    }

    /// Since when `epoch` is there, if it is.
    #[inline]
    pub(crate) fn since(&self, epoch: Epoch) -> Option<Time> {
        // Relaxed: the counter's Acquire comes before.
        self.counter.reached(epoch).then(|| Time(self.at.load(Ordering::Relaxed)))
    }

    /// Says that nothing more will come.
    pub(crate) fn close(&self) {
        self.counter.close();
    }

    /// The last epoch, and whether the writer has closed.
    pub(crate) fn look(&self) -> (Epoch, bool) {
        self.counter.look()
    }
}

/// The flags of a board, and the bell of its rank.
#[derive(Debug)]
pub(crate) struct FlagMemory {
    region: Arc<Region>,
}

impl FlagMemory {
    /// How long it is.
    pub(crate) const BYTES: usize = SLOTS as usize * TAGS as usize * size_of::<Flag>();

    /// Over a region that is long enough; `None` if it is not.
    pub(crate) fn new(region: Arc<Region>) -> Option<Self> {
        (region.len_bytes() >= Self::BYTES).then_some(Self { region })
    }

    /// The flag at a place; `None` where there is none.
    #[inline]
    pub(crate) fn flag(&self, place: FlagPlace) -> Option<&Flag> {
        if !(1..SLOTS).contains(&place.slot) || place.tag >= TAGS {
            return None;
        }
        let index = usize::from(place.slot) * usize::from(TAGS) + usize::from(place.tag);
        // Inside the region, whose length `new` has checked; wrapping only so that no unsafe is needed for arithmetic.
        let flag = self.region.base().as_ptr().cast::<Flag>().wrapping_add(index);
        // SAFETY: aligned, as regions begin with a page; mapped as long as `self` keeps the region; all bit patterns are flags, and
        // whoever has this memory uses it through atomics alone.
        Some(unsafe { &*flag })
    }

    /// What wakes the rank that has the board.
    #[inline]
    pub(crate) fn bell(&self) -> &Bell {
        // SAFETY: as for a flag; the first slot is used for nothing else.
        unsafe { self.region.base().cast().as_ref() }
    }

    /// Makes all flags of a slot new. Only while no partner knows of it.
    fn reset(&self, slot: u16) {
        for flag in (0..TAGS).filter_map(|tag| self.flag(FlagPlace { slot, tag })) {
            flag.counter.reset();
        }
    }
}

/// Which slots are free.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u16>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self { free: (1..SLOTS).rev().collect() }
    }

    pub(crate) fn take(&mut self, flags: &FlagMemory) -> Option<u16> {
        let slot = self.free.pop()?;
        flags.reset(slot);
        Some(slot)
    }

    /// Of a slot that no partner writes any more.
    pub(crate) fn give_back(&mut self, slot: u16) {
        self.free.push(slot);
    }
}
