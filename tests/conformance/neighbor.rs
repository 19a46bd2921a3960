//! Exchanges of messages over all rails: whole, in segments and balanced, streamed and fenced, byte for byte against the oracle of `plan`.
//! Owns how the puts of a plan become messages.

use crate::check::{self, PATIENCE};
use crate::exchange::Exchange as Planned;
use crate::plan::{Plan, PlannedPut, Shape, Strided};
use anyhow::ensure;
use rma::{Comm, Deadline, Error, MsgHandle, RmaWindow};
use rma_algorithms::grid::{Grid, Neighbor};
use rma_algorithms::model::Machine;
use rma_algorithms::{Cut, Exchange, Open, Ready, Stepping};
use std::time::Instant;

const STEPPINGS: [Stepping; 2] = [Stepping::Streamed, Stepping::Fenced];

fn every_way() -> impl Iterator<Item = (Cut, Stepping)> {
    Cut::FIXED.into_iter().flat_map(|cut| STEPPINGS.map(|stepping| (cut, stepping)))
}

/// Every rank to itself and to the next two, which in a small job are the same again.
fn near_pairs(size: u32) -> Vec<(u32, u32)> {
    (0..size).flat_map(|origin| (0..3).map(move |step| (origin, (origin + step) % size))).collect()
}

/// The puts of a plan, up to `together` to the same target as one message.
fn open<'a>(comm: &'a Comm, planned: &'a Planned<'_>, together: usize) -> anyhow::Result<Exchange<Open<'a>>> {
    let puts = planned.puts(|_| true)?;
    let mut exchange = Exchange::new(comm, &planned.windows[0]);
    for window in &planned.windows[1..] {
        exchange = exchange.expose(window);
    }
    for target in 0..comm.size() {
        let to_target: Vec<&MsgHandle> = puts.iter().filter(|put| put.target().0 == target).collect();
        for message in to_target.chunks(together) {
            exchange = exchange.message(message.iter().copied());
        }
        if planned.plan.puts.iter().any(|put| (put.origin, put.target) == (target, comm.rank().0)) {
            exchange = exchange.origin(target);
        }
    }
    Ok(exchange)
}

fn run(planned: &mut Planned<'_>, exchange: &mut Exchange<Ready>, epochs: u64) -> anyhow::Result<()> {
    for epoch in 1..=epochs {
        planned.fill(epoch)?;
        let arrived = exchange.start()?.wait()?;
        ensure!(arrived.epoch().0 == epoch, "{} instead of epoch {epoch}", arrived.epoch());
        planned.expect(epoch, |_| true);
        planned.check_all(&arrived)?;
    }
    Ok(())
}

/// The whole life of an exchange of a plan, in every way.
fn complete(comm: &Comm, together: usize, draw: impl Fn(u64) -> Plan) -> anyhow::Result<()> {
    for (number, (cut, stepping)) in (0..).zip(every_way()) {
        let mut planned = Planned::new(comm, draw(number))?;
        let mut exchange = open(comm, &planned, together)?.cut(cut).stepping(stepping).commit()?;
        ensure!((exchange.cut(), exchange.stepping()) == (cut, stepping), "{exchange:?}");
        run(&mut planned, &mut exchange, 3)?;
        drop(exchange);
        planned.check_at_rest()?;
        planned.free()?;
    }
    Ok(())
}

/// Messages of one put or more, contiguous or strided, are cut anywhere.
pub fn every_byte_of_an_exchange_arrives_however_it_is_cut(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let pairs = near_pairs(comm.size());
    complete(comm, 2, |n| Plan::draw(seed.wrapping_add(n), comm.size(), &Shape::strided(pairs.clone())))
}

/// Some messages are much longer than others, and some empty; some ranks have none.
pub fn uneven_and_empty_messages_arrive_however_they_are_cut(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let pairs: Vec<_> = near_pairs(comm.size()).into_iter().filter(|(origin, _)| *origin != 0 || comm.size() == 1).collect();
    let shape = Shape { puts: 0..=3, block: 0..=500, ..Shape::contiguous(pairs.clone()) };
    complete(comm, 1, |n| Plan::draw(seed.wrapping_add(n), comm.size(), &shape))?;
    let empty = Shape { block: 0..=0, ..Shape::contiguous(pairs) };
    complete(comm, 2, |n| Plan::draw(seed.wrapping_add(n), comm.size(), &empty))
}

