//! Copies from area to area, row by row: one, or two in turn.
//! Owns the order in which elements are visited; that they are inside and leased is what areas are.

use super::area::{ReadArea, WriteArea};
use crate::ways::copy_blocks;
use crate::{Error, Result};
use bytemuck::Pod;
use std::ptr::NonNull;

impl<T: Pod, const N: usize> WriteArea<'_, T, N> {
    /// Copies the elements of another area of the same shape: faster than through views where rows are short, as those of the faces of an
    /// array are.
    pub fn copy_from(&mut self, from: &ReadArea<'_, T, N>) -> Result<()> {
        let copy = Copying::between(from, self)?;
        // SAFETY: the leases of both areas are held here.
        unsafe { copy.run() };
        Ok(())
    }
}

/// Two copies of areas, row by row in turn: faster than one after the other where both touch the same lines of the caches, as those of
/// opposite faces of an array do. All four areas have the same shape.
pub fn copy_in_turn<T: Pod, const N: usize>(
    (from, to): (&ReadArea<'_, T, N>, &mut WriteArea<'_, T, N>),
    (other_from, other_to): (&ReadArea<'_, T, N>, &mut WriteArea<'_, T, N>),
) -> Result<()> {
    let (copy, other) = (Copying::between(from, to)?, Copying::between(other_from, other_to)?);
    if copy.shape != other.shape {
        return Err(different_shapes(&copy.shape, &other.shape));
    }
    let are_columns = copy.block == 1 && other.block == 1 && copy.row == other.row;
    if are_columns {
        // SAFETY: the leases of all four areas are held here.
        unsafe { copy.run_in_turn(&other) };
    } else {
        // SAFETY: the leases of these two are held here.
        unsafe { copy.run() };
        // SAFETY: and those of the other two.
        unsafe { other.run() };
    }
    Ok(())
}

fn different_shapes(one: &[usize], other: &[usize]) -> Error {
    Error::Invalid { what: "copy of areas", reason: format!("shapes {one:?} and {other:?} differ; take areas of one shape") }
}

/// A copy from an area to one of the same shape, whose leases are held: rows of blocks at equal distances, and where those rows begin.
#[derive(Clone, Copy)]
struct Copying<T, const N: usize> {
    shape: [usize; N],
    from: NonNull<T>,
    to: NonNull<T>,
    from_strides: [usize; N],
    to_strides: [usize; N],
    /// The dimensions before this one are those of the rows.
    row: usize,
    /// How many elements a block has, how many blocks a row, and how many elements lie from one to the next on both sides.
    block: usize,
    count: usize,
    from_stride: usize,
    to_stride: usize,
}

impl<T: Pod, const N: usize> Copying<T, N> {
    fn between(from: &ReadArea<'_, T, N>, to: &WriteArea<'_, T, N>) -> Result<Self> {
        let (from, to) = (from.area, to.area);
        if from.shape != to.shape {
            return Err(different_shapes(&from.shape, &to.shape));
        }
        let (shape, from_strides, to_strides) = (to.shape, from.strides, to.strides);
        let several = |before: usize| shape[..before].iter().rposition(|&len| len > 1);
        // A block is what lies in one piece on both sides, along the innermost dimension with several elements.
        let last = several(N);
        let dense = last.filter(|&d| (from_strides[d], to_strides[d]) == (1, 1));
        let block = dense.map_or(1, |d| shape[d]);
        let along = if dense.is_some() { last.and_then(several) } else { last };
        let (count, from_stride, to_stride) = along.map_or((1, 0, 0), |d| (shape[d], from_strides[d], to_strides[d]));
        let row = along.unwrap_or(0);
        Ok(Self { shape, from: from.first, to: to.first, from_strides, to_strides, row, block, count, from_stride, to_stride })
    }

    /// Calls with the first place of every row.
    #[inline]
    fn each_row(&self, mut visit: impl FnMut(&[usize; N])) {
        if self.shape.contains(&0) {
            return;
        }
        let mut place = [0; N];
        loop {
            visit(&place);
            let Some(d) = (0..self.row).rev().find(|&d| place[d] + 1 < self.shape[d]) else { return };
            place[d] += 1;
            place[d + 1..self.row].fill(0);
        }
    }

    /// The places of an element. Inside the areas, whose offsets do not overflow; wrapping only so that no unsafe is needed for arithmetic.
    #[inline]
    fn at(&self, place: &[usize; N]) -> (*const T, *mut T) {
        let offset = |strides: &[usize; N]| place.iter().zip(strides).map(|(i, stride)| i * stride).sum();
        (self.from.as_ptr().wrapping_add(offset(&self.from_strides)), self.to.as_ptr().wrapping_add(offset(&self.to_strides)))
    }

