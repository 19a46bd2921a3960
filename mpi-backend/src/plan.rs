//! What puts become: pieces whose numbers fit into those of MPI.
//! Pure; knows no MPI.

use rma::layout::Blocks;

/// How the bytes of a piece lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Contiguous { bytes: u64 },
    Blocks { count: u64, block_bytes: u64, stride: u64 },
}

/// One call of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source_offset: u64,
    pub(crate) source: Layout,
    pub(crate) target_offset: u64,
    pub(crate) target: Layout,
}

/// The most bytes of a piece: MPI counts, and adds up the length of a data type, with 31 bits.
const MOST_BYTES: u64 = 1 << 30;

/// The pieces of a put, in order; none if it is empty. Both sides have as many blocks of the same length.
pub(crate) fn pieces(source: &Blocks, target: &Blocks) -> Vec<Piece> {
    pieces_of(source, target, MOST_BYTES)
}

fn pieces_of(source: &Blocks, target: &Blocks, most: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    if source.is_empty() {
        return pieces;
    }
    let one_run = source.is_contiguous() && target.is_contiguous();
    let (count, block_bytes) = if one_run { (1, source.block_bytes * source.count) } else { (source.count, source.block_bytes) };
    // Whole blocks together, or a block in parts.
    let blocks_at_once = (most / block_bytes).max(1);
    let bytes_at_once = block_bytes.min(most);
    let mut block = 0;
    while block < count {
        let blocks = blocks_at_once.min(count - block);
        let mut within = 0;
        while within < block_bytes {
            let bytes = bytes_at_once.min(block_bytes - within);
            pieces.push(Piece {
                source_offset: source.offset + block * source.stride + within,
                source: layout(blocks, bytes, source.stride),
                target_offset: target.offset + block * target.stride + within,
                target: layout(blocks, bytes, target.stride),
            });
            within += bytes;
        }
        block += blocks;
    }
    pieces
}

fn layout(count: u64, block_bytes: u64, stride: u64) -> Layout {
    if count == 1 || stride == block_bytes {
        Layout::Contiguous { bytes: count * block_bytes }
    } else {
        Layout::Blocks { count, block_bytes, stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(offset: u64, layout: Layout) -> Vec<u64> {
        let (count, block_bytes, stride) = match layout {
            Layout::Contiguous { bytes } => (1, bytes, 0),
            Layout::Blocks { count, block_bytes, stride } => (count, block_bytes, stride),
        };
        (0..count).flat_map(|i| offset + i * stride..offset + i * stride + block_bytes).collect()
    }

    #[test]
    fn pieces_move_every_byte_once_and_in_order() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let (block_bytes, count) = (random.u64(0..9), random.u64(0..9));
            let mut side = || Blocks {
                offset: random.u64(0..5),
                block_bytes,
                count,
                stride: block_bytes + if random.bool() { 0 } else { random.u64(0..4) },
            };
            let (source, target) = (side(), side());
            for most in [1, 2, 3, 7, 16, 1000] {
                let pieces = pieces_of(&source, &target, most);
                let bytes = |offset: fn(&Piece) -> u64, layout: fn(&Piece) -> Layout| {
                    pieces.iter().flat_map(|piece| ranges(offset(piece), layout(piece))).collect::<Vec<_>>()
                };
                assert_eq!(bytes(|p| p.source_offset, |p| p.source), source.ranges().flatten().collect::<Vec<_>>());
                assert_eq!(bytes(|p| p.target_offset, |p| p.target), target.ranges().flatten().collect::<Vec<_>>());
                for piece in &pieces {
                    let (source, target) = (ranges(0, piece.source).len(), ranges(0, piece.target).len());
                    assert_eq!(source, target);
                    assert!(source as u64 <= most.max(1), "{piece:?}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_gaps_is_one_piece() {
        let blocks = Blocks { offset: 8, block_bytes: 16, count: 4, stride: 16 };
        let pieces = pieces(&blocks, &Blocks::contiguous(0, 64));
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].source, Layout::Contiguous { bytes: 64 });
        assert!(super::pieces(&Blocks::contiguous(0, 0), &Blocks::contiguous(0, 0)).is_empty());
    }

    #[test]
    fn a_put_of_more_bytes_than_mpi_can_count_is_cut() {
        let whole = Blocks::contiguous(0, 5 << 30);
        assert_eq!(pieces(&whole, &whole).len(), 5);
    }
}
