//! `rma-conformance BODY`: runs one body in the place that the environment gives, under any launcher, or on ranks as threads.
//! Owns the command line; what is checked is in the library.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a list is what --list is for")]

use anyhow::{Context, ensure};
use clap::Parser;
use rma::{Comm, Config};
use rma_tests::{BODIES, body, faults};

/// Checks one promise of the library on the ranks of this job.
#[derive(Debug, Parser)]
struct Cli {
    /// The promise, as --list has it
    #[arg(required_unless_present = "list")]
    body: Option<String>,
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
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    let cli = Cli::parse();
    if cli.list {
        for body in BODIES.iter().chain(faults::FAULTS) {
            println!("{} {}", body.name, body.fewest);
        }
        return Ok(());
    }
    let name = cli.body.unwrap_or_default();
    let unlisted = [&faults::WAITS_FOR_EVER, &faults::WITHOUT_DESCRIPTORS].into_iter().find(|body| body.name == name);
    let body = unlisted.or_else(|| body(&name)).with_context(|| format!("no body is named {name:?}; --list prints them"))?;
    let run = |comm: &Comm| {
        let size = comm.size();
        ensure!(body.suits(size), "{name} needs {} ranks or more, the job has {size}", body.fewest);
        (body.run)(comm, cli.seed).with_context(|| format!("{} of {size}, {name} --seed {}", comm.rank(), cli.seed))
    };
    match cli.threads {
        None => run(&Comm::from_env()?),
        Some(ranks) => Comm::threads_with(ranks, Config::from_env()?.0, |comm| run(&comm))?.into_iter().collect(),
    }
}
