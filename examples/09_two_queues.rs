//! Two queues that overlap: while a chunk travels on one, the next is computed and started on the other. What that saves is the travel
//! itself where a device moves the bytes; over shared memory the start copies them, so that only waiting for others is saved. On an
//! emulated device, on which computing takes no time, two chunks on rails of their own travel in the time of one. With `RMA_TRACE=PATH`
//! every rank writes `PATH.RANK.json`: in Perfetto or Chrome's trace viewer each queue has a row of its own, first the flights of one
//! queue with gaps in which the next chunk is computed, then the flights of both, side by side.
#![allow(clippy::print_stdout, reason = "an example prints what happened")]
use anyhow::{Result, ensure};
use clap::Parser;
use rma::{Arrived, Rail, Rank, RmaWindow};
use rma_examples::{clock::Moment, launch::Ranks, random};
use std::time::Duration;

/// Send chunks of computed numbers around a ring: one after the other, and then the next one computed while one travels
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ranks: Ranks,
    /// After a first chunk, how many rounds of one chunk on either queue
    #[arg(long, default_value_t = 100)]
    rounds: u16,
    /// How many numbers of 8 bytes a chunk has
    #[arg(long, default_value_t = 8192)]
    numbers: u32,
}

/// What a rank computes for a place in a chunk: another number for each.
fn number(from: Rank, chunk: u32, place: usize) -> u64 {
    random::bits(u64::from(from.0) << 32 | u64::from(chunk), place)
}

fn main() -> Result<()> {
    let Options { ranks, rounds, numbers } = Options::parse();
    let (chunks, bytes) = (2 * u32::from(rounds) + 1, numbers as usize * size_of::<u64>());
    ranks.launch(|comm| {
        let (me, size) = (comm.rank(), comm.size());
        let (next, previous) = (Rank((me.0 + 1) % size), Rank((me.0 + size - 1) % size));
        let lane = |lane: u16| {
            let (outbox, inbox) = (comm.window_alloc(bytes)?, comm.window_alloc(bytes)?);
            let mut queue = comm.queue_alloc(&inbox)?;
            // Each on a rail of its own, if there are several: what shares one travels in turn.
            queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, bytes, next)?.rail(Rail(lane % comm.rails()))?)?;
            queue.add_origin(previous)?;
            anyhow::Ok((outbox, inbox, queue.commit()?))
        };
        let ((even_outbox, even_inbox, mut even), (odd_outbox, odd_inbox, mut odd)) = (lane(0)?, lane(1)?);
        let compute = |outbox: &RmaWindow, chunk| -> Result<()> {
            outbox.write::<u64>(..)?.iter_mut().zip(0..).for_each(|(out, place)| *out = number(me, chunk, place));
            Ok(())
        };
        let check = |arrived: Arrived<'_>, inbox: &RmaWindow, chunk| -> Result<()> {
            let received = arrived.read::<u64>(inbox, ..)?;
            let wrong = received.iter().zip(0..).filter(|&(&got, place)| got != number(previous, chunk, place)).count();
            ensure!(wrong == 0, "{wrong} numbers of chunk {chunk} are not what {previous} computed");
            Ok(())
        };

        let begun = Moment::now(comm);
        for chunk in 0..chunks {
            compute(&even_outbox, chunk)?;
            check(even.start()?.wait()?, &even_inbox, chunk)?;
        }
        let in_turn = begun.elapsed();

        comm.barrier()?;
        let begun = Moment::now(comm);
        compute(&even_outbox, 0)?;
        let mut even_flight = even.start()?;
        for chunk in (1..chunks).step_by(2) {
            compute(&odd_outbox, chunk)?;
            let odd_flight = odd.start()?;
            check(even_flight.wait()?, &even_inbox, chunk - 1)?;
            compute(&even_outbox, chunk + 1)?;
            even_flight = even.start()?;
            check(odd_flight.wait()?, &odd_inbox, chunk)?;
        }
        check(even_flight.wait()?, &even_inbox, chunks - 1)?;
        let overlapped = begun.elapsed();

        let us = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(chunks);
        if me == Rank(0) {
            println!("{chunks} chunks of {bytes} bytes around a ring of {size} ranks, each number right");
            println!("one after the other {:.1} us a chunk, overlapped {:.1} us", us(in_turn.real), us(overlapped.real));
            if let (Some(in_turn), Some(overlapped)) = (in_turn.emulated, overlapped.emulated) {
                println!("emulated, computing taking no time: {:.3} us a chunk, overlapped {:.3} us", us(in_turn), us(overlapped));
            }
        }
        Ok(())
    })
}
