//! No silent hang: who waits for something that does not come learns what, from whom, and whether that one is alive.
//! Times are short and per queue; no rank relies on another being slow.

use crate::check::{Line, PATIENCE, everything_still_works, refused, says, tests_until_refused};
use anyhow::{bail, ensure};
use rma::bootstrap::Departure;
use rma::{Comm, Epoch, Error, Rank};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(200);

/// The last rank stops after epoch 11, rank 0 waits for epoch 12.
pub fn a_wait_that_times_out_names_what_is_missing(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let line = Line::new(comm, origin, target)?;
    let rail = comm.rails().min(2) - 1;
    let mut queue = line.queue_on(comm, Some(rail))?;
    queue.timeout(Some(SHORT));
    let mut queue = queue.commit()?;
    for number in 1..=11 {
        line.step(&mut queue, number)?;
    }
    if comm.rank().0 == target {
        let begin = Instant::now();
        let error = refused(queue.start()?.wait().map(drop))?;
        let Error::WaitTimeout { epoch, queue: id, waited, .. } = &error else { bail!("another error: {error}") };
        ensure!(epoch.0 == 12 && *id == queue.id(), "at {epoch} of {id} instead of epoch 12 of {}", queue.id());
        ensure!(*waited >= SHORT && *waited <= begin.elapsed(), "waited {waited:?} of {:?}", begin.elapsed());
        says(
            &error,
            &[
                format!("wait timed out after {:.1} s at epoch 12", waited.as_secs_f64()),
                format!("no arrival from origin {origin} on rail {rail} (rank {origin} is alive, at epoch 11)"),
            ],
        )?;
    }
    comm.barrier()?;
    queue.clear();
    everything_still_works(comm)
}

/// The deadline of a queue counts for a program that looks again and again instead of waiting.
pub fn test_alone_times_out_as_a_wait_does(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let line = Line::new(comm, origin, target)?;
    let mut queue = line.queue(comm)?;
    queue.timeout(Some(SHORT));
    let mut queue = queue.commit()?;
    line.step(&mut queue, 1)?;
    if comm.rank().0 == target {
        let begin = Instant::now();
        let error = tests_until_refused(queue.start()?)?;
        let Error::WaitTimeout { epoch, waited, .. } = &error else { bail!("another error: {error}") };
        ensure!(epoch.0 == 2, "at {epoch} instead of epoch 2");
        ensure!(*waited >= SHORT && *waited <= begin.elapsed(), "waited {waited:?} of {:?}", begin.elapsed());
        ensure!(begin.elapsed() < PATIENCE / 6, "only after {:?}", begin.elapsed());
        says(&error, &[format!("no arrival from origin {origin} on rail"), format!("(rank {origin} is alive, at epoch 1)")])?;
        says(&refused(queue.start().map(drop))?, &[error.to_string()])?;
    }
    comm.barrier()?;
    queue.clear();
    everything_still_works(comm)
}

/// The target holds epoch 1, so the origin's epoch 2 lacks its credit.
pub fn a_wait_for_credit_that_times_out_names_the_target(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let mut queue = line.queue(comm)?;
    queue.timeout(Some(SHORT));
    let mut queue = queue.commit()?;
    if comm.rank().0 == origin {
        line.step(&mut queue, 1)?;
        let error = refused(queue.start()?.wait().map(drop))?;
        ensure!(matches!(error, Error::WaitTimeout { .. }), "another error: {error}");
        says(&error, &[format!("no credit from target {target} (rank {target} is alive")])?;
        comm.barrier()?;
    } else if comm.rank().0 == target {
        // Not the time of this queue: its origin may be late.
        let arrived = queue.start()?.wait()?;
        comm.barrier()?;
        drop(arrived);
    } else {
        comm.barrier()?;
    }
    queue.clear();
    everything_still_works(comm)
}

