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

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::collections::{HashMap, HashSet};

    /// The address and the key of the packing buffer.
    const BUFFER: (u64, u32) = (0x7000_0000, 77);
    const LIMITS: Limits = Limits { pieces: 16, inline_bytes: 128, message_bytes: 1 << 20 };

    /// What is where: bytes by key and address, as a device looks at them.
    type Memory = HashMap<(u32, u64), u8>;

    /// The byte that a source has, under whatever key.
    fn source_byte(address: u64) -> u8 {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    /// Every address that a put reads, with its key.
    fn sources(puts: &[Addressed]) -> HashSet<(u32, u64)> {
        let of_put = |put: &Addressed| {
            let (key, from) = (put.from_key, put.from);
            put.source.ranges().flat_map(move |range| range.map(move |at| (key, from + at))).collect::<Vec<_>>()
        };
        puts.iter().flat_map(of_put).collect()
    }

    /// What the puts must do, one after another, block by block and byte by byte.
    fn oracle(puts: &[Addressed]) -> Memory {
        let mut memory = Memory::new();
        for put in puts {
            for block in 0..put.source.count {
                for byte in 0..put.source.block_bytes {
                    let from = put.from + put.source.offset + block * put.source.stride + byte;
                    let to = put.to + put.target.offset + block * put.target.stride + byte;
                    memory.insert((put.to_key, to), source_byte(from));
                }
            }
        }
        memory
    }

    /// What a device makes of the writes, after the copies were made.
    fn carried_out(puts: &[Addressed], packing: &Packing, writes: &[Write]) -> Memory {
        let sources = sources(puts);
        let mut buffer: Vec<Option<u8>> = vec![None; packing.bytes];
        for copy in &packing.copies {
            for byte in 0..copy.len_bytes {
                let address = copy.from + byte as u64;
                let old = buffer[copy.at + byte].replace(source_byte(address));
                assert_eq!(old, None, "two copies go to byte {} of the buffer", copy.at + byte);
            }
        }
        let mut memory = Memory::new();
        for write in writes {
            let mut to = write.to_address;
            for piece in &write.pieces {
                for address in piece.address..piece.address + u64::from(piece.len_bytes) {
                    let byte = match piece.key == BUFFER.1 {
                        true => buffer[(address - BUFFER.0) as usize].expect("a byte of the buffer that was never filled"),
                        false => {
                            assert!(sources.contains(&(piece.key, address)), "{address:#x} is no source with key {}", piece.key);
                            source_byte(address)
                        }
                    };
                    memory.insert((write.to_key, to), byte);
                    to += 1;
                }
            }
        }
        memory
    }

    /// Windows are so far apart.
    const SPACE: u64 = 1 << 20;

    /// Puts between three windows here and two there. Targets may overlap: then the last put wins.
    fn draw(rng: &mut Rng) -> Vec<Addressed> {
        let mut puts: Vec<Addressed> = Vec::new();
        for _ in 0..rng.usize(0..8) {
            let (source_window, target_window) = (rng.u32(0..3), rng.u32(0..2));
            let block_bytes = match rng.u32(0..4) {
                0 => rng.u64(0..4),
                1 => rng.u64(0..40),
                2 => 250 + rng.u64(0..12),
                _ => rng.u64(0..900),
            };
            let count = if rng.bool() { 1 } else { rng.u64(0..if block_bytes < 40 { 30 } else { 6 }) };
            // Sources may overlap themselves; targets may not.
            let stride = |rng: &mut Rng, least: u64| if rng.bool() { block_bytes } else { least + rng.u64(0..60) };
            let source = Blocks { offset: rng.u64(0..500), block_bytes, count, stride: stride(rng, 0) };
            let mut target = Blocks { offset: rng.u64(0..2000), block_bytes, count, stride: stride(rng, block_bytes) };
            // Often it goes on where the last one ended, here and there.
            let mut put = Addressed {
                from: 0x1000_0000 + u64::from(source_window) * SPACE,
                from_key: 10 + source_window,
                source,
                to: 0x4000_0000 + u64::from(target_window) * SPACE,
                to_key: 20 + target_window,
                target,
            };
            if let Some(last) = puts.last().filter(|_| rng.bool()) {
                target.offset = last.target.span().end as u64;
                (put.target, put.to) = (target, last.to);
                if rng.bool() {
                    put.source.offset = last.source.span().end as u64;
                    put.from = last.from;
                }
                // Where the addresses go on, the keys may be others.
                put.to_key = if rng.u32(0..4) > 0 { last.to_key } else { put.to_key };
                put.from_key = if rng.u32(0..4) > 0 { last.from_key } else { put.from_key };
            }
            puts.push(put);
        }
        puts
    }

    fn draw_limits(rng: &mut Rng) -> Limits {
        let message_bytes = [1, 7, 64, 300, 1 << 20][rng.usize(0..5)];
        Limits { pieces: rng.usize(1..=20), inline_bytes: [0, 8, 128][rng.usize(0..3)], message_bytes }
    }

    fn each_draw(check: impl Fn(&[Addressed], Limits, &Packing, &[Write])) {
        for seed in 0..1000 {
            let mut rng = Rng::with_seed(seed);
            let (puts, limits) = (draw(&mut rng), draw_limits(&mut rng));
            let packing = Packing::of(&puts, limits);
            let writes = writes(&puts, &packing, BUFFER, limits);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&puts, limits, &packing, &writes)));
            assert!(outcome.is_ok(), "seed {seed}: {puts:?} within {limits:?} became {writes:?} after {packing:?}");
        }
    }

    #[test]
    fn every_byte_ends_where_the_puts_say_and_no_other_is_written() {
        each_draw(|puts, _, packing, writes| assert!(carried_out(puts, packing, writes) == oracle(puts)));
    }

    #[test]
    fn every_limit_of_a_queue_pair_is_kept() {
        each_draw(|puts, limits, _, writes| {
            assert!(!writes.is_empty(), "nothing to notify with");
            let nothing = puts.iter().all(|put| put.source.is_empty());
            for write in writes {
                let len = len_bytes(write);
                assert!(write.pieces.len() <= limits.pieces && len <= limits.message_bytes, "{write:?}");
                assert_eq!(write.inline, len <= limits.inline_bytes && !nothing, "{write:?}");
                assert!(write.pieces.iter().all(|piece| piece.len_bytes > 0), "an empty piece in {write:?}");
                assert_eq!(write.pieces.is_empty(), nothing, "{write:?}");
            }
        });
    }

    #[test]
    fn what_fits_into_one_write_is_not_two() {
        each_draw(|_, limits, _, writes| {
            for pair in writes.windows(2) {
                let (first, next) = (&pair[0], pair[1].pieces[0]);
                let last = first.pieces[first.pieces.len() - 1];
                let goes_on_there = (first.to_key, first.to_address + len_bytes(first)) == (pair[1].to_key, pair[1].to_address);
                let goes_on_here = (last.key, last.address + u64::from(last.len_bytes)) == (next.key, next.address);
                let has_room = first.pieces.len() < limits.pieces || goes_on_here;
                let fits = len_bytes(first) + u64::from(next.len_bytes) <= limits.message_bytes;
                assert!(!(goes_on_there && has_room && fits), "{pair:?}");
            }
        });
    }

    #[test]
    fn pieces_that_meet_here_and_there_are_one() {
        each_draw(|_, limits, _, writes| {
            for write in writes.iter().filter(|write| len_bytes(write) < limits.message_bytes) {
                for pair in write.pieces.windows(2) {
                    let end = pair[0].address + u64::from(pair[0].len_bytes);
                    assert!((pair[0].key, end) != (pair[1].key, pair[1].address), "{write:?}");
                }
            }
        });
    }

    #[test]
    fn copies_fill_the_packing_buffer_to_the_last_byte() {
        each_draw(|_, _, packing, _| {
            let copied: usize = packing.copies.iter().map(|copy| copy.len_bytes).sum();
            assert_eq!(copied, packing.bytes);
            assert!(packing.copies.iter().all(|copy| copy.at + copy.len_bytes <= packing.bytes));
            assert_eq!(packing.count() == 0, packing.bytes == 0);
        });
    }

    fn put(source: Blocks, target: Blocks) -> Addressed {
        Addressed { from: 0x1000_0000, from_key: 10, source, to: 0x4000_0000, to_key: 20, target }
    }

    /// From blocks with gaps into one range.
    fn gathering(count: u64, block_bytes: u64) -> Addressed {
        let source = Blocks { offset: 0, block_bytes, count, stride: 2 * block_bytes };
        put(source, Blocks { offset: 8, stride: block_bytes, ..source })
    }

    fn planned(put: Addressed) -> (Packing, Vec<Write>) {
        let packing = Packing::of(&[put], LIMITS);
        let writes = writes(&[put], &packing, BUFFER, LIMITS);
        (packing, writes)
    }

    #[test]
    fn many_small_blocks_are_packed_into_one_write() {
        for (count, bytes) in [(17, 256), (100, 8), (2, 256), (16, 9)] {
            let (packing, writes) = planned(gathering(count, bytes));
            assert_eq!((packing.count(), packing.copies.len(), writes.len()), (1, count as usize, 1), "{count} x {bytes}");
            assert_eq!(writes[0].pieces, [Piece { address: BUFFER.0, len_bytes: (count * bytes) as u32, key: BUFFER.1 }]);
        }
    }

    #[test]
    fn large_blocks_and_few_bytes_are_gathered_by_the_device() {
        for (count, bytes) in [(16, 257), (40, 257), (2, 64), (16, 8)] {
            let (packing, writes) = planned(gathering(count, bytes));
            assert_eq!((packing.count(), packing.bytes), (0, 0), "{count} x {bytes}");
            assert_eq!(writes.len(), count.div_ceil(LIMITS.pieces as u64) as usize, "{count} x {bytes}");
        }
    }

    #[test]
    fn blocks_that_are_scattered_there_are_a_write_each() {
        let target = Blocks { offset: 0, block_bytes: 8, count: 20, stride: 24 };
        let (packing, writes) = planned(put(Blocks { offset: 0, block_bytes: 8, count: 20, stride: 16 }, target));
        assert_eq!((packing.count(), writes.len()), (0, 20));
        assert!(writes.iter().all(|write| write.inline));
    }

    #[test]
    fn a_put_without_a_byte_is_one_write_without_a_piece() {
        for empty in [Blocks::contiguous(5, 0), Blocks { offset: 5, block_bytes: 9, count: 0, stride: 9 }] {
            let (packing, writes) = planned(put(empty, empty));
            assert_eq!(packing, Packing { starts: vec![None], ..Packing::default() });
            assert_eq!(writes, [Write { pieces: Vec::new(), to_address: 0, to_key: 0, inline: false }]);
        }
    }

    #[test]
    fn a_put_over_the_limit_of_a_message_goes_out_in_parts() {
        let limits = Limits { message_bytes: 1000, ..LIMITS };
        let puts = [put(Blocks::contiguous(0, 2500), Blocks::contiguous(64, 2500))];
        let writes = writes(&puts, &Packing::of(&puts, limits), BUFFER, limits);
        let parts: Vec<_> = writes.iter().map(|write| (write.to_address - 0x4000_0000, len_bytes(write))).collect();
        assert_eq!(parts, [(64, 1000), (1064, 1000), (2064, 500)]);
    }
}
