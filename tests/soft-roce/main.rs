//! `rma-soft-roce`: what the verbs backend promises, on Soft-RoCE devices, with links that lose packets, go down and come back.
//! Runs inside the machine of `cargo xtask vm`, all tests of one lab in one boot. Owns the command line.
#![forbid(unsafe_code)]

mod conformance;
mod job;
mod report;

use clap::{Parser, Subcommand};
use report::Report;
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
        /// Ranks, as in 2,4
        #[arg(long, value_delimiter = ',', default_value = "2")]
        ranks: Vec<u32>,
        /// Rails, as in 1,4
        #[arg(long, value_delimiter = ',', default_value = "1")]
        rails: Vec<u32>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let mut report = Report::of(cli.only);
    match cli.group {
        Group::Conformance { ranks, rails } => {
            let shapes: Vec<_> = ranks.iter().flat_map(|&ranks| rails.iter().map(move |&rails| (ranks, rails))).collect();
            for &shape in &shapes {
                conformance::run(&mut report, shape);
                conformance::run_with_delays(&mut report, shape);
            }
        }
    }
    Ok(report.close())
}