/// After a time-out the queue refuses to start with the first reason; another goes on; cleared and committed anew it works.
pub fn a_queue_that_timed_out_is_poisoned_and_can_be_cleared(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let (line, other) = (Line::new(comm, origin, target)?, Line::new(comm, origin, target)?);
    let mut queue = line.queue(comm)?;
    queue.timeout(Some(SHORT));
    let mut queue = queue.commit()?;
    let mut other_queue = other.queue(comm)?.commit()?;
    other.step(&mut other_queue, 1)?;
    if comm.rank().0 == target {
        let first = refused(queue.start()?.wait().map(drop))?;
        for _ in 0..3 {
            let again = refused(queue.start().map(drop))?;
            ensure!(matches!(&again, Error::Poisoned { epoch, .. } if epoch.0 == 1), "another error: {again}");
            says(&again, &[first.to_string(), "clear".into(), queue.id().to_string()])?;
        }
    }
    for number in 2..10 {
        other.step(&mut other_queue, number)?;
    }
    queue.clear();
    let mut queue = line.queue(comm)?.commit()?;
    for number in 1..10 {
        line.step(&mut queue, number)?;
        other.step(&mut other_queue, 2 * number)?;
    }
    Ok(())
}

/// A flight that is dropped makes its queue unusable until it is cleared, and nothing else.
pub fn a_dropped_flight_poisons_only_its_queue(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let (line, other) = (Line::new(comm, 0, size - 1)?, Line::new(comm, size - 1, 0)?);
    let mut queue = line.queue(comm)?.commit()?;
    let mut other_queue = other.queue(comm)?.commit()?;
    line.step(&mut queue, 1)?;
    drop(queue.start()?);
    let error = refused(queue.start().map(drop))?;
    ensure!(matches!(&error, Error::Poisoned { epoch, .. } if epoch.0 == 2), "another error: {error}");
    says(&error, &["dropped", "clear"])?;
    for number in 1..10 {
        other.step(&mut other_queue, number)?;
    }
    let mut open = queue.clear();
    open.expose(&line.inbox)?;
    open.commit()?.clear();
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 2)?;
    queue.clear();
    line.inbox.free()?;
    line.outbox.free()?;
    Ok(())
}

/// An origin that cleared after epoch 3 is named to the target that waits for epoch 4, at once.
pub fn a_partner_that_clears_early_is_named(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let line = Line::new(comm, origin, target)?;
    let mut queue = line.queue(comm)?.commit()?;
    for number in 1..=3 {
        line.step(&mut queue, number)?;
    }
    if comm.rank().0 == target {
        let error = refused(queue.start()?.wait().map(drop))?;
        let named = matches!(&error, Error::PeerCleared { rank, epoch: Some(Epoch(3)), .. } if *rank == Rank(origin));
        ensure!(named, "another error: {error}");
        let cleared = format!("rank {origin} cleared or dropped {} after epoch 3", queue.id());
        says(&error, &[cleared, format!("arrival from origin {origin}")])?;
        says(&refused(queue.start().map(drop))?, &[error.to_string()])?;
    }
    queue.clear();
    everything_still_works(comm)
}

/// The same for a target that only tests.
pub fn test_alone_names_a_partner_that_clears_early(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let line = Line::new(comm, origin, target)?;
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 1)?;
    if comm.rank().0 == target {
        let begin = Instant::now();
        let error = tests_until_refused(queue.start()?)?;
        let named = matches!(&error, Error::PeerCleared { rank, epoch: Some(Epoch(1)), .. } if *rank == Rank(origin));
        ensure!(named, "another error: {error}");
        ensure!(begin.elapsed() < PATIENCE / 6, "only after {:?}", begin.elapsed());
    }
    queue.clear();
    everything_still_works(comm)
}