    /// # Safety
    /// The leases of both areas are held. As one is to be written by nobody else, they do not overlap.
    unsafe fn run(&self) {
        let bytes = |elements: usize| elements * size_of::<T>();
        self.each_row(|place| {
            let (from, to) = self.at(place);
            let (from, to) = ((from.cast(), bytes(self.from_stride)), (to.cast(), bytes(self.to_stride)));
            // SAFETY: as promised, and a row begins at this place; any bit pattern is a T.
            unsafe { copy_blocks(from, to, bytes(self.block), self.count) };
        });
    }

    /// Element by element in turn with a copy of rows alike.
    ///
    /// # Safety
    /// As for `run`, of both copies; both have blocks of one element.
    unsafe fn run_in_turn(&self, other: &Self) {
        // SAFETY: as promised, and a row of both begins at this place.
        self.each_row(|place| unsafe { self.row_in_turn(other, place) });
    }

    /// # Safety
    /// As for `run_in_turn`; a row of both begins at this place.
    #[inline]
    unsafe fn row_in_turn(&self, other: &Self, place: &[usize; N]) {
        let ((mut from, mut to), (mut other_from, mut other_to)) = (self.at(place), other.at(place));
        for _ in 0..self.count {
            // Both are read before one is written: what is written lies in lines that have just been read, and is not waited for.
            // SAFETY: as promised, for this element; any bit pattern is a T.
            let element = unsafe { from.read() };
            // SAFETY: as promised, for this element.
            let other_element = unsafe { other_from.read() };
            // SAFETY: as promised, for this element.
            unsafe { to.write(element) };
            // SAFETY: as promised, for this element.
            unsafe { other_to.write(other_element) };
            // Behind the last element they point anywhere, and are not used.
            (from, to) = (from.wrapping_add(self.from_stride), to.wrapping_add(self.to_stride));
            (other_from, other_to) = (other_from.wrapping_add(other.from_stride), other_to.wrapping_add(other.to_stride));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::tests::{any_box, elements};
    use super::copy_in_turn;
    use crate::{Comm, Config, RmaWindow};
    use bytemuck::Pod;
    use fastrand::Rng;

    #[test]
    fn a_copy_moves_every_element_to_its_place_and_touches_no_other() {
        let mut random = Rng::with_seed(8);
        let comm = Comm::alone(Config::default()).unwrap();
        let (source, target) = (comm.window_alloc(120 * 4).unwrap(), comm.window_alloc(120 * 4).unwrap());
        source.write::<u32>(..).unwrap().iter_mut().zip(1..).for_each(|(number, i)| *number = i);
        let mut copied = 0;
        for _ in 0..5000 {
            let (from, shape, from_strides) = any_box(&mut random);
            let (to, _, to_strides) = any_box(&mut random);
            let (Ok(one), Ok(other)) =
                (source.area::<u32, 3>(4 * from, shape, from_strides), target.area(4 * to, shape, to_strides))
            else {
                continue;
            };
            target.write::<u32>(..).unwrap().fill(0);
            other.write().unwrap().copy_from(&one.read().unwrap()).unwrap();
            let mut expected = vec![0; 120];
            let places = elements(from, shape, from_strides).into_iter().zip(elements(to, shape, to_strides));
            places.for_each(|(from, to)| expected[to] = from as u32 + 1);
            assert_eq!(target.read::<u32>(..).unwrap()[..], expected, "{from} {shape:?} {from_strides:?} to {to} {to_strides:?}");
            copied += 1;
        }
        assert!(copied > 500, "{copied} copies: the test has lost its teeth");
        let [one, other] = [[2, 3, 1], [3, 2, 1]].map(|shape| source.area::<u32, 3>(0, shape, [10, 2, 1]).unwrap());
        let refused = target.area(0, [3, 2, 1], [10, 2, 1]).unwrap().write().unwrap().copy_from(&one.read().unwrap());
        assert!(refused.unwrap_err().to_string().contains("[2, 3, 1]") && other.read().is_ok());
    }

    /// What a test of copies in turn has met.
    #[derive(Debug, Default)]
    struct Met {
        copied: usize,
        /// All four areas have rows without gaps, of several elements.
        rows: usize,
        /// Elements lie between those of another area.
        interleaved: usize,
        /// Both copies read the same elements.
        shared: usize,
    }

    /// Two copies within a window, all boxes by chance, against what copies of single elements would leave in every byte.
    fn copies_in_turn<T: Pod>(random: &mut Rng) -> Met {
        const ELEMENTS: usize = 300;
        let element_bytes = size_of::<T>();
        let comm = Comm::alone(Config::default()).unwrap();
        let window = comm.window_alloc(ELEMENTS * element_bytes).unwrap();
        let mut met = Met::default();
        for _ in 0..20_000 {
            let (_, shape, _) = any_box(random);
            let has_rows = random.bool();
            let boxes: [_; 4] = std::array::from_fn(|_| {
                let (_, _, mut strides) = any_box(random);
                if has_rows {
                    strides[2] = 1;
                }
                (random.usize(..ELEMENTS), strides)
            });
            let areas = boxes.map(|(offset, strides)| window.area::<T, 3>(element_bytes * offset, shape, strides));
            let [Ok(from), Ok(to), Ok(other_from), Ok(other_to)] = areas else { continue };
            window.write::<u8>(..).unwrap().iter_mut().for_each(|byte| *byte = random.u8(..));
            let before = window.read::<u8>(..).unwrap().to_vec();
            {
                // What one copy writes is in no other area, or the leases refuse it.
                let leases = (from.read(), to.write(), other_from.read(), other_to.write());
                let (Ok(from), Ok(mut to), Ok(other_from), Ok(mut other_to)) = leases else { continue };
                copy_in_turn((&from, &mut to), (&other_from, &mut other_to)).unwrap();
            }
            let places = boxes.map(|(offset, strides)| elements(offset, shape, strides));
            let mut expected = before.clone();
            for [from, to] in [[0, 1], [2, 3]] {
                for (&from, &to) in places[from].iter().zip(&places[to]) {
                    let [from, to] = [from, to].map(|at| at * element_bytes);
                    expected[to..to + element_bytes].copy_from_slice(&before[from..from + element_bytes]);
                }
            }
            assert_eq!(window.read::<u8>(..).unwrap()[..], expected, "{element_bytes} bytes, {shape:?} of {boxes:?}");
            let lies_between = |one: &[usize], other: &[usize]| {
                one.iter().any(|at| other.first().is_some_and(|first| first < at) && other.last().is_some_and(|last| at < last))
            };
            met.copied += usize::from(!places[0].is_empty());
            met.rows += usize::from(has_rows && !places[0].is_empty() && shape[2] > 1);
            met.interleaved += usize::from(lies_between(&places[1], &places[0]) || lies_between(&places[1], &places[3]));
            met.shared += usize::from(places[0].iter().any(|at| places[2].contains(at)));
        }
        met
    }

    #[test]
    fn copies_in_turn_move_what_each_would_move_alone() {
        let mut random = Rng::with_seed(9);
        for met in [copies_in_turn::<u32>(&mut random), copies_in_turn::<[u8; 3]>(&mut random), copies_in_turn::<u8>(&mut random)] {
            let Met { copied, rows, interleaved, shared } = met;
            let has_teeth = copied > 500 && rows > 100 && copied - rows > 100 && interleaved > 100 && shared > 50;
            assert!(has_teeth, "{met:?}: the test has lost its teeth");
        }
    }

    #[test]
    fn copies_in_turn_of_different_shapes_are_refused_and_nothing_is_copied() {
        let comm = Comm::alone(Config::default()).unwrap();
        let (source, target) = (comm.window_alloc(64).unwrap(), comm.window_alloc(64).unwrap());
        source.write::<u8>(..).unwrap().fill(1);
        let wide = |window: &RmaWindow, offset| window.area::<u8, 2>(offset, [2, 3], [8, 1]).unwrap();
        let high = |window: &RmaWindow, offset| window.area::<u8, 2>(offset, [3, 2], [8, 1]).unwrap();
        let boxes = [
            [wide(&source, 0), high(&target, 0), wide(&source, 4), wide(&target, 4)],
            [wide(&source, 0), wide(&target, 0), wide(&source, 4), high(&target, 4)],
            [wide(&source, 0), wide(&target, 0), high(&source, 4), high(&target, 4)],
        ];
        for [from, to, other_from, other_to] in boxes {
            let [from, other_from] = [from.read().unwrap(), other_from.read().unwrap()];
            let [mut to, mut other_to] = [to.write().unwrap(), other_to.write().unwrap()];
            let refused = copy_in_turn((&from, &mut to), (&other_from, &mut other_to)).unwrap_err().to_string();
            assert!(refused.contains("[2, 3]") && refused.contains("[3, 2]"), "{refused}");
            drop((to, other_to));
            assert!(target.read::<u8>(..).unwrap().iter().all(|&byte| byte == 0));
        }
    }
}
