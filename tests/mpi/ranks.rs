//! Programs that are more than a conformance body: with an MPI of their own, too large, or aborting. Each is a rank of a job.

use crate::harness::Report;
use crate::launcher::Job;
use anyhow::{Result, bail, ensure};
use mpi::topology::Communicator;
use rma::{Comm, Config};
use rma_tests::check::{Line, everything_still_works, refused, says};
use rustix::process::{Signal, getpid, kill_process};

/// What a rank does.
type Case = fn() -> Result<()>;

/// Every case, by its name.
pub(crate) const CASES: &[(&str, Case)] = &[
    (OWN_COMMUNICATOR, a_program_with_mpi_of_its_own_hands_its_communicator_in),
    (HALF, half_of_the_ranks_are_a_job),
    (TOO_LARGE, a_window_larger_than_memory_is_refused_on_every_rank),
    ("aborts", || ends_amid_an_exchange(|| mpi::topology::SimpleCommunicator::world().abort(7))),
    ("is-killed", || {
        ends_amid_an_exchange(|| {
            let _ = kill_process(getpid(), Signal::KILL);
        })
    }),
];

const OWN_COMMUNICATOR: &str = "a_program_with_mpi_of_its_own_hands_its_communicator_in";
const HALF: &str = "half_of_the_ranks_are_a_job";
const TOO_LARGE: &str = "a_window_larger_than_memory_is_refused_on_every_rank";

/// The cases that end well.
pub(crate) fn run(report: &mut Report) {
    for backend in ["shm", rma_mpi::NAME] {
        for case in [OWN_COMMUNICATOR, HALF, TOO_LARGE] {
            report.test(&format!("{backend}::{case}"), || {
                Job::new(2, &["rma-mpi-tests", "rank", case]).env("RMA_BACKEND", backend).succeeds()
            });
        }
    }
}

/// Its ranks are numbered the other way round, MPI still works afterwards, and is finalized once, by the program.
fn a_program_with_mpi_of_its_own_hands_its_communicator_in() -> Result<()> {
    use mpi::collective::CommunicatorCollectives;
    let Some(universe) = mpi::initialize() else { bail!("MPI was initialized before") };
    let world = universe.world();
    let backwards = world.split_by_color_with_key(mpi::topology::Color::with_value(0), -world.rank());
    let Some(backwards) = backwards else { bail!("no communicator") };
    rma_mpi::offer();
    let place = rma_mpi::place_on(&backwards)?;
    // Which asks for a place in the world, too, and does not use it.
    let comm = Comm::join(&place, Config::from_env()?.0)?;
    ensure!(comm.rank().0 as i32 == world.size() - 1 - world.rank(), "{} is rank {} of MPI", comm.rank(), world.rank());
    everything_still_works(&comm)?;
    world.barrier();
    drop(comm);
    world.barrier();
    Ok(())
}

/// A communicator of one rank each: the others know nothing of it.
fn half_of_the_ranks_are_a_job() -> Result<()> {
    let Some(universe) = mpi::initialize() else { bail!("MPI was initialized before") };
    let world = universe.world();
    let Some(own) = world.split_by_color(mpi::topology::Color::with_value(world.rank())) else { bail!("no communicator") };
    rma_mpi::offer();
    let comm = Comm::join(&rma_mpi::place_on(&own)?, Config::options_from_env()?)?;
    ensure!((comm.rank().0, comm.size()) == (0, 1), "{} of {}", comm.rank(), comm.size());
    everything_still_works(&comm)
}

fn a_window_larger_than_memory_is_refused_on_every_rank() -> Result<()> {
    rma_mpi::offer();
    let comm = Comm::from_env()?;
    for (bytes, limit) in [(1 << 45, "that is the memory left"), (usize::MAX / 4, "is over the limit")] {
        let error = refused(comm.window_alloc(bytes))?;
        says(&error, &[limit, "allocate less"])?;
    }
    everything_still_works(&comm)
}

/// The last rank ends in the middle of an exchange; the others wait for it and are ended by the launcher, or learn of it.
fn ends_amid_an_exchange(end: impl Fn()) -> Result<()> {
    rma_mpi::offer();
    let comm = Comm::from_env()?;
    let (origin, target) = (comm.size() - 1, 0);
    let line = Line::new(&comm, origin, target)?;
    let mut queue = line.queue(&comm)?.commit()?;
    for number in 1..10 {
        line.step(&mut queue, number)?;
    }
    if comm.rank().0 == origin {
        end();
        bail!("this rank should have ended");
    }
    line.step(&mut queue, 10)?;
    bail!("an epoch was complete without its put")
}
