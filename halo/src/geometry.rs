//! Where the points of a field lie in a rank's memory, and which boxes of it go where. Pure; counts in points, bytes only in the end.

use crate::block::Block;
use crate::decomposition::{Decomposition, Direction};
use rma::Rank;

/// What a field is like, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout<const N: usize> {
    /// How many ghost points stand before and behind the owned ones in each dimension.
    pub ghosts: [(usize, usize); N],
    /// In which dimensions the points lie on the faces between cells, of which an open dimension has one more than cells; in a closed one
    /// the last face is the first.
    pub on_faces: [bool; N],
}

impl<const N: usize> Layout<N> {
    /// Points in the middle of cells, with so many ghost points on every side.
    pub const fn ghosts(width: usize) -> Self {
        Self { ghosts: [(width, width); N], on_faces: [false; N] }
    }

    /// The same with ghost points of a number of their own before and behind each dimension.
    pub const fn widths(self, ghosts: [(usize, usize); N]) -> Self {
        Self { ghosts, ..self }
    }

    /// The same with points on the faces between cells in these dimensions: a staggered field.
    pub const fn on_faces(self, on_faces: [bool; N]) -> Self {
        Self { on_faces, ..self }
    }
}

/// A field as it lies in the memory of a rank: owned points, and ghosts around them, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local<const N: usize> {
    pub(crate) owned_len: [usize; N],
    ghosts: [(usize, usize); N],
}

/// A box of points in some memory: where its first byte is, and how many points lie from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<const N: usize> {
    pub(crate) offset_bytes: usize,
    pub(crate) strides: [usize; N],
}

/// Equal blocks at equal distances, in bytes: what one put moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) block: usize,
    pub(crate) count: usize,
    pub(crate) from_stride: usize,
    pub(crate) to_stride: usize,
}

/// Every direction with a neighbor: along each dimension one step below, none, or one above.
pub(crate) fn directions<const N: usize>() -> impl Iterator<Item = Direction<N>> {
    (0..3usize.pow(N as u32)).filter_map(|number| {
        let mut rest = number;
        let mut direction = [0; N];
        for step in direction.iter_mut().rev() {
            *step = (rest % 3) as i8 - 1;
            rest /= 3;
        }
        direction.iter().any(|&step| step != 0).then_some(direction)
    })
}

impl<const N: usize> Local<N> {
    pub(crate) fn new(decomposition: &Decomposition<N>, layout: &Layout<N>, rank: Rank) -> Self {
        Self { owned_len: decomposition.points(rank, layout.on_faces).len, ghosts: layout.ghosts }
    }

    pub(crate) fn padded_len(&self) -> [usize; N] {
        std::array::from_fn(|d| self.ghosts[d].0 + self.owned_len[d] + self.ghosts[d].1)
    }

    /// The owned points among all.
    pub(crate) fn owned(&self) -> Block<N> {
        Block { start: self.ghosts.map(|(before, _)| before), len: self.owned_len }
    }

    /// The owned points that need no ghost, by their place among the owned ones: all of these are what a stencil reads for them.
    pub(crate) fn interior(&self) -> Block<N> {
        Block::at_origin(self.owned_len).shrunk(self.ghosts)
    }

    /// What a neighbor in this direction gets. In the dimensions without a step the owned points, and where `along` says so the ghosts
    /// before and behind them.
    pub(crate) fn source(&self, direction: Direction<N>, along: [(bool, bool); N]) -> Block<N> {
        self.block(|d| match direction[d] {
            0 => self.along(d, along[d]),
            // As many as the neighbor has ghosts on the side from where it sees this rank.
            1.. => (self.owned_len[d], self.ghosts[d].0),
            _ => (self.ghosts[d].0, self.ghosts[d].1),
        })
    }

    /// The ghosts on the side of a neighbor in this direction.
    pub(crate) fn ghost(&self, direction: Direction<N>, along: [(bool, bool); N]) -> Block<N> {
        self.block(|d| match direction[d] {
            0 => self.along(d, along[d]),
            1.. => (self.ghosts[d].0 + self.owned_len[d], self.ghosts[d].1),
            _ => (0, self.ghosts[d].0),
        })
    }

    fn along(&self, d: usize, (before, behind): (bool, bool)) -> (usize, usize) {
        let (below, above) = self.ghosts[d];
        let start = if before { 0 } else { below };
        (start, below + self.owned_len[d] + if behind { above } else { 0 } - start)
    }

    fn block(&self, extent: impl Fn(usize) -> (usize, usize)) -> Block<N> {
        Block { start: std::array::from_fn(|d| extent(d).0), len: std::array::from_fn(|d| extent(d).1) }
    }

    /// Where a box of the padded points lies.
    pub(crate) fn place(&self, block: &Block<N>, element_bytes: usize) -> Place<N> {
        let strides = row_major(self.padded_len());
        // A box without a point may begin behind the last.
        let first = block.start.iter().zip(strides).map(|(at, stride)| at * stride).sum::<usize>() * usize::from(!block.is_empty());
        Place { offset_bytes: first * element_bytes, strides }
    }

