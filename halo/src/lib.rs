//! Halo exchange of arrays of one to four dimensions over a grid of ranks.
#![forbid(unsafe_code)]

mod agreement;
mod block;
mod copies;
mod decomposition;
mod explain;
mod field;
mod gather;
mod geometry;
mod halo;
mod plan;
mod verify;

pub use block::Block;
pub use decomposition::Decomposition;
pub use field::Field;
pub use geometry::Layout;
pub use halo::{Arrived, Halo, HaloBuilder, InFlight};
pub use plan::{Mode, Packing};
