//! Stands for MPI in a build without it: says so, and has nothing to list.

use super::Text;
use super::problems::Problem;

pub(super) fn state() -> String {
    "not built in".into()
}

pub(super) fn render(_: &mut Text) {}

pub(super) fn problems() -> Vec<Problem> {
    Vec::new()
}
