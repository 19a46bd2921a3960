//! Packets that are lost, cables that are out for a second or for good, interfaces that go down, acknowledgments that come late.
//! Runs on every rank; one of them changes the lab.

use crate::duplex::Duplex;
use crate::lab::{self, Cable};
use anyhow::{Context, Result, bail, ensure};
use rma::{Comm, Error};
use rma_tests::check::{Line, says};
use std::time::{Duration, Instant};

/// Inline, one packet, several packets, and on both sides of what limits each.
const MIXED: [usize; 16] = [1, 7, 64, 127, 128, 129, 300, 1000, 2048, 4095, 4096, 4097, 9000, 16_384, 33_000, 5];
/// With the default options a broken connection is named after about 4 s of tries and 3 s in which its peer might turn out to have
/// died; the rest is the emulated machine's.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn every_byte_arrives_although_one_packet_in_a_hundred_is_lost(comm: &Comm) -> Result<()> {
    const EPOCHS: u64 = 100;
    let duplex = Duplex::new(comm, [0, 1], &MIXED)?;
    let mut queue = duplex.commit(comm)?;
    if comm.rank().0 == 0 {
        lab::lose("1")?;
    }
    comm.barrier()?;
    duplex.run(&mut queue, 1..EPOCHS + 1)?;
    comm.barrier()?;
    if comm.rank().0 == 0 {
        lab::lose("0")?;
    }
    Ok(())
}

/// Blocks that are gathered, packed and scattered, each write of which may be lost.
pub(crate) fn every_byte_of_strided_puts_arrives_although_one_packet_in_a_hundred_is_lost(comm: &Comm) -> Result<()> {
    if comm.rank().0 == 0 {
        lab::lose("1")?;
    }
    comm.barrier()?;
    for seed in 0..5 {
        rma_tests::data::every_byte_of_strided_puts_arrives(comm, seed)?;
    }
    comm.barrier()?;
    if comm.rank().0 == 0 {
        lab::lose("0")?;
    }
    Ok(())
}

/// A rank that only receives sends nothing whose loss would tell it that the other end cannot be reached any more.
pub(crate) fn who_only_receives_is_told_that_the_connection_broke(comm: &Comm) -> Result<()> {
    let line = Line::new(comm, 0, 1)?;
    let mut queue = line.queue(comm)?;
    queue.timeout(Some(NAMED_WITHIN));
    let mut queue = queue.commit()?;
    let id = queue.id();
    (1..4).try_for_each(|number| line.step(&mut queue, number))?;
    comm.barrier()?;
    if comm.rank().0 == line.target {
        // Its last credit has been delivered, as the barrier went over other wires, and a while has passed since.
        Cable { rank: 1, rail: 0 }.pull()?;
        let error = queue.start()?.wait().map(drop).err().context("an arrival although nobody has started")?;
        names_the_connection(comm, &error, line.origin, id, 4)?;
        says(&error, &["transport retry counter exceeded"])?;
        Cable { rank: 1, rail: 0 }.plug_in()?;
    }
    comm.barrier()?;
    queue.clear();
    comm.barrier()?;
    // Over a new connection.
    let mut queue = line.queue(comm)?.commit()?;
    (4..7).try_for_each(|number| line.step(&mut queue, number))
}

/// The exchange goes on until the cable is in again, and then some.
pub(crate) fn a_cable_that_is_out_for_a_second_is_survived(comm: &Comm) -> Result<()> {
    let duplex = Duplex::new(comm, [0, 1], &MIXED)?;
    let mut queue = duplex.commit(comm)?;
    duplex.run(&mut queue, 1..6)?;
    // The last rail, so that with several it is one of those between which puts are not ordered.
    let begun = Instant::now();
    let pulled = (comm.rank().0 == 0).then(|| Cable { rank: 1, rail: comm.rails() - 1 }.pull_for("1"));
    let mut epochs_while_out = 0;
    for number in 6.. {
        duplex.run(&mut queue, number..number + 1)?;
        let over =
            comm.bootstrap().allgather(&[u8::from(pulled.as_ref().is_none_or(|thread| thread.is_finished()))], deadline())?;
        if over[0] == [1] {
            break;
        }
        epochs_while_out += 1;
    }
    if let Some(thread) = pulled {
        thread.join().map_err(|_| anyhow::anyhow!("the thread of the cable panicked"))??;
        ensure!(begun.elapsed() >= Duration::from_secs(1), "the cable was out for {:?}", begun.elapsed());
    }
    duplex.run(&mut queue, 1000..1020).with_context(|| format!("after {epochs_while_out} epochs meanwhile"))
}

