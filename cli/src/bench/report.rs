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
    rails: u16,
    /// How many puts of a size one iteration makes a rank.
    puts: u32,
    speaks: bool,
}

impl<'a> Report<'a> {
    pub(super) fn begin(bench: &'static str, unit: &str, comm: &Comm, options: &'a Options, puts: u32) -> Self {
        let (backend, rails) = (comm.caps().name, options.rails_of(comm));
        let report = Self { bench, options, backend, ranks: comm.size(), rails, puts, speaks: comm.rank() == Rank(0) };
        if report.speaks && options.csv {
            say!("bench,backend,mode,ranks,rails,bytes,iterations,median_us,min_us,max_us,puts,per_put_us,mb_per_s,virtual_us");
        } else if report.speaks {
            let mode = options.mode.name();
            let rails = if rails == 1 { "1 rail".to_owned() } else { format!("{rails} rails") };
            say!("{bench}: {unit}, {} ranks as {mode}, {} backend, {rails}", report.ranks, report.backend);
            let per_put = if report.shows_per_put() { format!("  {:>12}", "us per put") } else { String::new() };
            let emulated = if comm.caps().virtual_time { format!("  {:>12}", "virtual us") } else { String::new() };
            say!("{:>10}  {:>12}  {:>12}  {:>12}  {:>10}{per_put}{emulated}", "bytes", "median us", "min us", "max us", "MB/s");
        }
        report
    }

    /// One size, and the times of an iteration.
    pub(super) fn row(&self, bytes: usize, times: &Times) {
        let Times { iterations, median_us, min_us, max_us, virtual_us } = times;
        let (puts, per_put_us) = (self.puts, median_us / f64::from(self.puts));
        let rate = bytes as f64 / per_put_us;
        if self.speaks && self.options.csv {
            let Self { bench, backend, ranks, rails, .. } = self;
            let mode = self.options.mode.name();
            let virtual_us = virtual_us.map_or_else(String::new, |us| format!("{us:.3}"));
            say!(
                "{bench},{backend},{mode},{ranks},{rails},{bytes},{iterations},{median_us:.4},{min_us:.4},{max_us:.4},\
                 {puts},{per_put_us:.4},{rate:.4},{virtual_us}"
            );
        } else if self.speaks {
            let per_put = if self.shows_per_put() { format!("  {per_put_us:>12.3}") } else { String::new() };
            let emulated = virtual_us.map_or_else(String::new, |us| format!("  {us:>12.3}"));
            say!("{bytes:>10}  {median_us:>12.3}  {min_us:>12.3}  {max_us:>12.3}  {rate:>10.0}{per_put}{emulated}");
        }
    }

    fn shows_per_put(&self) -> bool {
        self.puts > 1
    }
}
