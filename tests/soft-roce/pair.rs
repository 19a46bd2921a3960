//! Two machines with a rank each: both run this program with the same tests in the same order, and their parts of a job find each
//! other on the first rail's network, which nobody else uses.

use crate::conformance;
use crate::duplex::Duplex;
use crate::harness::Report;
use crate::job::Job;
use crate::lab;
use anyhow::{Context, Result, ensure};
use rma::bootstrap::Departure;
use rma::{Comm, Error, Rank};
use rma_tests::check::{refused, says};
use std::cell::Cell;
use std::time::{Duration, Instant};

const FIRST_PORT: u16 = 20_000;
/// After about five seconds it is known that a machine is silent; the rest is for machines that are emulated side by side.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

/// This machine of the two.
#[derive(Debug)]
pub(crate) struct Pair {
    machine: u32,
    jobs: Cell<u16>,
}

impl Pair {
    fn from_env() -> Result<Self> {
        let machine = std::env::var("RMA_VM_MACHINE").context("RMA_VM_MACHINE: not in a machine of `cargo xtask vm run`")?;
        Ok(Self { machine: machine.parse()?, jobs: Cell::new(0) })
    }

    /// This machine's part of a job; the other makes the same call.
    pub(crate) fn part_of(&self, mut job: Job) -> Job {
        let number = self.jobs.replace(self.jobs.get() + 1);
        job.part = Some((self.machine, format!("10.0.0.1:{}", FIRST_PORT + number)));
        // Both know it, and nobody else is on that network.
        job.env("RMA_TOKEN", &format!("{:032x}", number + 1))
    }
}

/// Every promise that suits two ranks, then the end of one machine.
pub(crate) fn run(report: &mut Report, rails: &[u32]) -> Result<()> {
    let pair = Pair::from_env()?;
    for &rails in rails {
        let before = lab::held()?;
        conformance::run(report, (2, rails), Some(&pair));
        report.test(&format!("{rails}_rails_between_machines::nothing_is_left_in_the_devices"), || lab::all_is_given_back(&before));
    }
    report.test(A_KILLED_MACHINE, || pair.part_of(Job::new(2, 1, &["rma-soft-roce", "rank", A_KILLED_MACHINE])).run()?.succeeded());
    Ok(())
}

/// As a case of a rank.
pub(crate) const A_KILLED_MACHINE: &str = "a_machine_whose_power_fails_is_named_by_who_waits_for_it";

pub(crate) fn a_machine_whose_power_fails_is_named_by_who_waits_for_it(comm: &Comm) -> Result<()> {
    let duplex = Duplex::new(comm, [0, 1], &[8, 5000])?;
    let mut queue = duplex.commit(comm)?;
    duplex.run(&mut queue, 1..20)?;
    if comm.rank().0 == 1 {
        lab::kill_machine(1)?;
    }
    let mut last = Instant::now();
    let error = (20..).find_map(|number| {
        let outcome = duplex.step(&mut queue, number);
        if let Ok(Ok(())) = outcome {
            last = Instant::now();
            return None;
        }
        Some(outcome.map(rma::Result::err))
    });
    let late = last.elapsed();
    let error = error.context("bug: an endless loop that ended")??.context("bug: a failure without an error")?;
    match &error {
        Error::PeerLost { rank: Rank(1), how: Departure::Died, .. } => says(&error, &["rank 1 died"])?,
        other => {
            ensure!(matches!(other, Error::Backend { backend: "verbs", .. }), "another error: {}", error.full_text());
            says(other, &["rank 1", "rail 0", "transport retry counter exceeded"])?;
        }
    }
    ensure!(late < NAMED_WITHIN, "only after {late:?}: {}", error.full_text());
    let error = refused(comm.barrier())?;
    ensure!(matches!(error, Error::PeerLost { rank: Rank(1), how: Departure::Died, .. }), "another error: {}", error.full_text());
    Ok(())
}