/// P0, trap h: in a torus that is 1 or 2 wide, both messages to the same rank arrive, each in its own place.
pub fn neighbors_of_a_narrow_torus_get_all_their_messages(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    let extents = if size.is_multiple_of(2) { [2, size / 2, 1] } else { [1, size, 1] };
    let Some(grid) = Grid::new(&extents, &[true; 3]) else { anyhow::bail!("no grid of {extents:?}") };
    complete(comm, 1, |n| torus_plan(&grid, seed.wrapping_add(n)))
}

/// A message in every direction, each of another length, out of a place of its own and into one.
fn torus_plan(grid: &Grid, seed: u64) -> Plan {
    const DIRECTIONS: usize = 6;
    const GAP: usize = 5;
    let bytes = |direction: usize| 100 + 37 * direction;
    let place = |direction: usize| (0..direction).map(|before| bytes(before) + GAP).sum::<usize>();
    let part = |offset, block| Strided { offset, block, count: 1, stride: block };
    let all = place(DIRECTIONS);
    let mut puts = Vec::new();
    for origin in 0..grid.size() {
        for Neighbor { dimension, side, rank } in grid.neighbors(origin.into()) {
            let (out, into) = (2 * dimension + side as usize, 2 * dimension + side.opposite() as usize);
            let (from, to) = (part(place(out), bytes(out)), part(all + place(into), bytes(out).min(bytes(into))));
            let from = Strided { block: to.block, stride: to.block, ..from };
            puts.push(PlannedPut { origin, target: rank.0, from_window: 0, from, to_window: 0, to, rail: None });
        }
    }
    let ranks = grid.size() as usize;
    Plan { seed, sources: vec![vec![all; ranks]], lengths: vec![vec![2 * all; ranks]], puts }
}

/// Polling moves an exchange from round to round, too.
pub fn test_alone_completes_an_exchange(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    for stepping in STEPPINGS {
        let shape = Shape::strided(near_pairs(comm.size()));
        let mut planned = Planned::new(comm, Plan::draw(seed, comm.size(), &shape))?;
        let mut exchange = open(comm, &planned, 2)?.cut(Cut::Segmented).stepping(stepping).commit()?;
        for epoch in 1..=5 {
            planned.fill(epoch)?;
            let mut flight = exchange.start()?;
            let begun = Instant::now();
            while !flight.test()? {
                ensure!(begun.elapsed() < PATIENCE, "epoch {epoch} is not complete after {PATIENCE:?}");
                std::thread::yield_now();
            }
            ensure!(flight.test()?, "epoch {epoch} was complete and is not any more");
            let arrived = flight.wait()?;
            planned.expect(epoch, |_| true);
            planned.check_all(&arrived)?;
        }
    }
    Ok(())
}

