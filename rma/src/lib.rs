//! One-sided communication for programs that do the same exchange again and again.
#![deny(unsafe_code)]

pub mod bootstrap;
pub mod config;
mod deadline;
mod error;
mod ids;

pub use bootstrap::Bootstrap;
pub use config::Config;
pub use deadline::Deadline;
pub use error::{Cause, Error, Result};
pub use ids::{Epoch, QueueId, Rail, Rank, WindowId};
