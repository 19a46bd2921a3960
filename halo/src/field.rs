//! Fields: an array of every rank's block with ghosts around it, in a window of its own.
//! Owns the memory and the ways to touch it; knows no exchange.

use crate::agreement::agree;
use crate::block::Block;
use crate::decomposition::Decomposition;
use crate::geometry::{Layout, Local};
use crate::plan::FieldPlan;
use ndarray::{Dim, Dimension};
use rma::{Area, Comm, Error, Pod, Rank, ReadArea, Result, RmaWindow, WriteArea};
use std::rc::Rc;

/// A field of points: on every rank those of its block, and ghost points around them which an exchange fills with what the neighbors own.
///
/// Its memory is reached through leases, checked at run time: owned points may be read at any time and written while no exchange sends
/// them; ghost points are reached through what the exchange's `wait` returns.
///
/// ```
/// use rma_halo::{Decomposition, Field, Layout};
///
/// rma::Comm::launch(2, |comm| {
///     let cells = Decomposition::new([8, 6], comm.size())?;
///     let field = Field::<f64, 2>::new(&comm, &cells, Layout::ghosts(1))?;
///     field.fill_with(|[row, column]| (10 * row + column) as f64)?;
///     assert_eq!(field.owned()?.view()[[0, 5]], (10 * field.block().start[0] + 5) as f64);
///     Ok::<(), rma::Error>(())
/// })?;
/// # Ok::<(), rma::Error>(())
/// ```
#[derive(Debug)]
pub struct Field<T, const N: usize> {
    pub(crate) parts: Rc<Parts<T, N>>,
}

/// What a field and the exchanges of it share.
#[derive(Debug)]
pub(crate) struct Parts<T, const N: usize> {
    pub(crate) decomposition: Decomposition<N>,
    pub(crate) layout: Layout<N>,
    pub(crate) local: Local<N>,
    pub(crate) window: RmaWindow,
    block: Block<N>,
    pub(crate) owned: Area<T, N>,
    interior: Area<T, N>,
    pub(crate) padded: Area<T, N>,
}

impl<T: Pod, const N: usize> Field<T, N> {
    /// Collective: a field over the ranks of a decomposition, all zero.
    ///
    /// [`Error::Invalid`] when the grid has another number of ranks than the `Comm`, or a block is narrower than the ghosts that its
    /// neighbors want of it; [`Error::CollectiveMismatch`] when two ranks ask for different fields.
    pub fn new(comm: &Comm, decomposition: &Decomposition<N>, layout: Layout<N>) -> Result<Self> {
        let bytes = check(comm, decomposition, &layout).and_then(|()| padded_bytes::<T, N>(decomposition, &layout, comm.rank()));
        let bytes = agree(comm, "field", bytes, |_| describe(decomposition, &FieldPlan::of::<T>(layout)))?;
        let local = Local::new(decomposition, &layout, comm.rank());
        let window = comm.window_alloc(bytes)?;
        let (owned, mut interior) = (local.owned(), local.interior());
        for (start, first) in interior.start.iter_mut().zip(owned.start) {
            *start += first;
        }
        let parts = Parts {
            decomposition: decomposition.clone(),
            layout,
            local,
            block: decomposition.points(comm.rank(), layout.on_faces),
            owned: area(&window, &local, &owned)?,
            interior: area(&window, &local, &interior)?,
            padded: area(&window, &local, &Block::at_origin(local.padded_len()))?,
            window,
        };
        Ok(Self { parts: Rc::new(parts) })
    }

    /// Which of the global points this rank owns.
    pub fn block(&self) -> Block<N> {
        self.parts.block
    }

    /// How many points the whole field has in each dimension: as many as cells, and in open dimensions whose faces it lies on one more.
    pub fn global_len(&self) -> [usize; N] {
        self.parts.decomposition.global_points(self.parts.layout.on_faces)
    }

