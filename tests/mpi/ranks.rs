//! Programs that are more than a conformance body: with an MPI of their own, too large, or aborting. Each is a rank of a job.

use crate::harness::Report;
use crate::launcher::{Job, alone};
use anyhow::{Result, bail, ensure};
use mpi::topology::Communicator;
use rma::{Comm, Config, Error, Rank};
use rma_tests::check::{Line, everything_still_works, refused, says};
use rustix::process::{Signal, getpid, kill_process};

/// What a rank does.
type Case = fn() -> Result<()>;

/// Every case, by its name.
pub(crate) const CASES: &[(&str, Case)] = &[
    (OWN_COMMUNICATOR, a_program_with_mpi_of_its_own_hands_its_communicator_in),
    (HALF, half_of_the_ranks_are_a_job),
    (TOO_LARGE, a_window_larger_than_memory_is_refused_on_every_rank),
    (ONE_THREAD, one_thread_at_a_time_uses_mpi),
    (FINALIZED, mpi_is_finalized_while_a_comm_is_alive),
    (EXITS, a_rank_that_exits_with_its_comm_alive_is_lost_to_the_others),
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

const ONE_THREAD: &str = "one_thread_at_a_time_uses_mpi";
const FINALIZED: &str = "mpi_is_finalized_while_a_comm_is_alive";
const EXITS: &str = "a_rank_that_exits_with_its_comm_alive_is_lost_to_the_others";

/// What a rank says that should have ended, and one that waited for it.
pub(crate) const WENT_ON: &str = "this rank should have ended";
pub(crate) const DONE_WITHOUT_PUT: &str = "an epoch was complete without its put";

/// What ends a rank that said what it was to say.
const EXIT_STATUS: i32 = 3;

pub(crate) fn run(report: &mut Report) {
    for backend in ["shm", rma_mpi::NAME] {
        for case in [OWN_COMMUNICATOR, HALF, TOO_LARGE] {
            report.test(&format!("{backend}::{case}"), || job(case, backend).succeeds());
        }
        report.test(&format!("{backend}::{EXITS}"), || {
            let outcome = job(EXITS, backend).start()?.finish()?;
            ensure!(!outcome.status.success(), "it succeeded:\n{}", outcome.text());
            ensure!(outcome.text().contains("and was lost"), "nobody noticed:\n{}", outcome.text());
            Ok(())
        });
    }
    report.test(ONE_THREAD, || alone("rma-mpi-tests", &["rank", ONE_THREAD], &[])?.finish()?.succeeded());
    report.test(&format!("{FINALIZED}_and_the_process_ends"), || {
        let outcome = alone("rma-mpi-tests", &["rank", FINALIZED], &[("RMA_BACKEND", rma_mpi::NAME)])?.finish()?;
        let words = "drop all that was made of the Comm, and it, first";
        ensure!(!outcome.status.success() && outcome.text().contains(words), "{}:\n{}", outcome.status, outcome.text());
        ensure!(!outcome.text().contains("went on"), "memory that is gone could be read:\n{}", outcome.text());
        Ok(())
    });
}

fn job(case: &str, backend: &str) -> Job {
    Job::new(2, &["rma-mpi-tests", "rank", case]).env("RMA_BACKEND", backend)
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
        bail!("{WENT_ON}");
    }
    line.step(&mut queue, 10)?;
    bail!("{DONE_WITHOUT_PUT}")
}

/// The second is refused as long as the first is there.
fn one_thread_at_a_time_uses_mpi() -> Result<()> {
    rma_mpi::offer();
    let config = || {
        let mut config = Config::default();
        config.backend = Some(rma_mpi::NAME.into());
        config
    };
    let comm = Comm::alone(config())?;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> { says(&refused(Comm::alone(config()))?, &["one thread at a time"]) });
        other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?
    })?;
    everything_still_works(&comm)?;
    drop(comm);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> { everything_still_works(&Comm::alone(config())?) });
        other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?
    })
}

/// The windows' memory goes with MPI, so the process must end before anything of it is touched.
fn mpi_is_finalized_while_a_comm_is_alive() -> Result<()> {
    let Some(universe) = mpi::initialize() else { bail!("MPI was initialized before") };
    rma_mpi::offer();
    let comm = Comm::join(&rma_mpi::place_on(&universe.world())?, Config::options_from_env()?)?;
    let window = comm.window_alloc(100)?;
    drop(universe);
    bail!("the process went on, and reads {:?}", window.read::<u8>(..)?.first())
}

/// Its process is still there, in the end of MPI, and waits for the other.
fn a_rank_that_exits_with_its_comm_alive_is_lost_to_the_others() -> Result<()> {
    rma_mpi::offer();
    let comm = Comm::from_env()?;
    let line = Line::new(&comm, 1, 0)?;
    let mut queue = line.queue(&comm)?.commit()?;
    line.step(&mut queue, 1)?;
    if comm.rank().0 == 1 {
        std::process::exit(EXIT_STATUS);
    }
    let error = refused(line.step(&mut queue, 2).map_err(|error| match error.downcast::<Error>() {
        Ok(error) => error,
        Err(other) => Error::Launch(format!("another error: {other:#}")),
    }))?;
    ensure!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "another error: {}", error.full_text());
    bail!("rank 1 exited and was lost: {}", error.full_text())
}
