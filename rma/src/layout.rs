//! Which bytes a put touches: equal blocks at equal distances, and sets of byte ranges.
//! Pure arithmetic; knows no memory, no window and no rank.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// `count` blocks of `block_bytes`, the first at `offset`, each `stride` bytes after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Where the first block begins, in bytes from the start of the window.
    pub offset: u64,
    /// The length of one block.
    pub block_bytes: u64,
    /// How many blocks.
    pub count: u64,
    /// From the start of a block to the start of the next; without meaning for fewer than two blocks.
    pub stride: u64,
}

impl Blocks {
    /// One block.
    pub const fn contiguous(offset: u64, len_bytes: u64) -> Self {
        Self { offset, block_bytes: len_bytes, count: 1, stride: len_bytes }
    }

    /// The bytes of all blocks together, wide enough never to overflow.
    pub const fn total_bytes(&self) -> u128 {
        self.block_bytes as u128 * self.count as u128
    }

    /// Whether there is not a single byte.
    pub const fn is_empty(&self) -> bool {
        self.block_bytes == 0 || self.count == 0
    }

    /// From the first byte to behind the last, wide enough never to overflow.
    pub const fn span(&self) -> Range<u128> {
        let start = self.offset as u128;
        if self.is_empty() {
            return start..start;
        }
        start..start + (self.count as u128 - 1) * self.stride as u128 + self.block_bytes as u128
    }

    /// Whether two blocks share a byte.
    pub const fn overlaps_itself(&self) -> bool {
        self.count > 1 && self.stride < self.block_bytes
    }

    /// Whether the blocks follow each other without a gap.
    pub const fn is_contiguous(&self) -> bool {
        self.count <= 1 || self.stride == self.block_bytes
    }

    /// The byte range of each block. Call only when the span fits into a window, that is into 64 bits.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let blocks = if self.is_empty() {
            Self::contiguous(self.offset, 0)
        } else if self.is_contiguous() {
            Self::contiguous(self.offset, self.block_bytes * self.count)
        } else {
            *self
        };
        (0..if blocks.is_empty() { 0 } else { blocks.count }).map(move |i| {
            let start = blocks.offset + i * blocks.stride;
            start..start + blocks.block_bytes
        })
    }
}

/// A set of bytes: sorted ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u64>>,
}

impl RangeSet {
    /// The first range of this set that shares a byte with `other`, cut to what they share.
    pub fn overlap(&self, other: &Range<u64>) -> Option<Range<u64>> {
        let first = self.ranges.partition_point(|range| range.end <= other.start);
        let range = self.ranges.get(first)?;
        let shared = range.start.max(other.start)..range.end.min(other.end);
        (!shared.is_empty()).then_some(shared)
    }

    /// The first bytes that both sets have.
    pub fn overlap_set(&self, other: &Self) -> Option<Range<u64>> {
        let (few, many) = if self.ranges.len() <= other.ranges.len() { (self, other) } else { (other, self) };
        few.ranges.iter().find_map(|range| many.overlap(range))
    }

    /// Whether the other set has every byte of this one.
    pub fn is_within(&self, other: &Self) -> bool {
        self.ranges.iter().all(|range| {
            let first = other.ranges.partition_point(|theirs| theirs.end < range.end);
            other.ranges.get(first).is_some_and(|theirs| theirs.start <= range.start)
        })
    }

    /// All bytes of both.
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).cloned().collect()
    }

    /// Whether there is not a single byte.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// From the first byte to behind the last.
    pub fn bounds(&self) -> Range<u64> {
        match (self.ranges.first(), self.ranges.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        }
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.ranges.iter()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut all: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(all.len());
        for range in all {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }
}

/// Among `pieces` (a range and whose it is), two that share a byte: their indices and the shared bytes.
pub fn first_clash<T>(pieces: &[(Range<u64>, T)]) -> Option<(usize, usize, Range<u64>)> {
    let mut order: Vec<usize> = (0..pieces.len()).filter(|&i| !pieces[i].0.is_empty()).collect();
    order.sort_unstable_by_key(|&i| (pieces[i].0.start, i));
    let mut furthest: Option<usize> = None;
    for i in order {
        let range = &pieces[i].0;
        if let Some(before) = furthest {
            let end = pieces[before].0.end;
            if range.start < end {
                return Some((before.min(i), before.max(i), range.start..range.end.min(end)));
            }
        }
        furthest = Some(match furthest {
            Some(before) if pieces[before].0.end >= range.end => before,
            _ => i,
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_and_ranges_agree_with_each_block_spelled_out() {
        let blocks = Blocks { offset: 3, block_bytes: 2, count: 3, stride: 5 };
        assert_eq!(blocks.ranges().collect::<Vec<_>>(), [3..5, 8..10, 13..15]);
        assert_eq!(blocks.span(), 3..15);
        assert_eq!(blocks.total_bytes(), 6);
        assert!(!blocks.is_contiguous() && !blocks.overlaps_itself());
    }

    #[test]
    fn touching_blocks_are_one_range_and_no_blocks_are_none() {
        let touching = Blocks { offset: 8, block_bytes: 4, count: 4, stride: 4 };
        assert!(touching.ranges().eq(std::iter::once(8..24)));
        for empty in [Blocks { count: 0, ..touching }, Blocks { block_bytes: 0, stride: 9, ..touching }] {
            assert_eq!(empty.ranges().count(), 0);
            assert_eq!(empty.span(), 8..8);
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let huge = Blocks { offset: u64::MAX, block_bytes: u64::MAX, count: u64::MAX, stride: u64::MAX };
        assert!(huge.span().end > u64::MAX as u128);
        assert_eq!(huge.total_bytes(), u64::MAX as u128 * u64::MAX as u128);
    }

    #[test]
    fn overlaps_are_those_a_byte_by_byte_comparison_finds() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut draw = |n: usize| -> Vec<Range<u64>> {
                (0..n)
                    .map(|_| {
                        let start = random.u64(0..60);
                        start..start + random.u64(0..6)
                    })
                    .collect()
            };
            let (a, b) = (draw(4), draw(4));
            let bytes = |ranges: &[Range<u64>]| -> Vec<u64> {
                let mut bytes: Vec<u64> = ranges.iter().cloned().flatten().collect();
                bytes.sort_unstable();
                bytes
            };
            let (set_a, set_b) = (RangeSet::from_iter(a.clone()), RangeSet::from_iter(b.clone()));
            let mut unique = bytes(&a);
            unique.dedup();
            assert_eq!(set_a.iter().cloned().flatten().collect::<Vec<_>>(), unique);
            let shared = bytes(&a).iter().any(|byte| bytes(&b).contains(byte));
            assert_eq!(set_a.overlap_set(&set_b).is_some(), shared, "{a:?} {b:?}");
            assert_eq!(set_a.is_within(&set_b), bytes(&a).iter().all(|byte| bytes(&b).contains(byte)), "{a:?} {b:?}");
            let both: RangeSet = a.iter().chain(&b).cloned().collect();
            assert_eq!(set_a.union(&set_b), both);
            let pieces: Vec<_> = a.iter().map(|range| (range.clone(), ())).collect();
            match first_clash(&pieces) {
                Some((i, j, shared)) => {
                    assert!(i < j && !shared.is_empty());
                    assert!(shared.clone().all(|byte| a[i].contains(&byte) && a[j].contains(&byte)), "{a:?} {shared:?}");
                }
                None => assert_eq!(unique.len(), bytes(&a).len(), "{a:?}"),
            }
        }
    }
}
