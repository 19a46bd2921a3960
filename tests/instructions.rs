//! `rma-instructions`: starts and waits for a chain of six puts of 8 bytes, a thousand times, for a tool that counts instructions.
//! What is counted is one function; everything else is set-up.
#![forbid(unsafe_code)]

use anyhow::ensure;
use rma::{Comm, Config, Ready, RmaQueue};
use std::hint::black_box;

/// How often the exchange runs before it is counted, and while it is.
const WARM_UP: u64 = 100;
const COUNTED: u64 = 1000;

/// The exchange: nothing but start and wait. A function of its own, so that it has a name in the tool's report.
#[inline(never)]
fn start_and_wait_six_puts(queue: &mut RmaQueue<Ready>) -> rma::Result<()> {
    queue.start()?.wait()?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    const PUTS: usize = 6;
    let comm = Comm::alone(Config::default())?;
    let (source, target) = (comm.window_alloc(8 * PUTS)?, comm.window_alloc(8 * PUTS)?);
    let mut queue = comm.queue_alloc(&target)?;
    for i in 0..PUTS {
        queue.push(&comm.declare_write(&target, 8 * i, &source, 8 * (PUTS - 1 - i), 8, comm.rank())?)?;
    }
    queue.add_origin(comm.rank())?;
    let mut queue = queue.commit()?;
    source.write::<u64>(..)?.iter_mut().zip(1..).for_each(|(cell, number)| *cell = number);
    for _ in 0..WARM_UP {
        queue.start()?.wait()?;
    }
    for _ in 0..COUNTED {
        start_and_wait_six_puts(black_box(&mut queue))?;
    }
    ensure!(queue.epoch().0 == WARM_UP + COUNTED, "the queue is at {}", queue.epoch());
    queue.clear();
    let received = target.read::<u64>(..)?;
    ensure!(*received == [6, 5, 4, 3, 2, 1], "received {:?}", &*received);
    Ok(())
}
