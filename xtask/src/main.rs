//! Everything CI does, by hand: `cargo xtask setup | test | bench | vm | instructions`.
//! Owns the command line; each command is a module of its own.
#![forbid(unsafe_code)]
// The output is what this program is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod instructions;
mod licences;
mod metadata;
mod mpi;
mod process;
mod setup;
mod test;
mod vm;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Everything CI does, by hand.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the Debian packages that the full test and the benchmarks need
    Setup(setup::Args),
    /// Run every test, part by part
    Test(test::Args),
    /// Time `rma` against its peers and the floor of this machine, in turn
    Bench(bench::Args),
    /// Count the instructions of starting and waiting for six puts
    Instructions,
    /// Real verbs without InfiniBand: run a command in a virtual machine with Soft-RoCE devices
    Vm(vm::Args),
}

fn main() -> ExitCode {
    let outcome = process::stop_children_on_signals().and_then(|()| match Cli::parse().command {
        Command::Setup(args) => setup::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Test(args) => test::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Instructions => instructions::run(),
        Command::Vm(args) => vm::run(args),
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
