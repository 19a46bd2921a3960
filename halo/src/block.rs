//! Boxes of points, and the parts of arrays that they name. Pure.

use ndarray::{ArrayBase, ArrayView, ArrayViewMut, Data, DataMut, Dim, Dimension, Slice};
use std::ops::Range;

/// A box of points: where it starts and how long it is in each dimension.
///
/// ```
/// use ndarray::Array2;
/// use rma_halo::Block;
///
/// let array = Array2::from_shape_fn((4, 5), |(row, column)| 10 * row + column);
/// let block = Block { start: [1, 2], len: [2, 3] };
/// assert_eq!(block.of(&array)[[0, 0]], 12);
/// assert_eq!(block.of(&array).shape(), [2, 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block<const N: usize> {
    /// The first point.
    pub start: [usize; N],
    /// How many points in each dimension.
    pub len: [usize; N],
}

impl<const N: usize> Block<N> {
    /// From the beginning on.
    pub fn at_origin(len: [usize; N]) -> Self {
        Self { start: [0; N], len }
    }

    /// How many points.
    pub fn points(&self) -> usize {
        self.len.iter().product()
    }

    /// Whether there is not a single point.
    pub fn is_empty(&self) -> bool {
        self.len.contains(&0)
    }

    /// The points along a dimension.
    pub fn range(&self, dimension: usize) -> Range<usize> {
        self.start[dimension]..self.start[dimension] + self.len[dimension]
    }

    /// That part of an array. Panics when it is not inside.
    pub fn of<'a, T, S: Data<Elem = T>>(&self, array: &'a ArrayBase<S, Dim<[usize; N]>>) -> ArrayView<'a, T, Dim<[usize; N]>>
    where
        Dim<[usize; N]>: Dimension,
    {
        array.slice_each_axis(|axis| Slice::from(self.range(axis.axis.index())))
    }

    /// That part of an array, to be written. Panics when it is not inside.
    pub fn of_mut<'a, T, S: DataMut<Elem = T>>(
        &self,
        array: &'a mut ArrayBase<S, Dim<[usize; N]>>,
    ) -> ArrayViewMut<'a, T, Dim<[usize; N]>>
    where
        Dim<[usize; N]>: Dimension,
    {
        array.slice_each_axis_mut(|axis| Slice::from(self.range(axis.axis.index())))
    }

    /// Without the outermost points on both sides of each dimension; empty where there are not as many.
    pub fn shrunk(&self, margins: [(usize, usize); N]) -> Self {
        let start = std::array::from_fn(|d| self.start[d] + margins[d].0.min(self.len[d]));
        let len = std::array::from_fn(|d| self.len[d].saturating_sub(margins[d].0).saturating_sub(margins[d].1));
        Self { start, len }
    }

    /// What is left of it without another box: at most two pieces a dimension, none empty, no point in two of them.
    pub fn without(&self, other: &Self) -> Vec<Self> {
        let inside = |d: usize, at: usize| at.clamp(self.start[d], self.range(d).end);
        let start = std::array::from_fn(|d| inside(d, other.start[d]));
        let inner = Self { start, len: std::array::from_fn(|d| inside(d, other.range(d).end) - start[d]) };
        if inner.is_empty() {
            return if self.is_empty() { Vec::new() } else { vec![*self] };
        }
        let (mut rest, mut pieces) = (*self, Vec::new());
        for d in 0..N {
            for (start, end) in [(rest.start[d], inner.start[d]), (inner.range(d).end, rest.range(d).end)] {
                let mut piece = rest;
                (piece.start[d], piece.len[d]) = (start, end - start);
                if !piece.is_empty() {
                    pieces.push(piece);
                }
            }
            (rest.start[d], rest.len[d]) = (inner.start[d], inner.len[d]);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use ndarray::Array3;

    #[test]
    fn what_is_left_of_a_box_is_each_point_outside_the_inner_one_once() {
        let mut random = Rng::with_seed(4);
        for _ in 0..2000 {
            let len: [usize; 3] = std::array::from_fn(|_| random.usize(..6));
            let whole = Block::at_origin(len);
            let inner = whole.shrunk(std::array::from_fn(|_| (random.usize(..4), random.usize(..4))));
            let mut times = Array3::<u32>::zeros(len);
            let pieces = whole.without(&inner);
            assert!(pieces.iter().all(|piece| !piece.is_empty()) && pieces.len() <= 6);
            for piece in pieces.iter().chain(Some(&inner)) {
                piece.of_mut(&mut times).mapv_inplace(|times| times + 1);
            }
            assert!(times.iter().all(|&times| times == 1), "{whole:?} without {inner:?}: {pieces:?}");
        }
    }

    #[test]
    fn a_box_that_reaches_beyond_takes_away_what_it_shares() {
        let block = Block { start: [2, 2], len: [4, 4] };
        assert_eq!(block.without(&Block { start: [0, 0], len: [4, 9] }), [Block { start: [4, 2], len: [2, 4] }]);
        for apart in
            [Block { start: [0, 0], len: [9, 2] }, Block { start: [7, 2], len: [3, 3] }, Block { start: [3, 3], len: [0, 2] }]
        {
            assert_eq!(block.without(&apart), [block]);
        }
        assert!(block.without(&Block { start: [1, 1], len: [9, 9] }).is_empty());
        assert!(block.shrunk([(usize::MAX, usize::MAX), (0, 1)]).is_empty());
    }
}
