//! What puts become: writes that gather pieces, merged where they meet, packed where copying is cheaper.
//! Pure arithmetic on addresses; knows no device and touches no memory.

use crate::ffi::{Piece, Write};
use crate::memory::Gather;
use rma::layout::Blocks;

/// A put with addresses and keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressed {
    /// Where the source's window begins, and its key on this rail.
    pub(crate) from: u64,
    pub(crate) from_key: u32,
    pub(crate) source: Blocks,
    /// Where the target's window begins, and its key on this rail.
    pub(crate) to: u64,
    pub(crate) to_key: u32,
    pub(crate) target: Blocks,
}

/// What a queue pair takes in one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) pieces: usize,
    pub(crate) inline_bytes: u64,
    pub(crate) message_bytes: u64,
}

/// Blocks up to this length are packed when they are many: a device spends more on fetching such a piece than a core on copying it.
const PACKED_BLOCK_BYTES: u64 = 256;

/// Which puts are packed, and what that takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packing {
    /// For each put where its bytes begin in the buffer, if it is packed.
    starts: Vec<Option<u64>>,
    pub(crate) copies: Vec<Gather>,
    pub(crate) bytes: usize,
}

impl Packing {
    /// Packs the puts that gather many small blocks into one range of the target.
    pub(crate) fn of(puts: &[Addressed], limits: Limits) -> Self {
        let mut packing = Self::default();
        for put in puts {
            let many = put.source.count > limits.pieces as u64 || put.source.block_bytes <= PACKED_BLOCK_BYTES;
            let packed = many
                && !put.source.is_contiguous()
                && put.target.is_contiguous()
                && put.source.block_bytes <= PACKED_BLOCK_BYTES
                && put.source.total_bytes() > u128::from(limits.inline_bytes);
            packing.starts.push(packed.then_some(packing.bytes as u64));
            if packed {
                for (from, _, len_bytes) in pieces(put) {
                    packing.copies.push(Gather { from, at: packing.bytes, len_bytes: len_bytes as usize });
                    packing.bytes += len_bytes as usize;
                }
            }
        }
        packing
    }

    /// How many puts are packed.
    pub(crate) fn count(&self) -> usize {
        self.starts.iter().flatten().count()
    }
}

/// The writes of puts, in their order; at least one, so that there is something to notify with. The packing buffer has this
/// address and key.
pub(crate) fn writes(puts: &[Addressed], packing: &Packing, buffer: (u64, u32), limits: Limits) -> Vec<Write> {
    let mut building = Building { writes: Vec::new(), limits };
    for (put, packed) in puts.iter().zip(&packing.starts) {
        match packed {
            Some(start) => {
                building.add(buffer.0 + start, buffer.1, put.to + put.target.offset, put.to_key, put.target.total_bytes() as u64);
            }
            None => pieces(put).for_each(|(from, to, bytes)| building.add(from, put.from_key, to, put.to_key, bytes)),
        }
    }
    let mut writes = building.writes;
    for write in &mut writes {
        write.inline = len_bytes(write) <= limits.inline_bytes;
    }
    if writes.is_empty() {
        writes.push(Write { pieces: Vec::new(), to_address: 0, to_key: 0, inline: false });
    }
    writes
}

/// From where to where and how many bytes, block by block.
fn pieces(put: &Addressed) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
    let Addressed { from, source, to, target, .. } = *put;
    let whole = source.is_contiguous() && target.is_contiguous();
    let (count, bytes) = if source.is_empty() {
        (0, 0)
    } else if whole {
        (1, source.block_bytes * source.count)
    } else {
        (source.count, source.block_bytes)
    };
    (0..count).map(move |i| (from + source.offset + i * source.stride, to + target.offset + i * target.stride, bytes))
}

struct Building {
    writes: Vec<Write>,
    limits: Limits,
}

impl Building {
    fn add(&mut self, mut from: u64, from_key: u32, mut to: u64, to_key: u32, mut bytes: u64) {
        while bytes > 0 {
            let part = bytes.min(self.limits.message_bytes);
            if !self.extend(from, from_key, to, to_key, part) {
                let pieces = vec![Piece { address: from, len_bytes: part as u32, key: from_key }];
                self.writes.push(Write { pieces, to_address: to, to_key, inline: false });
            }
            (from, to, bytes) = (from + part, to + part, bytes - part);
        }
    }

    /// Adds a piece to the last write, if it goes on where that ends.
    fn extend(&mut self, from: u64, from_key: u32, to: u64, to_key: u32, bytes: u64) -> bool {
        let Limits { pieces: most_pieces, message_bytes, .. } = self.limits;
        let Some(write) = self.writes.last_mut() else { return false };
        let len_bytes = len_bytes(write);
        if (write.to_key, write.to_address + len_bytes) != (to_key, to) || len_bytes + bytes > message_bytes {
            return false;
        }
        let room = write.pieces.len() < most_pieces;
        match write.pieces.last_mut() {
            Some(last) if (last.key, last.address + u64::from(last.len_bytes)) == (from_key, from) => {
                last.len_bytes += bytes as u32
            }
            _ if room => write.pieces.push(Piece { address: from, len_bytes: bytes as u32, key: from_key }),
            _ => return false,
        }
        true
    }
}

fn len_bytes(write: &Write) -> u64 {
    write.pieces.iter().map(|piece| u64::from(piece.len_bytes)).sum()
}
