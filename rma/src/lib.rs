//! One-sided communication for programs that do the same exchange again and again.
//!
//! A program allocates windows ([`Comm::window_alloc`]), declares puts once ([`Comm::declare_write`]), commits them as a chain
//! ([`RmaQueue::commit`]), and then only starts ([`RmaQueue::start`]) and waits ([`InFlight::wait`]). What `wait` returns
//! ([`Arrived`]) gives access to what came in; dropping it lets the origins write again.
//!
//! ```
//! use rma::{Comm, Rank};
//!
//! Comm::launch(2, |comm| {
//!     let other = Rank(1 - comm.rank().0);
//!     let (outbox, inbox) = (comm.window_alloc(32)?, comm.window_alloc(32)?);
//!
//!     let put = comm.declare_write(&inbox, 0, &outbox, 0, 32, other)?;
//!     let mut queue = comm.queue_alloc(&inbox)?;
//!     queue.push(&put)?.add_origin(other)?;
//!     let mut queue = queue.commit()?; // partners agree on every range
//!
//!     for step in 0..10 {
//!         outbox.write::<f64>(..)?.fill(f64::from(comm.rank().0) + f64::from(step));
//!         let flight = queue.start()?; // never blocks
//!         // .. compute what does not depend on the others ..
//!         let arrived = flight.wait()?; // own puts complete, the other's here
//!         let received = arrived.read::<f64>(&inbox, ..)?;
//!         assert!(received.iter().all(|&x| x == f64::from(other.0) + f64::from(step)));
//!     }
//!     queue.clear();
//!     inbox.free()?;
//!     outbox.free()?;
//!     Ok::<(), rma::Error>(())
//! })?;
//! # Ok::<(), rma::Error>(())
//! ```
//!
//! Words: an *origin* writes, a *target* is written to, a *rail* is one communication device, the *chain* is the committed puts of
//! a queue, an *epoch* is how many times it was started. A *notification* says that the puts of an origin on a rail have arrived,
//! a *credit* that a target may be written in an epoch.
//!
//! Ranks are threads of a process ([`Comm::threads`]), processes under `rma run` ([`Comm::from_env`]), or either, whichever the
//! environment says ([`Comm::launch`]). Handles stay on the thread of their rank; the slices of leases go anywhere.
//!
//! Other ways to move bytes implement [`backend::Backend`]; other ways to find the peers, [`Bootstrap`].
#![deny(unsafe_code)]

pub mod backend;
pub mod bootstrap;
mod comm;
pub mod config;
mod deadline;
mod error;
pub mod fault;
mod hosts;
mod ids;
mod launch;
pub mod launcher;
pub mod layout;
pub mod lifecycle;
mod memory;
mod message;
pub mod provider;
mod queue;
pub mod shm;
pub mod trace;
mod virtual_time;
#[allow(unsafe_code, reason = "copies by addresses")]
mod ways;
#[allow(unsafe_code, reason = "leases turn window memory into slices, and a start rests on what they guarantee")]
mod window;

pub use bootstrap::Bootstrap;
pub use bytemuck::{self, Pod, Zeroable};
pub use comm::Comm;
pub use config::Config;
pub use deadline::{Deadline, Purpose};
pub use error::{Cause, Error, Result};
pub use hosts::Hosts;
pub use ids::{Epoch, QueueId, Rail, Rank, WindowId};
pub use message::MsgHandle;
pub use queue::{Arrived, InFlight, Open, Ready, RmaQueue};
pub use virtual_time::VirtualSpan;
#[cfg(feature = "ndarray")]
pub use window::area::{Area, ReadArea, WriteArea};
pub use window::claims::Exposure;
#[cfg(feature = "ndarray")]
pub use window::copies::copy_in_turn;
pub use window::leases::{ReadLease, WriteLease};
pub use window::{FreeError, RmaWindow};
