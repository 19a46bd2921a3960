//! `start_after`: dropping what has arrived in one queue and starting another, as one call. Whatever a backend sends together, credits
//! and puts are those of the two calls.

use crate::check::{Line, refused};
use anyhow::{Context, ensure};
use rma::{Arrived, Comm, Error, Open, Ready, RmaQueue, RmaWindow};

const TURNS: u64 = 300;
/// Of a buffer; neither inline nor one packet everywhere.
const BYTES: usize = 1500;

/// Every rank writes to another one, so many further on.
struct Shift {
    me: u32,
    origin: u32,
    outbox: RmaWindow,
    inbox: RmaWindow,
    seed: u64,
}

/// When a queue's received ranges are open to its origins.
#[derive(Clone, Copy, Debug)]
enum Opening {
    Early,
    AtStart,
    Uncredited,
}

impl Opening {
    fn of(self, queue: &mut RmaQueue<Open>) {
        match self {
            Self::Early => {}
            Self::AtStart => _ = queue.expose_at_start(),
            #[allow(unsafe_code, reason = "the only way to do without credits")]
            // SAFETY: who uses this lets ranks start in turn, each once it has received what the other sent after it had dropped
            // the epoch before; and a barrier follows the commit.
            Self::Uncredited => unsafe {
                queue.without_credits();
            },
        }
    }
}

impl Shift {
    fn commit(comm: &Comm, by: u32, seed: u64) -> anyhow::Result<(Self, RmaQueue<Ready>)> {
        let (me, size) = (comm.rank().0, comm.size());
        let (target, origin) = ((me + by) % size, (me + size - by % size) % size);
        let shift = Self { me, origin, outbox: comm.window_alloc(BYTES)?, inbox: comm.window_alloc(BYTES)?, seed };
        let mut queue = comm.queue_alloc(&shift.inbox)?;
        queue.push(&comm.declare_write(&shift.inbox, 0, &shift.outbox, 0, BYTES, target)?)?.add_origin(origin)?;
        Ok((shift, queue.commit()?))
    }

    fn byte(&self, rank: u32, epoch: u64, at: usize) -> u8 {
        let mixed = (self.seed ^ at as u64 ^ u64::from(rank) << 32 ^ epoch << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 56) as u8
    }

    fn fill(&self, epoch: u64) -> anyhow::Result<()> {
        let mut bytes = self.outbox.write::<u8>(..)?;
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = self.byte(self.me, epoch, at));
        Ok(())
    }

    fn check(&self, arrived: &Arrived<'_>, epoch: u64) -> anyhow::Result<()> {
        ensure!(arrived.epoch().0 == epoch, "{} instead of epoch {epoch}", arrived.epoch());
        let found = arrived.read::<u8>(&self.inbox, ..)?;
        let wrong = (0..BYTES).find(|&at| found[at] != self.byte(self.origin, epoch, at));
        ensure!(wrong.is_none(), "epoch {epoch}: byte {wrong:?} from rank {} to rank {} is wrong", self.origin, self.me);
        Ok(())
    }
}

/// Two queues take turns: to the same partner, to the one that the other queue receives from, and to others.
pub fn two_buffers_that_start_after_each_other_keep_every_byte(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let size = comm.size();
    for (one, other) in [(1, 1), (1, size - 1), (1, 2), (0, 1)] {
        let (left, mut left_queue) = Shift::commit(comm, one, seed)?;
        let (right, mut right_queue) = Shift::commit(comm, other, !seed)?;
        let context = || format!("by {one} and by {other}");
        left.fill(1)?;
        let mut arrived = left_queue.start()?.wait().with_context(context)?;
        for epoch in 1..=TURNS / 4 {
            left.check(&arrived, epoch).with_context(context)?;
            right.fill(epoch)?;
            let second = right_queue.start_after(arrived)?.wait().with_context(context)?;
            right.check(&second, epoch).with_context(context)?;
            left.fill(epoch + 1)?;
            arrived = left_queue.start_after(second)?.wait().with_context(context)?;
        }
        drop(arrived);
        // Both are as after a drop and a start.
        ensure!(left_queue.epoch().0 == TURNS / 4 + 1 && right_queue.epoch().0 == TURNS / 4, "epochs were counted wrongly");
        left.fill(TURNS)?;
        let arrived = left_queue.start()?.wait()?;
        drop(arrived);
        right.fill(TURNS / 4 + 1)?;
        right.check(&right_queue.start()?.wait()?, TURNS / 4 + 1)?;
    }
    Ok(())
}

