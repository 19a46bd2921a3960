//! The table of bodies on processes.

use crate::job::{Job, command, turn};
use rma_tests::{Body, SIZES, for_each_body};

/// The seed of this run: `RMA_TEST_SEED`, or a new one each time.
fn seed() -> u64 {
    std::env::var("RMA_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

pub(crate) fn run_all(body: &Body) {
    let _turn = turn();
    let seed = seed();
    for size in SIZES.into_iter().filter(|&size| size > 1 && body.suits(size)) {
        let outcome = Job::start(command(size, body.name, seed)).finish();
        assert!(outcome.status.success(), "{} on {size} processes, RMA_TEST_SEED={seed}:\n{}", body.name, outcome.text());
    }
}

macro_rules! tests {
    ($($name:ident: $fewest:literal, $function:path;)*) => {
        $(#[test]
        fn $name() {
            run_all(rma_tests::body(stringify!($name)).expect("every body is in the table"));
        })*
    };
}

for_each_body!(tests);