    /// How its points lie.
    pub fn layout(&self) -> Layout<N> {
        self.parts.layout
    }

    /// The owned points that need no ghost, by their place among the owned ones: what is computed while an exchange is in flight. The owned
    /// points are just what is [`around`](Self::around) it: a stencil reads [`owned`](Self::owned) for it, whole. Empty where a block is too
    /// narrow.
    pub fn interior(&self) -> Block<N> {
        self.parts.local.interior()
    }

    /// The owned points around the [`interior`](Self::interior), in boxes of which no two share a point: what is computed after the `wait`.
    pub fn rim(&self) -> Vec<Block<N>> {
        Block::at_origin(self.parts.local.owned_len).without(&self.interior())
    }

    /// A box of owned points with as many points around it as there are ghosts, by their place among all points, of which the first is a ghost:
    /// what a stencil needs to compute the box.
    pub fn around(&self, block: &Block<N>) -> Block<N> {
        // One place further among all points, and as much before it.
        let ghosts = self.parts.layout.ghosts;
        Block { start: block.start, len: std::array::from_fn(|d| block.len[d] + ghosts[d].0 + ghosts[d].1) }
    }

    /// The owned points, to read: also while an exchange is in flight. [`Error::RangeBusy`] while a lease to write some of them is alive.
    pub fn owned(&self) -> Result<ReadArea<'_, T, N>> {
        self.parts.owned.read()
    }

    /// The owned points, to read and write. [`Error::RangeBusy`] while an exchange that sends some of them is in flight, or another lease
    /// on some of them is alive.
    pub fn owned_mut(&self) -> Result<WriteArea<'_, T, N>> {
        self.parts.owned.write()
    }

    /// The [`interior`](Self::interior) points, to read and write: also while an exchange is in flight, unless it sends some of them, which
    /// it does only where there are not as many ghosts before as behind.
    pub fn interior_mut(&self) -> Result<WriteArea<'_, T, N>> {
        self.parts.interior.write()
    }

    /// All points, ghosts included, to read. Refused while neighbors may write some of them, which in a committed exchange is always but
    /// between its `wait` and the end of what that returns: use [`Arrived::padded`](crate::Arrived::padded) there.
    pub fn padded(&self) -> Result<ReadArea<'_, T, N>> {
        self.parts.padded.read().map_err(with_ghosts)
    }
    /// The same to read and write, as for values behind the edges of open dimensions before the exchange is committed: they are zero, no
    /// exchange writes them, and later they are reached through [`Arrived::padded_mut`](crate::Arrived::padded_mut) or an
    /// [`area`](Self::area) of theirs.
    pub fn padded_mut(&self) -> Result<WriteArea<'_, T, N>> {
        self.parts.padded.write().map_err(with_ghosts)
    }

    /// Any box of all points, ghosts included, counted from the first ghost: to be leased by itself, as ghosts behind an open edge.
    ///
    /// [`Error::Invalid`] when it is not inside.
    pub fn area(&self, block: Block<N>) -> Result<Area<T, N>> {
        let padded = self.parts.local.padded_len();
        if let Some(d) = (0..N).find(|&d| block.start[d].checked_add(block.len[d]).is_none_or(|end| end > padded[d])) {
            let (start, len) = (block.start[d], block.len[d]);
            return Err(invalid(format!(
                "{len} points from {start} on end behind the {} of dimension {d}; count from the first ghost",
                padded[d]
            )));
        }
        self.parts.area(&block)
    }

    /// Sets every owned point, given its global place. Refused as [`owned_mut`](Self::owned_mut) is.
    pub fn fill_with(&self, mut value: impl FnMut([usize; N]) -> T) -> Result<()>
    where
        Dim<[usize; N]>: Dimension,
    {
        let start = self.block().start;
        let mut owned = self.owned_mut()?;
        let mut view = owned.view_mut();
        // Row-major, as the elements are visited.
        let mut at = [0; N];
        for element in view.iter_mut() {
            *element = value(std::array::from_fn(|d| start[d] + at[d]));
            for d in (0..N).rev() {
                at[d] += 1;
                if at[d] < self.parts.local.owned_len[d] {
                    break;
                }
                at[d] = 0;
            }
        }
        Ok(())
    }
}

