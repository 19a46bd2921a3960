//! Launchers of others, and the one that a program was built to join, if any.
//! Owns which variables tell of them. Knows no launcher's ways of communication.

use crate::config::{Place, parse};
use crate::{Error, Result};
use std::sync::OnceLock;

/// A way for the ranks that another launcher started to find each other, as MPI is one.
pub trait Launcher: Send + Sync {
    /// What stands behind it, in errors: a library and its version.
    fn library(&self) -> String;

    /// Collective over all ranks it sees: this one's place in the job. A program that sees itself alone gets a place of size 1.
    fn place(&self) -> Result<Place>;
}

static OFFERED: OnceLock<&'static dyn Launcher> = OnceLock::new();

/// Lets this program take its place among the ranks of another launcher, wherever it takes its place from the environment.
/// The first that is offered stays.
pub fn offer(launcher: &'static dyn Launcher) {
    let _ = OFFERED.set(launcher);
}

/// Variables that say how many ranks another launcher started, in the order they are looked for.
const SIZES: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", "an MPI launcher (PMI)"),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH's launcher"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
];

/// What another launcher says in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    variable: &'static str,
    launcher: &'static str,
    size: u32,
}

impl Foreign {
    /// Every launcher that says something.
    pub(crate) fn all(variable: &impl Fn(&str) -> Option<String>) -> Result<Vec<Self>> {
        let of = |(name, launcher): (&'static str, &'static str)| {
            let size = parse::<u32>(variable, name, "a whole number").transpose()?;
            Some(size.map(|size| Self { variable: name, launcher, size }))
        };
        SIZES.into_iter().filter_map(of).collect()
    }

    /// Whether it started several ranks, of which a program that knows nothing of it would be rank 0 of 1 each.
    pub(crate) fn is_several(&self) -> bool {
        self.size > 1
    }

    /// The error of a place in a job of another size.
    pub(crate) fn check(&self, place: &Place) -> Result<()> {
        let Self { variable, size, .. } = self;
        if *size == place.size {
            return Ok(());
        }
        Err(Error::Launch(format!(
            "{variable}={size} but RMA_SIZE={}: two launchers disagree; start the program with one of them, and unset the variables of \
             the other",
            place.size
        )))
    }

    /// What can join its ranks.
    pub(crate) fn joined_by(&self) -> Result<&'static dyn Launcher> {
        let Self { variable, launcher, size } = self;
        OFFERED.get().copied().ok_or_else(|| {
            Error::Launch(format!(
                "{variable}={size}: {launcher} started {size} ranks, but this program was not built to join them, and each would run \
                 alone as rank 0; start it with `rma run -n {size} -- PROGRAM`, or build it with rma-mpi and have it call that crate's \
                 `offer()` first"
            ))
        })
    }

    /// Collective: the place among the ranks that were started.
    pub(crate) fn place(&self) -> Result<Place> {
        let Self { variable, launcher, size } = self;
        let offered = self.joined_by()?;
        let place = offered.place()?;
        if place.size != *size {
            return Err(Error::Launch(format!(
                "{variable}={size}: {launcher} started {size} ranks, but {}, with which this program was built, sees {}; start it with \
                 the launcher of that library, or build it with the other one (MPICC)",
                offered.library(),
                place.size
            )));
        }
        Ok(place)
    }
}
