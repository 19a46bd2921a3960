//! The table and the CSV lines. Later columns are appended, never reordered.

use super::Options;
use super::measure::Times;
use rma::{Comm, Rank};

/// Prints the results of one benchmark as they come, on rank 0.
pub(super) struct Report<'a> {
    bench: &'static str,
    options: &'a Options,
    backend: &'static str,
    ranks: u32,
    speaks: bool,
}

impl<'a> Report<'a> {
    pub(super) fn begin(bench: &'static str, unit: &str, comm: &Comm, options: &'a Options) -> Self {
        let report = Self { bench, options, backend: comm.caps().name, ranks: comm.size(), speaks: comm.rank() == Rank(0) };
        if report.speaks && options.csv {
            println!("bench,backend,mode,ranks,rails,bytes,iterations,median_us,min_us,max_us");
        } else if report.speaks {
            let (mode, rails) = (options.mode.name(), options.rails);
            let rails = if rails == 1 { "1 rail".to_owned() } else { format!("{rails} rails") };
            println!("{bench}: {unit}, {} ranks as {mode}, {} backend, {rails}", report.ranks, report.backend);
            println!("{:>10}  {:>12}  {:>12}  {:>12}  {:>10}", "bytes", "median us", "min us", "max us", "MB/s");
        }
        report
    }

    /// One size; `moved_bytes` is what an iteration moves out of one rank.
    pub(super) fn row(&self, bytes: usize, moved_bytes: usize, times: &Times) {
        let Times { iterations, median_us, min_us, max_us } = times;
        if self.speaks && self.options.csv {
            let (bench, backend, mode, rails) = (self.bench, self.backend, self.options.mode.name(), self.options.rails);
            let ranks = self.ranks;
            println!("{bench},{backend},{mode},{ranks},{rails},{bytes},{iterations},{median_us:.4},{min_us:.4},{max_us:.4}");
        } else if self.speaks {
            let rate = moved_bytes as f64 / median_us;
            println!("{bytes:>10}  {median_us:>12.3}  {min_us:>12.3}  {max_us:>12.3}  {rate:>10.0}");
        }
    }
}
