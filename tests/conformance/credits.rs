//! Nothing of an epoch is written into a target before the target granted it: exposed early, exposed at start, or by the program's
//! own order. Ranks learn what others have done through a second queue, never through time.

use crate::check::{Line, refused, refuses_access, says};
use crate::exchange::Exchange;
use crate::plan::{Plan, Shape, all_pairs, ring_plan};
use anyhow::ensure;
use rma::{Comm, Error};

/// A ring in which ranks hold what arrived for a while, now and then, and look at it twice; or are late with their start.
fn uneven_ring(comm: &Comm, seed: u64, slow_reader: bool) -> anyhow::Result<()> {
    const EPOCHS: u64 = 2000;
    let (me, size) = (comm.rank().0, comm.size());
    let mut rng = fastrand::Rng::with_seed(seed ^ u64::from(me));
    let (outbox, inbox) = (comm.window_alloc(256)?, comm.window_alloc(256)?);
    let mut queue = comm.queue_alloc(&inbox)?;
    let previous = (me + size - 1) % size;
    queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 256, (me + 1) % size)?)?.add_origin(previous)?;
    let mut queue = queue.commit()?;
    let word = |rank: u32, epoch: u64, i: usize| epoch << 24 | u64::from(rank) << 8 | i as u64;
    for epoch in 1..=EPOCHS {
        let pause = if rng.u32(0..40) == 0 { rng.u32(0..60) } else { 0 };
        outbox.write::<u64>(..)?.iter_mut().enumerate().for_each(|(i, cell)| *cell = word(me, epoch, i));
        if !slow_reader {
            (0..pause).for_each(|_| std::thread::yield_now());
        }
        let arrived = queue.start()?.wait()?;
        for _ in 0..2 {
            let words = arrived.read::<u64>(&inbox, ..)?;
            let wrong = words.iter().enumerate().find(|&(i, &found)| found != word(previous, epoch, i));
            ensure!(wrong.is_none(), "rank {me}, epoch {epoch}: word {wrong:?} is not that of rank {previous}");
            if slow_reader {
                (0..pause).for_each(|_| std::thread::yield_now());
            }
        }
    }
    Ok(())
}

/// Thousands of epochs with readers that are late now and then.
pub fn a_slow_reader_keeps_its_epoch(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    uneven_ring(comm, seed, true)
}

/// Thousands of epochs with writers that are late now and then.
pub fn a_slow_writer_loses_nothing(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    uneven_ring(comm, seed, false)
}

/// The target holds epoch k until it knows that its origin has started k + 1.
pub fn held_data_is_intact_while_the_origin_has_gone_on(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let (origin, target) = (0, size - 1);
    let data = Line::new(comm, origin, target)?;
    let signal = Line::new(comm, origin, target)?;
    let mut data_queue = data.queue(comm)?.commit()?;
    let mut signal_queue = signal.queue(comm)?.commit()?;
    for k in 1..=200 {
        let number = seed.wrapping_add(k);
        if comm.rank().0 == origin {
            data.outbox.write::<u64>(..)?[0] = number;
            let mut flight = data_queue.start()?;
            if k > 1 {
                // The target still holds epoch k - 1, for it has not seen the signal.
                for _ in 0..50 {
                    ensure!(!flight.test()?, "epoch {k} is done though its target holds epoch {}", k - 1);
                }
                signal.step(&mut signal_queue, k)?;
            }
            flight.wait()?;
        } else if comm.rank().0 == target {
            let arrived = data_queue.start()?.wait()?;
            let read = |when: &str| {
                let found = arrived.read::<u64>(&data.inbox, ..)?[0];
                ensure!(found == number, "{when} the origin started epoch {}: {found} instead of {number}", k + 1);
                Ok(())
            };
            read("before")?;
            if k < 200 {
                signal.step(&mut signal_queue, k + 1)?;
            }
            read("after")?;
        }
    }
    comm.barrier()?;
    Ok(())
}

/// Between flights every byte of a window exposed at start can be written, and stays as it was written.
pub fn ranges_exposed_at_start_are_ordinary_memory_between_flights(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, ring_plan(seed, comm.size(), 100))?;
    let mut queue = exchange.queue(|_| true)?;
    queue.expose_at_start();
    let mut queue = queue.commit()?;
    for epoch in 1..=300 {
        exchange.overwrite(1000 + epoch)?;
        exchange.fill(epoch)?;
        exchange.check_at_rest()?;
        let flight = queue.start()?;
        refuses_access(&exchange.windows[0], 199..200)?;
        let arrived = flight.wait()?;
        refuses_access(&exchange.windows[0], 100..101)?;
        exchange.expect(epoch, |_| true);
        exchange.check_all(&arrived)?;
        drop(arrived);
        exchange.check_at_rest()?;
    }
    queue.clear();
    exchange.free()
}

