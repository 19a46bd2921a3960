//! Areas: boxes of a window as arrays of several dimensions, leased whole, their gaps left to others.
//! Owns the check that an area is inside its window and names no byte twice, on which its views rest; knows no queue.

use super::extent::Extent;
use super::leases::Held;
use super::{RmaWindow, WindowInner};
use crate::layout::{Blocks, RangeSet};
use crate::{Error, QueueId, Result};
use bytemuck::Pod;
use ndarray::{ArrayView, ArrayViewMut, Dim, Dimension, ShapeBuilder, ShapeError, StrideShape};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;

/// Elements of this rank's part of a window at equal distances in each of `N` dimensions: a box of an array, say. What lies between
/// them is not part of it, so it may be written by origins or leased while the area is.
///
/// ```
/// # rma::Comm::launch(1, |comm| {
/// let window = comm.window_alloc(10 * 10 * 8)?; // ten rows of ten f64
/// let inside = window.area::<f64, 2>(11 * 8, [8, 8], [10, 1])?;
/// inside.write()?.view_mut().fill(1.0);
/// assert_eq!(inside.read()?.view()[[7, 7]], 1.0);
/// assert_eq!(window.read::<f64>(..)?.iter().sum::<f64>(), 64.0);
/// # Ok::<(), rma::Error>(()) })?;
/// # Ok::<(), rma::Error>(())
/// ```
#[derive(Debug)]
pub struct Area<T, const N: usize> {
    window: Rc<WindowInner>,
    extent: Extent,
    pub(super) first: NonNull<T>,
    pub(super) shape: [usize; N],
    /// In elements.
    pub(super) strides: [usize; N],
}

/// The elements of an area, to be read. Give it up by dropping it.
#[derive(Debug)]
pub struct ReadArea<'a, T, const N: usize> {
    pub(super) area: &'a Area<T, N>,
    /// Gives the lease up when it is dropped.
    _held: Held<'a>,
    elements: PhantomData<&'a [T]>,
}

/// The elements of an area, to be read and written. Give it up by dropping it.
#[derive(Debug)]
pub struct WriteArea<'a, T, const N: usize> {
    pub(super) area: &'a Area<T, N>,
    /// Gives the lease up when it is dropped.
    _held: Held<'a>,
    elements: PhantomData<&'a mut [T]>,
}

impl RmaWindow {
    /// The elements from `offset` bytes on: `shape` many in each dimension, `strides` elements apart. It holds the memory, as a
    /// queue does, also when the window is dropped.
    ///
    /// [`Error::OutOfRange`] when it ends behind this rank's part; [`Error::Invalid`] when it does not begin where a `T` can, or an
    /// element would be in it twice.
    pub fn area<T: Pod, const N: usize>(&self, offset: usize, shape: [usize; N], strides: [usize; N]) -> Result<Area<T, N>> {
        let invalid = |reason| Error::Invalid { what: "area", reason };
        let element_bytes = size_of::<T>();
        // Inside the window's memory, as is checked below; wrapping only so that no unsafe is needed for arithmetic.
        let first = self.inner.mem.base().as_ptr().wrapping_add(offset).cast::<T>();
        if element_bytes == 0 {
            let name = std::any::type_name::<T>();
            return Err(invalid(format!("elements of type {name} have no bytes; take a type of one byte or more")));
        }
        if !first.is_aligned() {
            let (name, align) = (std::any::type_name::<T>(), align_of::<T>());
            return Err(invalid(format!("no {name} can be at byte {offset}; begin at a multiple of {align} bytes of memory")));
        }
        let is_empty = shape.contains(&0);
        // What an array asks of its shape, also where a dimension has no element; else the window's length is the narrower limit.
        let all = shape.iter().filter(|&&extent| extent > 0).try_fold(1usize, |all, &extent| all.checked_mul(extent));
        if is_empty && all.is_none_or(|all| all > isize::MAX as usize) {
            let limit = isize::MAX;
            return Err(invalid(format!(
                "{shape:?}, without dimensions of 0, are more elements than the limit of {limit}; use smaller ones"
            )));
        }
        let mut by_stride: Vec<usize> = (0..N).filter(|&d| shape[d] > 1).collect();
        by_stride.sort_by_key(|&d| strides[d]);
        // From the first element to behind the last of the dimensions so far, wide enough never to overflow.
        let mut reach = 1u128;
        for &d in by_stride.iter().filter(|_| !is_empty) {
            if (strides[d] as u128) < reach {
                let (shape, stride) = (shape[d], strides[d]);
                return Err(invalid(format!(
                    "{shape} times the same {reach} elements every {stride} would be some twice; let dimension {d} have a stride of {reach} or more"
                )));
            }
            reach = reach.saturating_add((shape[d] as u128 - 1).saturating_mul(strides[d] as u128));
        }
        let bytes = if is_empty { 0 } else { reach.saturating_mul(element_bytes as u128) };
        let (rank, len_bytes) = (self.inner.comm.rank, self.inner.mem.len_bytes() as u64);
        let bytes = offset as u128..(offset as u128).saturating_add(bytes);
        if bytes.end > u128::from(len_bytes) {
            return Err(Error::OutOfRange { what: "area", window: self.inner.id, rank, bytes, len_bytes });
        }
        let Some(first) = NonNull::new(first) else { panic!("bug: a window at address 0") };
        let set =
            if is_empty { RangeSet::default() } else { covered(offset as u64, &by_stride, &shape, &strides, element_bytes as u64) };
        let strides = std::array::from_fn(|d| if is_empty || shape[d] == 1 { 0 } else { strides[d] });
        Ok(Area { window: self.inner.clone(), extent: Extent::rows(set), first, shape, strides })
    }
}

