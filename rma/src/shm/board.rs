//! Boards: where the counters and the bell of a rank are, in memory that its partners write.
//! Owns the layout and which partner has which counter; knows no queues.
//!
//! All counters that one partner writes lie together, in cache lines that nobody else writes: the line that brings an arrival
//! brings the same partner's credits along.

use super::counters::{Bell, Counter};
use super::region::Region;
use super::space::{RegionId, Space};
use crate::{Error, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Two cache lines: what the prefetchers of common processors fetch together.
const LINE_BYTES: usize = 128;
const COUNTERS_PER_LINE: usize = LINE_BYTES / size_of::<Counter>();
/// The first chunk of a board is a page, so that few partners cost little; each further one is twice as long as the one before, up
/// to the last of these, so that many partners need few chunks.
const FIRST_CHUNK_LINES: usize = 4096 / LINE_BYTES;
const LARGEST_CHUNK_LINES: usize = 32 * FIRST_CHUNK_LINES;

const _: () = assert!(COUNTERS_PER_LINE == 16, "the bits of Line::used");

/// Where a counter is: a region of its owner, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) region: RegionId,
    offset: u32,
}

#[cfg(test)]
impl Slot {
    pub(super) fn new(region: RegionId, offset: u32) -> Self {
        Self { region, offset }
    }
}

/// The board of this rank.
#[derive(Debug)]
pub(super) struct Board {
    chunks: Vec<(RegionId, Arc<Region>)>,
    /// The lines given to each partner, with a bit for each counter in use.
    lines: HashMap<Rank, Vec<Line>>,
    /// The first line of the last chunk that nobody has.
    fresh_line: usize,
}

#[derive(Debug)]
struct Line {
    chunk: usize,
    line: usize,
    used: u16,
}

impl Board {
    /// A board without chunks. The first line of the first will hold the bell.
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), lines: HashMap::new(), fresh_line: 0 }
    }

    /// Where the bell is.
    pub(super) fn bell(&mut self, space: &Space) -> Result<Slot> {
        if self.chunks.is_empty() {
            self.grow(space)?;
        }
        Ok(Slot { region: self.chunks[0].0, offset: 0 })
    }

    /// A counter, at "never", for `partner` to write.
    pub(super) fn take(&mut self, partner: Rank, space: &Space) -> Result<Slot> {
        let lines = self.lines.entry(partner).or_default();
        if lines.iter().all(|line| line.used == u16::MAX) {
            if self.chunks.last().is_none_or(|(_, chunk)| self.fresh_line * LINE_BYTES == chunk.len_bytes()) {
                self.grow(space)?;
            }
            let line = Line { chunk: self.chunks.len() - 1, line: self.fresh_line, used: 0 };
            self.fresh_line += 1;
            self.lines.entry(partner).or_default().push(line);
        }
        let lines = self.lines.entry(partner).or_default();
        let Some(line) = lines.iter_mut().find(|line| line.used != u16::MAX) else { unreachable!("bug: a line was just added") };
        let bit = line.used.trailing_ones();
        line.used |= 1 << bit;
        let (region, memory) = &self.chunks[line.chunk];
        let slot = Slot { region: *region, offset: (line.line * LINE_BYTES + bit as usize * size_of::<Counter>()) as u32 };
        // SAFETY: the counter belongs to the owner of the board until it tells the partner where it is.
        unsafe { counter(memory, slot).as_ref() }.reset();
        Ok(slot)
    }

    /// Takes a counter back that its partner will not write any more.
    pub(super) fn give_back(&mut self, partner: Rank, slot: Slot) {
        let at = self.chunks.iter().position(|(region, _)| *region == slot.region);
        let line = slot.offset as usize / LINE_BYTES;
        let bit = slot.offset as usize % LINE_BYTES / size_of::<Counter>();
        let lines = self.lines.get_mut(&partner);
        if let Some(line) = lines.and_then(|lines| lines.iter_mut().find(|l| Some(l.chunk) == at && l.line == line)) {
            line.used &= !(1 << bit);
        }
    }

    fn grow(&mut self, space: &Space) -> Result<()> {
        let lines = (FIRST_CHUNK_LINES << self.chunks.len().min(8)).min(LARGEST_CHUNK_LINES);
        self.chunks.push(space.make(lines * LINE_BYTES)?);
        // The first line of the first chunk is the bell's.
        self.fresh_line = usize::from(self.chunks.len() == 1);
        Ok(())
    }
}

/// The counter at a slot of a board's chunk.
///
/// Panics when `slot` was not checked: it is a bug to get here with one that points elsewhere.
pub(super) fn counter(chunk: &Region, slot: Slot) -> std::ptr::NonNull<Counter> {
    let offset = slot.offset as usize;
    assert!(
        offset.is_multiple_of(align_of::<Counter>()) && offset + size_of::<Counter>() <= chunk.len_bytes(),
        "bug: unchecked slot"
    );
    // SAFETY: inside the chunk, checked above.
    unsafe { chunk.base().add(offset) }.cast()
}

/// The bell at a slot of a board's chunk, under the same condition.
pub(super) fn bell(chunk: &Region, slot: Slot) -> std::ptr::NonNull<Bell> {
    counter(chunk, slot).cast()
}

/// Refuses a slot that a peer sent and that is no slot.
pub(super) fn check(slot: Slot, chunk: &Region, from: Rank) -> Result<()> {
    let offset = slot.offset as usize;
    if offset.is_multiple_of(size_of::<Counter>()) && offset + size_of::<Counter>() <= chunk.len_bytes() {
        return Ok(());
    }
    let reason = format!("counter at byte {offset} of a board chunk of {} bytes", chunk.len_bytes());
    Err(Error::Malformed { what: "board slot", from: from.to_string(), reason })
}
