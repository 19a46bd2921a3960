//! The MPI libraries of this machine. Owns how one is chosen to build with.

use crate::metadata::Metadata;
use crate::process::{Spec, find_program};
use anyhow::{Result, ensure};
use std::path::PathBuf;

/// An MPI of this machine, with a target folder of its own.
pub(crate) struct Library {
    compiler: String,
    target: PathBuf,
}

impl Library {
    /// The name is that of Debian for the library's compiler, and of the target folder.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let compiler = format!("mpicc.{name}");
        ensure!(find_program(&compiler).is_some(), "{compiler} is not installed; `cargo xtask setup` installs it");
        Ok(Self { compiler, target: Metadata::read()?.target_directory.join(name) })
    }

    /// A command of cargo that builds with this library.
    pub(crate) fn spec(&self, arguments: &str) -> Spec {
        Spec::cargo(arguments).env("MPICC", &self.compiler).env("CARGO_TARGET_DIR", self.target.display().to_string())
    }

    /// Where a program lies that was built with it, as debug/NAME.
    pub(crate) fn program(&self, path: &str) -> PathBuf {
        self.target.join(path)
    }
}
