//! One-sided communication for programs that do the same exchange again and again.
#![deny(unsafe_code)]

pub mod backend;
pub mod bootstrap;
mod comm;
pub mod config;
mod deadline;
mod error;
pub mod fault;
mod ids;
mod launch;
pub mod layout;
pub mod lifecycle;
mod message;
mod queue;
pub mod shm;
pub mod trace;
#[allow(unsafe_code, reason = "leases turn window memory into slices, and a start rests on what they guarantee")]
mod window;

pub use bootstrap::Bootstrap;
pub use comm::Comm;
pub use config::Config;
pub use deadline::Deadline;
pub use error::{Cause, Error, Result};
pub use ids::{Epoch, QueueId, Rail, Rank, WindowId};
pub use message::MsgHandle;
pub use queue::{Arrived, InFlight, Open, Ready, RmaQueue};
pub use window::claims::Exposure;
pub use window::leases::{ReadLease, WriteLease};
pub use window::{FreeError, RmaWindow};
