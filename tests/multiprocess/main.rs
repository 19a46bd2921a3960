//! Every body on ranks that are processes under `rma run`, and what happens when processes are killed.
//! Owns the starting of jobs, with a deadline for each; what is checked is in the library.
#![forbid(unsafe_code)]

mod bodies;
mod faults;
mod job;
