//! `rma bench`: times the library's own exchanges, for people and as CSV for programs that compare.
//! Owns the options, and that the same run happens on threads and on processes; what is timed is in `put`,
//! `stream`, `halo`, `array`, `neighbor`, `page_tables` and, with options of its own, `peach2`.

/// Prints a line of results. A command whose reader has gone ends well with it.
macro_rules! say {
    ($($line:tt)*) => { $crate::bench::say(format_args!($($line)*)) };
}

mod array;
mod chain;
mod halo;
mod measure;
mod neighbor;
mod page_tables;
mod peach2;
mod put;
mod report;
mod stream;

use crate::{results, run};
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use measure::Batch;
use rma::{Comm, Config, provider};
use rma_algorithms::{Cut, Stepping};
use std::fmt::Arguments;
use std::process::ExitCode;
use std::time::Duration;

/// The most puts of a chain here: what a backend can take, and what fits into memory, may be less.
const MAX_PUTS: i64 = 1 << 20;

const AFTER_HELP: &str = "\
Examples:
  rma bench put                                 one-way latency of two thread ranks
  rma bench put --mode processes --bytes 8,1M   the same of two processes
  rma bench put --puts 16 --bytes 8             sixteen puts committed as one chain, there and back
  rma bench stream --puts 64 --bytes 4K         rank 0 puts to rank 1 as fast as the credits come
  rma bench halo --ranks 8 --bytes 1024,4096    six messages to the neighbors of a 2x2x2 torus
  rma bench halo --csv > halo.csv               for a program or a plot
  rma bench array --cells 64 --ranks 8          the ghosts of a cube of 64^3 f64 on every rank
  rma bench halo --backend peach2               over emulated boards, also by their clock
  rma bench neighbor --backend peach2 --ranks 7 --rails 4
                                                six messages whole and in segments, over four rails
  rma bench peach2                              latencies of emulated PEACH2 boards
  mpirun -n 2 rma bench halo --backend mpi      ranks of an MPI, which also moves the data";

/// Time the library's own exchanges on this machine.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Benches,
}

#[derive(Debug, Subcommand)]
enum Benches {
    #[command(flatten)]
    OnThisMachine(Bench),
    Peach2(peach2::Peach2Options),
}

#[derive(Clone, Debug, Subcommand)]
enum Bench {
    /// Ping-pong of a chain of puts and its notification: start, wait, and back. Times are one way.
    Put(PutOptions),
    /// Chains of puts from rank 0 to rank 1, one after the other as the credits come. Times are of a chain.
    Stream(StreamOptions),
    /// Six puts to the neighbors of a 3-D torus, and the wait for theirs. Times are of one exchange.
    ///
    /// The torus is periodic and as near to a cube as the number of ranks allows, its ranks in row-major order. With two ranks
    /// all six neighbors are the other rank, unless --torus is given.
    Halo(HaloOptions),
    /// Messages of every rank to those after it, over several rails: whole, or cut so that no rail is idle. Times are of one exchange.
    ///
    /// Message q of rank r goes to rank r + 1 + q, counted around. Beside the times stands what the model says: a step takes so long and
    /// a rail carries so much, as is measured first. Rates and gains are by the clock of an emulated device where there is one.
    Neighbor(NeighborOptions),
    /// The ghosts of a cube of f64 on every rank, exchanged by the halo library. Times are of one exchange.
    ///
    /// The grid of ranks is a torus, as near to a cube as their number allows; where it is one rank wide, a rank's own cells wrap around. Bytes
    /// are those of a face, rates those of all six.
    Array(ArrayOptions),
    /// How much memory the page tables take when every rank can write every other's window.
    PageTables(PageTablesOptions),
}

#[derive(Clone, Debug, Args)]
struct PutOptions {
    #[command(flatten)]
    common: Options,
    /// Sizes in bytes of a message, as in 8,1K,1M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,1K,4K,64K,1M")]
    bytes: Vec<usize>,
    /// How many puts a chain has, each of the size and to a place of its own, 128 bytes or more from the next
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_PUTS))]
    puts: u32,
}