/// The bytes of all elements; `by_stride` are the dimensions with several, the closest first.
fn covered(offset: u64, by_stride: &[usize], shape: &[usize], strides: &[usize], element_bytes: u64) -> RangeSet {
    let mut starts = vec![offset];
    for &d in by_stride.iter().skip(1).rev() {
        let step = strides[d] as u64 * element_bytes;
        starts = starts.iter().flat_map(|start| (0..shape[d] as u64).map(move |i| start + i * step)).collect();
    }
    let row = |offset| match by_stride.first() {
        None => Blocks::contiguous(offset, element_bytes),
        Some(&d) => {
            Blocks { offset, block_bytes: element_bytes, count: shape[d] as u64, stride: strides[d] as u64 * element_bytes }
        }
    };
    starts.into_iter().flat_map(|start| row(start).ranges()).collect()
}

impl<T: Pod, const N: usize> Area<T, N> {
    /// How many elements it has in each dimension.
    pub fn shape(&self) -> [usize; N] {
        self.shape
    }

    /// The elements, to be read. Refused as [`RmaWindow::read`] is, for the bytes of the elements alone.
    pub fn read(&self) -> Result<ReadArea<'_, T, N>> {
        self.read_exempt(None)
    }

    /// The elements, to be read and written. Refused as [`RmaWindow::write`] is, for the bytes of the elements alone.
    pub fn write(&self) -> Result<WriteArea<'_, T, N>> {
        self.write_exempt(None)
    }

    /// A read lease to which `exempt`'s own exposure is no hindrance.
    pub(crate) fn read_exempt(&self, exempt: Option<QueueId>) -> Result<ReadArea<'_, T, N>> {
        let held = Held::on(&self.window, self.extent.clone(), false, exempt)?;
        Ok(ReadArea { area: self, _held: held, elements: PhantomData })
    }

    /// A write lease to which `exempt`'s own exposure is no hindrance.
    pub(crate) fn write_exempt(&self, exempt: Option<QueueId>) -> Result<WriteArea<'_, T, N>> {
        let held = Held::on(&self.window, self.extent.clone(), true, exempt)?;
        Ok(WriteArea { area: self, _held: held, elements: PhantomData })
    }

    /// A write lease while `queue` is in flight, on what the program itself fills in each of its epochs, and nothing else.
    pub(crate) fn fill(&self, queue: QueueId) -> Result<WriteArea<'_, T, N>> {
        let is_filled = {
            let access = self.window.access.borrow();
            access.claims.iter().any(|claim| claim.queue == queue && self.extent.is_filled_in(claim))
        };
        if !is_filled {
            let reason = format!(
                "{} of {} is not what {queue} lets this rank fill; name it with add_filled before the commit",
                self.extent, self.window.id
            );
            return Err(Error::Invalid { what: "area to fill in flight", reason });
        }
        self.write_exempt(Some(queue))
    }

    /// Every byte of it.
    pub(crate) fn bytes(&self) -> RangeSet {
        self.extent.set()
    }

    pub(crate) fn window(&self) -> &Rc<WindowInner> {
        &self.window
    }

    fn layout(&self) -> StrideShape<Dim<[usize; N]>>
    where
        Dim<[usize; N]>: Dimension,
    {
        dimension(self.shape).strides(dimension(self.strides))
    }

    fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

