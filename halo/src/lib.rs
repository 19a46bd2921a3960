//! Halo exchange of arrays of one to four dimensions over a grid of ranks.
//!
//! A global array is cut into blocks ([`Decomposition`]). Each rank has its block, with ghost points around it, in a [`Field`]. An exchange
//! ([`Halo`]) is committed once for one or several fields. Then every `start` and `wait` fills the ghosts with what their owners hold, and in
//! between the interior is computed.
//!
//! ```
//! use ndarray::s;
//! use rma_halo::{Decomposition, Field, Halo, Layout};
//!
//! rma::Comm::launch(4, |comm| {
//!     let cells = Decomposition::new([40, 30], comm.size())?.periodic([true, true]);
//!     let u = Field::<f64, 2>::new(&comm, &cells, Layout::ghosts(1))?;
//!     let mut halo = Halo::of(&comm).field(&u).commit()?;
//!
//!     u.fill_with(|[row, column]| (row * column) as f64)?;
//!     let flight = halo.start()?; // never blocks
//!     let inner: f64 = u.owned()?.view().sum(); // what needs no ghosts
//!     let arrived = flight.wait()?; // all ghosts are here
//!     let padded = arrived.padded(&u)?;
//!     let above = padded.view().slice(s![0, 1..-1]).sum();
//!     assert!(above >= 0.0 && inner > 0.0);
//!     Ok::<(), rma::Error>(())
//! })?;
//! # Ok::<(), rma::Error>(())
//! ```
//!
//! Which ghosts are filled says the [`Mode`]: those beside faces, all in one message to each neighbor, or all by one dimension after the other.
//! Ghosts are written in place by the neighbors where their pieces in memory are long, else they land packed and are spread by their owner
//! ([`Packing`]); a closed dimension that is not cut is copied locally. [`Halo::explain`] says which is which, [`Halo::verify`] proves it point
//! by point, and [`Field::gather`] collects a whole field.
//!
//! Everything is safe Rust: a ghost that is asked for in flight, or a point that is written while it is sent, is refused with the reason.
//! Errors of set-up are found on every rank before anything moves: a block narrower than the ghosts its neighbors want, a grid of another
//! number of ranks, ranks that ask for different things.
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
pub use rma_algorithms::Cut;

/// The programs in the README are run, too.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
