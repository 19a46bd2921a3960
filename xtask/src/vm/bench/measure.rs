//! Inside the machine: runs the contenders of some cases in turn, and prints a line a figure.
//! Owns the command lines of perftest and of `rma bench`, and the reading of what they print.

use super::{Case, Place, What, cases};
use crate::process::{Output, Spec};
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The command `rma`
    #[arg(long)]
    rma: String,
    #[arg(long)]
    rounds: u32,
    /// The name of a case; may be given again
    #[arg(long)]
    case: Vec<String>,
}

/// A time of one contender in one round: of a message, one way or of many.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) case: String,
    pub(crate) ours: bool,
    pub(crate) round: u32,
    pub(crate) us: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.ours { "rma" } else { "peer" };
        write!(f, "figure;{};{who};{};{:.4}", self.case, self.round, self.us)
    }
}

impl Figure {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.strip_prefix("figure;")?.split(';').collect();
        let [case, who, round, us] = fields[..] else { return None };
        Some(Self { case: case.into(), ours: who == "rma", round: round.parse().ok()?, us: us.parse().ok()? })
    }
}

/// A single run of a contender takes a second or two.
const LIMIT: Duration = Duration::from_secs(30);
/// Of a ping-pong, and of lists of 64.
const PING_PONGS: u32 = 1500;
const LISTS_OF_64: u32 = 200;
/// How long a contender of ours runs, in milliseconds: about as long.
const BATCH_MS: &str = "50";
const LONG_BATCH_MS: &str = "600";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    for round in 0..args.rounds {
        for name in &args.case {
            let case = cases().iter().find(|case| case.name == name).with_context(|| format!("there is no case {name:?}"))?;
            lab(if case.place == Place::Unpinned { "unpin" } else { "pin" })?;
            // Who begins changes from round to round.
            for ours in [round % 2 == 0, round % 2 == 1] {
                let us = if ours { of_rma(case, &args.rma) } else { of_peer_at_last(case, &args.rma) };
                match us.with_context(|| format!("{name}, round {round}")) {
                    Ok(us) => println!("{}", Figure { case: name.clone(), ours, round, us }),
                    Err(error) if !ours => eprintln!("{error:#}"),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn lab(change: &str) -> Result<()> {
    let done = Spec::new("/mnt/lab").arg(change).run(LIMIT, Output::Kept)?;
    ensure!(done.succeeded(), "/mnt/lab {change}: {}", done.last_words(3));
    Ok(())
}

fn of_rma(case: &Case, rma: &str) -> Result<f64> {
    match case.what {
        What::Put => rma_bench(case, rma, "put", &["--batch-ms", BATCH_MS], "per_put_us"),
        What::Chain => rma_bench(case, rma, "stream", &["--puts", "64", "--batch-ms", BATCH_MS], "per_put_us"),
        What::Stream => rma_bench(case, rma, "stream", &["--puts", "1", "--batch-ms", LONG_BATCH_MS], "per_put_us"),
        What::Rails => rma_bench(case, rma, "stream", &["--puts", "8", "--batch-ms", LONG_BATCH_MS], "per_put_us"),
        What::Neighbor => of_exchange(case, rma, "segmented"),
    }
}

/// All six messages go to the other rank: it is the rails that are to be filled.
fn of_exchange(case: &Case, rma: &str, cut: &str) -> Result<f64> {
    rma_bench(case, rma, "neighbor", &["--neighbors", "6", "--cut", cut, "--batch-ms", LONG_BATCH_MS], "median_us")
}

/// A column of what `rma bench` prints.
fn rma_bench(case: &Case, rma: &str, bench: &str, more: &[&str], column: &str) -> Result<f64> {
    let bytes = case.bytes.to_string();
    // Perftest leaves it to the system where it runs, too.
    let common = ["--backend", "verbs", "--mode", "processes", "--no-bind", "--csv", "--repeats", "1", "--bytes", &bytes];
    let devices: Vec<_> = (0..case.place.rails()).map(|rail| format!("x{{rank}}d{rail}")).collect();
    let spec = Spec::new(rma).args(["bench", bench]).args(common).args(more.iter().copied());
    // Slow rails that both ends fill hold acknowledgements up behind half a megabyte of data; a usual time-out would take them for lost.
    let spec = spec.env("RMA_VERBS_DEVICES", devices.join(",")).env("RMA_VERBS_TIMEOUT", "20");
    let done = spec.run(LIMIT, Output::Kept)?;
    ensure!(done.succeeded(), "rma bench {bench}: {}: {}", done.failure(), done.last_words(5));
    in_last_line(&done.stdout, column).with_context(|| format!("{column} in what rma bench printed:\n{}", done.stdout))
}

/// What the last line has in the column of that name.
fn in_last_line(csv: &str, column: &str) -> Option<f64> {
    let column = csv.lines().next()?.split(',').position(|name| name == column)?;
    csv.lines().last()?.split(',').nth(column)?.parse().ok()
}

/// Perftest takes the measure of the processor's clock when it reports, and prints no figure if it could not. Then it runs again.
fn of_peer_at_last(case: &Case, rma: &str) -> Result<f64> {
    const MOST_RUNS: u32 = 4;
    let mut us = of_peer(case, rma);
    for _ in 1..MOST_RUNS {
        if us.is_ok() {
            break;
        }
        us = of_peer(case, rma);
    }
    us
}

fn of_peer(case: &Case, rma: &str) -> Result<f64> {
    let bytes = case.bytes;
    let size = bytes.to_string();
    match case.what {
        What::Put => {
            let said = pair("ib_write_lat", 0, &["-s", &size, "-n", &PING_PONGS.to_string()])?.finish()?;
            // Bytes, iterations, least, most, typical, average.
            field(&said, 5)
        }
        What::Chain => {
            let messages = (LISTS_OF_64 * 64).to_string();
            let said = pair("ib_write_bw", 0, &["-s", &size, "-n", &messages, "-l", "64", "-t", "128"])?.finish()?;
            Ok(time_us(bytes, field(&said, 3)?))
        }
        What::Stream => Ok(time_us(bytes, field(&pair("ib_write_bw", 0, &["-s", &size, "-n", "60"])?.finish()?, 3)?)),
        What::Rails => {
            // One after the other: it takes the clock's measure when it reports, and that takes an idle processor.
            let speeds = (0..4).map(|rail| field(&pair("ib_write_bw", rail, &["-s", &size, "-n", "24", "-u", "17"])?.finish()?, 3));
            let speeds = speeds.collect::<Result<Vec<_>>>()?;
            Ok(time_us(bytes, speeds.iter().sum()))
        }
        What::Neighbor => of_exchange(case, rma, "whole"),
    }
}

/// The time of a message at so many MiB/s, which perftest calls MB/s.
fn time_us(bytes: u64, mib_per_s: f64) -> f64 {
    bytes as f64 / (mib_per_s * 1048576.0) * 1e6
}

/// The last line of perftest's table.
fn field(said: &str, column: usize) -> Result<f64> {
    let mut lines = said.lines().skip_while(|line| !line.contains("#bytes"));
    let line = lines.nth(1).with_context(|| format!("perftest printed no table:\n{said}"))?;
    let value = line.split_whitespace().nth(column).and_then(|value| value.parse::<f64>().ok());
    value.filter(|value| value.is_finite() && *value > 0.0).with_context(|| format!("no figure in column {column} of {line:?}"))
}

/// Both sides of a perftest program.
struct Pair {
    server: crate::process::Running,
    client: crate::process::Running,
}

const FIRST_PORT: u16 = 18515;

/// Starts the side that waits to be connected to, and then the other.
fn pair(program: &str, rail: u16, args: &[&str]) -> Result<Pair> {
    let port = FIRST_PORT + rail;
    let side = |rank| {
        let common = ["-F", "-x", "1", "-d", &format!("x{rank}d{rail}"), "-p", &port.to_string()].map(str::to_owned);
        Spec::new(program).args(common).args(args.iter().copied())
    };
    let server = side(0).start(Output::Kept)?;
    await_listener(port)?;
    Ok(Pair { server, client: side(1).arg("127.0.0.1").start(Output::Kept)? })
}

impl Pair {
    fn finish(self) -> Result<String> {
        let client = self.client.finish(LIMIT)?;
        ensure!(client.succeeded(), "perftest: {}: {}", client.failure(), client.last_words(5));
        self.server.finish(LIMIT)?;
        Ok(client.stdout)
    }
}

/// Until a server listens on a port of this machine, which is ours alone.
fn await_listener(port: u16) -> Result<()> {
    let (begun, listening) = (Instant::now(), format!(":{port:04X}"));
    loop {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = std::fs::read_to_string(table).unwrap_or_default();
            let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            // Local address, remote address, state 0A for listening.
            if rows.any(|row| row.get(1).is_some_and(|local| local.ends_with(&listening)) && row.get(3) == Some(&"0A")) {
                return Ok(());
            }
        }
        if begun.elapsed() > LIMIT {
            bail!("perftest does not listen on port {port} after {} s", LIMIT.as_secs());
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_read_as_it_was_written() {
        let figure = Figure { case: "put 8 B, pinned".into(), ours: true, round: 3, us: 1.25 };
        assert_eq!(Figure::parse(&figure.to_string()), Some(figure));
        assert_eq!(Figure::parse("[0] hello"), None);
    }

    #[test]
    fn the_tables_of_perftest_are_read() {
        let said = "---\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n 8 1000 12.1 99.0 13.5 14.25 \n---\n";
        assert_eq!(field(said, 5).unwrap(), 14.25);
        assert!(field("no table", 5).is_err());
        assert!(field("#bytes\n 8 inf", 1).is_err());
        assert_eq!(time_us(1 << 20, 1.0), 1e6);
    }

    #[test]
    fn the_time_of_a_put_is_found_by_its_column() {
        assert_eq!(in_last_line("bench,puts,per_put_us,mb_per_s\nput,1,2.5,3\n", "per_put_us"), Some(2.5));
        assert_eq!(in_last_line("bench,puts\nput,1\n", "per_put_us"), None);
    }
}
