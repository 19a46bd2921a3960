//! The launchers of MPI: which belongs to the library of this program, and how a job of ranks is started with it.

use crate::harness::{Running, beside, start};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// After this long without the word that is waited for, a job has failed and is ended.
const DEADLINE: Duration = Duration::from_secs(100);
/// The deadline of waits and of collective calls, so that what hangs says itself what it waits for.
const PATIENCE_SECONDS: &str = "30";

/// A library with its launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    OpenMpi,
    Mpich,
}

impl Mpi {
    /// The one that this program was built with.
    pub(crate) fn own() -> Self {
        if rma_mpi::built_with().starts_with("Open MPI") { Self::OpenMpi } else { Self::Mpich }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::OpenMpi => Self::Mpich,
            Self::Mpich => Self::OpenMpi,
        }
    }

    /// Whether so many ranks can run here: MPICH never gives a core away while it waits.
    pub(crate) fn can_start(self, ranks: u32) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self == Self::OpenMpi || ranks as usize <= cores
    }

    /// Variables that have ranks of one host reach each other as those of several do, without shared memory: over TCP, and where the
    /// library can, over four connections of which any may be the first, so that nothing is there or in order by itself.
    pub(crate) fn as_on_several_hosts(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::OpenMpi if rma_mpi::built_with().starts_with("Open MPI 4.") => {
                &[("OMPI_MCA_osc", "pt2pt"), ("OMPI_MCA_btl", "self,tcp"), ("OMPI_MCA_btl_tcp_links", "4")]
            }
            Self::OpenMpi => &[("OMPI_MCA_btl", "self,tcp")],
            Self::Mpich => &[("UCX_TLS", "self,tcp")],
        }
    }

    /// Where Debian has several libraries, each launcher has a name of its own.
    fn launcher(self) -> Result<PathBuf> {
        let names = match self {
            Self::OpenMpi => ["mpirun.openmpi", "mpirun"],
            Self::Mpich => ["mpirun.mpich", "mpirun"],
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            names.iter().find_map(|name| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|it| it.is_file()));
        found.with_context(|| format!("{} is not installed; `cargo xtask setup` installs it", names[0]))
    }

    /// A command that starts so many ranks, if need be more than there are cores, of what is added to it.
    fn command(self, ranks: u32) -> Result<Command> {
        match self {
            Self::OpenMpi => self.command_with(ranks, &["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]),
            Self::Mpich => self.command_with(ranks, &[]),
        }
    }

    /// The same with options of the launcher's own.
    pub(crate) fn command_with(self, ranks: u32, options: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.launcher()?);
        if self == Self::OpenMpi && rustix::process::geteuid().is_root() {
            command.arg("--allow-run-as-root");
        }
        command.args(options).args(["-n", &ranks.to_string()]);
        command.env("RMA_TIMEOUT", PATIENCE_SECONDS).env("RMA_SETUP_TIMEOUT", PATIENCE_SECONDS).env("RUST_BACKTRACE", "0");
        Ok(command)
    }
}

/// A job of ranks that a launcher starts.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) mpi: Mpi,
    pub(crate) ranks: u32,
    /// The program's name and arguments; it lies beside this one.
    pub(crate) program: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

impl Job {
    /// With the launcher of the own library.
    pub(crate) fn new(ranks: u32, program: &[&str]) -> Self {
        Self { mpi: Mpi::own(), ranks, program: program.iter().map(|&word| word.into()).collect(), env: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub(crate) fn start(&self) -> Result<Running> {
        let mut command = self.mpi.command(self.ranks)?;
        let (program, arguments) = self.program.split_first().context("bug: a job without a program")?;
        command.arg(beside(program)?).args(arguments);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        start(command, DEADLINE)
    }

    pub(crate) fn succeeds(&self) -> Result<()> {
        self.start()?.finish()?.succeeded()
    }
}

/// A command without a launcher, under the same deadline.
pub(crate) fn alone(program: &str, arguments: &[&str], env: &[(&str, &str)]) -> Result<Running> {
    let mut command = Command::new(beside(program)?);
    command.args(arguments).envs(env.iter().copied()).env("RUST_BACKTRACE", "0");
    start(command, DEADLINE)
}
