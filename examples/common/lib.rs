//! What the applications share: how their ranks start, sums over all of them, and the files they write.
#![forbid(unsafe_code)]

pub mod clock;
pub mod launch;
pub mod npy;
pub mod picture;
pub mod random;
pub mod sum;
