//! Commit agrees or fails on every rank, with both sides named to those concerned; afterwards everything still works.

use crate::check::{Line, PATIENCE, everything_still_works, refused, says};
use anyhow::{Context, ensure};
use rma::{Comm, Error, Open, RmaQueue};
use std::time::Instant;

/// Collective: the commit fails on every rank; on those of `concerned` the text names all of them and has all `words`.
fn is_refused(comm: &Comm, queue: RmaQueue<Open>, concerned: &[u32], words: &[&str]) -> anyhow::Result<()> {
    let error = refused(queue.commit().map(drop))?;
    ensure!(matches!(error, Error::CommitRefused { .. }), "another error: {error}");
    if concerned.contains(&comm.rank().0) {
        let names: Vec<_> = concerned.iter().map(|rank| format!("rank {rank}")).collect();
        says(&error, &names)?;
        says(&error, words)?;
    }
    everything_still_works(comm)
}

/// Rank 0 writes the last rank, which has not added it.
pub fn commit_refuses_a_put_whose_target_does_not_expect_it(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let mut queue = comm.queue_alloc(&line.inbox)?;
    if comm.rank().0 == origin {
        queue.push(&comm.declare_write(&line.inbox, 0, &line.outbox, 0, 8, target)?)?;
    }
    is_refused(comm, queue, &[origin, target], &["origin"])?;
    // With the origin added the same works.
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 17)
}

/// The last rank expects rank 0, which pushes nothing, or pushes something for another rank.
pub fn commit_refuses_an_origin_that_pushes_nothing(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let mut queue = comm.queue_alloc(&line.inbox)?;
    if comm.rank().0 == target {
        queue.add_origin(origin)?;
    }
    is_refused(comm, queue, &[origin, target], &["origin"])?;
    let mut queue = comm.queue_alloc(&line.inbox)?;
    if comm.rank().0 == target {
        queue.add_origin(origin)?;
    }
    if comm.rank().0 == origin {
        queue.push(&comm.declare_write(&line.inbox, 0, &line.outbox, 0, 8, origin)?)?.add_origin(origin)?;
    }
    is_refused(comm, queue, &[origin, target], &["origin"])
}

/// Two puts of one rank write a byte twice, contiguous or with their blocks between each other's.
pub fn commit_refuses_overlapping_puts_of_one_origin(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let (outbox, inbox) = (comm.window_alloc(64)?, comm.window_alloc(64)?);
    // (offset, block, count, stride) of two puts, and the first byte they share.
    for (one, two, byte) in
        [((0, 16, 1, 16), (15, 16, 1, 16), 15), ((0, 4, 4, 16), (20, 4, 2, 12), 32), ((8, 8, 2, 8), (23, 1, 1, 1), 23)]
    {
        let mut queue = comm.queue_alloc(&inbox)?;
        if comm.rank().0 == origin {
            for (offset, block, count, stride) in [one, two] {
                let put = comm.declare_write(&inbox, offset, &outbox, 0, block, target)?.blocks(count, stride, stride)?;
                queue.push(&put)?;
            }
        }
        if comm.rank().0 == target {
            queue.add_origin(origin)?;
        }
        let byte = format!("bytes {byte}..");
        is_refused(comm, queue, &[origin, target], &[&byte, &inbox.id().to_string()])
            .with_context(|| format!("{one:?} and {two:?}"))?;
    }
    Ok(())
}

/// Two ranks write the same byte of a third (with two ranks: of one of them).
pub fn commit_refuses_overlapping_puts_of_two_origins(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let (one, two, target) = (0, size - 1, 1);
    let (outbox, inbox) = (comm.window_alloc(64)?, comm.window_alloc(64)?);
    let mut queue = comm.queue_alloc(&inbox)?;
    for (origin, offset) in [(one, 0), (two, 31)] {
        if comm.rank().0 == origin {
            queue.push(&comm.declare_write(&inbox, offset, &outbox, 0, 32, target)?)?;
        }
        if comm.rank().0 == target {
            queue.add_origin(origin)?;
        }
    }
    is_refused(comm, queue, &[one, two, target], &["bytes 31..32"])
}

/// While a queue is exposed early, no other may receive into the same bytes; once it is cleared one may.
pub fn commit_refuses_overlap_with_another_committed_queue(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let mut first = line.queue(comm)?.commit()?;
    line.step(&mut first, 1)?;
    let mut second = line.queue(comm)?;
    second.expose(&line.outbox)?;
    let first_name = first.id().to_string();
    is_refused(comm, second, &[target], &[&first_name])?;
    line.step(&mut first, 2)?;
    first.clear();
    let mut second = line.queue(comm)?.commit()?;
    line.step(&mut second, 3)
}

/// Sharing needs both queues to be exposed at start.
pub fn commit_refuses_overlap_of_early_and_at_start(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let line = Line::new(comm, origin, target)?;
    for early_first in [true, false] {
        let mut first = line.queue(comm)?;
        let mut second = line.queue(comm)?;
        if early_first { &mut second } else { &mut first }.expose_at_start();
        let mut first = first.commit()?;
        let first_name = first.id().to_string();
        is_refused(comm, second, &[target], &[&first_name, "expose_at_start"])?;
        line.step(&mut first, 4)?;
    }
    Ok(())
}

