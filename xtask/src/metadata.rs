//! The workspace as cargo describes it: packages with their licences, and their targets.

use crate::process::{Output, Spec};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// `cargo metadata`, as far as it is needed here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_root: PathBuf,
    pub(crate) target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) license: Option<String>,
    pub(crate) targets: Vec<Target>,
}

impl Package {
    /// The names of its programs.
    pub(crate) fn programs(&self) -> Vec<&str> {
        let programs = self.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bin"));
        programs.map(|target| target.name.as_str()).collect()
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

impl Metadata {
    pub(crate) fn read() -> Result<Self> {
        let spec = Spec::cargo("metadata --format-version 1");
        let finished = spec.run(Duration::from_secs(300), Output::Kept)?;
        if !finished.succeeded() {
            bail!("`{spec}`: {}\n{}", finished.failure(), finished.last_words(5));
        }
        serde_json::from_str(&finished.stdout).context("cannot read what `cargo metadata` says")
    }

    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        self.packages.iter().find(|package| package.name == name).with_context(|| format!("there is no package {name}"))
    }
}
