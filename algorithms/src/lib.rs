//! Exchanges as data, on `rma`.
//!
//! A [`Schedule`] says which bytes of which message go over which rail in which round. It is made by pure functions that know neither
//! backend nor clock, so it can be looked at, tested and simulated before anything is sent.
//!
//! The neighbor exchange ([`whole`], [`segmented`], [`balanced`]) fills every rail also where there are more messages than rails, or
//! messages of different lengths. How much that gains, and from which size on, says the [`model`].
//!
//! An [`Exchange`] runs such a schedule: it commits the puts as queues, once, and is then started and waited for like one of them.
#![forbid(unsafe_code)]

mod cut;
mod exchange;
pub mod grid;
pub mod model;
mod neighbor;
mod schedule;

pub use cut::{Cut, Stepping};
pub use exchange::{Arrived, Exchange, Flight, Open, Ready, probe};
pub use neighbor::{balanced, segmented, whole};
pub use schedule::{Message, Put, Round, Schedule};