/// What was given back is closed again, as after a drop, while the other queue is in flight.
pub fn what_is_given_back_by_a_start_after_is_closed_again(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (left, mut left_queue) = Shift::commit(comm, 1, seed)?;
    let (right, mut right_queue) = Shift::commit(comm, 1, !seed)?;
    for epoch in 1..=20 {
        left.fill(epoch)?;
        right.fill(epoch)?;
        let arrived = left_queue.start()?.wait()?;
        left.check(&arrived, epoch)?;
        let flight = right_queue.start_after(arrived)?;
        let error = refused(left.inbox.read::<u8>(..).map(drop))?;
        ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
        right.check(&flight.wait()?, epoch)?;
    }
    Ok(())
}

/// Both queues receive into the same bytes, exposed at start: what is given back is free for the other by the time that one starts.
pub fn a_start_after_takes_over_the_ranges_that_it_gives_back(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
    let commit = || {
        let mut queue = comm.queue_alloc(&inbox)?;
        queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, next)?)?.add_origin(previous)?.expose_at_start();
        queue.commit()
    };
    let (mut one, mut other) = (commit()?, commit()?);
    let number = |rank: u32, turn: u64| seed.wrapping_add(turn << 8 | u64::from(rank));
    let read = |arrived: &Arrived<'_>, turn: u64| {
        let found = arrived.read::<u64>(&inbox, ..)?[0];
        ensure!(found == number(previous, turn), "turn {turn}: {found} from rank {previous} to rank {me}");
        Ok(())
    };
    outbox.write::<u64>(..)?[0] = number(me, 1);
    let mut arrived = one.start()?.wait()?;
    for turn in (1..100).step_by(2) {
        read(&arrived, turn)?;
        outbox.write::<u64>(..)?[0] = number(me, turn + 1);
        let second = other.start_after(arrived)?.wait()?;
        read(&second, turn + 1)?;
        outbox.write::<u64>(..)?[0] = number(me, turn + 2);
        arrived = one.start_after(second)?.wait()?;
    }
    Ok(())
}

/// One writes, the other answers, and both start after what has arrived; for every way in which the two queues may be exposed.
pub fn a_ping_pong_of_starts_after_keeps_every_byte(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    const WAYS: [Opening; 3] = [Opening::Early, Opening::AtStart, Opening::Uncredited];
    let (me, last) = (comm.rank().0, comm.size() - 1);
    for (there, back) in WAYS.into_iter().flat_map(|there| WAYS.map(|back| (there, back))) {
        let (ping, pong) = (Line::new(comm, 0, last)?, Line::new(comm, last, 0)?);
        let mut ping_queue = ping.queue(comm)?;
        there.of(&mut ping_queue);
        let mut pong_queue = pong.queue(comm)?;
        back.of(&mut pong_queue);
        let (mut ping_queue, mut pong_queue) = (ping_queue.commit()?, pong_queue.commit()?);
        comm.barrier()?;
        let number = |epoch: u64| seed.wrapping_add(epoch);
        let read = |arrived: &Arrived<'_>, line: &Line, expected: u64| {
            let found = arrived.read::<u64>(&line.inbox, ..)?[0];
            ensure!(found == expected, "{there:?} and {back:?}: {found} instead of {expected} at {}", arrived.epoch());
            Ok(())
        };
        if me == 0 {
            ping.outbox.write::<u64>(..)?[0] = number(1);
            let mut sent = ping_queue.start()?.wait()?;
            for epoch in 1..=TURNS / 9 {
                let answer = pong_queue.start_after(sent)?.wait()?;
                read(&answer, &pong, !number(epoch))?;
                ping.outbox.write::<u64>(..)?[0] = number(epoch + 1);
                sent = ping_queue.start_after(answer)?.wait()?;
            }
        } else if me == last {
            let mut arrived = ping_queue.start()?.wait()?;
            for epoch in 1..=TURNS / 9 {
                read(&arrived, &ping, number(epoch))?;
                pong.outbox.write::<u64>(..)?[0] = !number(epoch);
                let answered = pong_queue.start_after(arrived)?.wait()?;
                arrived = ping_queue.start_after(answered)?.wait()?;
            }
        }
        comm.barrier()?;
    }
    Ok(())
}

