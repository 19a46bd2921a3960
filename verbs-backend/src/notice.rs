//! What 32 bits of immediate data say: which queue of the receiver, what happened there, in which epoch.
//! Pure. A slot is the receiver's own number for a queue and a partner; it told the partner at commit.

/// What a partner is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// All puts of an epoch on this rail are there.
    Arrived,
    /// An epoch may be written.
    Granted,
    /// Nothing more will be written; all arrivals on this rail up to the epoch have been seen.
    Closed,
}

/// How many slots there can be.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;
/// Epochs are told modulo this. A connection keeps order, so it serves as a check only.
pub(crate) const EPOCHS: u64 = 1 << 10;

/// Packs a notice. Bits 31-30 what, 29-10 the slot, 9-0 the epoch.
pub(crate) const fn encode(notice: Notice, slot: u32, epoch: u64) -> u32 {
    let what = match notice {
        Notice::Arrived => 0,
        Notice::Granted => 1,
        Notice::Closed => 2,
    };
    what << 30 | slot << 10 | (epoch % EPOCHS) as u32
}

/// What, in which slot, in which epoch modulo [`EPOCHS`]; `None` for what no partner sends.
pub(crate) const fn decode(immediate: u32) -> Option<(Notice, u32, u64)> {
    let notice = match immediate >> 30 {
        0 => Notice::Arrived,
        1 => Notice::Granted,
        2 => Notice::Closed,
        _ => return None,
    };
    Some((notice, (immediate >> 10) % MAX_SLOTS, immediate as u64 % EPOCHS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for notice in [Notice::Arrived, Notice::Granted, Notice::Closed] {
            for slot in [0, 1, 77, MAX_SLOTS - 1] {
                for epoch in [0, 1, 1023, 1024, u64::MAX] {
                    assert_eq!(decode(encode(notice, slot, epoch)), Some((notice, slot, epoch % EPOCHS)));
                }
            }
        }
        assert_eq!(decode(3 << 30), None);
    }
}
