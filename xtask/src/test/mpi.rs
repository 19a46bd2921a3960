//! The parts of the test that need an MPI: the same programs, built once for each in a target folder of its own.
//! What is tested is in tests/mpi.

use super::{Outcome, Steps};
use crate::metadata::Metadata;
use crate::mpi::Library;
use crate::process::Spec;
use anyhow::Result;

pub(super) const BUILD: &str =
    "build -p rma-cli -p rma-tests -p rma-examples --features rma-cli/mpi,rma-tests/mpi,rma-examples/mpi --bins --examples";

pub(super) fn openmpi(steps: &mut Steps) -> Result<Outcome> {
    with(steps, "openmpi")
}

pub(super) fn mpich(steps: &mut Steps) -> Result<Outcome> {
    with(steps, "mpich")
}

fn with(steps: &mut Steps, name: &str) -> Result<Outcome> {
    let library = Library::named(name)?;
    steps.run(&library.spec(BUILD))?;
    steps.test(&library.spec("test -p rma-mpi -p rma-cli --features rma-cli/mpi --lib --bins"))?;
    let metadata = Metadata::read()?;
    let examples = metadata.package("rma-examples")?.programs().join(",");
    let tests = library.program("debug/rma-mpi-tests").display().to_string();
    steps.test(&Spec::new(tests).args(["--ranks", "2,4", "--programs", &examples]))?;
    Ok(Outcome::Passed)
}
