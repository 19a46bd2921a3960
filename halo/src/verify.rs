//! The proof of an exchange: points that say where they come from, and a look at every single one.
//! Owns what each point must be, computed from the global array alone; knows no plan.

use crate::decomposition::Decomposition;
use crate::field::Parts;
use crate::geometry::Layout;
use crate::halo::Arrived;
use crate::plan::Mode;
use ndarray::{Array, Dim, Dimension, IntoDimension};
use rma::bytemuck::{bytes_of, bytes_of_mut};
use rma::{Error, Pod, Rank, Result};

/// What stood in a field before it was marked.
pub(crate) type Saved = Box<dyn std::any::Any>;

/// Which global point stands at a place of a rank's padded points when an exchange is complete; `None` where none is ever put.
pub(crate) fn stands_for<const N: usize>(
    decomposition: &Decomposition<N>,
    layout: &Layout<N>,
    mode: Mode,
    rank: Rank,
    at: [usize; N],
) -> Option<[usize; N]> {
    let (owned, global) = (decomposition.points(rank, layout.on_faces), decomposition.global_points(layout.on_faces));
    let (mut point, mut ghost_dimensions) = ([0; N], 0);
    for d in 0..N {
        let here = at[d] as i64 - layout.ghosts[d].0 as i64;
        ghost_dimensions += usize::from(here < 0 || here >= owned.len[d] as i64);
        let there = owned.start[d] as i64 + here;
        let is_inside = (0..global[d] as i64).contains(&there);
        if !is_inside && !decomposition.is_periodic()[d] {
            return None;
        }
        point[d] = there.rem_euclid(global[d] as i64) as usize;
    }
    (ghost_dimensions <= 1 || mode != Mode::Faces).then_some(point)
}

/// Where a mark says that it belongs: a global point, or a place of a rank where no point is ever put.
#[derive(Clone, Copy)]
enum Belongs<const N: usize> {
    Point([usize; N]),
    Place(Rank, [usize; N]),
}

/// A value that no other point or place of any field has, as far as the bytes of an element can tell.
fn mark<T: Pod, const N: usize>(field: usize, belongs: Belongs<N>) -> T {
    let mut element = T::zeroed();
    // Scattered by multiplications, so that neighbors differ in the high bytes, of which small elements have a few.
    let (first, at) = match belongs {
        Belongs::Point(point) => (0, point),
        Belongs::Place(rank, place) => (u64::from(rank.0) + 1, place),
    };
    let numbers = [first, field as u64].into_iter().chain(at.map(|at| at as u64));
    let number = numbers.fold(0, |number: u64, next| number.wrapping_mul(0x0100_0000_01b3).wrapping_add(next + 1));
    let scattered = (number ^ number >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (place, byte) in bytes_of_mut(&mut element).iter_mut().enumerate() {
        *byte = (scattered >> (56 - 8 * (place % 8))) as u8;
    }
    element
}

impl<T: Pod, const N: usize> Parts<T, N>
where
    Dim<[usize; N]>: Dimension,
{
    /// Refused while the program holds what a start or the marks need, as far as that can be told before the start.
    pub(crate) fn may_be_marked(&self, exposed_at_start: bool) -> Result<()> {
        if exposed_at_start { &self.padded } else { &self.owned }.write().map(drop)
    }

    /// Marks every owned point and every ghost, and says what stood there.
    pub(crate) fn mark(&self, arrived: &Arrived<'_>, number: usize, rank: Rank) -> Result<Saved> {
        let mut area = arrived.write_area(&self.padded)?;
        let saved = area.view().to_owned();
        let owned = self.local.owned();
        for (at, element) in area.view_mut().indexed_iter_mut() {
            let at = array_of::<N>(at);
            let is_owned = (0..N).all(|d| owned.range(d).contains(&at[d]));
            let point = is_owned.then(|| stands_for(&self.decomposition, &self.layout, Mode::Faces, rank, at)).flatten();
            *element = mark(number, point.map_or(Belongs::Place(rank, at), Belongs::Point));
        }
        Ok(Box::new(saved))
    }

    /// Puts back what stood there.
    pub(crate) fn put_back(&self, arrived: &Arrived<'_>, saved: &Saved) -> Result<()> {
        if let Some(saved) = saved.downcast_ref::<Array<T, Dim<[usize; N]>>>() {
            arrived.write_area(&self.padded)?.view_mut().assign(saved);
        }
        Ok(())
    }

    /// Looks at every point, then puts back what stood there.
    pub(crate) fn check(&self, arrived: &Arrived<'_>, number: usize, rank: Rank, mode: Mode, saved: &Saved) -> Result<()> {
        let area = arrived.write_area(&self.padded)?;
        let (mut wrong, mut first) = (0u64, None);
        for (at, element) in area.view().indexed_iter() {
            let at = array_of::<N>(at);
            let point = stands_for(&self.decomposition, &self.layout, mode, rank, at);
            let expected = point.map_or(Belongs::Place(rank, at), Belongs::Point);
            if bytes_of(element) != bytes_of(&mark::<T, N>(number, expected)) {
                wrong += 1;
                first = first.or(Some((at, point)));
            }
        }
        drop(area);
        self.put_back(arrived, saved)?;
        let Some((at, point)) = first else { return Ok(()) };
        let expected = point.map_or("was to stay as it was".into(), |point| format!("is not global point {point:?}"));
        let reason = format!(
            "{wrong} points of field {number} are wrong on {rank}; the first, at {at:?} from the first ghost on, {expected}"
        );
        Err(Error::Invalid { what: "ghosts after an exchange", reason })
    }
}

/// The place that an array gives with an element.
fn array_of<const N: usize>(place: <Dim<[usize; N]> as Dimension>::Pattern) -> [usize; N]
where
    Dim<[usize; N]>: Dimension,
{
    let place = place.into_dimension();
    std::array::from_fn(|d| place[d])
}