    /// How many bytes of a box lie in one piece.
    pub(crate) fn run_bytes(&self, block: &Block<N>, element_bytes: usize) -> usize {
        let padded = self.padded_len();
        let mut run = element_bytes;
        for d in (0..N).rev() {
            run *= block.len[d];
            if block.len[d] != padded[d] {
                break;
            }
        }
        run
    }
}

impl<const N: usize> Place<N> {
    /// A box that lies in one piece.
    pub(crate) fn packed(offset_bytes: usize, len: [usize; N]) -> Self {
        Self { offset_bytes, strides: row_major(len) }
    }
}

/// How many points lie from one to the next in each dimension, the last one densest.
pub(crate) fn row_major<const N: usize>(len: [usize; N]) -> [usize; N] {
    std::array::from_fn(|d| len[d + 1..].iter().product())
}

/// The puts that move a box of `len` points from one place to another, as few as equal blocks at equal distances allow.
pub(crate) fn strided<const N: usize>(len: [usize; N], from: Place<N>, to: Place<N>, element_bytes: usize) -> Vec<Strided> {
    if len.contains(&0) {
        return Vec::new();
    }
    // From the densest dimension outwards: those that go on where the block ends make it longer.
    let mut dimensions: Vec<_> = (0..N).rev().filter(|&d| len[d] > 1).map(|d| (len[d], from.strides[d], to.strides[d])).collect();
    let mut points = 1;
    while let Some(&(extent, from, to)) = dimensions.first()
        && (from, to) == (points, points)
    {
        points *= extent;
        dimensions.remove(0);
    }
    let (count, from_stride, to_stride) = if dimensions.is_empty() { (1, points, points) } else { dimensions.remove(0) };
    let mut starts = vec![(0, 0)];
    for &(extent, from, to) in dimensions.iter().rev() {
        starts = starts.iter().flat_map(|&(f, t)| (0..extent).map(move |i| (f + i * from, t + i * to))).collect();
    }
    let put = |(f, t): (usize, usize)| Strided {
        from: from.offset_bytes + f * element_bytes,
        to: to.offset_bytes + t * element_bytes,
        block: points * element_bytes,
        count,
        from_stride: from_stride * element_bytes,
        to_stride: to_stride * element_bytes,
    };
    starts.into_iter().map(put).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// The bytes of a box in their order, spelled out.
    fn bytes(len: [usize; 3], place: Place<3>, element_bytes: usize) -> Vec<usize> {
        let [x, y, z] = len;
        let points = (0..x).flat_map(|i| (0..y).flat_map(move |j| (0..z).map(move |k| [i, j, k])));
        let first = |at: [usize; 3]| at.iter().zip(place.strides).map(|(i, stride)| i * stride).sum::<usize>();
        points.flat_map(|at| (0..element_bytes).map(move |byte| place.offset_bytes + first(at) * element_bytes + byte)).collect()
    }

    #[test]
    fn strided_puts_move_each_byte_of_a_box_to_its_place() {
        let mut random = Rng::with_seed(2);
        for _ in 0..5000 {
            let element_bytes = [1, 4, 8, 12][random.usize(..4)];
            let len: [usize; 3] = std::array::from_fn(|_| random.usize(..5));
            let mut any_place = || {
                let padded = len.map(|len| len + if random.bool() { 0 } else { random.usize(..3) });
                Place { offset_bytes: random.usize(..100), strides: row_major(padded) }
            };
            let (from, to) = (any_place(), any_place());
            let mut moved: Vec<_> = Vec::new();
            for put in strided(len, from, to, element_bytes) {
                for block in 0..put.count {
                    let (from, to) = (put.from + block * put.from_stride, put.to + block * put.to_stride);
                    moved.extend((0..put.block).map(|byte| (from + byte, to + byte)));
                }
            }
            let mut wanted: Vec<_> = bytes(len, from, element_bytes).into_iter().zip(bytes(len, to, element_bytes)).collect();
            moved.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(moved, wanted, "{len:?} from {from:?} to {to:?}");
        }
    }

    #[test]
    fn what_lies_in_one_piece_on_both_sides_is_one_block() {
        let local = Local { owned_len: [4, 5, 6], ghosts: [(1, 1), (1, 1), (1, 1)] };
        let faces = |direction| {
            let ghost = local.ghost(direction, [(false, false); 3]);
            let place = local.place(&ghost, 8);
            (strided(ghost.len, place, place, 8).len(), local.run_bytes(&ghost, 8))
        };
        assert_eq!((faces([1, 0, 0]), faces([0, 1, 0]), faces([0, 0, 1])), ((1, 48), (1, 48), (4, 8)));
        let plane = local.ghost([1, 0, 0], [(true, true); 3]);
        let place = local.place(&plane, 8);
        assert_eq!(local.run_bytes(&plane, 8), 7 * 8 * 8);
        let whole = Strided { from: 5 * 448, to: 5 * 448, block: 448, count: 1, from_stride: 448, to_stride: 448 };
        assert_eq!(strided(plane.len, place, place, 8), [whole]);
    }

    #[test]
    fn there_are_two_eight_twenty_six_and_eighty_directions() {
        assert_eq!(directions::<1>().collect::<Vec<_>>(), [[-1], [1]]);
        assert_eq!((directions::<2>().count(), directions::<3>().count(), directions::<4>().count()), (8, 26, 80));
    }
}
