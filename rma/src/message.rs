//! Puts, declared once and pushed to any number of queues.
//! Owns the check that every range is inside its window; moves nothing.

use crate::comm::CommInner;
use crate::layout::Blocks;
use crate::window::{RmaWindow, WindowInner};
use crate::{Error, Rail, Rank, Result};
use std::ops::Range;
use std::rc::Rc;

/// A declared put: which bytes of which window of this rank go to which bytes of which window of the target.
///
/// Made by [`Comm::declare_write`](crate::Comm::declare_write). It moves nothing by itself: push it to a queue.
#[derive(Clone, Debug)]
pub struct MsgHandle {
    pub(crate) target: Rank,
    pub(crate) rail: Option<Rail>,
    pub(crate) source: Rc<WindowInner>,
    pub(crate) source_blocks: Blocks,
    pub(crate) window: Rc<WindowInner>,
    pub(crate) target_blocks: Blocks,
}

impl MsgHandle {
    pub(crate) fn declare(
        comm: &Rc<CommInner>,
        (window, target_offset): (&RmaWindow, usize),
        (source, source_offset): (&RmaWindow, usize),
        len_bytes: usize,
        target: Rank,
    ) -> Result<Self> {
        for (what, window) in [("destination of declare_write", window), ("source of declare_write", source)] {
            if !Rc::ptr_eq(comm, &window.inner.comm) {
                return Err(Error::Invalid {
                    what,
                    reason: format!("{} belongs to another Comm; allocate it on this one", window.id()),
                });
            }
        }
        let message = Self {
            target,
            rail: None,
            source: source.inner.clone(),
            source_blocks: Blocks::contiguous(source_offset as u64, len_bytes as u64),
            window: window.inner.clone(),
            target_blocks: Blocks::contiguous(target_offset as u64, len_bytes as u64),
        };
        message.check()?;
        Ok(message)
    }

    /// The same put over a rail of the program's choice. Without it the queue chooses: the rail with the fewest bytes so far where
    /// rails work in parallel ([`Caps`](crate::backend::Caps)), else rail 0, which saves notifications.
    ///
    /// [`Error::NoSuchRail`] when the backend has fewer.
    pub fn rail(mut self, rail: impl Into<Rail>) -> Result<Self> {
        let rail = rail.into();
        let caps = self.source.comm.backend.caps();
        if rail.0 >= caps.rails {
            return Err(Error::NoSuchRail { what: "put", rail, backend: caps.name, rails: caps.rails });
        }
        self.rail = Some(rail);
        Ok(self)
    }

    /// `count` blocks, each as long as was declared: read `source_stride` bytes apart, written `target_stride` bytes apart
    /// (from the start of a block to the start of the next).
    ///
    /// [`Error::OutOfRange`] when the last block ends behind a window, [`Error::Invalid`] when target blocks overlap.
    pub fn blocks(mut self, count: usize, source_stride: usize, target_stride: usize) -> Result<Self> {
        let block_bytes = self.source_blocks.block_bytes;
        for (blocks, stride) in [(&mut self.source_blocks, source_stride), (&mut self.target_blocks, target_stride)] {
            *blocks = Blocks { count: count as u64, stride: stride as u64, ..*blocks };
        }
        if self.target_blocks.overlaps_itself() {
            return Err(Error::Invalid {
                what: "target_stride of blocks",
                reason: format!(
                    "{target_stride} is shorter than a block of {block_bytes} bytes, so blocks would overwrite each other"
                ),
            });
        }
        self.check()?;
        Ok(self)
    }

    /// The rank that is written.
    pub fn target(&self) -> Rank {
        self.target
    }

    /// How many bytes the put moves.
    pub fn len_bytes(&self) -> u64 {
        // Both spans fit into a window, so the sum of the blocks fits too, unless source blocks repeat each other.
        u64::try_from(self.target_blocks.total_bytes()).unwrap_or(u64::MAX)
    }

    /// The puts that move just these bytes of this one, on its rail if it has one; bytes are counted in the order in which a put moves
    /// them, block by block. For those who spread a put over several rails or queues.
    ///
    /// One put where the blocks follow each other without a gap on both sides, else up to three: the rest of a block, whole blocks, and
    /// the beginning of one. No bytes are no put, but of a put without bytes they are that put, which announces itself.
    ///
    /// [`Error::Invalid`] when the range is not inside the bytes of the put.
    pub fn parts(&self, bytes: Range<u64>) -> Result<Vec<Self>> {
        let len_bytes = self.len_bytes();
        if bytes.start > bytes.end || bytes.end > len_bytes {
            let Range { start, end } = bytes;
            let reason = format!("{start}..{end} is no range of a put of {len_bytes} bytes; ask for a range within 0..{len_bytes}");
            return Err(Error::Invalid { what: "bytes of parts", reason });
        }
        if len_bytes == 0 {
            return Ok(vec![self.clone()]);
        }
        let is_one_range = self.source_blocks.is_contiguous() && self.target_blocks.is_contiguous();
        let block_bytes = if is_one_range { len_bytes } else { self.source_blocks.block_bytes };
        let cut = |slice: &Slice| Self {
            source_blocks: slice.of(&self.source_blocks),
            target_blocks: slice.of(&self.target_blocks),
            ..self.clone()
        };
        Ok(slices(bytes, block_bytes).iter().map(cut).collect())
    }

    fn check(&self) -> Result<()> {
        let rank = self.source.comm.rank;
        check_inside("destination of declare_write", &self.window, self.target, &self.target_blocks)?;
        check_inside("source of declare_write", &self.source, rank, &self.source_blocks)
    }
}

