//! Starts the processes of a job: the address rank 0 listens on, the environment, the pipes, the limits.
//! Knows how a rank begins; what happens to it afterwards is the supervisor's.

use super::Options;
use super::child::RankArgs;
use anyhow::{Context, Result, bail};
use rma::config::Token;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What a launcher has open besides two pipes for each rank: its own files, pipes of the last spawn, and some air.
const OWN_FILES: u64 = 40;

/// Starts one rank after the other.
#[derive(Debug)]
pub(crate) struct Starter<'a> {
    options: &'a Options,
    token: Token,
    root: String,
    /// What rank 0 inherits; closed here once it has.
    listener: Option<TcpListener>,
    cores: Vec<usize>,
    /// The user's own limit, if it had to be raised here.
    open_files: Option<u64>,
}

impl<'a> Starter<'a> {
    /// Takes what all ranks need. Fails before anything is started if the limits do not allow so many.
    pub(crate) fn new(options: &'a Options) -> Result<Self> {
        let open_files = raise_open_files(options.ranks)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening on 127.0.0.1 for rank 0")?;
        // All ranks may call before rank 0 runs; std's backlog is 128.
        rustix::net::listen(&listener, options.ranks.cast_signed()).context("listening on 127.0.0.1 for rank 0")?;
        let root = listener.local_addr().context("asking for the port of rank 0")?.to_string();
        let cores = if options.bind { allowed_cores()? } else { Vec::new() };
        Ok(Self { options, token: Token::random()?, root, listener: Some(listener), cores, open_files })
    }

    /// Starts a rank, in a process group of its own. Rank 0 must be the first.
    ///
    /// Call it on the thread that stays: a rank is killed when the thread that started it ends.
    pub(crate) fn start(&mut self, rank: u32) -> Result<Child> {
        let options = self.options;
        let core = self.cores.get(rank as usize % self.cores.len().max(1)).copied();
        let program = [options.program.clone()].into_iter().chain(options.args.iter().cloned()).collect();
        let mut command = this_binary(super::RANK_COMMAND);
        command
            .args(RankArgs::new(getpid(), core, self.open_files, program).command_line())
            .envs(options.variables.iter().map(|(name, value)| (name, value)))
            .env("RMA_RANK", rank.to_string())
            .env("RMA_SIZE", options.ranks.to_string())
            .env("RMA_ROOT", &self.root)
            .env("RMA_TOKEN", self.token.to_hex())
            .env("RMA_BIND", Ipv4Addr::LOCALHOST.to_string())
            .env_remove("RMA_LISTEN_FD")
            .process_group(0)
            .stdin(if rank == 0 && options.stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
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

/// Makes room for the pipes of the ranks. Gives the soft limit from before if it had to be raised.
fn raise_open_files(ranks: u32) -> Result<Option<u64>> {
    let needed = 2 * u64::from(ranks) + OWN_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(soft) = current.filter(|&soft| soft < needed) else { return Ok(None) };
    if let Some(hard) = maximum.filter(|&hard| hard < needed) {
        bail!(
            "{ranks} ranks need {needed} open files here, and the limit is {hard}; use fewer ranks, or raise it: \
             sudo prlimit --pid $$ --nofile={needed}:{needed}"
        );
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .with_context(|| format!("raising the limit of open files from {soft} to {needed}"))?;
    Ok(Some(soft))
}