/// The target's queue exposes one window, the put goes to another.
pub fn commit_refuses_a_window_that_is_not_exposed(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let other = comm.window_alloc(8)?;
    let queue_that_exposes_other = || {
        let mut queue = comm.queue_alloc(&other)?;
        if comm.rank().0 == origin {
            queue.push(&comm.declare_write(&line.inbox, 0, &line.outbox, 0, 8, target)?)?;
        }
        if comm.rank().0 == target {
            queue.add_origin(origin)?;
        }
        Ok::<_, Error>(queue)
    };
    is_refused(comm, queue_that_exposes_other()?, &[origin, target], &[&line.inbox.id().to_string(), "expose"])?;
    let mut queue = queue_that_exposes_other()?;
    queue.expose(&line.inbox)?;
    line.step(&mut queue.commit()?, 5)
}

/// One side does without credits, the other does not.
pub fn commit_refuses_credits_on_one_side_only(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    for without in [origin, target] {
        let mut queue = line.queue(comm)?;
        if comm.rank().0 == without {
            #[allow(unsafe_code, reason = "the only way to do without credits")]
            // SAFETY: the commit is refused, so no epoch is ever started.
            unsafe {
                queue.without_credits()
            };
        }
        is_refused(comm, queue, &[origin, target], &["credits"])?;
    }
    Ok(())
}

/// A lease on what origins are to write stands against the commit, on the target and so on all.
pub fn commit_refuses_to_expose_leased_bytes(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let queue = line.queue(comm)?;
    let lease = line.inbox.read::<u64>(..)?;
    let error = refused(queue.commit().map(drop))?;
    if comm.rank().0 == target {
        says(&error, &["lease", &line.inbox.id().to_string()])?;
    } else {
        says(&error, &[format!("rank {target}")])?;
    }
    drop(lease);
    everything_still_works(comm)?;
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 6)
}

/// What origins may write at any time cannot be the source of a put: in the same queue, or of another.
pub fn commit_refuses_sources_that_origins_write(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let (shared, elsewhere) = (comm.window_alloc(16)?, comm.window_alloc(16)?);
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let mut receives = comm.queue_alloc(&shared)?;
    receives.push(&comm.declare_write(&shared, 0, &elsewhere, 0, 8, next)?)?.add_origin(previous)?;
    let receives = receives.commit()?;
    let mut sends = comm.queue_alloc(&elsewhere)?;
    sends.push(&comm.declare_write(&elsewhere, 8, &shared, 7, 8, next)?)?.add_origin(previous)?;
    let error = refused(sends.commit().map(drop)).context("a source in another queue's received range")?;
    says(&error, &["bytes 7..8", &receives.id().to_string()])?;
    receives.clear();
    everything_still_works(comm)?;

    let mut both = comm.queue_alloc(&shared)?;
    both.push(&comm.declare_write(&shared, 0, &shared, 4, 8, next)?)?.add_origin(previous)?;
    let error = refused(both.commit().map(drop)).context("a source in the received range of its own queue")?;
    says(&error, &["bytes 4..8", &shared.id().to_string()])?;
    everything_still_works(comm)
}

/// A commit on one rank meets a barrier on the others: nobody hangs, and both calls are in the text.
pub fn different_collective_calls_are_named_on_every_rank(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let window = comm.window_alloc(8)?;
    let result = if comm.rank().0 == 0 { comm.queue_alloc(&window)?.commit().map(drop) } else { comm.window_alloc(8).map(drop) };
    let error = refused(result)?;
    // The first to notice may end and be seen to go by those that notice later.
    let expected = matches!(error, Error::CollectiveMismatch { .. } | Error::PeerLost { .. });
    ensure!(expected, "another error: {error}");
    if matches!(error, Error::CollectiveMismatch { .. }) {
        says(&error, &["commit", "window_alloc"])?;
    }
    Ok(())
}

/// One rank asks for more than there can be: all get an error, the window is on none, and the next allocation works.
pub fn an_allocation_that_fails_on_one_rank_fails_on_all(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let greedy = comm.size() - 1;
    for bytes in [usize::MAX, isize::MAX as usize + 1, isize::MAX as usize, 1 << 60] {
        let error = refused(comm.window_alloc(if comm.rank().0 == greedy { bytes } else { 8 }).map(drop))?;
        says(&error, &["window".into(), format!("rank {greedy}"), bytes.to_string()])?;
    }
    everything_still_works(comm)
}

/// The target clears a queue and its origin does not: the same ranges committed again are refused on every rank, with the queue that
/// stands against them, long before the deadline of collective calls.
pub fn commit_refuses_ranges_that_only_this_rank_has_cleared(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 1)?;
    let id = queue.id().to_string();
    let kept = if comm.rank().0 == target {
        queue.clear();
        None
    } else {
        Some(queue)
    };
    let begin = Instant::now();
    is_refused(comm, line.queue(comm)?, &[target], &[&id, "clear"])?;
    ensure!(begin.elapsed() < PATIENCE / 6, "refused only after {:?}", begin.elapsed());
    drop(kept);
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 2)
}