/// The start is refused since its source is being written; the origin of what was given back gets its credit none the less, though
/// this rank does nothing more with either queue.
pub fn a_start_after_that_is_refused_gives_the_credit_all_the_same(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    let (line, back) = (Line::new(comm, origin, target)?, Line::new(comm, target, origin)?);
    let (mut queue, mut back_queue) = (line.queue(comm)?.commit()?, back.queue(comm)?.commit()?);
    for number in (0..40).map(|k| seed.wrapping_add(2 * k)) {
        if comm.rank().0 == target {
            let arrived = queue.start()?.wait()?;
            ensure!(arrived.read::<u64>(&line.inbox, ..)?[0] == number, "another number than {number}");
            let before = back_queue.epoch();
            let lease = back.outbox.write::<u64>(..)?;
            let error = refused(back_queue.start_after(arrived).map(drop))?;
            ensure!(matches!(error, Error::RangeBusy { .. }), "another error: {error}");
            drop(lease);
            ensure!(back_queue.epoch() == before, "a refused start counts");
        } else if comm.rank().0 == origin {
            line.step(&mut queue, number)?;
            // Needs the credit that was on its way with a start which did not come.
            line.step(&mut queue, number.wrapping_add(1))?;
        }
        comm.barrier()?;
        if comm.rank().0 == target {
            let arrived = queue.start()?.wait()?;
            ensure!(arrived.read::<u64>(&line.inbox, ..)?[0] == number.wrapping_add(1), "not the number after {number}");
        }
        // None the worse for the refusal.
        back.step(&mut back_queue, number)?;
    }
    Ok(())
}

/// The queue that is given back has one partner, the queue that is started another, which starts only once the first one has got its
/// credit and used it.
pub fn a_start_after_gives_credits_to_partners_it_does_not_write_to(comm: &Comm, seed: u64) -> anyhow::Result<()> {
    let (one, relay, other) = (0, 1, comm.size() - 1);
    let (incoming, outgoing, word) = (Line::new(comm, one, relay)?, Line::new(comm, relay, other)?, Line::new(comm, one, other)?);
    let mut outgoing_queue = outgoing.queue(comm)?;
    outgoing_queue.expose_at_start();
    let (mut incoming_queue, mut outgoing_queue) = (incoming.queue(comm)?.commit()?, outgoing_queue.commit()?);
    let mut word_queue = word.queue(comm)?.commit()?;
    let me = comm.rank().0;
    for number in (0..100).map(|k| seed.wrapping_add(2 * k)) {
        if me == one {
            incoming.step(&mut incoming_queue, number)?;
            incoming.step(&mut incoming_queue, number.wrapping_add(1))?;
        } else if me == relay {
            let arrived = incoming_queue.start()?.wait()?;
            let found = arrived.read::<u64>(&incoming.inbox, ..)?[0];
            ensure!(found == number, "{found} instead of {number}");
            outgoing.outbox.write::<u64>(..)?[0] = number;
            // Ends only after rank `other` has started, and so after rank `one` was done with two epochs.
            let sent = outgoing_queue.start_after(arrived)?.wait()?;
            let arrived = incoming_queue.start_after(sent)?.wait()?;
            let found = arrived.read::<u64>(&incoming.inbox, ..)?[0];
            ensure!(found == number.wrapping_add(1), "{found} instead of the number after {number}");
        }
        word.step(&mut word_queue, number)?;
        if me == other {
            let arrived = outgoing_queue.start()?.wait()?;
            let found = arrived.read::<u64>(&outgoing.inbox, ..)?[0];
            ensure!(found == number, "{found} instead of {number}");
        }
    }
    Ok(())
}
