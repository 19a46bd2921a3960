//! Ranks as a grid of any dimension, closed to a torus where wanted: who is whose neighbor. Pure.

use rma::Rank;

/// Ranks in row-major order: the last coordinate changes fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    extents: Vec<u32>,
    periodic: Vec<bool>,
}

/// A step along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To the smaller coordinate.
    Below,
    /// To the greater one.
    Above,
}

impl Side {
    /// Both, in the order in which directions are numbered.
    pub const BOTH: [Self; 2] = [Self::Below, Self::Above];

    /// The other one.
    pub const fn opposite(self) -> Self {
        match self {
            Self::Below => Self::Above,
            Self::Above => Self::Below,
        }
    }
}

/// A neighbor of a rank, in a direction. A torus that is 1 or 2 wide has the same rank in two directions: these are two neighbors, each
/// with a message and a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Along which dimension.
    pub dimension: usize,
    /// On which side.
    pub side: Side,
    /// Who is there; maybe the rank itself.
    pub rank: Rank,
}

impl Grid {
    /// So many ranks in each dimension, and which of the dimensions are closed. `None` if there is no dimension, one without ranks, or more
    /// ranks than there can be.
    pub fn new(extents: &[u32], periodic: &[bool]) -> Option<Self> {
        let size = extents.iter().try_fold(1u32, |size, &extent| size.checked_mul(extent))?;
        let fits = !extents.is_empty() && size > 0 && periodic.len() == extents.len();
        fits.then(|| Self { extents: extents.to_vec(), periodic: periodic.to_vec() })
    }

    /// The same ranks, with these dimensions closed and no others. Panics unless each dimension is named.
    #[must_use]
    pub fn closed(self, periodic: &[bool]) -> Self {
        assert_eq!(periodic.len(), self.extents.len(), "as many dimensions as the grid has");
        Self { periodic: periodic.to_vec(), ..self }
    }

    /// Which of the dimensions are closed.
    pub fn is_periodic(&self) -> &[bool] {
        &self.periodic
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.extents.iter().product()
    }

    /// How many ranks in each dimension.
    pub fn extents(&self) -> &[u32] {
        &self.extents
    }

    /// Where a rank is.
    pub fn coordinates(&self, rank: Rank) -> Vec<u32> {
        let mut rest = rank.0;
        let mut coordinates: Vec<_> = self
            .extents
            .iter()
            .rev()
            .map(|&extent| {
                let coordinate = rest % extent;
                rest /= extent;
                coordinate
            })
            .collect();
        coordinates.reverse();
        coordinates
    }

    /// Who is there.
    pub fn rank(&self, coordinates: &[u32]) -> Rank {
        Rank(coordinates.iter().zip(&self.extents).fold(0, |rank, (coordinate, extent)| rank * extent + coordinate))
    }

    /// Who is beside a rank; `None` at an edge.
    pub fn beside(&self, rank: Rank, dimension: usize, side: Side) -> Option<Rank> {
        let mut coordinates = self.coordinates(rank);
        let (extent, at) = (self.extents[dimension], coordinates[dimension]);
        let is_inside = match side {
            Side::Below => at > 0,
            Side::Above => at + 1 < extent,
        };
        if !is_inside && !self.periodic[dimension] {
            return None;
        }
        coordinates[dimension] = match side {
            Side::Below => at.checked_sub(1).unwrap_or(extent - 1),
            Side::Above => (at + 1) % extent,
        };
        Some(self.rank(&coordinates))
    }

    /// All neighbors of a rank: dimension by dimension, below and then above.
    pub fn neighbors(&self, rank: Rank) -> Vec<Neighbor> {
        let directions = (0..self.extents.len()).flat_map(|dimension| Side::BOTH.map(|side| (dimension, side)));
        let neighbor = |(dimension, side)| Some(Neighbor { dimension, side, rank: self.beside(rank, dimension, side)? });
        directions.filter_map(neighbor).collect()
    }
}

/// Every way to write `ranks` as a product of `N` factors: the grids of that many ranks.
pub fn shapes<const N: usize>(ranks: u32) -> Vec<[u32; N]> {
    let divisors: Vec<_> = (1..=ranks).filter(|factor| ranks.is_multiple_of(*factor)).collect();
    let mut begun = vec![([ranks; N], ranks)];
    for dimension in 1..N {
        let further = |(mut shape, rest): ([u32; N], u32)| {
            divisors.iter().filter(move |factor| rest.is_multiple_of(**factor)).map(move |factor| {
                (shape[dimension - 1], shape[dimension]) = (*factor, rest / factor);
                (shape, rest / factor)
            })
        };
        begun = begun.into_iter().flat_map(further).collect();
    }
    begun.into_iter().map(|(shape, _)| shape).collect()
}