fn dimension<const N: usize>(lengths: [usize; N]) -> Dim<[usize; N]>
where
    Dim<[usize; N]>: Dimension,
{
    let mut dimension = Dim::<[usize; N]>::default();
    dimension.slice_mut().copy_from_slice(&lengths);
    dimension
}

/// What an array makes of an area without an element. It moves its pointer along other dimensions all the same, so there are no strides that
/// could take it out of the memory.
fn empty<V>(view: std::result::Result<V, ShapeError>) -> V {
    view.unwrap_or_else(|cause| panic!("bug: an area of a shape that no array has: {cause}"))
}

impl<T: Pod, const N: usize> ReadArea<'_, T, N>
where
    Dim<[usize; N]>: Dimension,
{
    /// The elements as an array.
    pub fn view(&self) -> ArrayView<'_, T, Dim<[usize; N]>> {
        if self.area.is_empty() {
            return empty(ArrayView::from_shape(dimension(self.area.shape), &[]));
        }
        // SAFETY: `area` checked that all elements lie inside the window's memory and begin where a T can, and `Held::on` that nobody
        // writes them while `_held` lives; any bit pattern is a T (Pod); the memory outlives the borrow of the area in it.
        unsafe { ArrayView::from_shape_ptr(self.area.layout(), self.area.first.as_ptr()) }
    }
}

