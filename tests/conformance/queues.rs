//! The life of queues side by side: polled, interleaved, in flight together, cleared, dropped and committed again.
//! All ranks draw the same orders from the seed, or on purpose different ones.

use crate::check::{Line, PATIENCE};
use crate::exchange::Exchange;
use crate::plan::{Plan, Shape, all_pairs, ring_plan};
use anyhow::ensure;
use fastrand::Rng;
use rma::Comm;
use std::time::Instant;

/// An epoch is complete once `test` says so; `wait` then finds it complete.
pub fn test_alone_completes_an_epoch(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &Shape::strided(all_pairs(comm.size()))))?;
    let mut queue = exchange.queue(|_| true)?.commit()?;
    for epoch in 1..=50 {
        exchange.fill(epoch)?;
        let mut flight = queue.start()?;
        let start = Instant::now();
        while !flight.test()? {
            ensure!(start.elapsed() < PATIENCE, "epoch {epoch} is not complete after {PATIENCE:?}");
            std::thread::yield_now();
        }
        ensure!(flight.test()?, "epoch {epoch} was complete and is not any more");
        let arrived = flight.wait()?;
        exchange.expect(epoch, |_| true);
        exchange.check_all(&arrived)?;
    }
    Ok(())
}

/// Every rank starts its queues in an order of its own; each put needs a start that others may make later. Then all are polled in
/// turn, for what lacked its credit is posted by `test` of the same flight.
pub fn start_never_blocks(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    const QUEUES: usize = 5;
    let mut exchanges = Vec::new();
    let mut queues = Vec::new();
    for i in 0..QUEUES {
        let exchange = Exchange::new(comm, ring_plan(seed.wrapping_add(i as u64), comm.size(), 40))?;
        let mut queue = exchange.queue(|_| true)?;
        queue.expose_at_start();
        queues.push(queue.commit()?);
        exchanges.push(exchange);
    }
    let mut rng = Rng::with_seed(seed ^ u64::from(comm.rank().0));
    for epoch in 1..=50 {
        for exchange in &mut exchanges {
            exchange.fill(epoch)?;
        }
        let mut order: Vec<_> = queues.iter_mut().enumerate().collect();
        rng.shuffle(&mut order);
        let mut flights = order.into_iter().map(|(i, queue)| Ok((i, queue.start()?))).collect::<rma::Result<Vec<_>>>()?;
        let start = Instant::now();
        while !flights.is_empty() {
            ensure!(start.elapsed() < PATIENCE, "epoch {epoch}: {} of {QUEUES} queues not over after {PATIENCE:?}", flights.len());
            let (i, mut flight) = flights.remove(0);
            if flight.test()? {
                let arrived = flight.wait()?;
                exchanges[i].expect(epoch, |_| true);
                exchanges[i].check_all(&arrived)?;
            } else {
                flights.push((i, flight));
                std::thread::yield_now();
            }
        }
    }
    Ok(())
}

/// Three windows and three queues, one epoch of one queue after the other in any order.
pub fn queues_and_windows_interleave(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let shape = Shape { windows: 3, puts: 2..=6, ..Shape::strided(all_pairs(comm.size())) };
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &shape))?;
    let mut queues = Vec::new();
    for q in 0..3 {
        queues.push(exchange.queue(|i| i % 3 == q)?.commit()?);
    }
    let mut rng = Rng::with_seed(seed);
    let mut counts = [0; 3];
    for step in 1..=60 {
        let q = rng.usize(0..3);
        exchange.fill(step)?;
        let arrived = queues[q].start()?.wait()?;
        counts[q] += 1;
        ensure!(arrived.epoch().0 == counts[q], "queue {q} is at {} after {} starts", arrived.epoch(), counts[q]);
        exchange.expect(step, |i| i % 3 == q);
        exchange.check_received(&arrived, |i| i % 3 == q)?;
    }
    queues.into_iter().for_each(|queue| drop(queue.clear()));
    exchange.check_at_rest()?;
    exchange.free()
}

/// Four queues on the same windows fly at the same time, started and waited for in another order on every rank.
pub fn queues_in_flight_together_keep_their_epochs_apart(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    const QUEUES: usize = 4;
    let shape = Shape { windows: 2, puts: 3..=6, ..Shape::strided(all_pairs(comm.size())) };
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &shape))?;
    let mut queues = Vec::new();
    for q in 0..QUEUES {
        queues.push(exchange.queue(|i| i % QUEUES == q)?.commit()?);
    }
    let mut rng = Rng::with_seed(seed ^ u64::from(comm.rank().0));
    for epoch in 1..=40 {
        exchange.fill(epoch)?;
        exchange.expect(epoch, |_| true);
        let mut order: Vec<_> = queues.iter_mut().enumerate().collect();
        rng.shuffle(&mut order);
        let mut flights = order.into_iter().map(|(q, queue)| Ok((q, queue.start()?))).collect::<rma::Result<Vec<_>>>()?;
        rng.shuffle(&mut flights);
        let mut held = Vec::new();
        for (q, flight) in flights {
            let arrived = flight.wait()?;
            exchange.check_received(&arrived, |i| i % QUEUES == q)?;
            held.push((q, arrived));
        }
        for (q, arrived) in &held {
            exchange.check_received(arrived, |i| i % QUEUES == *q)?;
        }
    }
    queues.into_iter().for_each(|queue| drop(queue.clear()));
    exchange.check_at_rest()
}

