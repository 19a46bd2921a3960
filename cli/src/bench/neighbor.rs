//! A neighbor exchange over several rails: messages whole, in segments, balanced, or as the library chooses; beside what the model says.

use super::chain::Chain;
use super::measure::{Times, measure};
use super::{NeighborOptions, Options};
use anyhow::Result;
use rma::{Comm, Rank};
use rma_algorithms::model::Machine;
use rma_algorithms::{Cut, Exchange, Stepping, probe};

pub(super) fn run(comm: &Comm, options: &NeighborOptions) -> Result<()> {
    let rails = options.common.rails_of(comm);
    let longest = options.bytes.iter().copied().max().unwrap_or(0);
    let machine = probe(comm, rails, longest as u64)?;
    let report = Report { options, backend: comm.caps().name, ranks: comm.size(), rails, machine, speaks: comm.rank() == Rank(0) };
    report.begin();
    for &stepping in &options.stepping {
        let mut rows: Vec<Row> = Vec::new();
        for &bytes in &options.bytes {
            let mut whole_us = None;
            for &cut in &options.cut {
                let row = time(comm, &report, bytes, cut, stepping)?;
                if cut == Cut::Whole {
                    whole_us = Some(row.us());
                }
                report.row(&row, whole_us.map(|whole_us| whole_us / row.us()));
                rows.push(row);
            }
        }
        report.crossover(stepping, &rows);
    }
    Ok(())
}

/// What a way of exchanging messages of a size took.
struct Row {
    bytes: usize,
    asked: Cut,
    chosen: Cut,
    stepping: Stepping,
    model_us: f64,
    times: Times,
}

impl Row {
    /// The time that counts: by the clock of an emulated device where there is one.
    fn us(&self) -> f64 {
        self.times.virtual_us.unwrap_or(self.times.median_us)
    }
}

/// Message q of a rank goes to the rank q + 1 further on, so each rank gets one message with each number.
fn time(comm: &Comm, report: &Report<'_>, bytes: usize, cut: Cut, stepping: Stepping) -> Result<Row> {
    let (me, size) = (comm.rank().0, comm.size());
    let Report { rails, machine, options: &NeighborOptions { neighbors, ref common, .. }, .. } = *report;
    let further = |number: usize| (number as u32 + 1) % size;
    let target = |number| Rank((me + further(number)) % size);
    let origin = |number| Rank((me + size - further(number)) % size);
    let chain = Chain::declare(comm, target, neighbors, bytes, rails)?;
    let mut exchange = Exchange::new(comm, &chain.inbox).cut(cut).stepping(stepping).rails(rails).machine(machine);
    for (number, put) in chain.puts().iter().enumerate() {
        exchange = exchange.message([put]).origin(origin(number));
    }
    if common.expose_at_start {
        exchange = exchange.expose_at_start();
    }
    let mut exchange = exchange.commit()?;
    let times = measure(comm, common.repeats, common.batch(), |iterations| {
        (0..iterations).try_for_each(|_| exchange.start()?.wait().map(drop))
    })?;
    let (chosen, model_us) = (exchange.cut(), stepping.predicted_us(&machine, exchange.schedule()));
    drop(exchange);
    chain.check(origin)?;
    chain.free()?;
    Ok(Row { bytes, asked: cut, chosen, stepping, model_us, times })
}

/// Prints on rank 0.
struct Report<'a> {
    options: &'a NeighborOptions,
    backend: &'static str,
    ranks: u32,
    rails: u16,
    machine: Machine,
    speaks: bool,
}