/// The grid that is nearest to a cube, its extents descending: with the least largest one, then the least second, and so on.
///
/// ```
/// use rma_algorithms::grid::balanced;
///
/// assert_eq!((balanced(8), balanced(12), balanced(7)), ([2, 2, 2], [3, 2, 2], [7, 1, 1]));
/// ```
pub fn balanced<const N: usize>(ranks: u32) -> [u32; N] {
    let descending = shapes(ranks).into_iter().filter(|shape: &[u32; N]| shape.is_sorted_by(|a, b| a >= b));
    descending.min().unwrap_or([ranks; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grids() -> Vec<Grid> {
        let shapes: [&[u32]; 8] = [&[1], &[2], &[7], &[1, 1], &[2, 3], &[4, 1, 2], &[2, 2, 2, 2], &[3, 4, 2]];
        let mut grids = Vec::new();
        for shape in shapes {
            for closed in 0..1u32 << shape.len() {
                let periodic: Vec<_> = (0..shape.len()).map(|dimension| closed >> dimension & 1 == 1).collect();
                grids.extend(Grid::new(shape, &periodic));
            }
        }
        grids
    }

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        for grid in grids() {
            for rank in (0..grid.size()).map(Rank) {
                let coordinates = grid.coordinates(rank);
                assert!(coordinates.iter().zip(grid.extents()).all(|(at, extent)| at < extent));
                assert_eq!(grid.rank(&coordinates), rank);
            }
        }
        assert_eq!(Grid::new(&[2, 3], &[false; 2]).unwrap().coordinates(Rank(5)), [1, 2]);
    }

    #[test]
    fn whoever_is_above_me_has_me_below() {
        for grid in grids() {
            for rank in (0..grid.size()).map(Rank) {
                for Neighbor { dimension, side, rank: neighbor } in grid.neighbors(rank) {
                    assert_eq!(grid.beside(neighbor, dimension, side.opposite()), Some(rank), "{grid:?}");
                }
            }
        }
    }

    #[test]
    fn a_closed_dimension_has_neighbors_everywhere_and_an_open_one_none_beyond_its_edge() {
        for grid in grids() {
            for rank in (0..grid.size()).map(Rank) {
                let expected: usize = (0..grid.extents.len())
                    .map(|dimension| {
                        let (at, extent) = (grid.coordinates(rank)[dimension], grid.extents[dimension]);
                        if grid.periodic[dimension] { 2 } else { usize::from(at > 0) + usize::from(at + 1 < extent) }
                    })
                    .sum();
                assert_eq!(grid.neighbors(rank).len(), expected, "{grid:?} {rank}");
            }
        }
    }

    /// P0, trap h: a torus that is 1 or 2 wide.
    #[test]
    fn two_directions_may_lead_to_one_rank_or_to_oneself() {
        let narrow = Grid::new(&[2, 1], &[true; 2]).unwrap();
        let ranks: Vec<_> = narrow.neighbors(Rank(0)).iter().map(|neighbor| neighbor.rank.0).collect();
        assert_eq!(ranks, [1, 1, 0, 0]);
    }

    #[test]
    fn a_dimension_may_be_as_long_as_ranks_are_many() {
        let grid = Grid::new(&[u32::MAX], &[true]).unwrap();
        let last = Rank(u32::MAX - 1);
        assert_eq!((grid.beside(last, 0, Side::Above), grid.beside(Rank(0), 0, Side::Below)), (Some(Rank(0)), Some(last)));
        assert_eq!(grid.beside(last, 0, Side::Below), Some(Rank(u32::MAX - 2)));
    }

    #[test]
    fn what_is_no_grid_is_refused() {
        for (extents, periodic) in
            [(&[][..], &[][..]), (&[2, 0], &[true; 2]), (&[2], &[true; 2]), (&[1 << 16, 1 << 16], &[true; 2])]
        {
            assert_eq!(Grid::new(extents, periodic), None);
        }
    }

    #[test]
    fn shapes_are_all_products_and_each_once() {
        for ranks in 0..40 {
            let all = (1..=ranks).flat_map(|a| (1..=ranks).flat_map(move |b| (1..=ranks).map(move |c| [a, b, c])));
            let products: Vec<[u32; 3]> = all.filter(|shape| shape.iter().product::<u32>() == ranks).collect();
            assert_eq!(shapes(ranks), products);
        }
        assert_eq!((shapes(6), shapes(4)), (vec![[6]], vec![[1, 4], [2, 2], [4, 1]]));
    }

    #[test]
    fn the_balanced_grid_is_as_near_to_a_cube_as_the_ranks_allow() {
        for (ranks, cube) in [(1, [1; 3]), (2, [2, 1, 1]), (36, [4, 3, 3]), (64, [4; 3])] {
            assert_eq!(balanced(ranks), cube);
        }
        assert_eq!((balanced(5), balanced(24)), ([5], [3, 2, 2, 2]));
    }
}
