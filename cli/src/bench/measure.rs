//! How an exchange is timed: batches of so many iterations that each takes a set time, the slowest rank counting. Where the backend
//! keeps a clock of an emulated device, also by that one. Knows the clocks and the ranks; knows nothing of what an iteration does.

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
    /// The median by the clock of the emulated device, if there is one.
    pub(super) virtual_us: Option<f64>,
}

impl Times {
    /// What one of two ways takes, of an iteration that goes there and back.
    pub(super) fn one_way(self) -> Self {
        let Self { iterations, median_us, min_us, max_us, virtual_us } = self;
        let virtual_us = virtual_us.map(|both| both / 2.0);
        Self { iterations, median_us: median_us / 2.0, min_us: min_us / 2.0, max_us: max_us / 2.0, virtual_us }
    }
}

/// How many iterations are timed at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Batch {
    /// As many as take about this long here.
    Lasting(Duration),
    /// So many, whatever they take: by the clock of an emulated device every run then has the same times.
    Of(u64),
}

/// What the slowest rank took for a batch.
#[derive(Clone, Copy, Debug)]
struct Taken {
    seconds: f64,
    virtual_seconds: Option<f64>,
}

/// Times `exchange(iterations)` on all ranks: `repeats` batches, after one that is not counted.
pub(super) fn measure(comm: &Comm, repeats: u32, batch: Batch, mut exchange: impl FnMut(u64) -> rma::Result<()>) -> Result<Times> {
    let mut timed = |iterations| -> Result<Taken> {
        comm.barrier()?;
        let (begun, begun_virtually) = (Instant::now(), comm.virtual_now());
        exchange(iterations)?;
        let seconds = slowest(comm, begun.elapsed())?;
        // Either all ranks have such a clock or none.
        let mine = comm.virtual_now().zip(begun_virtually).map(|(now, begun)| now.saturating_sub(begun));
        Ok(Taken { seconds, virtual_seconds: mine.map(|mine| slowest(comm, mine)).transpose()? })
    };
    let iterations = match batch {
        Batch::Of(iterations) => iterations,
        Batch::Lasting(time) => iterations_in(time, |iterations| Ok(timed(iterations)?.seconds))?,
    };
    timed(iterations)?;
    let all = (0..repeats).map(|_| timed(iterations)).collect::<Result<Vec<_>>>()?;
    let us = |seconds: f64| seconds * 1e6 / iterations as f64;
    let real = sorted(all.iter().map(|taken| us(taken.seconds)));
    let by_emulation = sorted(all.iter().filter_map(|taken| taken.virtual_seconds).map(us));
    Ok(Times {
        iterations,
        median_us: real[real.len() / 2],
        min_us: real[0],
        max_us: real[real.len() - 1],
        virtual_us: by_emulation.get(by_emulation.len() / 2).copied(),
    })
}

/// How many iterations take about this long. Every rank has the same seconds, so every rank comes to the same number.
fn iterations_in(time: Duration, mut seconds_of: impl FnMut(u64) -> Result<f64>) -> Result<u64> {
    let mut iterations = 1u64;
    let seconds = loop {
        let seconds = seconds_of(iterations)?;
        if seconds >= time.as_secs_f64() / 8.0 || iterations >= 1 << 40 {
            break seconds;
        }
        iterations *= 4;
    };
    Ok(((iterations as f64 * time.as_secs_f64() / seconds) as u64).max(1))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<_> = values.collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The largest of all ranks' times, in seconds.
fn slowest(comm: &Comm, mine: Duration) -> Result<f64> {
    let all = gather(comm.bootstrap(), comm.config().setup_timeout, mine.as_secs_f64().to_bits())?;
    Ok(all.into_iter().map(f64::from_bits).fold(0.0, f64::max))
}

/// A number of every rank.
pub(super) fn gather(boot: &dyn Bootstrap, patience: Duration, mine: u64) -> Result<Vec<u64>> {
    let all = boot.allgather(&mine.to_le_bytes(), Deadline::after(patience))?;
    Ok(all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u64::from_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rma::{Config, Rank};

    /// Two ranks time three puts of rank 0 to itself.
    fn timed(backend: &str) -> Vec<Times> {
        let mut config = Config::default();
        config.backend = Some(backend.into());
        let rank = |comm: Comm| {
            let window = comm.window_alloc(16)?;
            let mut queue = comm.queue_alloc(&window)?;
            if comm.rank() == Rank(0) {
                queue.push(&comm.declare_write(&window, 0, &window, 8, 8, Rank(0))?)?.add_origin(Rank(0))?;
            }
            let mut queue = queue.commit()?;
            measure(&comm, 3, Batch::Of(3), |iterations| {
                if comm.rank() == Rank(0) {
                    (0..iterations).try_for_each(|_| queue.start()?.wait().map(drop))?;
                }
                Ok(())
            })
        };
        Comm::threads_with(2, config, rank).unwrap().into_iter().collect::<Result<_>>().unwrap()
    }

    #[test]
    fn the_rank_that_takes_longest_counts_also_by_the_clock_of_an_emulated_device() {
        rma_peach2::offer();
        for times in timed(rma_peach2::NAME) {
            // Without a hop the put takes 1.5523 us, and its credit comes after 0.55 us.
            assert!(times.virtual_us.is_some_and(|us| (us - 2.1023).abs() < 0.001), "{times:?}");
            assert_eq!(times.iterations, 3);
            assert_eq!(times.one_way().virtual_us, times.virtual_us.map(|us| us / 2.0));
        }
        assert!(timed("shm").iter().all(|times| times.virtual_us.is_none() && times.min_us > 0.0));
    }
}
