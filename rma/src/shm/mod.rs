//! The embedded backend: shared memory between processes of one host, or between threads of one process.
//! A put is one copy straight into the target's window; a notification and a credit are counters in a board of the receiver.
//!
//! Reading order: `device` (what there is), `window` (memory), `commit` (what a queue becomes), `progress` (start and wait).
//! Below them `counters` (the protocol's atomics), `board` (where the counters are), `region` and `space` (whose memory it is), and
//! `patience` (how to wait). All of these but the board serve every backend whose ranks are on one host.
#![allow(
    unsafe_code,
    reason = "memory shared with other processes and threads is reached through raw pointers here and nowhere else"
)]

mod board;
mod commit;
mod copy;
pub(crate) mod counters;
mod device;
mod handover;
pub(crate) mod inherit;
mod patience;
mod progress;
mod region;
mod space;
mod window;

/// What `RMA_BACKEND` and error texts call it.
pub const NAME: &str = "shm";

pub use counters::{Bell, Counter};
pub use device::ShmBackend;
pub use patience::Patience;
pub use region::Region;
pub use space::{RegionId, Space, ThreadSpace};