#[derive(Clone, Debug, Args)]
struct StreamOptions {
    #[command(flatten)]
    common: Options,
    /// Sizes in bytes of a message, as in 8,1K,1M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,1K,4K,64K,1M")]
    bytes: Vec<usize>,
    /// How many puts a chain has, each of the size and to a place of its own, 128 bytes or more from the next
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=MAX_PUTS))]
    puts: u32,
    /// How many queues take turns: with 2 the next chain is under way while the last is waited for
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    queues: u8,
}

#[derive(Clone, Debug, Args)]
struct HaloOptions {
    #[command(flatten)]
    common: Options,
    /// Sizes in bytes of a message, as in 8,1K,1M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,1K,4K,64K,1M")]
    bytes: Vec<usize>,
    /// A torus also for two ranks, with four of six messages to oneself
    #[arg(long)]
    torus: bool,
}

#[derive(Clone, Debug, Args)]
struct NeighborOptions {
    #[command(flatten)]
    common: Options,
    /// Sizes in bytes of a message, as in 8,1K,1M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,1K,4K,64K,1M")]
    bytes: Vec<usize>,
    /// How many messages a rank has
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=4096))]
    neighbors: u32,
    /// How messages are cut: whole, segmented, balanced, or auto for the library's choice
    #[arg(long, value_delimiter = ',', value_parser = neighbor::cut, default_value = "whole,segmented,auto")]
    cut: Vec<Cut>,
    /// How rounds follow each other: streamed, or fenced so that each waits for the one before
    #[arg(long, value_delimiter = ',', value_parser = neighbor::stepping, default_value = "streamed")]
    stepping: Vec<Stepping>,
}

#[derive(Clone, Debug, Args)]
struct ArrayOptions {
    #[command(flatten)]
    common: Options,
    /// How many cells a rank has in each dimension
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096), default_value = "32,64,128")]
    cells: Vec<u32>,
    /// How many layers of ghosts a side has
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    width: u16,
    /// Which ghosts are filled: faces, corners in messages of their own, or by-dimension one after the other
    #[arg(long, value_parser = array::mode, default_value = "faces")]
    ghosts: rma_halo::Mode,
    /// How ghosts that lie scattered are filled: auto, always packed, or never
    #[arg(long, value_parser = array::packing, default_value = "auto")]
    packing: rma_halo::Packing,
}

#[derive(Clone, Debug, Args)]
struct PageTablesOptions {
    #[command(flatten)]
    common: Options,
    /// Sizes in bytes of a window, as in 4K,2M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,1K,4K,64K,1M")]
    bytes: Vec<usize>,
}

#[derive(Clone, Debug, Args)]
struct Options {
    /// How many ranks (a ping-pong and a stream have 2)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Ranks as threads of one process, or as processes
    #[arg(long, value_enum, default_value_t = Mode::Threads)]
    mode: Mode,
    /// Rails the messages are spread over, in turn; without it 1 in shared memory, and of devices all there are
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(rma::config::MAX_RAILS)))]
    rails: Option<u16>,
    /// The backend, one of those that this command was built with; without it as RMA_BACKEND says
    #[arg(long, value_name = "NAME", value_parser = backend)]
    backend: Option<String>,
    /// Open the received ranges at start instead of early
    #[arg(long)]
    expose_at_start: bool,
    /// How often each size is timed; the table shows median, least and most
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// About how long one timing takes, in milliseconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    batch_ms: u64,
    /// Leave it to the system on which core a rank runs; by default each is bound to one if there are enough
    #[arg(long)]
    no_bind: bool,
    /// Lines for programs instead of a table
    #[arg(long)]
    csv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Threads,
    Processes,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
        }
    }
}

impl Options {
    fn batch(&self) -> Batch {
        Batch::Lasting(Duration::from_millis(self.batch_ms))
    }

    /// How many rails the messages are spread over.
    fn rails_of(&self, comm: &Comm) -> u16 {
        let caps = comm.caps();
        // Rails that do not work at the same time gain nothing, and each costs a notification.
        self.rails.unwrap_or(if caps.rails_work_in_parallel { caps.rails } else { 1 })
    }
}

impl Bench {
    fn options(&self) -> &Options {
        match self {
            Self::PageTables(options) => &options.common,
            Self::Array(options) => &options.common,
            Self::Put(options) => &options.common,
            Self::Stream(options) => &options.common,
            Self::Halo(options) => &options.common,
            Self::Neighbor(options) => &options.common,
        }
    }