impl Report<'_> {
    fn common(&self) -> &Options {
        &self.options.common
    }

    fn begin(&self) {
        let Self { backend, ranks, rails, machine: Machine { step_us, rail_bytes_per_us }, .. } = self;
        let neighbors = self.options.neighbors;
        if self.speaks && self.common().csv {
            say!(
                "bench,backend,mode,ranks,rails,bytes,iterations,median_us,min_us,max_us,neighbors,cut,chosen,stepping,model_us,\
                 gb_per_s,gain,virtual_us,step_us,rail_mb_per_s"
            );
        } else if self.speaks {
            let mode = self.common().mode.name();
            let rails = if *rails == 1 { "1 rail".to_owned() } else { format!("{rails} rails") };
            say!("neighbor: {neighbors} messages a rank on {rails}, {ranks} ranks as {mode}, {backend} backend");
            say!("model: a step takes {step_us:.3} us and a rail carries {rail_bytes_per_us:.1} MB/s, as measured here");
            say!(
                "{:>10}  {:<16}  {:<8}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>9}  {:>6}",
                "bytes",
                "cut",
                "stepping",
                "model us",
                "median us",
                "min us",
                "max us",
                "virtual us",
                "GB/s",
                "gain"
            );
        }
    }

    /// What one way took, and how many times faster it is than whole messages, if those were timed before it.
    fn row(&self, row: &Row, gain: Option<f64>) {
        if !self.speaks {
            return;
        }
        let Row { bytes, asked, chosen, stepping, model_us, times } = row;
        let Times { iterations, median_us, min_us, max_us, virtual_us } = times;
        // Of all messages of a rank; 1000 bytes a microsecond are a GB/s.
        let rate = f64::from(self.options.neighbors) * *bytes as f64 / row.us() / 1e3;
        let [asked, chosen, stepping] = [asked.name(), chosen.name(), stepping.name()];
        if self.common().csv {
            let Self { backend, ranks, rails, machine: Machine { step_us, rail_bytes_per_us }, .. } = self;
            let (mode, neighbors) = (self.common().mode.name(), self.options.neighbors);
            let [gain, virtual_us] = [gain, *virtual_us].map(|value| value.map_or_else(String::new, |value| format!("{value:.4}")));
            say!(
                "neighbor,{backend},{mode},{ranks},{rails},{bytes},{iterations},{median_us:.4},{min_us:.4},{max_us:.4},{neighbors},\
                 {asked},{chosen},{stepping},{model_us:.4},{rate:.4},{gain},{virtual_us},{step_us:.4},{rail_bytes_per_us:.4}"
            );
        } else {
            let cut = if asked == chosen { asked.to_owned() } else { format!("{asked}: {chosen}") };
            let virtual_us = virtual_us.map_or_else(|| "-".into(), |us| format!("{us:.3}"));
            let gain = gain.map_or_else(|| "-".into(), |gain| format!("{gain:.2}"));
            say!(
                "{bytes:>10}  {cut:<16}  {stepping:<8}  {model_us:>12.3}  {median_us:>12.3}  {min_us:>12.3}  {max_us:>12.3}  \
                 {virtual_us:>12}  {rate:>9.3}  {gain:>6}"
            );
        }
    }

    /// From which size on segments gain: by the model, and as it was timed, if both cuts were.
    fn crossover(&self, stepping: Stepping, rows: &[Row]) {
        if !self.speaks || self.common().csv {
            return;
        }
        let us = |bytes: usize, cut: Cut| rows.iter().find(|row| (row.bytes, row.asked) == (bytes, cut)).map(Row::us);
        let mut pairs: Vec<_> = Vec::new();
        for &bytes in &self.options.bytes {
            if let (Some(whole), Some(segmented)) = (us(bytes, Cut::Whole), us(bytes, Cut::Segmented)) {
                pairs.push((bytes, segmented < whole));
            }
        }
        if pairs.is_empty() {
            return;
        }
        let predicted = match self.machine.crossover_bytes(self.options.neighbors as usize, self.rails) {
            Some(bytes) => format!("above {bytes:.0} bytes"),
            None => "at no size".into(),
        };
        let measured = crossover(pairs).map_or_else(|| "at none of these sizes".into(), |bytes| format!("from {bytes} bytes"));
        say!("{}: segments gain {predicted} by the model, and {measured} as timed", stepping.name());
    }
}

/// The least size from which on segments were faster at every size.
fn crossover(mut pairs: Vec<(usize, bool)>) -> Option<usize> {
    pairs.sort_unstable();
    pairs.iter().rev().take_while(|(_, segments_win)| *segments_win).last().map(|(bytes, _)| *bytes)
}

/// A cut by its name.
pub(super) fn cut(name: &str) -> Result<Cut, String> {
    let all = [Cut::Whole, Cut::Segmented, Cut::Balanced, Cut::Auto];
    let known = all.into_iter().find(|cut| cut.name() == name);
    known.ok_or_else(|| format!("there is no such cut; use {}", all.map(Cut::name).join(", ")))
}

/// A stepping by its name.
pub(super) fn stepping(name: &str) -> Result<Stepping, String> {
    let all = [Stepping::Streamed, Stepping::Fenced];
    let known = all.into_iter().find(|stepping| stepping.name() == name);
    known.ok_or_else(|| format!("there is no such stepping; use {}", all.map(Stepping::name).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossover_is_where_segments_begin_to_win_for_good() {
        assert_eq!(crossover(vec![(8, false), (64, true), (32, true)]), Some(32));
        assert_eq!(crossover(vec![(8, true), (32, false), (64, true)]), Some(64));
        assert_eq!(crossover(vec![(8, true), (64, false)]), None);
        assert_eq!(crossover(vec![]), None);
    }
}
