//! Stands for the RDMA devices in a build without the verbs backend: says so, and has nothing to list.

use super::Text;
use super::machine::Machine;
use super::problems::Problem;

#[derive(Clone, Debug)]
pub(super) struct Verbs;

/// Names that begin like this may mean something to programs that have the backend.
pub(super) const FOREIGN_VARIABLES: Option<&str> = Some("RMA_VERBS_");

pub(super) fn variables() -> Vec<(&'static str, Option<String>, &'static str)> {
    Vec::new()
}

pub(super) fn check_variables(_: impl Fn(&str) -> Option<String>) -> rma::Result<()> {
    Ok(())
}

impl Verbs {
    pub(super) fn of_this_process() -> Self {
        Self
    }

    pub(super) fn is_usable(&self) -> bool {
        false
    }

    pub(super) fn state(&self) -> String {
        "not built in".into()
    }

    pub(super) fn render(&self, _: &mut Text) {}

    pub(super) fn problems(&self, _: &Machine) -> Vec<Problem> {
        Vec::new()
    }
}
