//! Window memory is reached through leases: what may be in motion is refused with the reason, the rest is free at any time.

use crate::check::{Line, everything_still_works, refused, refuses_access, says};
use crate::exchange::Exchange;
use crate::plan::ring_plan;
use anyhow::{Context, bail, ensure};
use rma::{Comm, Error, RmaWindow};

/// Reading twice is fine, reading and writing is not; what touches without overlapping is free.
pub fn leases_exclude_each_other_where_one_writes(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let window = comm.window_alloc(64)?;
    let (read, again) = (window.read::<u8>(8..24)?, window.read::<u8>(16..32)?);
    says(&refused(window.write::<u8>(23..40))?, &["bytes 23..40", "lease"])?;
    let mut behind = window.write::<u64>(32..40)?;
    behind[0] = 7;
    says(&refused(window.read::<u8>(39..40))?, &["bytes 39..40", "lease"])?;
    says(&refused(window.write::<u8>(..))?, &["bytes 0..64", "lease"])?;
    window.write::<u8>(..8)?.fill(1);
    window.write::<u8>(40..)?.fill(2);
    drop((read, again));
    window.write::<u8>(8..32)?.fill(3);
    drop(behind);
    let all = window.read::<u8>(..)?;
    let expected: Vec<u8> = [vec![1; 8], vec![3; 24], 7u64.to_ne_bytes().to_vec(), vec![2; 24]].concat();
    ensure!(*all == expected[..], "{:?} instead of {expected:?}", &*all);
    Ok(())
}

/// 192 bytes: 64 to send, 64 to receive, 64 for itself.
fn three_parts(comm: &Comm) -> anyhow::Result<(RmaWindow, rma::RmaQueue<rma::Ready>)> {
    let (me, size) = (comm.rank().0, comm.size());
    let window = comm.window_alloc(192)?;
    let mut queue = comm.queue_alloc(&window)?;
    queue.push(&comm.declare_write(&window, 64, &window, 0, 64, (me + 1) % size)?)?.add_origin((me + size - 1) % size)?;
    Ok((window, queue.commit()?))
}

/// From commit to clear the received range is reached through `Arrived` alone.
pub fn exposed_ranges_are_refused_and_the_rest_is_free(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (window, mut queue) = three_parts(comm)?;
    let others_are_refused = |when: &str| {
        for bytes in [64..128, 64..65, 127..128, 0..65, 127..192, 0..192] {
            refuses_access(&window, bytes).with_context(|| when.to_string())?;
        }
        Ok::<(), anyhow::Error>(())
    };
    for epoch in 1..=5u8 {
        others_are_refused("between flights")?;
        window.write::<u8>(..64)?.fill(epoch);
        window.write::<u8>(128..)?.fill(100 + epoch);
        let flight = queue.start()?;
        others_are_refused("in flight")?;
        let arrived = flight.wait()?;
        others_are_refused("while it is held, past it")?;
        {
            let mut received = arrived.write::<u8>(&window, 64..128)?;
            ensure!(received.iter().all(|&byte| byte == epoch), "epoch {epoch}: {:?}", &*received);
            received.fill(0);
            says(&refused(arrived.read::<u8>(&window, ..))?, &["lease"])?;
        }
        ensure!(arrived.read::<u8>(&window, 128..)?.iter().all(|&byte| byte == 100 + epoch), "the rest has changed");
    }
    queue.clear();
    window.write::<u8>(..)?.fill(0);
    Ok(())
}

/// A flight that cannot end yet: its target starts only after a barrier.
pub fn sources_may_be_read_but_not_written_in_flight(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let mut queue = line.queue(comm)?;
    queue.expose_at_start();
    let mut queue = queue.commit()?;
    let queue_id = queue.id();
    for number in seed >> 1..(seed >> 1) + 5 {
        if comm.rank().0 == origin {
            line.outbox.write::<u64>(..)?[0] = number;
            let flight = queue.start()?;
            let error = refused(line.outbox.write::<u8>(7..8))?;
            ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
            says(&error, &[line.outbox.id().to_string(), queue_id.to_string()])?;
            ensure!(line.outbox.read::<u64>(..)?[0] == number, "the source has changed");
            comm.barrier()?;
            let arrived = flight.wait()?;
            line.outbox.write::<u64>(..)?[0] = 0;
            drop(arrived);
        } else {
            comm.barrier()?;
            let arrived = queue.start()?.wait()?;
            if comm.rank().0 == target {
                let found = arrived.read::<u64>(&line.inbox, ..)?[0];
                ensure!(found == number, "{found} instead of {number}");
            }
        }
    }
    comm.barrier()?;
    Ok(())
}

/// A refused start has not started anything: with the lease gone the same epoch works.
pub fn start_is_refused_while_a_source_is_leased_for_writing(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (window, mut queue) = three_parts(comm)?;
    for epoch in 1..=5 {
        let mut lease = window.write::<u64>(56..64)?;
        lease[0] = epoch;
        let error = refused(queue.start().map(drop))?;
        ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
        says(&error, &["bytes 56..64", "lease"])?;
        drop(lease);
        let arrived = queue.start()?.wait()?;
        ensure!(arrived.epoch().0 == epoch, "{} instead of epoch {epoch}", arrived.epoch());
        let found = arrived.read::<u64>(&window, 120..128)?[0];
        ensure!(found == epoch, "{found} instead of {epoch}");
    }
    Ok(())
}