/// What is chosen is the same on every rank, says why, and moves all bytes; by a machine that is given or one that is measured.
pub fn auto_chooses_alike_on_every_rank_and_says_why(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let in_parallel = comm.rails() > 1 && comm.caps().rails_work_in_parallel;
    // Steps that cost nothing are worth it, steps that cost a second are not.
    let [free_steps, dear_steps] = [0.0, 1e6].map(|step_us| Some(Machine { step_us, rail_bytes_per_us: 1.0 }));
    for (stepping, machine) in STEPPINGS.into_iter().flat_map(|stepping| [None, free_steps, dear_steps].map(|m| (stepping, m))) {
        let shape = Shape { puts: 2..=3, block: 50..=300, ..Shape::contiguous(near_pairs(comm.size())) };
        let mut planned = Planned::new(comm, Plan::draw(seed, comm.size(), &shape))?;
        let mut exchange = open(comm, &planned, 1)?.stepping(stepping);
        if let Some(machine) = machine {
            exchange = exchange.machine(machine);
        }
        let mut exchange = exchange.commit()?;
        let chosen = exchange.cut();
        let all = comm.bootstrap().allgather(chosen.name().as_bytes(), Deadline::after(PATIENCE))?;
        ensure!(all.iter().all(|other| other == chosen.name().as_bytes()), "{chosen:?} here, and of all ranks {all:?}");
        ensure!(chosen != Cut::Auto, "no choice was made");
        let before = exchange.explain();
        let words: &[&str] = match (in_parallel, machine.is_some()) {
            (false, _) => &["whole on 1 rail"],
            (true, false) => &["predicted to take least", "measured at commit", "predicted: whole", "balanced"],
            (true, true) => &["predicted to take least", "(given)", "predicted: whole", "balanced"],
        };
        ensure!(
            words.iter().all(|word| before.contains(word)) && !before.contains("measured: "),
            "{words:?} are not in:\n{before}"
        );
        if in_parallel && machine == free_steps && stepping == Stepping::Streamed {
            ensure!(chosen != Cut::Whole, "steps cost nothing, and a rail is left idle:\n{before}");
        }
        if in_parallel && machine == dear_steps && stepping == Stepping::Fenced {
            ensure!(chosen != Cut::Segmented, "further steps cost a second each:\n{before}");
        }
        run(&mut planned, &mut exchange, 2)?;
        let after = exchange.explain();
        ensure!(after.contains(&format!("measured: {} ", chosen.name())) && after.contains("in 2 epochs"), "no time in:\n{after}");
        drop(exchange);
        planned.free()?;
    }
    Ok(())
}

