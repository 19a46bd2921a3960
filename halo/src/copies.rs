//! Ghosts that a rank fills itself, from its own points or from what came packed.
//! Owns the copying of areas, whatever the type of their elements; knows no plan.

use crate::block::Block;
use crate::field::Parts;
use crate::geometry::row_major;
use rma::{Area, Pod, Result, RmaWindow};
use rma_algorithms::{Arrived, Exchange, Flight, Open};

/// One copy or two that are made in every epoch.
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

/// Where ghosts come from: a box of the same field, or where they land packed.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a, const N: usize> {
    Own(Block<N>),
    Landed(&'a RmaWindow, usize),
}

struct AreaCopy<T, const N: usize> {
    from: Area<T, N>,
    to: Area<T, N>,
    /// Another of the same shape, made plane by plane in turn with this one: ghosts on opposite sides, and what they come from, lie in the
    /// same lines of the caches.
    twin: Option<Box<Self>>,
}

impl<T: Pod, const N: usize> Parts<T, N> {
    /// Copies to ghosts, one or two of the same shape.
    pub(crate) fn ghost_copy(&self, copies: &[(Origin<'_, N>, Block<N>)]) -> Result<Box<dyn GhostCopy>> {
        let mut last: Option<Box<AreaCopy<T, N>>> = None;
        for (origin, to) in copies.iter().rev() {
            let from = match *origin {
                Origin::Own(block) => self.area(&block)?,
                Origin::Landed(landing, offset_bytes) => landing.area(offset_bytes, to.len, row_major(to.len))?,
            };
            last = Some(Box::new(AreaCopy { from, to: self.area(to)?, twin: last.take() }));
        }
        let Some(first) = last else { unreachable!("bug: a copy of nothing") };
        Ok(first)
    }
}

impl<T: Pod, const N: usize> GhostCopy for AreaCopy<T, N> {
    fn add_to<'c>(&'c self, exchange: Exchange<Open<'c>>) -> Exchange<Open<'c>> {
        let exchange = exchange.filled(&self.to);
        match &self.twin {
            Some(twin) => twin.add_to(exchange),
            None => exchange,
        }
    }

    fn check(&self) -> Result<()> {
        self.from.read()?;
        self.twin.as_ref().map_or(Ok(()), |twin| twin.check())
    }

    fn wrap(&self, flight: &Flight<'_>) -> Result<()> {
        let (mut to, from) = (flight.write_area(&self.to)?, self.from.read()?);
        let Some(twin) = &self.twin else { return to.copy_from(&from) };
        let (mut twin_to, twin_from) = (flight.write_area(&twin.to)?, twin.from.read()?);
        (0..self.to.shape()[0]).try_for_each(|plane| {
            to.copy_plane_from(&from, plane)?;
            twin_to.copy_plane_from(&twin_from, plane)
        })
    }

    fn unpack(&self, arrived: &Arrived<'_>) -> Result<()> {
        let (mut to, from) = (arrived.write_area(&self.to)?, arrived.read_area(&self.from)?);
        let Some(twin) = &self.twin else { return to.copy_from(&from) };
        let (mut twin_to, twin_from) = (arrived.write_area(&twin.to)?, arrived.read_area(&twin.from)?);
        (0..self.to.shape()[0]).try_for_each(|plane| {
            to.copy_plane_from(&from, plane)?;
            twin_to.copy_plane_from(&twin_from, plane)
        })
    }
}
