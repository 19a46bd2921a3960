//! `rma-conformance BODY..`: runs bodies in the place that the environment gives, under any launcher, or on ranks as threads.
//! Owns the command line; what is checked is in the library.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a list is what --list is for, and who runs several bodies wants to know how far it got")]

use anyhow::{Context, ensure};
use clap::Parser;
use rma::{Comm, Config};
use rma_tests::{BODIES, Body, body, faults};

/// Checks promises of the library on the ranks of this job.
#[derive(Debug, Parser)]
struct Cli {
    /// The promises, as --list has them. After each of several, every rank says so
    #[arg(required_unless_present = "list", value_name = "BODY")]
    bodies: Vec<String>,
    /// What is drawn at random is drawn from this number, alike on every rank
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run on so many ranks that are threads of this process, not in the place that a launcher gave
    #[arg(long)]
    threads: Option<u32>,
    /// Print the bodies, each with the fewest ranks it needs
    #[arg(long)]
    list: bool,
}

fn main() -> anyhow::Result<()> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    let cli = Cli::parse();
    if cli.list {
        for body in BODIES.iter().chain(faults::FAULTS) {
            println!("{} {}", body.name, body.fewest);
        }
        return Ok(());
    }
    let bodies = cli.bodies.iter().map(|name| find(name)).collect::<anyhow::Result<Vec<_>>>()?;
    let run = |comm: &Comm| {
        for body in &bodies {
            let (name, size) = (body.name, comm.size());
            ensure!(body.suits(size), "{name} needs {} ranks or more, the job has {size}", body.fewest);
            let outcome = (body.run)(comm, cli.seed);
            outcome.with_context(|| format!("{} of {size}, {name} --seed {}", comm.rank(), cli.seed))?;
            if bodies.len() > 1 {
                comm.barrier().with_context(|| format!("{} of {size}, after {name}", comm.rank()))?;
                println!("passed: {name}");
            }
        }
        Ok(())
    };
    match cli.threads {
        None => run(&Comm::from_env()?),
        Some(ranks) => Comm::threads_with(ranks, Config::from_env()?.0, |comm| run(&comm))?.into_iter().collect(),
    }
}

fn find(name: &str) -> anyhow::Result<&'static Body> {
    let unlisted = [&faults::WAITS_FOR_EVER, &faults::WITHOUT_DESCRIPTORS].into_iter().find(|body| body.name == name);
    unlisted.or_else(|| body(name)).with_context(|| format!("no body is named {name:?}; --list prints them"))
}
