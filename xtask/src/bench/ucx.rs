//! `ucx_perftest`: a server and a client on one host, pinned to a core each, and the lines they print.
//! Its put has no notification: the receiver looks at the last byte, so it is a lower bound for one.

use super::csv::Row;
use crate::process::{Output, Spec};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the client goes on trying until the server listens.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What to time.
#[derive(Debug)]
pub(super) struct Perftest {
    pub(super) sizes: Vec<u64>,
    /// How many batches make a measurement, and how long one is to take.
    pub(super) repeats: u32,
    pub(super) batch: Duration,
    /// A file it writes: the list of tests.
    pub(super) script: PathBuf,
}

impl Perftest {
    pub(super) fn run(&self, limit: Duration) -> Result<Vec<Row>> {
        std::fs::write(&self.script, self.tests()).with_context(|| format!("cannot write {}", self.script.display()))?;
        let deadline = Instant::now() + CONNECT_LIMIT;
        let port = free_port()?;
        let server = side(0, port, &self.script).start(Output::Kept)?;
        let client = loop {
            let client = side(1, port, &self.script).arg("localhost").run(limit, Output::Kept)?;
            // UCX writes its log to the standard output.
            let refused = client.stdout.contains("Connection refused") || client.stderr.contains("Connection refused");
            if !refused || Instant::now() > deadline {
                break client;
            }
        };
        if !client.succeeded() {
            bail!("ucx_perftest: {}\n{}{}", client.failure(), client.stdout, client.stderr);
        }
        server.finish(limit)?;
        self.rows(&client.stdout)
    }

    /// One line a test: its name, then its options.
    fn tests(&self) -> String {
        let mut text = String::new();
        for &bytes in &self.sizes {
            // About 50 ns and 16 GB/s: it has no option for a duration.
            let expected_ns = 2 * (50 + bytes / 16);
            let iterations = (self.batch.as_nanos() as u64 / expected_ns).max(20);
            for _ in 0..self.repeats {
                let _ = writeln!(text, "put_{bytes} -t ucp_put_lat -s {bytes} -n {iterations} -w {}", iterations / 10);
            }
        }
        text
    }

    fn rows(&self, output: &str) -> Result<Vec<Row>> {
        let mut lines = output.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let column = lines
            .find_map(|header| header.iter().position(|name| *name == "overall_lat"))
            .context("ucx_perftest printed no column overall_lat")?;
        let tests: Vec<_> = lines.collect();
        let mut rows = Vec::new();
        for &bytes in &self.sizes {
            let name = format!("put_{bytes}");
            let batches = tests.iter().filter(|fields| fields.first() == Some(&name.as_str()));
            let times = batches.filter_map(|fields| fields.get(column)?.parse().ok()).filter(|us: &f64| *us > 0.0);
            let summary = super::stats::Summary::of(times).with_context(|| format!("ucx_perftest printed no time of {name}"))?;
            ensure!(summary.count == self.repeats as usize, "ucx_perftest printed {} times of {name}", summary.count);
            rows.push(Row {
                bench: "put".into(),
                backend: "ucx".into(),
                mode: "ucp_put_lat".into(),
                ranks: 2,
                bytes,
                median_us: summary.median,
            });
        }
        Ok(rows)
    }
}

fn side(core: u32, port: u16, script: &std::path::Path) -> Spec {
    Spec::new("ucx_perftest")
        .env("UCX_TLS", "posix")
        .args(["-c".into(), core.to_string(), "-p".into(), port.to_string(), "-f".into(), "-v".into()])
        .args(["-b".into(), script.display().to_string()])
}

/// One that nobody listens on just now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perftest(sizes: &[u64], repeats: u32) -> Perftest {
        Perftest { sizes: sizes.into(), repeats, batch: Duration::from_millis(10), script: PathBuf::new() }
    }

    #[test]
    fn the_median_of_the_batches_is_taken_by_column_name() {
        let output = "x.txt,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\nput_8,9,1,1,0.05,7\nput_8,9,1,1,0.09,7\nput_8,9,1,1,0.06,7\n";
        let rows = perftest(&[8], 3).rows(output).unwrap();
        assert_eq!((rows[0].bytes, rows[0].median_us), (8, 0.06));
    }

    #[test]
    fn a_missing_batch_is_an_error() {
        let output = "x.txt,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\nput_8,9,1,1,0.05,7\n";
        assert!(perftest(&[8], 2).rows(output).is_err());
        assert!(perftest(&[8, 16], 1).rows(output).is_err());
        assert!(perftest(&[8], 1).rows("nothing").is_err());
    }

    #[test]
    fn a_batch_is_as_long_as_asked_and_never_too_few() {
        let tests = perftest(&[8, 1 << 30], 1).tests();
        assert_eq!(
            tests.lines().collect::<Vec<_>>(),
            ["put_8 -t ucp_put_lat -s 8 -n 100000 -w 10000", "put_1073741824 -t ucp_put_lat -s 1073741824 -n 20 -w 2"]
        );
    }
}
