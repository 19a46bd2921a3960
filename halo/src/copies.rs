//! Ghosts that a rank fills itself, from its own points or from what came packed.
//! Owns the copying of areas, whatever the type of their elements; knows no plan.

use crate::block::Block;
use crate::field::Parts;
use ndarray::{ArrayView, ArrayViewMut, Axis, Dim, Dimension, Zip};
use rma::{Area, Pod, Result, RmaWindow};
use rma_algorithms::{Arrived, Exchange, Flight, Open};

/// A copy that is made in every epoch.
pub(crate) trait GhostCopy {
    /// Has an exchange close the ghosts to all but this copy.
    fn add_to<'c>(&'c self, exchange: Exchange<Open<'c>>) -> Exchange<Open<'c>>;

    /// Refused while the program writes what is to be copied.
    fn check(&self) -> Result<()>;

    /// From own points, while others' are on their way.
    fn wrap(&self, flight: &Flight<'_>) -> Result<()>;

    /// From what has arrived.
    fn unpack(&self, arrived: &Arrived<'_>) -> Result<()>;
}

struct AreaCopy<T, const N: usize> {
    from: Area<T, N>,
    to: Area<T, N>,
}

impl<T: Pod, const N: usize> Parts<T, N>
where
    Dim<[usize; N]>: Dimension,
{
    /// A box of the field to ghosts of it.
    pub(crate) fn wrap(&self, from: &Block<N>, to: &Block<N>) -> Result<Box<dyn GhostCopy>> {
        Ok(Box::new(AreaCopy { from: self.area(from)?, to: self.area(to)? }))
    }

    /// Ghosts from where they land packed.
    pub(crate) fn unpack(&self, landing: &RmaWindow, offset_bytes: usize, ghost: &Block<N>) -> Result<Box<dyn GhostCopy>> {
        let from = landing.area(offset_bytes, ghost.len, crate::geometry::row_major(ghost.len))?;
        Ok(Box::new(AreaCopy { from, to: self.area(ghost)? }))
    }
}

impl<T: Pod, const N: usize> GhostCopy for AreaCopy<T, N>
where
    Dim<[usize; N]>: Dimension,
{
    fn add_to<'c>(&'c self, exchange: Exchange<Open<'c>>) -> Exchange<Open<'c>> {
        exchange.filled(&self.to)
    }

    fn check(&self) -> Result<()> {
        self.from.read().map(drop)
    }

    fn wrap(&self, flight: &Flight<'_>) -> Result<()> {
        copy(self.from.read()?.view(), flight.write_area(&self.to)?.view_mut());
        Ok(())
    }

    fn unpack(&self, arrived: &Arrived<'_>) -> Result<()> {
        copy(arrived.read_area(&self.from)?.view(), arrived.write_area(&self.to)?.view_mut());
        Ok(())
    }
}

/// Row by row along the last dimension with several elements: faces of the last dimension have rows of one.
fn copy<T: Copy, D: Dimension>(from: ArrayView<'_, T, D>, mut to: ArrayViewMut<'_, T, D>) {
    let Some(axis) = (0..to.ndim()).rev().find(|&axis| to.shape()[axis] > 1) else { return to.assign(&from) };
    Zip::from(to.lanes_mut(Axis(axis))).and(from.lanes(Axis(axis))).for_each(|mut to, from| to.assign(&from));
}