/// A target that cleared gives no credit any more: its origin learns so as soon as it lacks one.
pub fn a_target_that_clears_early_is_named(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    for at_start in [false, true] {
        let mut queue = line.queue(comm)?;
        if at_start {
            queue.expose_at_start();
        }
        let mut queue = queue.commit()?;
        for number in 1..=3 {
            line.step(&mut queue, number)?;
        }
        if comm.rank().0 == origin {
            // Exposed early, epoch 4 has its credit already, if the clear came late enough.
            let first = queue.start()?.wait().map(drop);
            ensure!(!at_start || first.is_err(), "epoch 4 ended though its target had not started it");
            let error = match first {
                Err(error) => error,
                Ok(()) => refused(queue.start()?.wait().map(drop))?,
            };
            ensure!(matches!(&error, Error::PeerCleared { rank, .. } if *rank == Rank(target)), "another error: {error}");
            says(&error, &[format!("rank {target} cleared"), format!("credit from target {target}")])?;
        }
        queue.clear();
        everything_still_works(comm)?;
    }
    Ok(())
}

/// The target gives the credit that the origin's put lacks when the origin is in a call of all ranks already, and comes to that call only
/// when the put has arrived. The same with a lease of the origin on what the target may write until it clears another queue.
pub fn a_put_goes_out_when_its_credit_comes_whatever_the_origin_waits_for(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let (line, back) = (Line::new(comm, origin, target)?, Line::new(comm, target, origin)?);
    let mut queue = line.queue(comm)?;
    queue.timeout(Some(PATIENCE / 2));
    let (mut queue, back_queue) = (queue.commit()?, back.queue(comm)?.commit()?);
    let arrived = queue.start()?.wait()?;
    if comm.rank().0 == target {
        comm.barrier()?;
        drop(arrived);
        let arrived = queue.start()?.wait()?;
        comm.barrier()?;
        comm.barrier()?;
        drop(arrived);
        drop(queue.start()?.wait()?);
        back_queue.clear();
    } else {
        drop(arrived);
        let flight = queue.start()?;
        comm.barrier()?;
        comm.barrier()?;
        drop(flight.wait()?);
        back_queue.clear();
        let flight = queue.start()?;
        comm.barrier()?;
        back.inbox.write::<u64>(..)?[0] = 1;
        drop(flight.wait()?);
    }
    comm.barrier()?;
    queue.clear();
    everything_still_works(comm)
}

/// The last rank ends at once; the others' collective calls name it instead of waiting.
pub fn a_rank_that_left_is_named_in_collective_calls(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let gone = comm.size() - 1;
    let window = comm.window_alloc(8)?;
    if comm.rank().0 == gone {
        return Ok(());
    }
    let begin = Instant::now();
    for call in ["barrier", "window_alloc", "commit"] {
        let error = refused(match call {
            "barrier" => comm.barrier(),
            "window_alloc" => comm.window_alloc(8).map(drop),
            _ => comm.queue_alloc(&window)?.commit().map(drop),
        })?;
        let Error::PeerLost { rank, how, .. } = &error else { bail!("another error of {call}: {error}") };
        // Another rank that has seen it may have ended since.
        ensure!(*rank == Rank(gone) || call != "barrier", "{rank} instead of rank {gone}: {error}");
        ensure!(*how == Departure::Left, "a rank that left in good order: {error}");
        says(&error, &["left"])?;
    }
    ensure!(begin.elapsed() < PATIENCE / 3, "only after {:?}", begin.elapsed());
    Ok(())
}

/// The last rank ends after epoch 3, and all others wait for its epoch 4.
pub fn a_rank_that_left_is_named_by_who_waits_for_it(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let gone = size - 1;
    let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
    let mut queue = comm.queue_alloc(&inbox)?;
    if me == gone {
        for target in 0..gone {
            queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, target)?)?;
        }
    } else {
        queue.add_origin(gone)?;
    }
    let mut queue = queue.commit()?;
    for _ in 1..=3 {
        queue.start()?.wait()?;
    }
    if me == gone {
        return Ok(());
    }
    let begin = Instant::now();
    let error = refused(queue.start()?.wait().map(drop))?;
    // It drops its queue before it goes: what is seen first depends on the moment.
    match &error {
        Error::PeerCleared { rank, .. } | Error::PeerLost { rank, .. } => ensure!(*rank == Rank(gone), "another rank: {error}"),
        _ => bail!("another error: {error}"),
    }
    ensure!(begin.elapsed() < PATIENCE / 3, "only after {:?}", begin.elapsed());
    Ok(())
}
