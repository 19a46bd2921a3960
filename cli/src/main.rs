//! The command `rma`. Owns the command line and the exit status; what a subcommand does is in its module.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command's errors are what it prints; its results go through `results`")]

mod bench;
mod info;
mod results;
mod run;
mod timeline;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// One-sided communication: start ranks, time exchanges, and look at what this machine offers them.
#[derive(Debug, Parser)]
#[command(name = "rma", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Run(run::RunArgs),
    Info(info::InfoArgs),
    Bench(bench::BenchArgs),
    Timeline(timeline::TimelineArgs),
    #[command(name = run::RANK_COMMAND, hide = true)]
    Rank(run::RankArgs),
    #[command(name = run::GUARD_COMMAND, hide = true)]
    Guard,
    #[command(name = run::PART_COMMAND, hide = true)]
    Part,
}

fn main() -> ExitCode {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    let (name, result) = match Cli::parse().command {
        Subcommands::Run(args) => ("rma run", run::main(args)),
        Subcommands::Info(args) => ("rma info", info::main(&args)),
        Subcommands::Bench(args) => ("rma bench", bench::main(&args)),
        Subcommands::Timeline(args) => ("rma timeline", timeline::main(&args)),
        Subcommands::Rank(args) => ("rma run", Ok(run::become_rank(args))),
        Subcommands::Guard => ("rma run", Ok(run::become_guard())),
        Subcommands::Part => ("rma run", run::become_part()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}");
        run::exit_code_of(&error)
    })
}