/// The same for what origins will write, where it is ordinary memory until then; reading stands in the way as well.
pub fn start_is_refused_while_a_received_range_is_leased(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, ring_plan(seed, comm.size(), 64))?;
    let mut queue = exchange.queue(|_| true)?;
    queue.expose_at_start();
    // A lease from before the commit is no hindrance to it.
    let lease = exchange.windows[0].read::<u8>(127..128)?;
    let mut queue = queue.commit()?;
    says(&refused(queue.start().map(drop))?, &["bytes 127..128", "lease"])?;
    drop(lease);
    for epoch in 1..=5 {
        let lease = exchange.windows[0].write::<u8>(64..65)?;
        let error = refused(queue.start().map(drop))?;
        ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
        says(&error, &["bytes 64..65", "lease"])?;
        drop(lease);
        exchange.run(&mut queue, epoch, 1)?;
    }
    Ok(())
}

/// The received range of a queue is not touched through the epoch of another; nor is anything of another Comm's window.
pub fn arrived_leases_reach_no_other_queue(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (mut one, mut two) =
        (Exchange::new(comm, ring_plan(seed, comm.size(), 32))?, Exchange::new(comm, ring_plan(!seed, comm.size(), 32))?);
    let (mut first, mut second) = (one.queue(|_| true)?.commit()?, two.queue(|_| true)?.commit()?);
    one.fill(1)?;
    two.fill(1)?;
    let arrived = first.start()?.wait()?;
    one.expect(1, |_| true);
    one.check_all(&arrived)?;
    let error = refused(arrived.read::<u8>(&two.windows[0], 63..64))?;
    ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
    refused(arrived.write::<u8>(&two.windows[0], ..))?;
    arrived.read::<u8>(&two.windows[0], ..32)?;
    drop(arrived);
    let arrived = second.start()?.wait()?;
    two.expect(1, |_| true);
    two.check_all(&arrived)
}

/// A write lease on the interior lives from before the start to after the wait.
pub fn the_interior_is_computed_while_the_exchange_is_in_flight(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let (window, mut queue) = three_parts(comm)?;
    let mut sum = 0;
    for epoch in 1..=100u64 {
        window.write::<u64>(..64)?.fill(epoch * 1000 + u64::from(me));
        let mut interior = window.write::<u64>(128..)?;
        let mut flight = queue.start()?;
        // By other threads, too: the lease stays here, its elements may be used anywhere.
        std::thread::scope(|scope| {
            for half in interior.chunks_mut(4).filter(|_| epoch % 10 == 0) {
                scope.spawn(move || half.iter_mut().for_each(|cell| *cell += epoch));
            }
        });
        interior.iter_mut().filter(|_| epoch % 10 != 0).for_each(|cell| *cell += epoch);
        flight.test()?;
        interior.iter_mut().for_each(|cell| *cell += epoch);
        let arrived = flight.wait()?;
        sum += 2 * epoch;
        ensure!(interior.iter().all(|&cell| cell == sum), "epoch {epoch}: {:?} instead of {sum}", &*interior);
        let edge = arrived.read::<u64>(&window, 64..128)?;
        let expected = epoch * 1000 + u64::from((me + size - 1) % size);
        ensure!(edge.iter().all(|&cell| cell == expected), "epoch {epoch}: {:?} instead of {expected}", &*edge);
    }
    Ok(())
}

/// All but rank 0 have cleared: nobody's window is freed, and everybody has it back; once rank 0 has cleared, it goes.
pub fn free_with_a_queue_alive_gives_every_rank_its_window_back(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (window, mut queue) = three_parts(comm)?;
    window.write::<u8>(128..)?.fill(9);
    queue.start()?.wait()?;
    let id = window.id();
    let mut queue = Some(queue);
    if comm.rank().0 != 0 {
        queue.take().map(|queue| queue.clear());
    }
    let mut window = window;
    for _ in 0..3 {
        let failed = match window.free() {
            Ok(()) => bail!("freed though rank 0 has a queue on it"),
            Err(failed) => failed,
        };
        says(failed.error(), &["free", "rank 0"])?;
        if let Some(queue) = &queue {
            says(failed.error(), &[queue.id().to_string()])?;
        }
        window = failed.into_window().context("the window did not come back")?;
        ensure!(window.id() == id, "{} came back instead of {id}", window.id());
        ensure!(window.read::<u8>(128..)?.iter().all(|&byte| byte == 9), "the memory is not what it was");
    }
    drop(queue);
    window.free()?;
    everything_still_works(comm)
}

