//! How an exchange is timed: batches of so many iterations that each takes a set time, the slowest rank counting.
//! Knows the clock and the ranks; knows nothing of what an iteration does.

use anyhow::Result;
use rma::{Bootstrap, Comm, Deadline};
use std::time::{Duration, Instant};

/// The times of a size, in microseconds an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) iterations: u64,
    pub(super) median_us: f64,
    pub(super) min_us: f64,
    pub(super) max_us: f64,
}

/// Times `exchange(iterations)` on all ranks: `repeats` batches of about `batch`, after one that is not counted.
pub(super) fn measure(
    comm: &Comm,
    repeats: u32,
    batch: Duration,
    mut exchange: impl FnMut(u64) -> rma::Result<()>,
) -> Result<Times> {
    let mut timed = |iterations| -> Result<f64> {
        comm.barrier()?;
        let begun = Instant::now();
        exchange(iterations)?;
        let mine = begun.elapsed().as_secs_f64();
        slowest(comm, mine)
    };
    let mut iterations = 1u64;
    let seconds = loop {
        let seconds = timed(iterations)?;
        if seconds >= batch.as_secs_f64() / 8.0 || iterations >= 1 << 40 {
            break seconds;
        }
        iterations *= 4;
    };
    // Every rank has the same seconds, so every rank comes to the same number.
    iterations = ((iterations as f64 * batch.as_secs_f64() / seconds) as u64).max(1);
    timed(iterations)?;
    let mut all = (0..repeats).map(|_| Ok(timed(iterations)? * 1e6 / iterations as f64)).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(Times { iterations, median_us: all[all.len() / 2], min_us: all[0], max_us: all[all.len() - 1] })
}

/// The largest of all ranks' values.
fn slowest(comm: &Comm, mine: f64) -> Result<f64> {
    let all = gather(comm.bootstrap(), comm.config().setup_timeout, mine.to_bits())?;
    Ok(all.into_iter().map(f64::from_bits).fold(0.0, f64::max))
}

/// A number of every rank.
pub(super) fn gather(boot: &dyn Bootstrap, patience: Duration, mine: u64) -> Result<Vec<u64>> {
    let all = boot.allgather(&mine.to_le_bytes(), Deadline::after(patience))?;
    Ok(all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u64::from_le_bytes).collect())
}
