//! `rma run`: starts the ranks of a job and answers for them until all have ended.
//! Owns what there is to start and how it ended, and [`launch`], which any subcommand may call with a program of its own (itself, as
//! `/proc/self/exe`). What a rank does once it runs is none of its business.
//!
//! A rank is started in two steps, so that nothing between fork and exec needs unsafe code: the launcher spawns this binary
//! as `rma __rank`, which prepares its own process and then becomes the program. A second helper, `rma __guard`, outlives a
//! launcher that was killed and ends what the ranks had started. On several hosts, the launcher has a third, `rma __part`, start and
//! watch the ranks of each.

mod args;
mod child;
mod guard;
mod hosts;
mod input;
mod lines;
mod orders;
mod output;
mod part;
mod parts;
mod plan;
mod program;
mod ranks;
mod signals;
mod spawn;
mod supervise;

pub(crate) use args::RunArgs;
pub(crate) use child::{RankArgs, become_rank};
pub(crate) use guard::become_guard;
pub(crate) use part::become_part;
pub(crate) use program::NotRunnable;
pub(crate) use spawn::allowed_cores;

use hosts::Share;
use orders::Order;
use part::{Launcher, orders_thread};
use rma::config::Token;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// The hidden subcommand that prepares a process and becomes the program of a rank.
pub(crate) const RANK_COMMAND: &str = "__rank";
/// The hidden subcommand that ends the ranks' process groups if the launcher is killed.
pub(crate) const GUARD_COMMAND: &str = "__guard";
/// The hidden subcommand that runs the ranks of one host for a launcher on another.
pub(crate) const PART_COMMAND: &str = "__part";
/// The most ranks of a job. Each needs two pipes and a few processes' worth of limits on its host.
pub(crate) const MAX_RANKS: u32 = 4096;
/// What to start, and how.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How many, 1 to [`MAX_RANKS`].
    pub(crate) ranks: u32,
    /// Looked for in PATH unless it has a slash; `/proc/self/exe` is this binary.
    pub(crate) program: OsString,
    /// The arguments of every rank.
    pub(crate) args: Vec<OsString>,
    /// Variables set for every rank besides those of the job.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Rank r runs on the r-th core allowed to the launcher.
    pub(crate) bind: bool,
    /// Each line of output begins with its rank.
    pub(crate) prefix: bool,
    /// The launcher's standard input goes to rank 0.
    pub(crate) stdin: bool,
    /// What the others have to end by themselves when one has failed.
    pub(crate) grace: Duration,
    /// Where the ranks run.
    pub(crate) placement: Placement,
}

/// Where the ranks of a job run, and which of them are this launcher's.
#[derive(Clone, Debug)]
pub(crate) enum Placement {
    /// All of them on this host.
    Here,
    /// Some of them here; others start the rest.
    Part(Part),
    /// Spread over hosts, with a part on each.
    Hosts(Hosts),
}

/// The ranks of one host, and how they find the others.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    ranks: Range<u32>,
    /// Where rank 0 listens; without it, it is here and gets any port of `address`.
    root: Option<String>,
    token: Token,
    /// On which the ranks here listen.
    address: IpAddr,
    /// Whoever decides for the whole job; without one, this process decides for its part.
    launcher: Option<Launcher>,
}

/// The hosts of a job.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    shares: Vec<Share>,
    /// The command that runs others elsewhere; not empty.
    remote_shell: Vec<OsString>,
}

impl Part {
    /// All ranks of a job on this host.
    fn here(ranks: u32) -> anyhow::Result<Self> {
        let (token, address) = (Token::random()?, Ipv4Addr::LOCALHOST.into());
        Ok(Self { ranks: 0..ranks, root: None, token, address, launcher: None })
    }
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Killed { signal: i32, core_dumped: bool },
}

impl End {
    pub(crate) fn failed(self) -> bool {
        self != End::Exited(0)
    }

    /// As a shell gives it: the status, or 128 and the signal.
    pub(crate) fn code(self) -> u8 {
        let code = match self {
            End::Exited(status) => status,
            End::Killed { signal, .. } => 128 + signal,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            End::Exited(status) => write!(f, "exited with status {status}"),
            End::Killed { signal, core_dumped } => {
                write!(f, "was killed by signal {signal} ({})", signals::name(signal))?;
                f.write_str(if core_dumped { "; it left a core dump" } else { "" })
            }
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How the rank that failed first did; none if every rank exited with 0.
    pub(crate) first_failure: Option<End>,
}

impl Outcome {
    /// The exit status that says this.
    pub(crate) fn code(&self) -> u8 {
        self.first_failure.map_or(0, End::code)
    }
}

/// Starts the ranks and returns when all of them, and what they started, have ended and their output is printed.
///
/// While it runs it takes the signals it forwards from the rest of the process. The ranks' life hangs on the calling thread:
/// if it ends, they are killed. An error means that the job was not started, or was ended because a part of it did not start.
pub(crate) fn launch(options: &Options) -> anyhow::Result<Outcome> {
    match &options.placement {
        // What is there to run is for each host to say.
        Placement::Hosts(hosts) if hosts.shares.iter().all(|share| share.here) => {}
        Placement::Hosts(hosts) => program::check(&hosts.remote_shell[0])?,
        Placement::Here | Placement::Part(_) => program::check(&options.program)?,
    }
    let (events, inbox) = mpsc::channel();
    // Before the first rank: a signal that comes while they start must reach those that run.
    let signals = signals::watch(events.clone())?;
    let outcome = supervise::supervise(options, events, &inbox);
    drop(signals);
    outcome
}

/// `rma run`.
pub(crate) fn main(args: RunArgs) -> anyhow::Result<ExitCode> {
    let options = args.into_options()?;
    Ok(launch(&options)?.code().into())
}

/// The exit status for an error of any subcommand: 126 and 127 as a shell has them, otherwise 1.
pub(crate) fn exit_code_of(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<NotRunnable>().map_or(ExitCode::FAILURE, |refused| refused.code().into())
}

/// What the launcher's own thread waits for.
#[derive(Debug)]
enum Event {
    /// A signal came to the launcher.
    Signal(i32),
    /// All output of a stream is printed, or cannot be. Something keeps the pipes of these sources open and may still write.
    OutputDone { stream: &'static str, result: io::Result<Vec<usize>> },
    /// A part of the job reports.
    Report(usize, Vec<u8>),
    /// A part of the job will report no more.
    ReportsEnd(usize),
    /// To a part of a job: what it is to do.
    Order(Order),
    /// To a part of a job: its launcher has gone.
    Deserted,
    /// In a part of a job: rank 0 took a piece of its input, or will take no more.
    Input { taken: bool },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_a_shell() {
        assert_eq!(End::Exited(3).code(), 3);
        assert_eq!(End::Killed { signal: 9, core_dumped: false }.code(), 137);
        assert_eq!(End::Killed { signal: 9, core_dumped: false }.to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Outcome { first_failure: None }.code(), 0);
    }
}
