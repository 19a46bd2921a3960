//! What the applications share: how their ranks start, and the files they write.
#![forbid(unsafe_code)]

pub mod launch;
pub mod npy;
pub mod picture;
pub mod random;
