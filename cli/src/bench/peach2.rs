//! Ping-pongs over emulated PEACH2 boards, by size, memory and placement of the chain: what the paper on them plots.
//! Owns which boards there are and how they are told to be; the exchange is that of `put`.

use super::measure::{Batch, Times};
use super::put::PingPong;
use super::size;
use anyhow::{Context, Result, ensure};
use clap::Args;
use rma::{Comm, Config, Rank};
use std::process::ExitCode;

/// Enough that the virtual time, which is the same for each, does not show that the clock is read in whole nanoseconds.
const ITERATIONS: u64 = 10;
const REPEATS: u32 = 5;
/// What each run sets, and the ring where nobody else has.
const MEMORY: &str = "RMA_PEACH2_MEMORY";
const PLACEMENT: &str = "RMA_PEACH2_PLACEMENT";
const RING: &str = "RMA_PEACH2_RING";
/// The longer of two: the other boards do not matter, so it has the same times as the shorter one.
const LONGEST_RING: &str = "16";

const AFTER_HELP: &str = "\
A chain that does not fit into its placement lies in the next slower one; its
puts follow each other on one channel. RMA_PEACH2_CLOCK and the other variables
of `rma info` hold here, too, but for those that the options set.

Examples:
  rma bench peach2                                every size, placement and memory
  rma bench peach2 --memories gpu                 between GPUs only
  rma bench peach2 --hops 4 --bytes 8             over four cables
  rma bench peach2 --puts 64 --placements host    descriptors read from the host
  rma bench peach2 --csv > peach2.csv             for a plot";

/// Ping-pong between emulated PEACH2 boards, by size, memory and placement of the chain. Times are one way.
///
/// The ranks are threads. `virtual us` is by the clock of the boards and the same on every run; `real us` is what this machine took
/// to emulate it, at no particular care.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Peach2Options {
    /// Sizes in bytes of a put, as in 8,1K,1M
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "8,64,512,4K,32K,256K,1M,4M")]
    bytes: Vec<usize>,
    /// Where the chains of descriptors lie
    #[arg(long, value_parser = ["registers", "internal", "host"], value_delimiter = ',', default_value = "registers,internal,host")]
    placements: Vec<String>,
    /// What the windows are memory of
    #[arg(long, value_parser = ["cpu", "gpu"], value_delimiter = ',', default_value = "cpu,gpu")]
    memories: Vec<String>,
    /// How many cables lie between the two boards: half a ring at most, so 8 in one of 16
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    hops: u32,
    /// How many puts a chain has, each of the size
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=super::MAX_PUTS))]
    puts: u32,
    /// Lines for programs instead of a table
    #[arg(long)]
    csv: bool,
}

/// `rma bench peach2`.
pub(super) fn main(options: &Peach2Options) -> Result<ExitCode> {
    let (config, place) = Config::from_env()?;
    ensure!(
        place.is_none(),
        "this is a rank of a job, but the boards are threads of one process: start it without `rma run` and without mpirun"
    );
    let config = on_boards(config, options.hops)?;
    options.print_head();
    for memory in &options.memories {
        for placement in &options.placements {
            for (bytes, times) in options.run(config.clone(), memory, placement)? {
                options.print(memory, placement, bytes, &times);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The options with a ring in which the boards of rank 0 and of rank `hops` are so far apart.
fn on_boards(mut config: Config, hops: u32) -> Result<Config> {
    config.backend = Some(rma_peach2::NAME.into());
    let asked = config.variable(RING).filter(|ring| !ring.trim().is_empty());
    if asked.is_none() {
        config.variables.insert(RING.into(), LONGEST_RING.into());
    }
    let ring = rma_peach2::survey(&config, 1)?.ring.map_err(anyhow::Error::msg)?;
    let farthest = u32::from(ring) / 2;
    let mend = match asked {
        Some(ring) if ring.trim() != LONGEST_RING => format!(", or set {RING}={LONGEST_RING}"),
        _ => String::new(),
    };
    ensure!(hops <= farthest, "--hops {hops}: boards of a ring of {ring} are at most {farthest} apart; use 1 to {farthest}{mend}");
    Ok(config)
}

impl Peach2Options {
    /// One way of each size.
    fn run(&self, mut config: Config, memory: &str, placement: &str) -> Result<Vec<(usize, Times)>> {
        config.variables.insert(MEMORY.into(), memory.into());
        config.variables.insert(PLACEMENT.into(), placement.into());
        let far = Rank(self.hops);
        let one_way = |comm: &Comm, bytes| {
            let batch = Batch::Of(ITERATIONS);
            let ping_pong = PingPong { far, puts: self.puts, bytes, rails: 1, expose_at_start: false, repeats: REPEATS, batch };
            ping_pong.run(comm).with_context(|| format!("--bytes {bytes}"))
        };
        let rank = |comm: Comm| self.bytes.iter().map(|&bytes| Ok((bytes, one_way(&comm, bytes)?))).collect::<Result<Vec<_>>>();
        let all = Comm::threads_with(self.hops + 1, config, rank)?.into_iter().collect::<Result<Vec<_>>>()?;
        // All ranks have agreed on the same times.
        Ok(all.into_iter().next().unwrap_or_default())
    }

    fn print_head(&self) {
        if self.csv {
            say!("memory,placement,hops,puts,bytes,virtual_us,real_us,virtual_mb_per_s");
            return;
        }
        let what = if self.puts == 1 { "a put".to_owned() } else { format!("a chain of {} puts", self.puts) };
        say!("peach2: one-way time of {what}, emulated boards {} hop(s) apart; real us is what the emulation took", self.hops);
        say!("memory  placement       bytes    virtual us  virtual MB/s       real us");
    }

    fn print(&self, memory: &str, placement: &str, bytes: usize, times: &Times) {
        let real_us = times.median_us;
        let virtual_us = times.virtual_us.unwrap_or_else(|| unreachable!("bug: emulated boards have a clock"));
        let rate = bytes as f64 * f64::from(self.puts) / virtual_us;
        if self.csv {
            let Self { hops, puts, .. } = self;
            say!("{memory},{placement},{hops},{puts},{bytes},{virtual_us:.3},{real_us:.4},{rate:.4}");
        } else {
            say!("{memory:<6}  {placement:<9}  {bytes:>10}  {virtual_us:>12.3}  {rate:>12.0}  {real_us:>12.3}");
        }
    }
}