fn deadline() -> rma::Deadline {
    rma::Deadline::after(NAMED_WITHIN)
}

/// What both ends of a broken connection say.
pub(crate) fn names_the_connection(comm: &Comm, error: &Error, peer: u32, queue: rma::QueueId, epoch: u64) -> Result<()> {
    ensure!(matches!(error, Error::Backend { backend: "verbs", .. }), "another error: {}", error.full_text());
    let device = format!("x{}d0", comm.rank().0);
    says(error, &[format!("rank {peer}"), "rail 0".into(), device, queue.to_string(), format!("epoch {epoch}")])
}

/// How two ranks lose each other.
pub(crate) struct Loss<'a> {
    /// So many epochs go well before it.
    pub(crate) after: u64,
    /// What rank 2 does then.
    pub(crate) part: &'a dyn Fn() -> Result<()>,
    /// What it does for them to find each other again.
    pub(crate) join: &'a dyn Fn() -> Result<()>,
    /// What each rank is told; rank 1 is told nothing.
    pub(crate) causes: [&'a [&'a str]; 3],
}

/// Ranks 0 and 2 lose each other; 0 and 1 exchange all the while. Cleared and committed anew, the queue works again.
pub(crate) fn others_go_on_while_two_lose_each_other(comm: &Comm, loss: &Loss<'_>) -> Result<()> {
    let (me, failing) = (comm.rank().0, loss.after + 1);
    let (broken, whole) = (Duplex::new(comm, [0, 2], &MIXED)?, Duplex::new(comm, [0, 1], &MIXED)?);
    let (mut broken_queue, mut whole_queue) = (broken.commit(comm)?, whole.commit(comm)?);
    let more = Line::new(comm, 0, 1)?;
    let mut more_queue = more.queue(comm)?.commit()?;
    broken.run(&mut broken_queue, 1..failing)?;
    whole.run(&mut whole_queue, 1..4)?;
    comm.barrier()?;
    let before = lab::held()?;
    comm.barrier()?;
    if me == 2 {
        (loss.part)()?;
    }
    comm.barrier()?;
    let begun = Instant::now();
    if me == 1 {
        // Until rank 0 says that it was the last.
        for number in 4.. {
            whole.run(&mut whole_queue, number..number + 1)?;
            let arrived = more_queue.start()?.wait()?;
            if arrived.read::<u64>(&more.inbox, ..)?[0] == 0 {
                break;
            }
        }
    } else {
        broken.fill(failing)?;
        let id = broken_queue.id();
        let mut flight = broken_queue.start()?;
        let mut number = 4;
        let error = loop {
            let outcome = flight.test();
            ensure!(!matches!(outcome, Ok(true)), "an epoch went through a link that is down");
            if me == 0 {
                whole.run(&mut whole_queue, number..number + 1)?;
                more.step(&mut more_queue, u64::from(outcome.is_ok()))?;
                number += 1;
            }
            match outcome {
                Err(error) => break error,
                Ok(_) => ensure!(begun.elapsed() < NAMED_WITHIN, "no error after {NAMED_WITHIN:?}"),
            }
            std::thread::yield_now();
        };
        drop(flight);
        names_the_connection(comm, &error, broken.other(), id, failing)?;
        says(&error, loss.causes[me as usize])?;
        let again = broken_queue.start().map(drop);
        ensure!(matches!(again, Err(Error::Poisoned { .. })), "a queue that failed is not poisoned: {again:?}");
    }
    broken_queue.clear();
    comm.barrier()?;
    if me == 2 {
        (loss.join)()?;
    }
    comm.barrier()?;
    whole.run(&mut whole_queue, 100_000..100_005)?;
    let mut mended = broken.commit(comm).context("committing anew")?;
    broken.run(&mut mended, 5..15)?;
    whole.run(&mut whole_queue, 100_005..100_010)?;
    comm.barrier()?;
    // The connection that broke has gone, and one is there instead.
    lab::all_is_given_back(&before)?;
    comm.barrier()?;
    Ok(())
}

