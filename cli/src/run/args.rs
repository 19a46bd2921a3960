//! The command line of `rma run`: its options, what they refuse, and its help.
//! Owns the words; what they ask for is done elsewhere.

use super::hosts::{self, Host};
use super::{Hosts, MAX_RANKS, Options, Part, Placement};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rma::config::Token;
use std::ffi::OsString;
use std::net::{IpAddr, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// The longest `--grace`, a day: enough for any program, and no clock overflows.
const MAX_GRACE_SECONDS: f64 = 86_400.0;
/// What a part by hand takes the secret of its job from.
const TOKEN: &str = "RMA_TOKEN";
/// Nobody could answer what it asks: it fails instead.
const DEFAULT_REMOTE_SHELL: &str = "ssh -o BatchMode=yes";
/// The remote shell, where `--remote-shell` does not say.
const REMOTE_SHELL: &str = "RMA_REMOTE_SHELL";
/// What belongs to one rank or one launcher, and does not go to other hosts.
const NOT_FORWARDED: [&str; 7] = ["RMA_RANK", "RMA_SIZE", "RMA_ROOT", TOKEN, "RMA_LISTEN_FD", "RMA_BIND", REMOTE_SHELL];

const AFTER_HELP: &str = "\
Examples:
  rma run -n 4 -- ./stencil --size 1024         four ranks of ./stencil
  rma run -n 4 --bind -- ./stencil              the same, rank r on the r-th core
  rma run -n 2 -- sh -c 'echo I am $RMA_RANK'   prints '[0] I am 0' and '[1] I am 1'
  RMA_TIMEOUT=30 rma run -n 4 -- ./stencil      variables reach every rank
  rma run -n 4 --hosts node1,node2 -- ./stencil two ranks on each of two hosts

What a rank gets:
  RMA_RANK, RMA_SIZE    its number, and how many there are
  RMA_ROOT, RMA_TOKEN   where rank 0 listens, and the secret of the job
  RMA_LISTEN_FD         rank 0 only: the descriptor that listens already
  RMA_BIND              the address it listens on itself: 127.0.0.1 on one host
  All other variables stay as they are, also those of another launcher
  (OMPI_*, PMI_*, SLURM_*). A program that finds another number of ranks
  there than in RMA_SIZE refuses to start: use one launcher only, or unset
  the variables of the other.

Several hosts:
  --hosts takes [USER@]NAME[=ADDRESS][:SLOTS], separated by commas. Ranks go
  to the hosts in blocks: as many as a host has slots, or evenly if none has
  a number. 'localhost', the own name and own addresses need no remote shell;
  the others are reached by 'ssh' (--remote-shell, or RMA_REMOTE_SHELL),
  which must not ask for a password. This command, the program and the
  working directory must be there under the same paths. The ranks of a host
  listen on its ADDRESS; without one it is what NAME is resolved to here.
  Variables RMA_* go along, and those that --env names. Shared memory does
  not reach across hosts: build the program with a backend that does.

  Without a remote shell, start the parts of a job by hand, with one secret:
    export RMA_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
    node1$ rma run -n 4 --part 0-1 --root 10.0.0.1:7000 -- ./stencil
    node2$ rma run -n 4 --part 2-3 --root 10.0.0.1:7000 -- ./stencil
  Each part answers for its own ranks only. Ranks elsewhere end when they
  wait for one that has ended.

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
  5 s after SIGINT or SIGTERM is killed; a second SIGINT kills at once. A
  host that does not answer is given up 3 s later, or at a third SIGINT.

Exit status:
  0         every rank exited with 0
  S         the first rank to fail exited with S
  128+S     it was killed by signal S
  126, 127  the program cannot be executed, or was not found
  255       ssh, where it is the remote shell, could not reach a host
  1, 2      ranks could not be started, or the command line is wrong";

/// Start the ranks of a program, on this host or on several.
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
    /// Bind each rank to a core: the r-th rank of a host to the r-th core this command may use there, around again if needed
    #[arg(long)]
    bind: bool,
    /// Print the ranks' lines as they are, without the rank before each
    #[arg(long)]
    no_prefix: bool,
    /// How long the other ranks have to end by themselves once one has failed
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = grace, allow_hyphen_values = true)]
    grace: Duration,
    /// Give this variable to every rank; without a value, as it is here, also on other hosts
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,
    /// Spread the ranks over these hosts, as in node1,node2 or node1:4,node2=10.0.0.2:8
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = hosts::parse)]
    hosts: Vec<Host>,
    /// How to run a command on another host, as in 'ssh -p 2222'
    #[arg(long, value_name = "COMMAND", requires = "hosts")]
    remote_shell: Option<String>,
    /// Start only these ranks of the N here; the others are started by hand elsewhere, with the same --root and RMA_TOKEN
    #[arg(long, value_name = "FIRST-LAST", value_parser = part, requires = "root", conflicts_with = "hosts")]
    part: Option<Range<u32>>,
    /// Where rank 0 listens: an address of its host that the others reach, and a free port
    #[arg(long, value_name = "HOST:PORT", requires = "part")]
    root: Option<String>,
    /// The address that the ranks here listen on; without it the one by which this host reaches --root
    #[arg(long, value_name = "ADDRESS", requires = "part")]
    address: Option<IpAddr>,
    /// The program, looked for in PATH as a shell does, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

