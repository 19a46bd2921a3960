//! Boxes that a rank copies itself in every epoch: to its ghosts, from its own points or from what came packed; and to where they are put from.
//! Owns the copying of areas, whatever the type of their elements; knows no plan.

use crate::block::Block;
use crate::field::Parts;
use crate::geometry::row_major;
use rma::{Area, Pod, ReadArea, Result, RmaWindow, WriteArea, copy_in_turn};
use rma_algorithms::{Arrived, Exchange, Flight, Open};

/// One copy or two that are made in every epoch.
pub(crate) trait BoxCopy {
    /// Has an exchange close the ghosts to all but this copy.
    fn add_to<'c>(&'c self, exchange: Exchange<Open<'c>>) -> Exchange<Open<'c>>;

    /// Refused while the program writes what is to be copied.
    fn check(&self) -> Result<()>;

    /// Own points to where they are put from, before the start.
    fn gather(&self) -> Result<()>;

    /// From own points, while others' are on their way.
    fn wrap(&self, flight: &Flight<'_>) -> Result<()>;

    /// From what has arrived.
    fn unpack(&self, arrived: &Arrived<'_>) -> Result<()>;
}

/// One side of a copy: a box of the field, or a packed box in another window, from so many bytes on.
#[derive(Clone, Copy)]
pub(crate) enum Side<'a, const N: usize> {
    Field(Block<N>),
    Packed(&'a RmaWindow, usize),
}

/// A copy of a box of so many points.
#[derive(Clone, Copy)]
pub(crate) struct CopyPlan<'a, const N: usize> {
    pub(crate) len: [usize; N],
    pub(crate) from: Side<'a, N>,
    pub(crate) to: Side<'a, N>,
}

struct AreaCopy<T, const N: usize> {
    first: Sides<T, N>,
    /// Another of the same shape, made row by row in turn with the first: ghosts on opposite sides, and what they come from, lie in the
    /// same lines of the caches.
    twin: Option<Sides<T, N>>,
}

struct Sides<T, const N: usize> {
    from: Area<T, N>,
    to: Area<T, N>,
}

impl<T: Pod, const N: usize> Parts<T, N> {
    /// A copy of a box, made together with another of the same shape where there is one.
    pub(crate) fn copy(&self, plan: CopyPlan<'_, N>, twin: Option<CopyPlan<'_, N>>) -> Result<Box<dyn BoxCopy>> {
        let sides = |plan: CopyPlan<'_, N>| -> Result<_> {
            let area = |side| match side {
                Side::Field(block) => self.area(&block),
                Side::Packed(window, offset_bytes) => window.area(offset_bytes, plan.len, row_major(plan.len)),
            };
            Ok(Sides { from: area(plan.from)?, to: area(plan.to)? })
        };
        Ok(Box::new(AreaCopy { first: sides(plan)?, twin: twin.map(sides).transpose()? }))
    }
}

impl<T: Pod, const N: usize> BoxCopy for AreaCopy<T, N> {
    fn add_to<'c>(&'c self, exchange: Exchange<Open<'c>>) -> Exchange<Open<'c>> {
        self.both().fold(exchange, |exchange, copy| exchange.filled(&copy.to))
    }

    fn check(&self) -> Result<()> {
        self.both().try_for_each(|copy| copy.from.read().map(drop))
    }

    fn gather(&self) -> Result<()> {
        self.run(|from| from.read(), |to| to.write())
    }

    fn wrap(&self, flight: &Flight<'_>) -> Result<()> {
        self.run(|from| from.read(), |to| flight.write_area(to))
    }

    fn unpack(&self, arrived: &Arrived<'_>) -> Result<()> {
        self.run(|from| arrived.read_area(from), |to| arrived.write_area(to))
    }
}

impl<T: Pod, const N: usize> AreaCopy<T, N> {
    fn both(&self) -> impl Iterator<Item = &Sides<T, N>> {
        std::iter::once(&self.first).chain(&self.twin)
    }

    fn run<'a>(
        &'a self,
        read: impl Fn(&'a Area<T, N>) -> Result<ReadArea<'a, T, N>>,
        write: impl Fn(&'a Area<T, N>) -> Result<WriteArea<'a, T, N>>,
    ) -> Result<()> {
        let (from, mut to) = (read(&self.first.from)?, write(&self.first.to)?);
        let Some(twin) = &self.twin else { return to.copy_from(&from) };
        let (twin_from, mut twin_to) = (read(&twin.from)?, write(&twin.to)?);
        copy_in_turn((&from, &mut to), (&twin_from, &mut twin_to))
    }
}
