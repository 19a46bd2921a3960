//! The parts of the test that need an MPI: the same programs, built once for each in a target folder of its own.
//! Owns how a library is chosen; what is tested is in tests/mpi.

use super::{Outcome, Steps};
use crate::metadata::Metadata;
use crate::process::{Spec, find_program};
use anyhow::{Result, ensure};
use std::path::PathBuf;

pub(super) const BUILD: &str =
    "build -p rma-cli -p rma-tests -p rma-examples --features rma-cli/mpi,rma-tests/mpi,rma-examples/mpi --bins --examples";

/// An MPI of this machine.
pub(super) struct Library {
    compiler: String,
    target: PathBuf,
    /// Where the programs lie that are built with it.
    pub(super) programs: PathBuf,
}

impl Library {
    /// The name is that of Debian for the library's compiler, and of the target folder.
    pub(super) fn named(name: &str) -> Result<Self> {
        let compiler = format!("mpicc.{name}");
        ensure!(find_program(&compiler).is_some(), "{compiler} is not installed; `cargo xtask setup` installs it");
        let target = Metadata::read()?.target_directory.join(name);
        Ok(Self { compiler, programs: target.join("debug"), target })
    }

    /// A command of cargo that builds with this library.
    pub(super) fn spec(&self, arguments: &str) -> Spec {
        Spec::cargo(arguments).env("MPICC", &self.compiler).env("CARGO_TARGET_DIR", self.target.display().to_string())
    }
}

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
    let examples = metadata.package("rma-examples")?.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bin"));
    let examples: Vec<_> = examples.map(|target| target.name.as_str()).collect();
    let tests = library.programs.join("rma-mpi-tests").display().to_string();
    steps.test(&Spec::new(tests).args(["--ranks", "2,4", "--programs", &examples.join(",")]))?;
    Ok(Outcome::Passed)
}