impl<T: Pod, const N: usize> Parts<T, N> {
    pub(crate) fn area(&self, block: &Block<N>) -> Result<Area<T, N>> {
        area(&self.window, &self.local, block)
    }
}

/// What else may help who wants all points.
fn with_ghosts(error: Error) -> Error {
    match error {
        Error::RangeBusy { rank, window, bytes, access, reason } => {
            let reason = format!(
                "{reason}; ghosts that a committed halo fills are reached through what its `wait` returns (`Arrived::padded`)"
            );
            Error::RangeBusy { rank, window, bytes, access, reason }
        }
        other => other,
    }
}

fn area<T: Pod, const N: usize>(window: &RmaWindow, local: &Local<N>, block: &Block<N>) -> Result<Area<T, N>> {
    let place = local.place(block, size_of::<T>());
    window.area(place.offset_bytes, block.len, place.strides)
}

impl<const N: usize> FieldPlan<N> {
    pub(crate) fn of<T>(layout: Layout<N>) -> Self {
        Self { layout, element_bytes: size_of::<T>() }
    }
}

/// What ranks compare.
pub(crate) fn describe<const N: usize>(decomposition: &Decomposition<N>, field: &FieldPlan<N>) -> Vec<String> {
    let (cells, grid, periodic) = (decomposition.cells(), decomposition.grid(), decomposition.is_periodic());
    vec![
        format!("{cells:?} cells over a grid of {grid:?} ranks, periodic {periodic:?}"),
        format!("ghosts {:?}", field.layout.ghosts),
        format!("points on faces {:?}", field.layout.on_faces),
        format!("elements of {} bytes", field.element_bytes),
    ]
}

fn check<const N: usize>(comm: &Comm, decomposition: &Decomposition<N>, layout: &Layout<N>) -> Result<()> {
    if decomposition.ranks() != comm.size() {
        let (grid, ranks, size) = (decomposition.grid(), decomposition.ranks(), comm.size());
        return Err(invalid(format!("a grid of {grid:?} is for {ranks} ranks, and there are {size}; choose one for all of them")));
    }
    for d in 0..N {
        let (before, behind) = layout.ghosts[d];
        let widest = before.max(behind);
        let is_exchanged = decomposition.grid()[d] > 1 || decomposition.is_periodic()[d];
        let len = |rank| decomposition.points(rank, layout.on_faces).len[d];
        let narrowest = (0..decomposition.ranks()).map(Rank).min_by_key(|&rank| len(rank));
        if let Some(rank) = narrowest.filter(|&rank| is_exchanged && len(rank) < widest) {
            return Err(invalid(format!(
                "{widest} ghosts in dimension {d} are wider than the block of {rank}, which has {} points there; use fewer ghosts, more cells or \
                 fewer ranks in that dimension",
                len(rank)
            )));
        }
    }
    Ok(())
}

fn padded_bytes<T, const N: usize>(decomposition: &Decomposition<N>, layout: &Layout<N>, rank: Rank) -> Result<usize> {
    let owned = decomposition.points(rank, layout.on_faces).len;
    let bytes = (0..N).try_fold(size_of::<T>(), |bytes, d| {
        let (before, behind) = layout.ghosts[d];
        bytes.checked_mul(owned[d].checked_add(before)?.checked_add(behind)?)
    });
    bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
        invalid(format!("{owned:?} points of {} bytes and their ghosts are more than there can be; use fewer", size_of::<T>()))
    })
}

fn invalid(reason: String) -> Error {
    Error::Invalid { what: "field", reason }
}
