//! `cargo xtask vm`: commands in a virtual machine with Soft-RoCE devices, for verbs where there is no InfiniBand.
//! The machine is emulated in software and boots in seconds; it sees the host's files, so what was built here runs there.
//! Owns the command line. For the test and the benchmarks: `Image::prepare`, then `run` with a `Job`.

mod bench;
mod cpio;
mod image;
mod job;
mod kernel;
mod lab;
mod share;
mod watch;

pub(crate) use image::Image;
pub(crate) use job::Job;
pub(crate) use lab::Lab;
pub(crate) use watch::run as run_job;

use crate::metadata::Metadata;
use crate::process::Output;
use anyhow::{Context, Result};
use clap::Subcommand;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make what the machine boots, if it is not there; needs the network the first time
    Build,
    /// Run a command inside
    Run(Box<RunArgs>),
    /// Time `rma` against perftest inside, in turn
    Bench(bench::Args),
    /// What `bench` runs inside
    #[command(hide = true)]
    Measure(bench::measure::Args),
}

/// Paragraphs are single lines: they are wrapped to the terminal's width.
const INSIDE: &str = "\
Inside: rank R has on rail D the RDMA device xRdD, over the network device rRdD with the address 10.D.0.R+1; its GID has index 1. \
The host's files can be read. /tmp can be written to as well, seen by nobody outside. /mnt is a folder that all machines of the run \
share. Of the environment only what --env sets gets in; RMA_VM_MACHINE is the machine's number, 0 or 1.

/mnt/lab, called inside, changes the lab while the command runs: links down and up, loss, rate, the end of a machine. Without \
arguments it says how.

Exit status: the command's own, 128 and the signal's number if it died of one; with two machines the first that is not 0. \
124: the time limit. 125: the machine failed. 127: no such command.

Examples:
  cargo xtask vm run -- ibv_devices
  cargo xtask vm run --ranks 4 --rails 4 --rate 50 --loss 0.5 -- target/debug/program --option
  cargo xtask vm run -- bash -c 'ib_write_lat -d x0d0 -x 1 & sleep 1
    ib_write_lat -d x1d0 -x 1 127.0.0.1'
  cargo xtask vm run --machines 2 --env RUST_BACKTRACE=1 -- ./server-on-0-client-on-1.sh";

#[derive(clap::Args)]
#[command(after_help = INSIDE)]
struct RunArgs {
    /// How many ranks the lab has devices for [default: 2]
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// How many devices a rank has, each on a network of its own
    #[arg(long, value_name = "D", default_value_t = 1)]
    rails: u32,
    /// How fast each device sends, in Mbit/s
    #[arg(long, value_name = "MBIT")]
    rate: Option<u32>,
    /// Which share of its packets each device loses, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// How many machines run the command, 1 or 2; two have one rank each
    #[arg(long, value_name = "M", default_value_t = 1)]
    machines: u32,
    /// No networks and no RDMA devices
    #[arg(long, conflicts_with_all = ["ranks", "rails", "rate", "loss"])]
    no_lab: bool,
    /// Processors of each machine
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory of each machine, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// Time limit in seconds, from the start of the boot
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Set a variable for the command; may be given again
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, OsString)>,
    /// What to run: a program of this host, looked for here or on the usual path
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let image = || Image::prepare(&Metadata::read()?.target_directory);
    match args.command {
        Command::Build => {
            let image = image()?;
            println!("the machine is in {}", image.folder().display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(args) => bench::run(&args),
        Command::Measure(args) => bench::measure::run(&args),
        Command::Run(args) => {
            let job = args.job()?;
            job.check()?;
            let finished = run_job(&image()?, &job, Output::Shown)?;
            finished.remarks().iter().for_each(|remark| eprintln!("vm: {remark}"));
            Ok(ExitCode::from(finished.status()))
        }
    }
}

impl RunArgs {
    fn job(self) -> Result<Job> {
        let mut job = Job::new(self.command)?;
        job.machines = self.machines;
        job.cpus = self.cpus;
        job.memory_mib = self.memory;
        job.timeout = Duration::from_secs(self.timeout);
        job.env = self.env;
        job.lab = (!self.no_lab).then_some(Lab {
            ranks: self.ranks.unwrap_or(2),
            rails: self.rails,
            rate_mbit: self.rate,
            loss_percent: self.loss,
        });
        Ok(job)
    }
}

fn variable(text: &str) -> Result<(String, OsString)> {
    let (name, value) = text.split_once('=').context("write NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn job(words: &str) -> Result<Job> {
        let line = Line::try_parse_from(["vm"].into_iter().chain(words.split_whitespace()))?;
        match line.args.command {
            Command::Run(args) => args.job(),
            _ => anyhow::bail!("not a run"),
        }
    }

    #[test]
    fn options_end_up_in_the_job() {
        let job = job("run --ranks 4 --rails 3 --rate 50 --loss 0.5 --timeout 9 --env A=b=c --env D= -- prog --rails 7").unwrap();
        assert_eq!(job.lab, Some(Lab { ranks: 4, rails: 3, rate_mbit: Some(50), loss_percent: 0.5 }));
        assert_eq!(job.env, [("A".into(), "b=c".into()), ("D".into(), "".into())]);
        assert_eq!((job.machines, job.cpus, job.timeout), (1, 2, Duration::from_secs(9)));
        assert_eq!(job.command, ["prog", "--rails", "7"]);
    }

    #[test]
    fn two_machines_have_two_processors_each() {
        assert_eq!(job("run --machines 2 -- prog").unwrap().cpus, 2);
        assert_eq!(job("run --machines 2 --cpus 3 -- prog").unwrap().cpus, 3);
        assert_eq!(job("run --no-lab -- prog").unwrap().lab, None);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert!(job("run --no-lab --rate 5 -- prog").is_err());
        assert!(job("run --env A -- prog").is_err());
        assert!(job("run --timeout 0 -- prog").is_err() && job("run --timeout 18446744073709551615 -- prog").is_err());
        assert!(job("run").is_err());
    }
}
