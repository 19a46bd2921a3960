//! Stands for the RDMA devices in a build without the verbs backend: says so, and has nothing to list.

use super::Text;
use super::machine::Machine;
use super::problems::Problem;
use super::variables::OfBackend;
use rma::Config;
use rma::config::Place;

#[derive(Clone, Debug)]
pub(super) struct Verbs;

pub(super) fn variables() -> OfBackend {
    OfBackend::Elsewhere { prefix: "RMA_VERBS_" }
}

impl Verbs {
    pub(super) fn seen_from(_: Option<&Place>, _: &Config) -> Self {
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