/// A queue that exposes a window, or reads it, keeps it, even if it has no byte to move there.
pub fn free_is_refused_while_a_queue_without_bytes_is_on_the_window(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    for with_empty_put in [false, true] {
        let (window, elsewhere) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
        let mut queue = comm.queue_alloc(&window)?;
        if with_empty_put {
            queue.push(&comm.declare_write(&window, 8, &elsewhere, 8, 0, (me + 1) % size)?)?.add_origin((me + size - 1) % size)?;
        }
        let mut queue = queue.commit()?;
        queue.start()?.wait()?;
        let Err(failed) = window.free() else { bail!("freed with {} on it (with an empty put: {with_empty_put})", queue.id()) };
        says(failed.error(), &[queue.id().to_string()])?;
        queue.clear();
        failed.into_window().context("the window did not come back")?.free()?;
        elsewhere.free()?;
    }
    Ok(())
}

/// Ranks that free different windows at the same time are told so, and have them back.
pub fn free_of_different_windows_is_refused_on_every_rank(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (one, two) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
    let (ids, mut windows) = ([one.id(), two.id()], [Some(one), Some(two)]);
    let mine = usize::from(comm.rank().0 == 0);
    let window = windows[mine].take().context("bug: there are two windows")?;
    let Err(failed) = window.free() else { bail!("{} was freed while rank 0 frees {}", ids[0], ids[1]) };
    says(failed.error(), &["rank 0", "free"])?;
    windows[mine] = failed.into_window();
    for window in windows {
        window.context("the window did not come back")?.free()?;
    }
    everything_still_works(comm)
}

/// Declared puts do not keep a window from being freed; what is then done with them is refused.
pub fn free_leaves_declared_puts_harmless(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (gone, alive) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
    let to_gone = comm.declare_write(&gone, 0, &alive, 0, 8, comm.rank())?;
    let from_gone = comm.declare_write(&alive, 0, &gone, 0, 8, comm.rank())?;
    let name = gone.id().to_string();
    let mut queue_with_gone = comm.queue_alloc(&gone)?;
    queue_with_gone.push(&to_gone)?.add_origin(comm.rank())?;
    gone.free()?;
    let mut queue = comm.queue_alloc(&alive)?;
    for put in [&to_gone, &from_gone] {
        says(&refused(queue.push(put).map(drop))?, &[&name, "free"])?;
    }
    let error = refused(queue_with_gone.commit().map(drop)).context("an open queue on a freed window")?;
    says(&error, &[&name, "free"])?;
    everything_still_works(comm)
}

/// The target drops its window while the queue lives: what arrives there can still be passed on, and harms nothing else.
pub fn a_window_dropped_by_its_owner_can_still_be_written(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (origin, relay) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, relay)?;
    let back = comm.window_alloc(8)?;
    let mut there = line.queue(comm)?;
    there.expose_at_start();
    let mut there = there.commit()?;
    let mut home = comm.queue_alloc(&back)?;
    if comm.rank().0 == relay {
        home.push(&comm.declare_write(&back, 0, &line.inbox, 0, 8, origin)?)?;
    }
    if comm.rank().0 == origin {
        home.add_origin(relay)?;
    }
    let mut home = home.commit()?;
    let Line { outbox, inbox, .. } = line;
    drop(inbox);
    // Memory that would be given out again if the dropped window's were.
    let fresh = comm.window_alloc(8)?;
    for number in seed >> 1..(seed >> 1) + 20 {
        if comm.rank().0 == origin {
            outbox.write::<u64>(..)?[0] = number;
        }
        there.start()?.wait()?;
        let arrived = home.start()?.wait()?;
        if comm.rank().0 == origin {
            let found = arrived.read::<u64>(&back, ..)?[0];
            ensure!(found == number, "{found} instead of {number}");
        }
        ensure!(fresh.read::<u64>(..)?[0] == 0, "the put went into another window");
    }
    Ok(())
}

/// The target clears and drops everything at once; its origin, which may not know yet, writes once more: into nobody's memory.
pub fn what_a_partner_may_still_write_goes_nowhere_else(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    for life in 0..20 {
        let Line { outbox, inbox, .. } = {
            let line = Line::new(comm, origin, target)?;
            let mut queue = line.queue(comm)?.commit()?;
            line.step(&mut queue, life)?;
            if comm.rank().0 == target {
                queue.clear();
                let Line { inbox, .. } = line;
                drop(inbox);
                let fresh: Vec<_> = (0..4).map(|_| comm.window_alloc(8)).collect::<Result<_, _>>()?;
                comm.barrier()?;
                // By now the origin has written, if it could.
                for window in &fresh {
                    ensure!(window.read::<u64>(..)?[0] == 0, "a put for a window that is gone went into {}", window.id());
                }
                continue;
            }
            let _fresh: Vec<_> = (0..4).map(|_| comm.window_alloc(8)).collect::<Result<_, _>>()?;
            if comm.rank().0 == origin {
                line.outbox.write::<u64>(..)?[0] = u64::MAX;
                // Whether the credit was there already is for `waiting` to check.
                drop(queue.start()?.wait());
            }
            comm.barrier()?;
            line
        };
        drop((outbox, inbox));
    }
    everything_still_works(comm)
}