/// The same bytes of consecutive blocks.
struct Slice {
    first_block: u64,
    blocks: u64,
    skipped_bytes: u64,
    block_bytes: u64,
}

impl Slice {
    fn of(&self, whole: &Blocks) -> Blocks {
        let offset = whole.offset + self.first_block * whole.stride + self.skipped_bytes;
        if self.blocks == 1 {
            return Blocks::contiguous(offset, self.block_bytes);
        }
        Blocks { offset, block_bytes: self.block_bytes, count: self.blocks, stride: whole.stride }
    }
}

/// A range of the bytes of all blocks, as the rest of a block, whole blocks and the beginning of one; what is empty is left out.
fn slices(bytes: Range<u64>, block_bytes: u64) -> Vec<Slice> {
    let (first, last) = (bytes.start / block_bytes, bytes.end / block_bytes);
    let (skipped, beginning) = (bytes.start % block_bytes, bytes.end % block_bytes);
    let slice = |first_block, blocks, skipped_bytes, block_bytes| Slice { first_block, blocks, skipped_bytes, block_bytes };
    let all = if first == last {
        vec![slice(first, 1, skipped, bytes.end - bytes.start)]
    } else {
        let rest = if skipped == 0 { 0 } else { block_bytes - skipped };
        let whole = bytes.start.div_ceil(block_bytes);
        vec![slice(first, 1, skipped, rest), slice(whole, last - whole, 0, block_bytes), slice(last, 1, 0, beginning)]
    };
    all.into_iter().filter(|slice| slice.blocks > 0 && slice.block_bytes > 0).collect()
}

fn check_inside(what: &'static str, window: &WindowInner, rank: Rank, blocks: &Blocks) -> Result<()> {
    let len_bytes = window.bytes_of(what, rank)?;
    let bytes = blocks.span();
    if bytes.end > u128::from(len_bytes) {
        return Err(Error::OutOfRange { what, window: window.id, rank, bytes, len_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Comm;

    /// The bytes of source and target that a put moves, pair by pair in its order.
    fn moved(put: &MsgHandle) -> Vec<(u64, u64)> {
        let bytes = |blocks: &Blocks| -> Vec<u64> {
            let (blocks, block_bytes) = (*blocks, blocks.block_bytes);
            let block = |block: u64| (0..block_bytes).map(move |byte| blocks.offset + block * blocks.stride + byte);
            (0..blocks.count).flat_map(block).collect()
        };
        let (from, to) = (bytes(&put.source_blocks), bytes(&put.target_blocks));
        assert_eq!(from.len(), to.len(), "{put:?}");
        from.into_iter().zip(to).collect()
    }

    fn alone(check: impl Fn(&Comm, &RmaWindow) + Sync) {
        Comm::threads(1, |comm| check(&comm, &comm.window_alloc(4096).unwrap())).unwrap();
    }

    #[test]
    fn parts_move_just_the_bytes_asked_for_in_the_order_of_the_put() {
        let mut random = fastrand::Rng::with_seed(11);
        let cases: Vec<_> = (0..3000)
            .map(|_| {
                let (bytes, count) = (random.usize(..9), random.usize(..7));
                let gaps = [(); 2].map(|()| if random.bool() { 0 } else { random.usize(..5) });
                let all = (bytes * count) as u64;
                let [a, b] = [random.u64(..=all), random.u64(..=all)];
                (bytes, count, gaps, a.min(b)..a.max(b))
            })
            .collect();
        alone(|comm, window| {
            for (bytes, count, [source_gap, target_gap], range) in &cases {
                let put = comm.declare_write(window, 100, window, 2100, *bytes, 0u32).unwrap().rail(3u16).unwrap();
                let put = put.blocks(*count, bytes + source_gap, bytes + target_gap).unwrap();
                let parts = put.parts(range.clone()).unwrap();
                let expected = &moved(&put)[range.start as usize..range.end as usize];
                assert_eq!(parts.iter().flat_map(moved).collect::<Vec<_>>(), expected, "{range:?} of {put:?}");
                let most = if *source_gap == 0 && *target_gap == 0 { 1 } else { 3 };
                assert!(parts.len() <= most, "{} parts for {range:?} of {put:?}", parts.len());
                assert!(parts.iter().all(|part| part.rail == Some(Rail(3)) && part.check().is_ok()));
            }
        });
    }

    #[test]
    fn no_bytes_are_no_put_but_of_an_empty_put_they_are_that_put() {
        alone(|comm, window| {
            let put = comm.declare_write(window, 100, window, 0, 8, 0u32).unwrap();
            assert_eq!(put.parts(4..4).unwrap().len(), 0);
            let empty = [comm.declare_write(window, 100, window, 0, 0, 0u32).unwrap(), put.blocks(0, 8, 8).unwrap()];
            for empty in empty {
                let parts = empty.parts(0..0).unwrap();
                assert_eq!((parts.len(), parts[0].len_bytes(), parts[0].target()), (1, 0, Rank(0)));
            }
        });
    }

    #[test]
    fn a_range_beyond_the_put_is_refused_with_its_numbers() {
        alone(|comm, window| {
            let put = comm.declare_write(window, 100, window, 0, 8, 0u32).unwrap().blocks(3, 8, 16).unwrap();
            #[expect(clippy::reversed_empty_ranges, reason = "it is what must be refused")]
            for (range, text) in [(20..25, "20..25"), (5..4, "5..4"), (25..25, "25..25"), (0..u64::MAX, "0..18446744073709551615")]
            {
                let error = put.parts(range).unwrap_err().to_string();
                assert!(error.contains(&format!("{text} is no range of a put of 24 bytes")), "{error}");
            }
        });
    }
}
