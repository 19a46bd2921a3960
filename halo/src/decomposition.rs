//! A global array over a grid of ranks: who has which block, and who is beside whom. Pure.

use crate::block::Block;
use rma::{Error, Rank, Result};
use rma_algorithms::grid::{Grid, Side, shapes};
use std::cmp::Reverse;

/// How the cells of a global array are spread over ranks: a grid of blocks as even as can be, row-major as the ranks are, closed to a
/// torus in the dimensions that are periodic.
///
/// ```
/// use rma::Rank;
/// use rma_halo::Decomposition;
///
/// let cells = Decomposition::new([64, 60], 6)?;
/// assert_eq!(cells.grid(), [3, 2]);
/// assert_eq!((cells.block(Rank(2)).start, cells.block(Rank(2)).len), ([21, 0], [21, 30]));
/// # Ok::<(), rma::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decomposition<const N: usize> {
    cells: [usize; N],
    grid: Grid,
}

/// Along each dimension -1, 0 or 1; not all 0.
pub(crate) type Direction<const N: usize> = [i8; N];

impl<const N: usize> Decomposition<N> {
    /// Over so many ranks, in the grid that has to exchange the fewest cells; among equal ones that which cuts the first dimensions, whose
    /// faces lie in one piece.
    ///
    /// [`Error::Invalid`] when a rank would be left without a cell.
    pub fn new(cells: [usize; N], ranks: u32) -> Result<Self> {
        check_number(cells)?;
        let fits = |grid: &[u32; N]| grid.iter().zip(cells).all(|(&extent, cells)| extent as usize <= cells);
        let best = shapes(ranks).into_iter().filter(fits).min_by_key(|&grid| (exchanged_cells(cells, grid), Reverse(grid)));
        match best {
            Some(grid) => Self::with_grid(cells, grid),
            None if ranks == 0 => Self::with_grid(cells, [0; N]),
            None => {
                Err(invalid(format!("no grid of {ranks} ranks leaves each a cell of {cells:?}; use fewer ranks or more cells")))
            }
        }
    }

    /// Over the grid of ranks that is given.
    ///
    /// [`Error::Invalid`] when a rank would be left without a cell, the grid has no rank, or there are more cells than can be counted.
    pub fn with_grid(cells: [usize; N], grid: [u32; N]) -> Result<Self> {
        if !(1..=4).contains(&N) {
            return Err(invalid(format!("arrays have 1 to 4 dimensions, not {N}")));
        }
        if let Some(d) = (0..N).find(|&d| cells[d] < grid[d] as usize) {
            return Err(invalid(format!(
                "{} cells over {} ranks in dimension {d} leave some without any; use fewer ranks there",
                cells[d], grid[d]
            )));
        }
        check_number(cells)?;
        match Grid::new(&grid, &[false; N]) {
            Some(grid) => Ok(Self { cells, grid }),
            None => Err(invalid(format!("{grid:?} is no grid of ranks; use one rank or more in every dimension"))),
        }
    }

    /// Which dimensions are closed: behind the last cell comes the first again. In the others, ghosts behind an edge are the program's own:
    /// no exchange writes them.
    pub fn periodic(self, periodic: [bool; N]) -> Self {
        Self { grid: self.grid.closed(&periodic), ..self }
    }

    /// How many cells there are in each dimension.
    pub fn cells(&self) -> [usize; N] {
        self.cells
    }

    /// How many ranks there are in each dimension.
    pub fn grid(&self) -> [u32; N] {
        std::array::from_fn(|d| self.grid.extents()[d])
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.grid.size()
    }

    /// Which dimensions are closed.
    pub fn is_periodic(&self) -> [bool; N] {
        std::array::from_fn(|d| self.grid.is_periodic()[d])
    }

    /// The cells of a rank. Panics when there is no such rank.
    pub fn block(&self, rank: Rank) -> Block<N> {
        self.points(rank, [false; N])
    }

    /// Where a rank is in the grid.
    pub fn coordinates(&self, rank: Rank) -> [u32; N] {
        assert!(rank.0 < self.ranks(), "there is no {rank} in a grid of {} ranks", self.ranks());
        let coordinates = self.grid.coordinates(rank);
        std::array::from_fn(|d| coordinates[d])
    }

    /// How many points a field has in each dimension: one more than cells where it lies on the faces of an open one.
    pub(crate) fn global_points(&self, on_faces: [bool; N]) -> [usize; N] {
        let periodic = self.is_periodic();
        std::array::from_fn(|d| self.cells[d] + usize::from(on_faces[d] && !periodic[d]))
    }

    /// The points that a rank has of a field: those of its cells, and behind the last cell of an open dimension the one more.
    pub(crate) fn points(&self, rank: Rank, on_faces: [bool; N]) -> Block<N> {
        let (at, grid) = (self.coordinates(rank), self.grid());
        let bound = |d: usize, at: u32| (self.cells[d] as u128 * u128::from(at) / u128::from(grid[d])) as usize;
        let start = std::array::from_fn(|d| bound(d, at[d]));
        let global = self.global_points(on_faces);
        let end = |d: usize| if at[d] + 1 == grid[d] { global[d] } else { bound(d, at[d] + 1) };
        Block { start, len: std::array::from_fn(|d| end(d) - start[d]) }
    }

    /// Who is in a direction; `None` behind the edge of an open dimension.
    pub(crate) fn neighbor(&self, rank: Rank, direction: Direction<N>) -> Option<Rank> {
        let side = |step: i8| if step < 0 { Side::Below } else { Side::Above };
        let mut steps = direction.iter().enumerate().filter(|(_, step)| **step != 0);
        steps.try_fold(rank, |at, (d, &step)| self.grid.beside(at, d, side(step)))
    }
}

