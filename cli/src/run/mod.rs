//! `rma run`: starts the ranks of a job on this machine and answers for them until all have ended.
//! Owns the options and their checks, and [`launch`], which any subcommand may call with a program of its own (itself, as
//! `/proc/self/exe`). What a rank does once it runs is none of its business.
//!
//! A rank is started in two steps, so that nothing between fork and exec needs unsafe code: the launcher spawns this binary
//! as `rma __rank`, which prepares its own process and then becomes the program. A second helper, `rma __guard`, outlives a
//! launcher that was killed and ends what the ranks had started.

mod child;
mod guard;
mod input;
mod lines;
mod output;
mod plan;
mod program;
mod signals;
mod spawn;
mod supervise;

pub(crate) use child::{RankArgs, become_rank};
pub(crate) use guard::become_guard;
pub(crate) use program::NotRunnable;
pub(crate) use spawn::allowed_cores;

use clap::Args;
use rma::Rank;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// The hidden subcommand that prepares a process and becomes the program of a rank.
pub(crate) const RANK_COMMAND: &str = "__rank";
/// The hidden subcommand that ends the ranks' process groups if the launcher is killed.
pub(crate) const GUARD_COMMAND: &str = "__guard";
/// The most ranks of a job. Each needs two pipes and a few processes' worth of limits on one machine.
pub(crate) const MAX_RANKS: u32 = 4096;
/// The longest `--grace`, a day: enough for any program, and no clock overflows.
const MAX_GRACE_SECONDS: f64 = 86_400.0;

const AFTER_HELP: &str = "\
Examples:
  rma run -n 4 -- ./stencil --size 1024         four ranks of ./stencil
  rma run -n 4 --bind -- ./stencil              the same, rank r on the r-th core
  rma run -n 2 -- sh -c 'echo I am $RMA_RANK'   prints '[0] I am 0' and '[1] I am 1'
  RMA_TIMEOUT=30 rma run -n 4 -- ./stencil      variables reach every rank

What a rank gets:
  RMA_RANK, RMA_SIZE    its number, and how many there are
  RMA_ROOT, RMA_TOKEN   where rank 0 listens, and the secret of the job
  RMA_LISTEN_FD         rank 0 only: the descriptor that listens already
  RMA_BIND              the address it listens on itself: 127.0.0.1
  All other variables stay as they are, also those of another launcher
  (OMPI_*, PMI_*, SLURM_*). A program that finds another number of ranks
  there than in RMA_SIZE refuses to start: use one launcher only, or unset
  the variables of the other.

Output and input:
  Lines are printed whole, with '[rank] ' before each. A line over 64 KiB
  is printed in pieces, which other ranks' lines may separate. Rank 0 reads
  the standard input; the others find it empty.

When a rank fails:
  The first to fail is named. The others have the grace to end by themselves
  (they get an error that names the lost peer), then SIGTERM, and SIGKILL 2 s
  later. What a rank has started ends too, unless it left the rank's process
  group.

Signals:
  SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT go
  on to every process of every rank, as from a terminal. What has not ended
  5 s after SIGINT or SIGTERM is killed; a second SIGINT kills at once.

Exit status:
  0         every rank exited with 0
  S         the first rank to fail exited with S
  128+S     it was killed by signal S
  126, 127  the program cannot be executed, or was not found
  1, 2      ranks could not be started, or the command line is wrong";

/// Start the ranks of a program on this machine.
///
/// Starts N processes of PROGRAM that find each other through the environment, prints their output line by line, and ends all
/// of them when one fails.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, after_help = "Example: rma run -n 4 -- ./stencil --size 1024\nMore with --help.")]
#[command(override_usage = "rma run -n <N> [OPTIONS] -- <PROGRAM> [ARGS]...")]
pub(crate) struct RunArgs {
    /// How many ranks to start, 1 to 4096
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = ranks, allow_hyphen_values = true)]
    ranks: u32,
    /// Bind rank r to the r-th core this command may use; with more ranks than cores, around again
    #[arg(long)]
    bind: bool,
    /// Print the ranks' lines as they are, without the rank before each
    #[arg(long)]
    no_prefix: bool,
    /// How long the other ranks have to end by themselves once one has failed
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = grace, allow_hyphen_values = true)]
    grace: Duration,
    /// The program, looked for in PATH as a shell does, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

fn ranks(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_RANKS) => Ok(n),
        Ok(0) => Err("a job has at least 1 rank".into()),
        _ if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            Err(format!("at most {MAX_RANKS} ranks on one machine; use several machines and a cluster's launcher for more"))
        }
        _ => Err(format!("expected a whole number, 1 to {MAX_RANKS}")),
    }
}

fn grace(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MAX_GRACE_SECONDS).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected seconds, 0 to {MAX_GRACE_SECONDS}, as in 3 or 0.5")),
    }
}

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
    /// The rank that failed first, and how; none if every rank exited with 0.
    pub(crate) first_failure: Option<(Rank, End)>,
}

impl Outcome {
    /// The exit status that says this.
    pub(crate) fn code(&self) -> u8 {
        self.first_failure.map_or(0, |(_, end)| end.code())
    }
}

/// Starts the ranks and returns when all of them, and what they started, have ended and their output is printed.
///
/// While it runs it takes the signals it forwards from the rest of the process. The ranks' life hangs on the calling thread:
/// if it ends, they are killed. An error means that the job was not started, or was ended because a part of it did not start.
pub(crate) fn launch(options: &Options) -> anyhow::Result<Outcome> {
    program::check(&options.program)?;
    let (events, inbox) = mpsc::channel();
    // Before the first rank: a signal that comes while they start must reach those that run.
    let signals = signals::watch(events.clone())?;
    let outcome = supervise::supervise(options, events, &inbox);
    drop(signals);
    outcome
}

/// `rma run`.
pub(crate) fn main(args: RunArgs) -> anyhow::Result<ExitCode> {
    let mut command = args.command.into_iter();
    let options = Options {
        ranks: args.ranks,
        program: command.next().unwrap_or_default(),
        args: command.collect(),
        variables: Vec::new(),
        bind: args.bind,
        prefix: !args.no_prefix,
        stdin: true,
        grace: args.grace,
    };
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
    /// All output of a stream is printed, or cannot be. Something keeps the pipes of these ranks open and may still write.
    OutputDone { stream: &'static str, result: io::Result<Vec<Rank>> },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_ranks_out_of_range_names_the_limit() {
        assert_eq!(ranks("4096"), Ok(4096));
        assert!(ranks("0").unwrap_err().contains("at least 1"));
        for text in ["4097", "99999999999999999999"] {
            assert!(ranks(text).unwrap_err().contains("at most 4096"), "{text}");
        }
        for text in ["", "-1", "two", "1.5"] {
            assert!(ranks(text).unwrap_err().contains("whole number"), "{text}");
        }
    }

    #[test]
    fn a_grace_is_zero_or_more_and_finite() {
        assert_eq!(grace("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(grace("0"), Ok(Duration::ZERO));
        for text in ["-1", "inf", "NaN", "1e9", "soon"] {
            assert!(grace(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_exit_status_is_that_of_a_shell() {
        assert_eq!(End::Exited(3).code(), 3);
        assert_eq!(End::Killed { signal: 9, core_dumped: false }.code(), 137);
        assert_eq!(End::Killed { signal: 9, core_dumped: false }.to_string(), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Outcome { first_failure: None }.code(), 0);
    }
}