impl RunArgs {
    /// What to start, with all that has to be looked up for it.
    pub(super) fn into_options(self) -> Result<Options> {
        let remote_shell = self.remote_shell.clone().or_else(|| std::env::var(REMOTE_SHELL).ok());
        let remote_shell: Vec<OsString> =
            remote_shell.as_deref().unwrap_or(DEFAULT_REMOTE_SHELL).split_whitespace().map(OsString::from).collect();
        let mut variables = variables(&self.env)?;
        let placement = match (&self.part, &self.root) {
            (Some(ranks), Some(root)) => Placement::Part(by_hand(self.ranks, ranks.clone(), root, self.address)?),
            _ if self.hosts.is_empty() => Placement::Here,
            _ => {
                ensure!(!remote_shell.is_empty(), "--remote-shell or {REMOTE_SHELL} is empty; name a command, as in 'ssh'");
                let shares = hosts::share_out(&self.hosts, self.ranks)?;
                variables.splice(0..0, own_variables());
                Placement::Hosts(Hosts { shares, remote_shell })
            }
        };
        let mut command = self.command.into_iter();
        Ok(Options {
            ranks: self.ranks,
            program: command.next().unwrap_or_default(),
            args: command.collect(),
            variables,
            bind: self.bind,
            prefix: !self.no_prefix,
            stdin: true,
            grace: self.grace,
            placement,
        })
    }
}

fn ranks(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_RANKS) => Ok(n),
        Ok(0) => Err("a job has at least 1 rank".into()),
        _ if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            Err(format!("at most {MAX_RANKS} ranks by this command; use a cluster's launcher for more"))
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

fn part(text: &str) -> Result<Range<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) if first <= last && last < MAX_RANKS => Ok(first..last + 1),
        _ => Err(format!("expected the first and last rank here, as in 2-3, or one rank; at most {}", MAX_RANKS - 1)),
    }
}

/// A part of a job whose other parts are started by others.
fn by_hand(all: u32, ranks: Range<u32>, root: &str, address: Option<IpAddr>) -> Result<Part> {
    ensure!(ranks.end <= all, "--part {}-{} of {all} ranks: they count from 0 to {}", ranks.start, ranks.end - 1, all - 1);
    let found: Vec<_> = root.to_socket_addrs().with_context(|| format!("--root {root}: expected HOST:PORT"))?.collect();
    let Some(reached) = found.first() else { bail!("--root {root}: the name has no address") };
    ensure!(
        reached.port() != 0 && !reached.ip().is_unspecified(),
        "--root {root}: the other parts have to know the address and the port; choose ones that they reach"
    );
    let token = std::env::var(TOKEN).ok().and_then(|text| Token::from_hex(text.trim()));
    let token = token.with_context(|| {
        format!("{TOKEN} must be the same 32 hexadecimal digits for every part: export {TOKEN}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')")
    })?;
    let address = match address {
        Some(address) => address,
        None if ranks.contains(&0) => reached.ip(),
        None => hosts::towards(reached)?,
    };
    Ok(Part { ranks, root: Some(root.into()), token, address, launcher: None })
}

/// What `--env` asks for.
fn variables(asked: &[OsString]) -> Result<Vec<(OsString, OsString)>> {
    let variable = |asked: &OsString| {
        let bytes = asked.as_bytes();
        let Some(equals) = bytes.iter().position(|&byte| byte == b'=') else {
            let value = std::env::var_os(asked);
            let value =
                value.with_context(|| format!("--env {0}: it is not set here; give its value, as in {0}=1", asked.display()))?;
            return Ok((asked.clone(), value));
        };
        ensure!(equals > 0, "--env {}: the name is missing", asked.display());
        Ok((OsString::from_vec(bytes[..equals].to_vec()), OsString::from_vec(bytes[equals + 1..].to_vec())))
    };
    asked.iter().map(variable).collect()
}

/// The library's own, which go to every host.
fn own_variables() -> impl Iterator<Item = (OsString, OsString)> {
    let own = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("RMA_") && !NOT_FORWARDED.contains(&name));
    std::env::vars_os().filter(move |(name, _)| own(name))
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
    fn a_part_is_a_rank_or_some_in_a_row() {
        assert_eq!((part("0-1"), part("3"), part("0-4095")), (Ok(0..2), Ok(3..4), Ok(0..4096)));
        for text in ["", "-", "3-2", "1-", "-1", "0-4096", "a-b", "4294967295"] {
            assert!(part(text).unwrap_err().contains("as in 2-3"), "{text}");
        }
    }

    #[test]
    fn variables_have_a_value_or_are_set_here() {
        let asked = |text: &str| variables(&[text.into()]).map_err(|error| error.to_string());
        assert_eq!(asked("A=b=c"), Ok(vec![("A".into(), "b=c".into())]));
        assert_eq!(asked("A="), Ok(vec![("A".into(), "".into())]));
        assert_eq!(asked("PATH").unwrap()[0].1, std::env::var_os("PATH").unwrap());
        assert!(asked("RMA_NO_SUCH").unwrap_err().contains("as in RMA_NO_SUCH=1"));
        assert!(asked("=b").is_err());
    }
}