/// So many that neither they nor those of all faces overflow when they are counted.
fn check_number<const N: usize>(cells: [usize; N]) -> Result<()> {
    let (all, limit) = (cells.iter().try_fold(1usize, |all, &cells| all.checked_mul(cells)), isize::MAX as usize);
    if all.is_none_or(|all| all > limit) {
        return Err(invalid(format!("{cells:?} cells are more than the {limit} that there can be; use fewer")));
    }
    Ok(())
}

fn invalid(reason: String) -> Error {
    Error::Invalid { what: "decomposition", reason }
}

/// The cells of all faces at which blocks meet.
fn exchanged_cells<const N: usize>(cells: [usize; N], grid: [u32; N]) -> u128 {
    let all: u128 = cells.iter().map(|&cells| cells as u128).product();
    (0..N).filter(|&d| grid[d] > 1).map(|d| all / cells[d] as u128 * u128::from(grid[d])).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_belongs_to_one_rank() {
        for (cells, grid) in [([7, 5], [3, 2]), ([4, 4], [4, 1]), ([1, 9], [1, 4])] {
            for faces in [[false, false], [true, false], [true, true]] {
                for periodic in [[false, false], [true, false]] {
                    let all = Decomposition::with_grid(cells, grid).unwrap().periodic(periodic);
                    let [rows, columns] = all.global_points(faces);
                    assert_eq!(rows, cells[0] + usize::from(faces[0] && !periodic[0]));
                    let mut owners = vec![0; rows * columns];
                    for rank in (0..all.ranks()).map(Rank) {
                        let Block { start, len } = all.points(rank, faces);
                        for row in start[0]..start[0] + len[0] {
                            for column in start[1]..start[1] + len[1] {
                                owners[row * columns + column] += 1;
                            }
                        }
                    }
                    assert!(owners.iter().all(|&owners| owners == 1), "{cells:?} {grid:?} {faces:?} {periodic:?}");
                }
            }
        }
    }

    #[test]
    fn blocks_differ_by_one_cell_at_most() {
        for ranks in 1..=12 {
            for cells in ranks as usize..40 {
                let all = Decomposition::with_grid([cells], [ranks]).unwrap();
                let lengths: Vec<_> = (0..ranks).map(|rank| all.block(Rank(rank)).len[0]).collect();
                assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1, "{lengths:?}");
            }
        }
    }

    #[test]
    fn the_grid_that_is_chosen_exchanges_least() {
        let grid = |cells: [usize; 3], ranks| Decomposition::new(cells, ranks).unwrap().grid();
        // As many cells as 2 x 2 x 2, but fewer neighbors, and none of the scattered faces.
        assert_eq!(grid([64, 64, 64], 8), [4, 2, 1]);
        assert_eq!(grid([64, 64, 64], 64), [4, 4, 4]);
        assert_eq!(grid([64, 64, 64], 2), [2, 1, 1]);
        assert_eq!(grid([64, 48, 32], 4), [4, 1, 1]);
        assert_eq!(grid([8, 8, 800], 4), [1, 1, 4]);
        assert_eq!(grid([1, 1, 7], 7), [1, 1, 7]);
        assert_eq!(Decomposition::new([100], 7).unwrap().grid(), [7]);
        assert_eq!(Decomposition::new([16; 4], 16).unwrap().grid(), [4, 4, 1, 1]);
    }

    #[test]
    fn what_leaves_a_rank_without_cells_is_refused_with_the_numbers() {
        let text = |result: Result<Decomposition<2>>| result.unwrap_err().to_string();
        assert!(text(Decomposition::with_grid([4, 9], [5, 1])).contains("4 cells over 5 ranks in dimension 0"));
        assert!(text(Decomposition::new([2, 2], 5)).contains("no grid of 5 ranks"));
        assert!(text(Decomposition::with_grid([4, 9], [0, 1])).contains("no grid of ranks"));
        let most = "more than the 9223372036854775807 that there can be";
        assert!(text(Decomposition::with_grid([usize::MAX, 9], [1, 1])).contains(most));
        for (cells, ranks) in [([usize::MAX; 4], 1), ([usize::MAX; 4], 6), ([1, 1, 1 << 32, 1 << 31], 1)] {
            assert!(Decomposition::new(cells, ranks).unwrap_err().to_string().contains(most), "{cells:?}");
        }
        assert_eq!(Decomposition::new([isize::MAX as usize, 1, 1], 7).unwrap().grid(), [7, 1, 1]);
        assert!(text(Decomposition::new([4, 4], 0)).contains("[0, 0] is no grid of ranks; use one rank or more"));
        assert!(Decomposition::new([4], 0).unwrap_err().to_string().contains("no grid of ranks"));
        assert!(Decomposition::<0>::new([], 1).is_err());
    }

    /// P0, trap h: a closed dimension of one or two ranks.
    #[test]
    fn neighbors_in_all_directions_have_each_other_in_the_opposite_ones() {
        for (grid, periodic) in [([2, 1, 3], [true, true, false]), ([1, 1, 1], [true; 3]), ([2, 2, 2], [false; 3])] {
            let all = Decomposition::with_grid([6; 3], grid).unwrap().periodic(periodic);
            for rank in (0..all.ranks()).map(Rank) {
                for direction in crate::geometry::directions::<3>() {
                    if let Some(neighbor) = all.neighbor(rank, direction) {
                        assert_eq!(all.neighbor(neighbor, direction.map(|step| -step)), Some(rank));
                    }
                }
            }
        }
    }
}
