//! The parts of the test that need an MPI: the same programs, built once for each in a target folder of its own.
//! Owns how a library is chosen; what is tested is in tests/mpi.

use super::{Outcome, Steps};
use crate::metadata::Metadata;
use crate::process::{Spec, find_program};
use anyhow::{Result, ensure};

const BUILD: &str =
    "build -p rma-cli -p rma-tests -p rma-examples --features rma-cli/mpi,rma-tests/mpi,rma-examples/mpi --bins --examples";

pub(super) fn openmpi(steps: &mut Steps) -> Result<Outcome> {
    with(steps, "openmpi")
}

pub(super) fn mpich(steps: &mut Steps) -> Result<Outcome> {
    with(steps, "mpich")
}

/// The name is that of Debian for the library's compiler, and of the target folder.
fn with(steps: &mut Steps, name: &str) -> Result<Outcome> {
    let compiler = format!("mpicc.{name}");
    ensure!(find_program(&compiler).is_some(), "{compiler} is not installed; `cargo xtask setup` installs it");
    let metadata = Metadata::read()?;
    let target = metadata.target_directory.join(name);
    let with_library = |spec: Spec| spec.env("MPICC", &compiler).env("CARGO_TARGET_DIR", target.display().to_string());
    steps.run(&with_library(Spec::cargo(BUILD)))?;
    steps.test(&with_library(Spec::cargo("test -p rma-mpi -p rma-cli --features rma-cli/mpi --lib --bins")))?;
    let examples = metadata.package("rma-examples")?.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bin"));
    let examples: Vec<_> = examples.map(|target| target.name.as_str()).collect();
    let tests = target.join("debug/rma-mpi-tests").display().to_string();
    steps.test(&Spec::new(tests).args(["--ranks", "2,4", "--programs", &examples.join(",")]))?;
    Ok(Outcome::Passed)
}