/// What a rank alone has done wrong every rank is told, and the next exchange is as good as any.
pub fn an_exchange_that_is_not_agreed_upon_is_refused_on_every_rank(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let (inbox, outbox) = (comm.window_alloc(16)?, comm.window_alloc(16)?);
    let put = |place: usize, target: u32| comm.declare_write(&inbox, place, &outbox, place, 8, target);
    let (to_next, to_self) = (put(0, next)?, put(8, me)?);
    let ring = || Exchange::new(comm, &inbox).message([&to_next]).origin(previous);
    type Wrong<'a> = (&'a dyn Fn() -> Exchange<Open<'a>>, &'a [&'a str]);
    let two_targets = || ring().message([&to_next, &to_self]);
    let no_puts = || ring().message([]);
    let no_such_rail = || ring().rails(u16::MAX);
    let no_rails = || ring().rails(0);
    let no_such_origin = || ring().origin(size);
    let no_machine = || ring().machine(Machine { step_us: 1.0, rail_bytes_per_us: 0.0 });
    let other_cut = || ring().cut(Cut::Whole);
    let other_stepping = || ring().cut(Cut::Balanced).stepping(Stepping::Fenced);
    let wrong: [Wrong<'_>; 8] = [
        (&two_targets, &["message 1 has a put to rank 1 and one to rank 0"]),
        (&no_puts, &["message 1 has no put"]),
        (&no_such_rail, &["rails of an exchange", "no rail 65534"]),
        (&no_rails, &["rails of an exchange", "0 rails carry nothing"]),
        (&no_such_origin, &["origin of an exchange", "there is no"]),
        (&no_machine, &["a rail of 0 bytes a us"]),
        (&other_cut, &["rank 0 is in", "with cut whole", "with cut balanced"]),
        (&other_stepping, &["stepping fenced", "stepping streamed"]),
    ];
    for (wrong, words) in wrong {
        let mine = if me == 0 { wrong() } else { ring().cut(Cut::Balanced) };
        check::says(&check::refused(mine.commit())?, words)?;
    }
    for stepping in STEPPINGS {
        // Rank 0 gets a message that it does not expect, or expects one of its own that it does not have.
        for expected in [vec![], vec![previous, 0]] {
            let mine = if me == 0 { expected } else { vec![previous] };
            let exchange = mine.into_iter().fold(Exchange::new(comm, &inbox).message([&to_next]), Exchange::origin);
            let error = check::refused(exchange.cut(Cut::Whole).stepping(stepping).commit())?;
            check::says(&error, &["rank 0", "origin"])?;
        }
    }
    let mut exchange = ring().cut(Cut::Segmented).stepping(Stepping::Fenced).commit()?;
    outbox.write::<u64>(..8)?[0] = u64::from(me) + 7;
    let arrived = exchange.start()?.wait()?;
    let found = arrived.read::<u64>(&inbox, ..8)?[0];
    ensure!(found == u64::from(previous) + 7, "{found} from rank {previous}");
    Ok(())
}

/// Every rank to the next, twice as many messages as rails, so that there are two rounds.
fn two_rounds<'a>(comm: &'a Comm, [inbox, outbox]: [&'a RmaWindow; 2]) -> anyhow::Result<Exchange<Open<'a>>> {
    let (me, size) = (comm.rank().0, comm.size());
    let mut exchange = Exchange::new(comm, inbox).origin((me + size - 1) % size).cut(Cut::Whole);
    for place in 0..2 * usize::from(comm.rails()) {
        let put = comm.declare_write(inbox, 8 * place, outbox, 8 * place, 8, (me + 1) % size)?;
        exchange = exchange.message([&put]);
    }
    Ok(exchange)
}

/// An exchange is not used again after a flight that was not waited for, whichever of its queues that was.
pub fn a_dropped_flight_makes_its_exchange_unusable(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let bytes = 16 * usize::from(comm.rails());
    for stepping in STEPPINGS {
        let (inbox, outbox) = (comm.window_alloc(bytes)?, comm.window_alloc(bytes)?);
        let mut exchange = two_rounds(comm, [&inbox, &outbox])?.stepping(stepping).commit()?;
        drop(exchange.start()?.wait()?);
        drop(exchange.start()?);
        for _ in 0..2 {
            let error = check::refused(exchange.start().map(drop))?;
            ensure!(matches!(error, Error::Poisoned { .. }), "another error: {error}");
            check::says(&error, &["flight of epoch 2 was dropped"])?;
        }
        drop(exchange);
        check::everything_still_works(comm)?;
    }
    Ok(())
}

/// A write lease on what a later round sends ends the exchange with an error that says so, and no round is run again.
pub fn a_later_round_that_cannot_start_makes_its_exchange_unusable(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let bytes = 16 * usize::from(comm.rails());
    let (inbox, outbox) = (comm.window_alloc(bytes)?, comm.window_alloc(bytes)?);
    let mut exchange = two_rounds(comm, [&inbox, &outbox])?.stepping(Stepping::Fenced).commit()?;
    ensure!(exchange.schedule().rounds.len() == 2, "{:?}", exchange.schedule());
    let sent_later = outbox.write::<u8>(bytes / 2..)?;
    let error = check::refused(exchange.start()?.wait().map(drop))?;
    ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
    drop(sent_later);
    let error = check::refused(exchange.start().map(drop))?;
    ensure!(matches!(error, Error::Poisoned { .. }), "another error: {error}");
    comm.barrier()?;
    drop(exchange);
    check::everything_still_works(comm)
}

/// Outside a flight the received ranges of a fenced exchange are ordinary memory, and those of one that is exposed at start.
pub fn an_exchange_exposed_at_start_leaves_its_ranges_between_flights(comm: &Comm, _seed: u64) -> anyhow::Result<()> {
    let bytes = 16 * usize::from(comm.rails());
    let (inbox, outbox) = (comm.window_alloc(bytes)?, comm.window_alloc(bytes)?);
    let mut streamed = two_rounds(comm, [&inbox, &outbox])?.expose_at_start().commit()?;
    let mut fenced = two_rounds(comm, [&inbox, &outbox])?.stepping(Stepping::Fenced).commit()?;
    let previous = u64::from((comm.rank().0 + comm.size() - 1) % comm.size());
    for epoch in 1..=4 {
        for (exchange, round) in [(&mut streamed, 2 * epoch), (&mut fenced, 2 * epoch + 1)] {
            inbox.write::<u64>(..)?.fill(u64::MAX);
            outbox.write::<u64>(..)?.fill(round << 32 | u64::from(comm.rank().0));
            let arrived = exchange.start()?.wait()?;
            arrived.write::<u64>(&inbox, ..8)?[0] += 1;
            drop(arrived);
            let found = inbox.read::<u64>(..)?;
            let expected = round << 32 | previous;
            ensure!(found[0] == expected + 1 && found[1..].iter().all(|&word| word == expected), "epoch {epoch}: {found:x?}");
        }
    }
    Ok(())
}