/// The origin has started and says so; the target, which has not, finds its memory untouched.
pub fn nothing_is_written_before_a_target_exposed_at_start_has_started(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (comm.size() - 1, 0);
    let data = Line::new(comm, origin, target)?;
    let signal = Line::new(comm, origin, target)?;
    let mut queue = data.queue(comm)?;
    queue.expose_at_start();
    let mut queue = queue.commit()?;
    let mut signal_queue = signal.queue(comm)?.commit()?;
    for k in 1..=200 {
        let number = seed.wrapping_add(k);
        if comm.rank().0 == origin {
            data.outbox.write::<u64>(..)?[0] = number;
            let mut flight = queue.start()?;
            for _ in 0..50 {
                ensure!(!flight.test()?, "epoch {k} is done though its target has not started it");
            }
            signal.step(&mut signal_queue, k)?;
            flight.wait()?;
        } else if comm.rank().0 == target {
            data.inbox.write::<u64>(..)?[0] = !number;
            signal.step(&mut signal_queue, k)?;
            let found = data.inbox.read::<u64>(..)?[0];
            ensure!(found == !number, "written before the start of epoch {k}: {found} instead of {}", !number);
            let arrived = queue.start()?.wait()?;
            let found = arrived.read::<u64>(&data.inbox, ..)?[0];
            ensure!(found == number, "epoch {k}: {found} instead of {number}");
        }
    }
    comm.barrier()?;
    Ok(())
}

/// Two queues receive into the same bytes in turn; while one is in flight the other cannot start, and is none the worse for it.
pub fn queues_exposed_at_start_share_ranges(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, ring_plan(seed, comm.size(), 64))?;
    let mut queues = Vec::new();
    for _ in 0..2 {
        let mut queue = exchange.queue(|_| true)?;
        queue.expose_at_start();
        queues.push(queue.commit()?);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    for epoch in 1..=200 {
        exchange.fill(epoch)?;
        let (first, second) = queues.split_at_mut(1);
        let (this, other) = if rng.bool() { (&mut first[0], &mut second[0]) } else { (&mut second[0], &mut first[0]) };
        let before = other.epoch();
        let flight = this.start()?;
        let error = refused(other.start().map(drop))?;
        ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
        let arrived = flight.wait()?;
        let error = refused(other.start().map(drop))?;
        ensure!(matches!(error, Error::RangeBusy { .. }), "another error while the epoch is held: {error}");
        exchange.expect(epoch, |_| true);
        exchange.check_all(&arrived)?;
        drop(arrived);
        ensure!(other.epoch() == before, "a refused start counts: {} instead of {before}", other.epoch());
    }
    Ok(())
}

/// Each target chooses for itself when it is exposed.
pub fn exposures_may_differ_between_ranks(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &Shape::strided(all_pairs(comm.size()))))?;
    let mut queue = exchange.queue(|_| true)?;
    if comm.rank().0 % 2 == 1 {
        queue.expose_at_start();
    }
    let mut queue = queue.commit()?;
    exchange.run(&mut queue, 1, 20)?;
    queue.clear();
    exchange.check_at_rest()
}

/// Barriers stand for the credits.
pub fn without_credits_a_program_that_keeps_order_loses_nothing(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &Shape::contiguous(all_pairs(comm.size()))))?;
    let mut queue = exchange.queue(|_| true)?;
    let promised = "a barrier after the commit and after each epoch orders what the credits would";
    #[allow(unsafe_code, reason = "the only way to do without credits")]
    // SAFETY: every rank passes a barrier after the commit, and after each epoch once it has dropped what `wait` returned.
    unsafe {
        queue.without_credits()
    };
    let mut queue = queue.commit()?;
    comm.barrier()?;
    for epoch in 1..=30 {
        exchange.run(&mut queue, epoch, 1).map_err(|error| error.context(promised))?;
        comm.barrier()?;
    }
    queue.clear();
    exchange.check_at_rest()
}

/// The credit for the next epoch of one queue was given when its target dropped the last; that it now waits for another queue, which
/// its origin starts only afterwards, holds nothing back.
pub fn a_credit_travels_while_its_target_waits_for_another_queue(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let (one, other) = (Line::new(comm, origin, target)?, Line::new(comm, origin, target)?);
    let (mut one_queue, mut other_queue) = (one.queue(comm)?.commit()?, other.queue(comm)?.commit()?);
    for number in (0..40).map(|k| seed.wrapping_add(10 * k)) {
        one.step(&mut one_queue, number)?;
        if comm.rank().0 == origin {
            one.step(&mut one_queue, number.wrapping_add(1))?;
            other.step(&mut other_queue, number)?;
        } else {
            other.step(&mut other_queue, number)?;
            one.step(&mut one_queue, number.wrapping_add(1))?;
        }
    }
    Ok(())
}

/// Two queues exposed at start share ranges. One is cleared by the target while its origin may still write: the other starts as soon
/// as the origin has cleared it, too, and not before.
pub fn a_cleared_queue_blocks_its_rivals_until_its_partners_clear_it(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let line = Line::new(comm, origin, target)?;
    let commit = || {
        let mut queue = line.queue(comm)?;
        queue.expose_at_start();
        queue.commit()
    };
    for granted in [true, false] {
        let (mut cleared, mut rival) = (commit()?, commit()?);
        line.step(&mut rival, 1)?;
        if comm.rank().0 == target {
            let id = cleared.id();
            if granted {
                // From here on its origin may write.
                drop(cleared.start()?);
            }
            cleared.clear();
            if granted {
                let error = refused(rival.start().map(drop))?;
                ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
                says(&error, &[id.to_string(), "clear".into()])?;
            }
            comm.barrier()?;
        } else {
            comm.barrier()?;
            cleared.clear();
        }
        comm.barrier()?;
        line.step(&mut rival, 2)?;
    }
    Ok(())
}