/// A put that lacked its credit at its start goes out in the wait for another queue, whose own put needs that this one came: the last
/// rank waits for the two in the other order.
pub fn a_wait_moves_on_the_other_queues_in_flight(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let last = comm.size() - 1;
    let (there, back) = (Line::new(comm, 0, last)?, Line::new(comm, last, 0)?);
    let (mut there_queue, mut back_queue) = (there.queue(comm)?.commit()?, back.queue(comm)?.commit()?);
    for round in 0..20 {
        if comm.rank().0 == 0 {
            there.step(&mut there_queue, 10 * round + 1)?;
            there.outbox.write::<u64>(..)?[0] = 10 * round + 2;
            let first = there_queue.start()?;
            let second = back_queue.start()?;
            // The last rank holds what it got, and with it the credit of the first flight, until here.
            comm.barrier()?;
            let arrived = second.wait()?;
            let found = arrived.read::<u64>(&back.inbox, ..)?[0];
            ensure!(found == 10 * round + 3, "round {round}: {found} came back");
            drop(arrived);
            first.wait()?;
        } else if comm.rank().0 == last {
            let arrived = there_queue.start()?.wait()?;
            comm.barrier()?;
            let found = arrived.read::<u64>(&there.inbox, ..)?[0];
            ensure!(found == 10 * round + 1, "round {round}: {found} was held");
            drop(arrived);
            there.step(&mut there_queue, 10 * round + 2)?;
            back.step(&mut back_queue, 10 * round + 3)?;
        } else {
            comm.barrier()?;
        }
    }
    Ok(())
}

/// What `clear` returns is an empty queue: other puts make it another one.
pub fn a_cleared_queue_is_committed_again(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let shape = Shape { puts: 2..=5, ..Shape::strided(all_pairs(comm.size())) };
    let mut exchange = Exchange::new(comm, Plan::draw(seed, comm.size(), &shape))?;
    let mut open = exchange.queue(|_| true)?;
    for life in 0..12 {
        let which = move |i: usize| life == 0 || i % 3 == life % 3;
        let mut ready = open.commit()?;
        ensure!(ready.epoch().0 == 0, "a fresh commit begins at {}", ready.epoch());
        for epoch in 1..=3 {
            let step = 10 * life as u64 + epoch;
            exchange.fill(step)?;
            let arrived = ready.start()?.wait()?;
            ensure!(arrived.epoch().0 == epoch, "life {life}: {} instead of epoch {epoch}", arrived.epoch());
            exchange.expect(step, which);
            exchange.check_all(&arrived)?;
        }
        open = ready.clear();
        exchange.load(&mut open, move |i| i % 3 == (life + 1) % 3)?;
    }
    drop(open);
    exchange.check_at_rest()?;
    exchange.free()
}

/// Committed queues that go out of scope harm nobody, and their windows can be freed.
pub fn a_dropped_queue_is_as_good_as_cleared(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    for i in 0..5 {
        let mut exchange =
            Exchange::new(comm, Plan::draw(seed.wrapping_add(i), comm.size(), &Shape::strided(all_pairs(comm.size()))))?;
        let mut queue = exchange.queue(|_| true)?.commit()?;
        exchange.run(&mut queue, 1, i)?;
        drop(queue);
        exchange.check_at_rest()?;
        let mut again = exchange.queue(|_| true)?.commit()?;
        exchange.run(&mut again, 100, 2)?;
        drop(again);
        exchange.free()?;
    }
    Ok(())
}

/// A handle is a declaration: two queues may hold it, and neither uses it up.
pub fn a_put_may_be_in_several_queues(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let mut exchange = Exchange::new(comm, ring_plan(seed, size, 33))?;
    let puts = exchange.puts(|_| true)?;
    let mut queues = Vec::new();
    for _ in 0..3 {
        let mut queue = comm.queue_alloc(&exchange.windows[0])?;
        for put in &puts {
            queue.push(put)?;
        }
        queue.add_origin((comm.rank().0 + size - 1) % size)?;
        // Twice is once.
        queue.add_origin((comm.rank().0 + size - 1) % size)?;
        queue.expose_at_start();
        queues.push(queue.commit()?);
    }
    drop(puts);
    for epoch in 1..=30 {
        let i = epoch as usize % queues.len();
        exchange.run(&mut queues[i], epoch, 1)?;
    }
    Ok(())
}

/// A rank without part in an exchange commits and starts like the others.
pub fn a_queue_without_puts_and_origins_completes(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let window = comm.window_alloc(8)?;
    let mut queue = comm.queue_alloc(&window)?.commit()?;
    for epoch in 1..=10 {
        let arrived = queue.start()?.wait()?;
        ensure!(arrived.epoch().0 == epoch, "{} instead of epoch {epoch}", arrived.epoch());
    }
    queue.clear();
    window.free()?;
    Ok(())
}
