//! Starts processes of a job: the ranks of this host with the address rank 0 listens on, their environment and their pipes, and
//! whatever else shall end with the launcher. Knows how a process begins; what happens to it afterwards is the supervisor's.

use super::child::RankArgs;
use super::{Options, Part};
use anyhow::{Context, Result, bail};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What a launcher has open besides the pipes of its processes: its own files, pipes of the last spawn, and some air.
const OWN_FILES: u64 = 40;

/// Starts the ranks of this host, one after the other.
#[derive(Debug)]
pub(crate) struct Starter<'a> {
    options: &'a Options,
    part: &'a Part,
    root: String,
    /// What rank 0 inherits; closed here once it has.
    listener: Option<TcpListener>,
    cores: Vec<usize>,
    /// The user's own limit, if it had to be raised here.
    open_files: Option<u64>,
}

impl<'a> Starter<'a> {
    /// Takes what all ranks need. Fails before anything is started if the limits do not allow so many.
    pub(crate) fn new(options: &'a Options, part: &'a Part) -> Result<Self> {
        let open_files = raise_open_files(part.ranks.len() as u64 * 2, &format!("{} ranks", part.ranks.len()))?;
        let (mut root, mut listener) = (part.root.clone().unwrap_or_default(), None);
        if part.ranks.contains(&0) {
            let (bound, shown) = match &part.root {
                Some(root) => (TcpListener::bind(root), root.clone()),
                None => (TcpListener::bind((part.address, 0)), part.address.to_string()),
            };
            let doing = || format!("listening on {shown} for rank 0; it must be an address of this host, and its port free");
            let bound = bound.with_context(doing)?;
            // All ranks may call before rank 0 runs; std's backlog is 128.
            rustix::net::listen(&bound, options.ranks.cast_signed()).with_context(doing)?;
            if part.root.is_none() {
                root = bound.local_addr().context("asking for the port of rank 0")?.to_string();
            }
            listener = Some(bound);
        }
        let cores = if options.bind { allowed_cores()? } else { Vec::new() };
        Ok(Self { options, part, root, listener, cores, open_files })
    }

    /// Where rank 0 listens.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Starts a rank. Rank 0 must be the first.
    pub(crate) fn start(&mut self, rank: u32) -> Result<Child> {
        let (options, part) = (self.options, self.part);
        let nth_here = rank - part.ranks.start;
        let core = self.cores.get(nth_here as usize % self.cores.len().max(1)).copied();
        let program = [options.program.clone()].into_iter().chain(options.args.iter().cloned()).collect();
        let mut command = ends_with_launcher(core, self.open_files, program);
        command
            .envs(options.variables.iter().map(|(name, value)| (name, value)))
            .env("RMA_RANK", rank.to_string())
            .env("RMA_SIZE", options.ranks.to_string())
            .env("RMA_ROOT", &self.root)
            .env("RMA_TOKEN", part.token.to_hex())
            .env("RMA_BIND", part.address.to_string())
            .env_remove("RMA_LISTEN_FD");
        if rank != 0 || !options.stdin {
            command.stdin(Stdio::null());
        }
        let listener = self.listener.take();
        if let Some(listener) = &listener {
            // Only until this spawn is done. A thread of a caller that executes something in this moment would pass it on too.
            fcntl_setfd(listener, FdFlags::empty()).context("letting rank 0 inherit its listener")?;
            command.env("RMA_LISTEN_FD", listener.as_raw_fd().to_string());
        }
        command.spawn().with_context(|| {
            format!("cannot start rank {rank} of {}; see the limits of processes and memory with `rma info`", options.ranks)
        })
    }
}

/// A process that runs `program`, in a process group of its own and with pipes for all three streams.
///
/// Spawn it on the thread that stays: it is killed when the thread that started it ends.
pub(crate) fn ends_with_launcher(core: Option<usize>, open_files: Option<u64>, program: Vec<OsString>) -> Command {
    let mut command = this_binary(super::RANK_COMMAND);
    command.args(RankArgs::new(getpid(), core, open_files, program).command_line());
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command `rma SUBCOMMAND` of this very binary, also if its file has been replaced since.
pub(crate) fn this_binary(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("rma").arg(subcommand);
    command
}

/// The cores this thread may run on, in ascending order.
pub(crate) fn allowed_cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("asking for the cores this process may use")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Makes room for so many pipes. Gives the soft limit from before if it had to be raised.
pub(crate) fn raise_open_files(pipes: u64, of_whom: &str) -> Result<Option<u64>> {
    let needed = pipes + OWN_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(soft) = current.filter(|&soft| soft < needed) else { return Ok(None) };
    if let Some(hard) = maximum.filter(|&hard| hard < needed) {
        bail!(
            "{of_whom} need {needed} open files here, and the limit is {hard}; use fewer, or raise it: \
             sudo prlimit --pid $$ --nofile={needed}:{needed}"
        );
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .with_context(|| format!("raising the limit of open files from {soft} to {needed}"))?;
    Ok(Some(soft))
}
