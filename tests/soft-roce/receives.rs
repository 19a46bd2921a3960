//! A queue without credits whose origin runs far ahead of a target that does not look.
//! Its puts have no bytes, so nothing is overwritten.

use crate::links::{marker, names_the_connection};
use anyhow::{Context, Result, ensure};
use rma::{Comm, InFlight, Ready, RmaQueue};
use rma_tests::check::{PATIENCE, says};
use std::time::Instant;

/// What the driver sets: so many notices are taken before the target looks.
pub(crate) const RECEIVES: u64 = 16;
const EPOCHS: u64 = 100;
/// How often the origin looks before it is believed to be held up.
const LOOKS: u32 = 2000;

fn commit(comm: &Comm) -> Result<RmaQueue<Ready>> {
    let window = comm.window_alloc(8)?;
    let mut queue = comm.queue_alloc(&window)?;
    if comm.rank().0 == 0 {
        queue.push(&comm.declare_write(&window, 0, &window, 0, 0, 1)?)?;
    } else {
        queue.add_origin(0)?;
    }
    #[allow(unsafe_code, reason = "the only way to do without credits")]
    // SAFETY: no put of this queue has a byte, so no order is needed.
    unsafe {
        queue.without_credits()
    };
    Ok(queue.commit()?)
}

fn until_told(comm: &Comm) -> Result<()> {
    let begun = Instant::now();
    while !std::fs::exists(marker(comm)?)? {
        ensure!(begun.elapsed() < PATIENCE, "rank 0 says nothing");
        std::thread::yield_now();
    }
    Ok(())
}

pub(crate) fn an_origin_that_finds_no_receive_for_too_long_is_told_so(comm: &Comm) -> Result<()> {
    let mut queue = commit(comm)?;
    if comm.rank().0 == 0 {
        let id = queue.id();
        let mut failed = None;
        for epoch in 1..=EPOCHS {
            if let Err(error) = queue.start().and_then(InFlight::wait) {
                failed = Some((epoch, error));
                break;
            }
        }
        let (epoch, error) = failed.context("no error, although the target took nothing")?;
        ensure!(epoch > RECEIVES, "already epoch {epoch} failed: {error}");
        names_the_connection(comm, &error, 1, id, epoch)?;
        says(&error, &["receiver-not-ready retry counter exceeded", "RMA_VERBS_RECEIVES", "RMA_VERBS_RNR_RETRIES=7"])?;
        std::fs::write(marker(comm)?, "")?;
    } else {
        until_told(comm)?;
    }
    queue.clear();
    comm.barrier()?;
    if comm.rank().0 == 0 {
        std::fs::remove_file(marker(comm)?)?;
    }
    // Over a new connection.
    let mut queue = commit(comm)?;
    for _ in 0..10 {
        queue.start()?.wait()?;
        comm.barrier()?;
    }
    Ok(())
}

pub(crate) fn an_origin_without_credits_waits_for_a_target_that_is_late(comm: &Comm) -> Result<()> {
    let mut queue = commit(comm)?;
    if comm.rank().0 == 0 {
        let mut held_up = 0;
        for epoch in 1..=EPOCHS {
            let mut flight = queue.start()?;
            let mut looks = 0;
            while !flight.test()? {
                looks += 1;
                if looks == LOOKS && held_up == 0 && epoch > RECEIVES {
                    held_up = epoch;
                    std::fs::write(marker(comm)?, "")?;
                }
                std::thread::yield_now();
            }
            flight.wait()?;
        }
        ensure!(held_up > RECEIVES, "never held up in {EPOCHS} epochs, with {RECEIVES} receives at the target");
        comm.barrier()?;
        std::fs::remove_file(marker(comm)?)?;
    } else {
        until_told(comm)?;
        for epoch in 1..=EPOCHS {
            let arrived = queue.start()?.wait()?;
            ensure!(arrived.epoch().0 == epoch, "{} instead of epoch {epoch}", arrived.epoch());
        }
        comm.barrier()?;
    }
    Ok(())
}
