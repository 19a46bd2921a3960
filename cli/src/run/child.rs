//! The process of a rank before it is the program: `rma __rank` prepares itself and then becomes the program.
//! Runs in the new process only; what it needs to know is on its command line.

use clap::Args;
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Become the program of a rank (`rma run` starts this).
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// The launcher: without it, there is nobody to run for
    #[arg(long)]
    launcher: i32,
    /// The core to run on
    #[arg(long)]
    core: Option<usize>,
    /// The soft limit of open files that the launcher raised for itself
    #[arg(long)]
    open_files: Option<u64>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl RankArgs {
    /// As [`become_rank`] reads it.
    pub(crate) fn new(launcher: Pid, core: Option<usize>, open_files: Option<u64>, command: Vec<OsString>) -> Self {
        Self { launcher: launcher.as_raw_pid(), core, open_files, command }
    }

    /// The command line after the name of the subcommand.
    pub(crate) fn command_line(&self) -> Vec<OsString> {
        let mut line = vec![OsString::from(format!("--launcher={}", self.launcher))];
        line.extend(self.core.map(|core| format!("--core={core}").into()));
        line.extend(self.open_files.map(|limit| format!("--open-files={limit}").into()));
        line.push("--".into());
        line.extend(self.command.iter().cloned());
        line
    }
}

/// Prepares this process and becomes the program. Returns only if it cannot.
pub(crate) fn become_rank(args: RankArgs) -> ExitCode {
    match prepare(&args) {
        Ok(true) => {}
        // The launcher is gone: what it would have killed ends here.
        Ok(false) => return ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rma run: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    let mut command = args.command.into_iter();
    let program = command.next().unwrap_or_default();
    let error = Command::new(&program).args(command).exec();
    eprintln!("rma run: cannot run {:?}: {error}", program.to_string_lossy());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Whether the launcher is there; if so, this process dies with it from now on, runs on its core, and has the user's limits.
fn prepare(args: &RankArgs) -> anyhow::Result<bool> {
    use anyhow::Context;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("asking to end with the launcher")?;
    // After the call above: a launcher that died before it sends no signal, but is no longer the parent.
    if getppid().map(Pid::as_raw_pid) != Some(args.launcher) {
        return Ok(false);
    }
    if let Some(core) = args.core {
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(None, &cores).with_context(|| format!("binding a rank to core {core}"))?;
    }
    if let Some(limit) = args.open_files {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).context("restoring the limit of open files")?;
    }
    Ok(true)
}
