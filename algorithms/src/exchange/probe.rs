//! What a step takes here and what a rail carries, measured: each rank writes to the next, rail after rail, few bytes and then many.
//! Owns how much is measured; on an emulated device by that device's clock.

use super::agreement::largest;
use super::commit::check_rails;
use crate::model::Machine;
use rma::bootstrap::all_or_none;
use rma::{Arrived, Comm, Deadline, Rail, Result, RmaWindow};
use std::time::{Duration, Instant};

/// So few bytes that they take no time.
const FEW_BYTES: usize = 8;
/// Many bytes are as many as the longest message has, within these: fewer could not be told from none, more take long.
const LEAST_BYTES: u64 = 64 << 10;
const MOST_BYTES: u64 = 1 << 20;
/// The most epochs of a length on a rail ..
const MOST_EPOCHS: usize = 9;
/// .. and about how long they may take together, for devices on which an epoch takes long. At least one there is.
const BUDGET: Duration = Duration::from_millis(5);
/// On an emulated device all epochs take the same, and how many there are must not depend on anything else than that device.
const VIRTUAL_EPOCHS: usize = 2;

/// Collective: latency of a step and rate of a rail, of the slowest rank and rail, for messages of up to `longest_bytes` over the first
/// `rails` rails. Takes two small windows for the time being, and on a fast machine some milliseconds a rail.
pub fn probe(comm: &Comm, rails: u16, longest_bytes: u64) -> Result<Machine> {
    let deadline = || Deadline::after(comm.config().setup_timeout);
    all_or_none(comm.bootstrap(), "probe", check_rails(comm, Some(rails)), deadline())?;
    // Lengths that a message can have are exact enough in a float.
    let [longest] = largest([longest_bytes as f64], comm.bootstrap(), deadline())?;
    let many_bytes = (longest as u64).clamp(LEAST_BYTES, MOST_BYTES) as usize;
    let (inbox, outbox) = (comm.window_alloc(many_bytes)?, comm.window_alloc(many_bytes)?);
    let (mut step_us, mut us_per_byte) = (0.0f64, 0.0f64);
    for rail in (0..rails).map(Rail) {
        let few_us = ring_us(comm, [&inbox, &outbox], rail, FEW_BYTES)?;
        let many_us = ring_us(comm, [&inbox, &outbox], rail, many_bytes)?;
        // Bytes take time, however little of it can be told from noise.
        let of_bytes_us = (many_us - few_us).max(many_us / 100.0);
        step_us = step_us.max(few_us);
        us_per_byte = us_per_byte.max(of_bytes_us / (many_bytes - FEW_BYTES) as f64);
    }
    inbox.free()?;
    outbox.free()?;
    let [step_us, us_per_byte] = largest([step_us, us_per_byte], comm.bootstrap(), deadline())?;
    Ok(Machine { step_us, rail_bytes_per_us: 1.0 / us_per_byte })
}

/// The median time of an epoch in which each rank writes so many bytes to the next.
fn ring_us(comm: &Comm, [inbox, outbox]: [&RmaWindow; 2], rail: Rail, bytes: usize) -> Result<f64> {
    let (me, size) = (comm.rank().0, comm.size());
    let put = comm.declare_write(inbox, 0, outbox, 0, bytes, (me + 1) % size)?.rail(rail)?;
    let mut queue = comm.queue_alloc(inbox)?;
    queue.push(&put)?.add_origin((me + size - 1) % size)?;
    let mut queue = queue.commit()?;
    let mut epoch_us = || -> Result<f64> {
        let begun = Instant::now();
        let arrived = queue.start()?.wait()?;
        Ok(taken(&arrived, begun).as_secs_f64() * 1e6)
    };
    let first_us = epoch_us()?;
    let epochs = if comm.virtual_now().is_some() {
        VIRTUAL_EPOCHS
    } else {
        let [slowest_us] = largest([first_us], comm.bootstrap(), Deadline::after(comm.config().setup_timeout))?;
        ((BUDGET.as_secs_f64() * 1e6 / slowest_us) as usize).clamp(1, MOST_EPOCHS)
    };
    let mut all_us = (0..epochs).map(|_| epoch_us()).collect::<Result<Vec<_>>>()?;
    all_us.sort_by(f64::total_cmp);
    Ok(all_us[all_us.len() / 2])
}

fn taken(arrived: &Arrived<'_>, begun: Instant) -> Duration {
    arrived.virtual_span().map_or_else(|| begun.elapsed(), |span| span.duration())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_that_are_not_there_are_refused_on_every_rank() {
        let texts = Comm::threads(2, |comm| {
            let refused = |rails| probe(&comm, rails, 8).unwrap_err().to_string();
            let none = refused(if comm.rank().0 == 1 { 0 } else { comm.rails() });
            (none, refused(comm.rails() + 1))
        });
        for (none, more) in texts.unwrap() {
            assert!(none.contains("0 rails carry nothing") && more.contains("there is no rail"), "{none}; {more}");
        }
    }
}
