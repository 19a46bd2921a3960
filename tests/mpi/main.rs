//! `rma-mpi-tests`: what the library promises to ranks that an MPI launcher started, over shared memory and over MPI, and what goes
//! wrong there. Built once for each MPI, with `MPICC`. Owns the command line.
#![deny(unsafe_code)]

mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod launcher;
mod ranks;

use anyhow::Context;
use clap::{Parser, Subcommand};
use harness::{Report, bodies};
use launcher::{Job, Mpi};
use std::process::ExitCode;

/// Runs the tests that need an MPI launcher.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    rank: Option<Rank>,
    /// Ranks, as in 2,4; more than cores only where the MPI gives its core away
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    ranks: Vec<u32>,
    /// What moves the data
    #[arg(long, value_delimiter = ',', default_value = "shm,mpi")]
    backends: Vec<String>,
    /// Programs beside this one that must run on the most ranks, too
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Leave out what goes wrong on purpose, and programs with an MPI of their own
    #[arg(long)]
    without_faults: bool,
    /// Only the tests whose name has these words in it
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Rank {
    /// One rank of a case; for a launcher
    #[command(hide = true)]
    Rank { case: String },
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(Rank::Rank { case }) = &cli.rank {
        let case = ranks::CASES.iter().find(|known| known.0 == case).with_context(|| format!("no case is named {case:?}"))?;
        (case.1)().context(case.0)?;
        return Ok(ExitCode::SUCCESS);
    }
    println_library();
    let mut report = Report::of(cli.only);
    let sizes: Vec<_> = cli.ranks.into_iter().filter(|&ranks| Mpi::own().can_start(ranks)).collect();
    for backend in &cli.backends {
        for &ranks in &sizes {
            conformance(&mut report, &format!("{backend}::{ranks}_ranks"), backend, ranks, &[]);
        }
    }
    if cli.backends.iter().any(|backend| backend == rma_mpi::NAME) {
        let network = Mpi::own().as_on_several_hosts();
        conformance(&mut report, "mpi_over_tcp::2_ranks", rma_mpi::NAME, 2, network);
    }
    for program in &cli.programs {
        let ranks = sizes.iter().copied().max().unwrap_or(2);
        for backend in &cli.backends {
            let name = format!("{backend}::the_program_{program}_runs_unchanged_on_{ranks}_ranks");
            report.test(&name, || Job::new(ranks, &[program]).env("RMA_BACKEND", backend).succeeds());
        }
    }
    if !cli.without_faults {
        ranks::run(&mut report);
        faults::run(&mut report);
    }
    Ok(report.close())
}

fn println_library() {
    use std::io::Write;
    // Who reads no longer wants nothing more to be said.
    let _ = writeln!(std::io::stdout(), "built with {}, running with {}", rma_mpi::built_with(), rma_mpi::library());
}

/// Every promise, then some of them on three rails with late credits.
fn conformance(report: &mut Report, group: &str, backend: &str, ranks: u32, env: &[(&str, &str)]) {
    let lives = std::env::var("RMA_TEST_LIVES");
    let lives = lives.as_deref().unwrap_or("100");
    let job = |bodies: &[&rma_tests::Body]| {
        let names = bodies.iter().map(|body| body.name);
        let job = Job::new(ranks, &["rma-conformance"].into_iter().chain(names).collect::<Vec<_>>());
        let job = job.env("RMA_BACKEND", backend).env("RMA_TEST_LIVES", lives);
        env.iter().fold(job, |job, (name, value)| job.env(name, value))
    };
    bodies::run_all(report, group, ranks, |bodies| job(bodies).start());
    if backend == rma_mpi::NAME {
        let (name, value) = bodies::DELAYS;
        bodies::run_with_delays(report, group, |bodies| job(bodies).env("RMA_RAILS", "3").env(name, value).start());
    }
}
