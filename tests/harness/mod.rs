//! What programs of tests have in common that start jobs and report as cargo's harness does.

pub(crate) mod bodies;
mod report;
mod running;

pub(crate) use report::Report;
pub(crate) use running::{Outcome, Running, beside, start};