pub(crate) fn a_cable_that_stays_out_is_named_and_other_queues_go_on(comm: &Comm) -> Result<()> {
    let cable = Cable { rank: 2, rail: 0 };
    let cause: &[&str] = &["transport retry counter exceeded", "the link or a switch is down", "RMA_VERBS_TIMEOUT"];
    let loss = Loss { after: 3, part: &|| cable.pull(), join: &|| cable.plug_in(), causes: [cause, &[], cause] };
    others_go_on_while_two_lose_each_other(comm, &loss)
}

/// Who sends over its own dead interface knows at once; who sends to it, after its tries.
pub(crate) fn an_interface_that_goes_down_is_named_and_serves_again_once_it_is_up(comm: &Comm) -> Result<()> {
    let far: &[&str] = &["transport retry counter exceeded"];
    let near: &[&str] = &["went down"];
    let (part, join) = (|| lab::interface_down(2, 0), || lab::interface_up(2, 0));
    others_go_on_while_two_lose_each_other(comm, &Loss { after: 3, part: &part, join: &join, causes: [far, &[], near] })
}

/// The acknowledgment of a put is lost, and its target's clear comes first: the epoch is complete by that. When the completion
/// comes after all, the queue is gone and another has its place; that one must not take it for its own.
pub(crate) fn a_late_completion_counts_for_no_other_queue(comm: &Comm) -> Result<()> {
    let is_origin = comm.rank().0 == 0;
    let line = Line::new(comm, 0, 1)?;
    let mut queue = line.queue(comm)?.commit()?;
    line.step(&mut queue, 1)?;
    comm.barrier()?;
    if !is_origin {
        lab::mute(1, 0)?;
    }
    comm.barrier()?;
    line.step(&mut queue, 2).context("an epoch of which the acknowledgment is lost")?;
    if is_origin {
        // The target's clear has come. The acknowledgment of this rank's own would be one of the put, too.
        lab::mute(1, 0)?;
        queue.clear();
    } else {
        queue.clear();
        lab::unmute(1, 0)?;
    }
    let mut queue = line.queue(comm)?.commit()?;
    if is_origin {
        lab::unmute(1, 0)?;
    }
    line.step(&mut queue, 3)?;
    comm.barrier()?;
    if !is_origin {
        lab::mute(1, 0)?;
    }
    comm.barrier()?;
    if is_origin {
        line.outbox.write::<u64>(..)?[0] = 4;
        let mut flight = queue.start()?;
        // Until the target has it, and can only not say so.
        let mut there = false;
        while !there {
            ensure!(!flight.test()?, "an epoch is done though its put cannot have been acknowledged");
            there = std::fs::exists(marker(comm)?)?;
        }
        for _ in 0..1000 {
            ensure!(!flight.test()?, "an epoch is done though its put was not acknowledged");
        }
        comm.barrier()?;
        flight.wait()?;
    } else {
        let arrived = queue.start()?.wait()?;
        std::fs::write(marker(comm)?, "")?;
        let found = arrived.read::<u64>(&line.inbox, ..)?[0];
        ensure!(found == 4, "{found} instead of 4");
        comm.barrier()?;
        std::fs::remove_file(marker(comm)?)?;
        lab::unmute(1, 0)?;
    }
    comm.barrier()?;
    Ok(())
}

/// A file by which ranks of this job tell each other something out of turn.
pub(crate) fn marker(_comm: &Comm) -> Result<std::path::PathBuf> {
    match std::env::var("RMA_TOKEN") {
        Ok(token) => Ok(std::env::temp_dir().join(format!("rma-soft-roce-{token}"))),
        Err(_) => bail!("this is no rank of `rma run`"),
    }
}
