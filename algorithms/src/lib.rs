//! Exchanges as data, on `rma`.
//!
//! A [`Schedule`] says which bytes of which message go over which rail in which round. It is made by pure functions that know neither
//! backend nor clock, so it can be looked at, tested and simulated before anything is sent.
//!
//! The neighbor exchange ([`whole`], [`segmented`], [`balanced`]) fills every rail also where there are more messages than rails, or
//! messages of different lengths. How much that gains, and from which size on, says the [`model`].
#![forbid(unsafe_code)]

pub mod grid;
pub mod model;
mod neighbor;
mod schedule;

pub use neighbor::{balanced, segmented, whole};
pub use schedule::{Message, Put, Round, Schedule};