impl<T: Pod, const N: usize> WriteArea<'_, T, N>
where
    Dim<[usize; N]>: Dimension,
{
    /// The elements as an array, to be read.
    pub fn view(&self) -> ArrayView<'_, T, Dim<[usize; N]>> {
        if self.area.is_empty() {
            return empty(ArrayView::from_shape(dimension(self.area.shape), &[]));
        }
        // SAFETY: as for a read area; only this lease gives access to these elements while `_held` lives.
        unsafe { ArrayView::from_shape_ptr(self.area.layout(), self.area.first.as_ptr()) }
    }

    /// The elements as an array.
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, Dim<[usize; N]>> {
        if self.area.is_empty() {
            return empty(ArrayViewMut::from_shape(dimension(self.area.shape), &mut []));
        }
        // SAFETY: as above, `&mut self` makes this the only view of the only lease, and no element is in the area twice.
        unsafe { ArrayViewMut::from_shape_ptr(self.area.layout(), self.area.first.as_ptr()) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{Comm, Config};
    use fastrand::Rng;
    use ndarray::s;
    use std::time::Duration;

    /// Two ranks as threads, neither of which waits for ever.
    fn two_ranks(body: impl Fn(Comm) + Sync) {
        let patience = Duration::from_secs(20);
        let config = Config { setup_timeout: patience, wait_timeout: Some(patience), ..Config::default() };
        Comm::threads_with(2, config, body).unwrap();
    }

    /// The elements of a box, spelled out one by one: by their number in the window.
    pub(in crate::window) fn elements(offset: usize, shape: [usize; 3], strides: [usize; 3]) -> Vec<usize> {
        let [x, y, z] = shape;
        let all = (0..x).flat_map(|i| (0..y).flat_map(move |j| (0..z).map(move |k| [i, j, k])));
        all.map(|at| offset + at.iter().zip(strides).map(|(i, stride)| i * stride).sum::<usize>()).collect()
    }

    pub(in crate::window) fn any_box(random: &mut Rng) -> (usize, [usize; 3], [usize; 3]) {
        let shape = std::array::from_fn(|_| random.usize(..5));
        (random.usize(..40), shape, std::array::from_fn(|_| [1, 2, 3, 5, 8, 20, 25][random.usize(..7)]))
    }

    #[test]
    fn an_area_is_its_elements_and_nothing_else() {
        let mut random = Rng::with_seed(5);
        let comm = Comm::alone(Config::default()).unwrap();
        let window = comm.window_alloc(90 * 4).unwrap();
        let (mut made, mut twice, mut outside) = (0, 0, 0);
        for round in 0..20_000 {
            let (offset, shape, strides) = any_box(&mut random);
            let wanted = elements(offset, shape, strides);
            let mut distinct = wanted.clone();
            distinct.sort_unstable();
            distinct.dedup();
            match window.area::<u32, 3>(4 * offset, shape, strides) {
                Ok(area) => {
                    made += 1;
                    assert_eq!(distinct.len(), wanted.len(), "{offset} {shape:?} {strides:?} names an element twice");
                    area.write().unwrap().view_mut().iter_mut().zip(0..).for_each(|(element, i)| *element = round + i);
                    {
                        let all = window.read::<u32>(..).unwrap();
                        assert!(wanted.iter().zip(0..).all(|(&at, i)| all[at] == round + i), "{offset} {shape:?} {strides:?}");
                        let read = area.read().unwrap();
                        assert!(read.view().iter().zip(0..).all(|(&element, i)| element == round + i));
                        let untouched = (0..all.len()).filter(|at| !wanted.contains(at)).all(|at| all[at] == 0);
                        assert!(untouched, "{offset} {shape:?} {strides:?} touches more");
                    }
                    area.write().unwrap().view_mut().fill(0);
                }
                Err(Error::Invalid { .. }) => twice += 1,
                Err(Error::OutOfRange { bytes, .. }) => {
                    outside += 1;
                    assert!(bytes.end > 360 && wanted.iter().max().is_some_and(|&last| 4 * last as u128 + 4 == bytes.end));
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(made > 1000 && twice > 1000 && outside > 100, "{made} {twice} {outside}: the test has lost its teeth");
    }

    #[test]
    fn an_area_without_an_element_has_a_shape_that_an_array_can_have() {
        let comm = Comm::alone(Config::default()).unwrap();
        let window = comm.window_alloc(64).unwrap();
        let no_bytes = window.area::<(), 1>(0, [4], [1]).unwrap_err().to_string();
        assert!(no_bytes.contains("elements of type () have no bytes"), "{no_bytes}");
        let large = usize::MAX / 2;
        for shape in [[0, usize::MAX, usize::MAX], [usize::MAX, 0, 2], [large, 2, 0], [0, 1, large + 1]] {
            let refused = window.area::<u32, 3>(64, shape, [1; 3]).unwrap_err().to_string();
            assert!(refused.contains("more elements than the limit of 9223372036854775807"), "{refused}");
        }
        for shape in [[0, 1, large], [large, 0, 1], [0, 0, 0]] {
            let area = window.area::<u32, 3>(64, shape, [usize::MAX; 3]).unwrap();
            assert_eq!(area.read().unwrap().view().shape(), shape);
            assert_eq!(area.write().unwrap().view_mut().iter_mut().count(), 0);
            // Nowhere along its dimensions does it leave the memory.
            let read = area.read().unwrap();
            let far = read.view().slice_move(s![..;-1, ..;-1, ..;-1]).as_ptr();
            assert_eq!(far, read.view().as_ptr(), "{shape:?}");
        }
    }

    #[test]
    fn leases_of_areas_exclude_each_other_where_they_share_a_byte_and_one_writes() {
        let mut random = Rng::with_seed(6);
        let comm = Comm::alone(Config::default()).unwrap();
        let window = comm.window_alloc(200 * 4).unwrap();
        let mut areas = Vec::new();
        while areas.len() < 40 {
            let (offset, shape, strides) = any_box(&mut random);
            if let Ok(area) = window.area::<u32, 3>(4 * offset, shape, strides) {
                areas.push((area, elements(offset, shape, strides)));
            }
        }
        let mut refused = 0;
        // More than are remembered, so that some are forgotten, and twice, so that some are not.
        for _ in 0..2 {
            for (one, ones) in &areas {
                for (other, others) in &areas {
                    let shared = ones.iter().any(|at| others.contains(at));
                    let held = one.read().unwrap();
                    assert!(other.read().is_ok());
                    assert_eq!(other.write().is_err(), shared);
                    drop(held);
                    let _held = one.write().unwrap();
                    assert_eq!(other.read().is_err(), shared);
                    assert_eq!(other.write().is_err(), shared);
                    refused += usize::from(shared);
                }
                let _held = one.write().unwrap();
                for _ in 0..20 {
                    let (start, len) = (random.usize(..150), random.usize(..10));
                    let shared = ones.iter().any(|at| (start..start + len).contains(at));
                    assert_eq!(window.read::<u32>(4 * start..4 * (start + len)).is_err(), shared);
                }
            }
        }
        assert!(refused > 100, "{refused} refused: the test has lost its teeth");
    }

    #[test]
    fn gaps_of_an_area_are_written_by_origins_while_it_is_leased() {
        two_ranks(|comm| {
            let window = comm.window_alloc(64).unwrap();
            // Rows of four, of which the last is received.
            let (owned, ghosts) =
                (window.area::<u32, 2>(0, [4, 3], [4, 1]).unwrap(), window.area::<u32, 2>(12, [4, 1], [4, 1]).unwrap());
            let other = 1 - comm.rank().0;
            let put = comm.declare_write(&window, 12, &window, 0, 4, other).unwrap().blocks(4, 16, 16).unwrap();
            let mut queue = comm.queue_alloc(&window).unwrap();
            queue.push(&put).unwrap().add_origin(other).unwrap();
            let mut queue = queue.commit().unwrap();
            owned.write().unwrap().view_mut().fill(comm.rank().0 + 7);
            for _ in 0..3 {
                assert!(ghosts.read().unwrap_err().to_string().contains("origins of queue 0 may write it"));
                let held = owned.write().unwrap();
                assert!(queue.start().unwrap_err().to_string().contains("a write lease is alive"));
                drop(held);
                let flight = queue.start().unwrap();
                assert_eq!(owned.read().unwrap().view()[[3, 2]], comm.rank().0 + 7);
                assert!(owned.write().unwrap_err().to_string().contains("in flight read it"));
                let arrived = flight.wait().unwrap();
                assert!(arrived.read_area(&ghosts).unwrap().view().iter().all(|&ghost| ghost == other + 7));
            }
        });
    }

    #[test]
    fn what_a_rank_fills_itself_is_closed_to_all_but_the_queue() {
        two_ranks(|comm| {
            let window = comm.window_alloc(64).unwrap();
            // Four numbers owned, four received, four filled, four free.
            let [owned, received, filled, free] = [0, 16, 32, 48].map(|offset| window.area::<u32, 1>(offset, [4], [1]).unwrap());
            let other = 1 - comm.rank().0;
            let open = || {
                let put = comm.declare_write(&window, 16, &window, 0, 16, other).unwrap();
                let mut queue = comm.queue_alloc(&window).unwrap();
                queue.push(&put).unwrap().add_origin(other).unwrap();
                queue
            };
            let mut both = open();
            both.add_filled(&received).unwrap();
            assert!(both.commit().unwrap_err().to_string().contains("both receives them and is to let this rank fill them"));
            let mut queue = open();
            queue.add_filled(&filled).unwrap();
            let mut queue = queue.commit().unwrap();
            for step in 0..3 {
                owned.write().unwrap().view_mut().fill(comm.rank().0 + step);
                assert!(filled.read().is_err() && free.read().is_ok());
                let flight = queue.start().unwrap();
                assert!(filled.read().is_err() && filled.write().is_err());
                for area in [&owned, &received, &free] {
                    assert!(flight.write_area(area).unwrap_err().to_string().contains("add_filled"));
                }
                flight.write_area(&filled).unwrap().view_mut().fill(step);
                let arrived = flight.wait().unwrap();
                assert!(arrived.read_area(&filled).unwrap().view().iter().all(|&number| number == step));
                assert!(arrived.read_area(&received).unwrap().view().iter().all(|&number| number == other + step));
            }
        });
    }
}