    fn options_mut(&mut self) -> &mut Options {
        match self {
            Self::PageTables(options) => &mut options.common,
            Self::Array(options) => &mut options.common,
            Self::Put(options) => &mut options.common,
            Self::Stream(options) => &mut options.common,
            Self::Halo(options) => &mut options.common,
            Self::Neighbor(options) => &mut options.common,
        }
    }

    /// What one rank does; on rank 0 it prints.
    fn run(&self, comm: &Comm) -> Result<()> {
        let options = self.options();
        if !options.no_bind {
            bind(comm)?;
        }
        match self {
            Self::Put(put) => put::run(comm, put),
            Self::Stream(stream) => stream::run(comm, stream),
            Self::Halo(halo) => halo::run(comm, halo),
            Self::Array(array) => array::run(comm, array),
            Self::Neighbor(options) => neighbor::run(comm, options),
            Self::PageTables(options) => page_tables::run(comm, options),
        }
    }
}

/// `rma bench`.
pub(crate) fn main(args: &BenchArgs) -> Result<ExitCode> {
    let bench = match &args.bench {
        Benches::OnThisMachine(bench) => bench,
        Benches::Peach2(options) => return peach2::main(options),
    };
    let options = bench.options();
    match bench {
        Bench::Put(_) => ensure!(options.ranks == 2, "--ranks {}: a ping-pong has 2 ranks", options.ranks),
        Bench::Stream(_) => ensure!(options.ranks == 2, "--ranks {}: a stream has 2 ranks", options.ranks),
        Bench::Halo(_) | Bench::Array(_) | Bench::Neighbor(_) | Bench::PageTables(_) => {}
    }
    let (mut config, place) = Config::from_env()?;
    config.rails = options.rails.or(config.rails);
    config.backend = options.backend.clone().or(config.backend);
    if let Some(place) = place {
        // A rank of a job that is running already: of the one started below, or of the user's own launcher.
        let mut bench = bench.clone();
        bench.options_mut().mode = Mode::Processes;
        let comm = Comm::join(&place, config)?;
        bench.run(&comm)?;
        return Ok(ExitCode::SUCCESS);
    }
    match options.mode {
        Mode::Threads => {
            if let Bench::PageTables(_) = bench {
                // Page tables are what is measured, and stacks would have their own.
                config.stack_bytes = Some(page_tables::STACK_BYTES);
                page_tables::with_one_heap()?;
            }
            Comm::threads_with(options.ranks, config, |comm| bench.run(&comm))?.into_iter().collect::<Result<()>>()?;
            Ok(ExitCode::SUCCESS)
        }
        Mode::Processes => {
            let outcome = run::launch(&run::Options {
                ranks: options.ranks,
                program: "/proc/self/exe".into(),
                args: std::env::args_os().skip(1).collect(),
                variables: Vec::new(),
                bind: false,
                prefix: false,
                stdin: false,
                grace: Duration::from_secs(1),
                placement: run::Placement::Here,
            })?;
            Ok(outcome.code().into())
        }
    }
}

/// Gives this rank a core of its own if there are enough for all.
fn bind(comm: &Comm) -> Result<()> {
    let cores = run::allowed_cores()?;
    if comm.size() as usize > cores.len() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    let core = cores[comm.rank().index()];
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("binding {} to core {core}", comm.rank()))
}

/// Who read the results and has gone has seen enough, so the command ends well then. What cannot be written is no result.
fn say(line: Arguments<'_>) {
    match results::write(format_args!("{line}\n")) {
        Ok(true) => {}
        Ok(false) => std::process::exit(0),
        Err(error) => {
            eprintln!("rma bench: {error:#}");
            std::process::exit(1);
        }
    }
}

/// A backend of this name, if this command has it.
fn backend(name: &str) -> Result<String, String> {
    let names = provider::names();
    if names.contains(&name) {
        return Ok(name.into());
    }
    Err(format!(
        "this command was built with {}; `cargo build --release -p rma-cli --features mpi,verbs` builds it with MPI and verbs",
        names.join(", ")
    ))
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    size.ok_or_else(|| format!("{text:?}: expected bytes, as in 8, 64K or 1M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64k"), Ok(65536));
        assert_eq!(size("1M"), Ok(1 << 20));
        for bad in ["", "K", "-1", "1.5K", "99999999999999999999", "18446744073709551615K"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
