//! `rma-soft-roce`: what the verbs backend promises, on Soft-RoCE devices, with links that lose packets, go down and come back.
//! Runs inside the machine of `cargo xtask vm`, all tests of one lab in one boot. Owns the command line.
#![deny(unsafe_code)]

mod conformance;
mod depths;
mod duplex;
mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod job;
mod keys;
mod lab;
mod links;
mod lives;
mod pair;
mod receives;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use harness::Report;
use rma::Comm;
use std::process::ExitCode;

/// Runs the tests that need RDMA devices, inside `cargo xtask vm run`.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    group: Group,
    /// Only the tests whose name has these words in it
    #[arg(long, global = true, value_name = "WORDS")]
    only: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Group {
    /// Every promise, with so many ranks and rails
    Conformance {
        /// Ranks and rails, as in 2x1,4x4
        #[arg(long, value_delimiter = ',', value_parser = conformance::shape, default_value = "2x1")]
        shapes: Vec<conformance::Shape>,
        /// Programs beside this one that must run on the last of these, too
        #[arg(long, value_delimiter = ',')]
        programs: Vec<String>,
    },
    /// Links, receives, keys and processes that fail, on a lab of 4 ranks and 4 rails
    Faults,
    /// Every promise between two machines, on so many rails, in `cargo xtask vm run --machines 2`
    Pair {
        /// Rails, as in 1,4
        #[arg(long, value_delimiter = ',', default_value = "1")]
        rails: Vec<u32>,
    },
    /// One rank of such a case; for `rma run`
    #[command(hide = true)]
    Rank { case: String },
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Group::Rank { case } = &cli.group {
        rma_verbs::offer();
        keys::offer();
        let run = match faults::CASES.iter().find(|known| known.name == case) {
            Some(case) => case.run,
            None if case == pair::A_KILLED_MACHINE => pair::a_machine_whose_power_fails_is_named_by_who_waits_for_it,
            None => bail!("no case is named {case:?}"),
        };
        let comm = Comm::from_env()?;
        run(&comm).with_context(|| format!("{}, {case}", comm.rank()))?;
        return Ok(ExitCode::SUCCESS);
    }
    lab::is_here()?;
    let mut report = Report::of(cli.only);
    match cli.group {
        Group::Conformance { shapes, programs } => {
            for (number, &shape) in (1..).zip(&shapes) {
                let before = lab::held()?;
                conformance::run(&mut report, shape, None);
                conformance::run_with_delays(&mut report, shape);
                if number == shapes.len() {
                    conformance::run_programs(&mut report, shape, &programs);
                }
                let name = format!("{}::nothing_is_left_in_the_devices", conformance::name(shape));
                report.test(&name, || lab::all_is_given_back(&before));
            }
        }
        Group::Faults => faults::run(&mut report),
        Group::Pair { rails } => pair::run(&mut report, &rails)?,
        Group::Rank { .. } => unreachable!("bug: a rank is no group of tests"),
    }
    Ok(report.close())
}
