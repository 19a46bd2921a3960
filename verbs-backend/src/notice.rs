//! What 32 bits of immediate data say: which queue of the receiver, what happened there, in which epoch.
//! Pure: packs and unpacks, and every 32 bits mean something. A slot is the receiver's own number for a queue and a partner; it told the partner at commit.

/// What a partner is told of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// All puts of an epoch on this rail are there.
    Arrived = 0,
    /// An epoch may be written.
    Granted = 1,
    /// Nothing more will be written; all arrivals on this rail up to the epoch have been seen.
    Closed = 2,
}

/// Stands for both an arrival and a credit.
const BOTH: u32 = 3;

/// What is told, of which queue, and of which epoch modulo `modulus`: a connection keeps order, so that is for checking only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) what: What,
    pub(crate) slot: u32,
    pub(crate) epoch: u64,
    pub(crate) modulus: u64,
}

/// How many slots there can be.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;
/// How epochs are told.
pub(crate) const EPOCHS: u64 = 1 << 10;
/// The same where two notices share the bits.
const SHARED_SLOTS: u32 = 1 << 13;
const SHARED_EPOCHS: u64 = 1 << 2;

/// Packs a notice. Bits 31-30 what, 29-10 the slot, 9-0 the epoch.
pub(crate) const fn encode(what: What, slot: u32, epoch: u64) -> u32 {
    (what as u32) << 30 | slot << 10 | (epoch % EPOCHS) as u32
}

/// Packs an arrival and a credit into one, if their slots are low enough. Bits 31-30 are set, 29-17 the slot that something has
/// arrived in, 16-4 the slot that is granted, 3-2 and 1-0 their epochs.
pub(crate) const fn encode_both(arrived: (u32, u64), granted: (u32, u64)) -> Option<u32> {
    if arrived.0 >= SHARED_SLOTS || granted.0 >= SHARED_SLOTS {
        return None;
    }
    let epochs = ((arrived.1 % SHARED_EPOCHS) << 2) | (granted.1 % SHARED_EPOCHS);
    Some(BOTH << 30 | arrived.0 << 17 | granted.0 << 4 | epochs as u32)
}

/// What is told, and what is told along with it.
#[inline(always)]
pub(crate) fn decode(immediate: u32) -> (Notice, Option<Notice>) {
    let both = |what, slot: u32, epoch: u32| Notice {
        what,
        slot: slot % SHARED_SLOTS,
        epoch: epoch as u64 % SHARED_EPOCHS,
        modulus: SHARED_EPOCHS,
    };
    let code = immediate >> 30;
    if code == BOTH {
        let arrived = both(What::Arrived, immediate >> 17, immediate >> 2);
        return (arrived, Some(both(What::Granted, immediate >> 4, immediate)));
    }
    let what = [What::Arrived, What::Granted].into_iter().find(|&what| what as u32 == code).unwrap_or(What::Closed);
    let one = Notice { what, slot: (immediate >> 10) % MAX_SLOTS, epoch: immediate as u64 % EPOCHS, modulus: EPOCHS };
    (one, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for what in [What::Arrived, What::Granted, What::Closed] {
            for slot in [0, 1, 77, MAX_SLOTS - 1] {
                for epoch in [0, 1, 1023, 1024, u64::MAX] {
                    let notice = Notice { what, slot, epoch: epoch % EPOCHS, modulus: EPOCHS };
                    assert_eq!(decode(encode(what, slot, epoch)), (notice, None));
                }
            }
        }
    }

    #[test]
    fn an_arrival_and_a_credit_share_the_bits_if_their_slots_are_low() {
        let last = SHARED_SLOTS - 1;
        for (arrived, granted) in [(0, 0), (1, 2), (last, 0), (0, last), (last, last)] {
            for (epoch, next) in [(1, 2), (7, 4), (u64::MAX, 0)] {
                let packed = encode_both((arrived, epoch), (granted, next)).unwrap();
                let notice = |what, slot, epoch| Notice { what, slot, epoch: epoch % 4, modulus: 4 };
                assert_eq!(decode(packed), (notice(What::Arrived, arrived, epoch), Some(notice(What::Granted, granted, next))));
            }
        }
        assert_eq!(encode_both((SHARED_SLOTS, 1), (0, 1)), None);
        assert_eq!(encode_both((0, 1), (SHARED_SLOTS, 1)), None);
    }
}
