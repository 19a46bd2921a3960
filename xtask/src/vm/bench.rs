//! `cargo xtask vm bench`: `rma` over verbs and perftest in turn, in the machine, round after round; ratios against targets. And a neighbor
//! exchange in segments against the same of whole messages.
//! Owns the cases and the table; what runs inside is in `measure`.

pub(super) mod measure;

use super::{Image, Job, Lab, run_job};
use crate::bench::stats::{Summary, paired_ratios};
use crate::metadata::Metadata;
use crate::process::{Output, Spec};
use anyhow::{Context, Result, ensure};
use measure::Figure;
use std::process::ExitCode;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(900);
/// For the boot, and for each figure of each round.
const BOOT: Duration = Duration::from_secs(60);
const FIGURE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often every contender runs
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only the cases whose names contain this; may be given again
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Print the table in Markdown, for the README
    #[arg(long)]
    markdown: bool,
}

/// Which lab a case is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Two ranks, a rail; what comes in is taken on one processor a device.
    Pinned,
    /// The same, on whatever processor.
    Unpinned,
    /// Two ranks, four rails of 50 Mbit/s.
    FourSlowRails,
    /// The same of 10 Mbit/s: both ranks send on all of them at once, and the emulated processors shall keep up with that.
    FourSlowerRails,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// One way: a put with its notification, credit and all, against `ib_write_lat`.
    Put,
    /// A put of a chain of 64, against `ib_write_bw` that posts lists of 64.
    Chain,
    /// A message of a stream, against `ib_write_bw`.
    Stream,
    /// A message of a stream over all rails, against the sum of an `ib_write_bw` on each alone.
    Rails,
    /// An exchange of six messages in segments over all rails, against the same of whole messages.
    Neighbor,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) what: What,
    pub(super) bytes: u64,
    /// The most that our time may be of theirs; `None` where that is only looked at.
    target: Option<f64>,
}

const fn case(name: &'static str, place: Place, what: What, bytes: u64, target: f64) -> Case {
    Case { name, place, what, bytes, target: Some(target) }
}

/// Segments are slower where messages are short; only long ones have to gain. Of the longest, more is under way than the device leaves
/// unacknowledged, so both ways wait for acknowledgements now and then.
const fn neighbor(name: &'static str, kib: u64, target: Option<f64>) -> Case {
    Case { name, place: Place::FourSlowerRails, what: What::Neighbor, bytes: kib << 10, target }
}

/// Throughputs of 0.95 and 0.98 are times of 1/0.95 and 1/0.98. By the model six messages on four rails gain 4/3 when they are long.
const CASES: [Case; 21] = [
    case("put 8 B", Place::Unpinned, What::Put, 8, 1.1),
    case("put 64 B", Place::Unpinned, What::Put, 64, 1.1),
    case("put 1 KiB", Place::Unpinned, What::Put, 1024, 1.1),
    case("put 4 KiB", Place::Unpinned, What::Put, 4096, 1.1),
    case("chain of 64 x 64 B", Place::Unpinned, What::Chain, 64, 1.0),
    case("stream 1 MiB", Place::Unpinned, What::Stream, 1 << 20, 1.0 / 0.95),
    case("put 8 B, pinned", Place::Pinned, What::Put, 8, 1.1),
    case("put 4 KiB, pinned", Place::Pinned, What::Put, 4096, 1.1),
    case("chain of 64 x 64 B, pinned", Place::Pinned, What::Chain, 64, 1.0),
    case("stream 1 MiB, pinned", Place::Pinned, What::Stream, 1 << 20, 1.0 / 0.95),
    case("4 rails of 50 Mbit/s, 512 KiB", Place::FourSlowRails, What::Rails, 512 << 10, 1.0 / 0.98),
    neighbor("6 neighbors on 4 rails, 1 KiB", 1, None),
    neighbor("6 neighbors on 4 rails, 2 KiB", 2, None),
    neighbor("6 neighbors on 4 rails, 4 KiB", 4, None),
    neighbor("6 neighbors on 4 rails, 8 KiB", 8, None),
    neighbor("6 neighbors on 4 rails, 16 KiB", 16, None),
    neighbor("6 neighbors on 4 rails, 32 KiB", 32, None),
    neighbor("6 neighbors on 4 rails, 64 KiB", 64, Some(1.0 / 1.3)),
    neighbor("6 neighbors on 4 rails, 128 KiB", 128, Some(1.0 / 1.3)),
    neighbor("6 neighbors on 4 rails, 256 KiB", 256, Some(1.0 / 1.3)),
    neighbor("6 neighbors on 4 rails, 512 KiB", 512, None),
];

pub(super) fn cases() -> &'static [Case] {
    &CASES
}

impl Place {
    const ALL: [Self; 4] = [Self::Unpinned, Self::Pinned, Self::FourSlowRails, Self::FourSlowerRails];

    fn lab(self) -> Lab {
        let (rails, rate_mbit) = match self {
            Self::Pinned | Self::Unpinned => (1, None),
            Self::FourSlowRails => (4, Some(50)),
            Self::FourSlowerRails => (4, Some(10)),
        };
        Lab { ranks: 2, rails, rate_mbit, loss_percent: 0.0 }
    }

    /// How many rails each rank has.
    pub(super) fn rails(self) -> u32 {
        self.lab().rails
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let chosen: Vec<_> =
        CASES.iter().filter(|case| args.only.is_empty() || args.only.iter().any(|text| case.name.contains(text))).collect();
    let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
    ensure!(!chosen.is_empty(), "no case is named like {}; the cases are: {}", args.only.join(", "), names.join("; "));
    let metadata = Metadata::read()?;
    for build in ["build --release -p rma-cli --features rma-cli/verbs", "build --release -p xtask"] {
        let build = Spec::cargo(build);
        eprintln!("running: {build}");
        let built = build.run(BUILD_LIMIT, Output::Shown)?;
        ensure!(built.succeeded(), "`{build}`: {}", built.failure());
    }
    let image = Image::prepare(&metadata.target_directory)?;
    let mut figures = Vec::new();
    for place in Place::ALL {
        let here: Vec<_> = chosen.iter().filter(|case| case.place == place).collect();
        if here.is_empty() {
            continue;
        }
        let release = metadata.target_directory.join("release");
        let mut command = vec![release.join("xtask").into_os_string(), "vm".into(), "measure".into()];
        command.extend(["--rma".into(), release.join("rma").into_os_string()]);
        command.extend(["--rounds".into(), args.rounds.to_string().into()]);
        command.extend(here.iter().flat_map(|case| ["--case".into(), case.name.into()]));
        let mut job = Job::new(command)?;
        job.lab = Some(place.lab());
        job.timeout = BOOT + FIGURE * args.rounds * 2 * here.len() as u32;
        let finished = run_job(&image, &job, Output::Shown)?;
        let remarks = finished.remarks().join("; ");
        ensure!(finished.status() == 0, "measuring ended with status {} {remarks}", finished.status());
        let said = String::from_utf8_lossy(&finished.machines[0].stdout);
        figures.extend(said.lines().filter_map(Figure::parse));
    }
    let raw = metadata.target_directory.join("vm-bench.csv");
    let lines: String = figures.iter().map(|figure| format!("{figure}\n")).collect();
    std::fs::write(&raw, lines).with_context(|| format!("cannot write {}", raw.display()))?;
    eprintln!("every figure is in {}", raw.display());
    let (rows, missing): (Vec<_>, Vec<_>) = chosen.iter().map(|case| row(case, &figures, args.rounds)).partition(Result::is_ok);
    let rows: Vec<_> = rows.into_iter().flatten().collect();
    println!("{}", table(&rows, args.markdown));
    if let Some(gains) = gains(&rows) {
        println!("{gains}");
    }
    missing.iter().filter_map(|row| row.as_ref().err()).for_each(|error| println!("not measured: {error:#}"));
    let verdicts: Vec<_> = rows.iter().filter_map(Row::is_met).collect();
    let met = verdicts.iter().filter(|met| **met).count();
    let missed = verdicts.len() - met;
    println!("targets: {met} met, {missed} missed, {} not measured; median of {} rounds, in turn", missing.len(), args.rounds);
    Ok(if missed == 0 && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Row {
    case: Case,
    ours: Summary,
    theirs: Summary,
    ratios: Summary,
}

impl Row {
    /// Ratio of medians.
    fn ratio(&self) -> f64 {
        self.ours.median / self.theirs.median
    }

    /// `None` where there is no target.
    fn is_met(&self) -> Option<bool> {
        self.case.target.map(|target| self.ratio() <= target)
    }
}

fn row(case: &Case, figures: &[Figure], rounds: u32) -> Result<Row> {
    let of = |ours: bool| -> Vec<Option<f64>> {
        let find = |round| figures.iter().find(|f| f.case == case.name && f.ours == ours && f.round == round).map(|f| f.us);
        (0..rounds).map(find).collect()
    };
    let (mut ours, mut theirs) = (of(true), of(false));
    for (ours, theirs) in ours.iter_mut().zip(&mut theirs).filter(|(ours, theirs)| ours.is_none() || theirs.is_none()) {
        (*ours, *theirs) = (None, None);
    }
    let ratios = Summary::of(paired_ratios(&ours, &theirs)).filter(|ratios| ratios.count * 2 > rounds as usize);
    let few = || format!("{}: fewer than half of the rounds have both figures", case.name);
    Ok(Row {
        case: *case,
        ratios: ratios.with_context(few)?,
        ours: Summary::of(ours.into_iter().flatten()).with_context(few)?,
        theirs: Summary::of(theirs.into_iter().flatten()).with_context(few)?,
    })
}

/// How many times faster segments make an exchange, size by size, and from which size on they are faster.
fn gains(rows: &[Row]) -> Option<String> {
    let rows: Vec<_> = rows.iter().filter(|row| row.case.what == What::Neighbor).collect();
    let each: Vec<_> = rows.iter().map(|row| format!("{:.2} at {} KiB", 1.0 / row.ratio(), row.case.bytes >> 10)).collect();
    let winning = rows.iter().rev().take_while(|row| row.ratio() < 1.0).last();
    let crossover = winning.map_or_else(|| "at none of these".into(), |row| format!("from {} KiB on", row.case.bytes >> 10));
    (!rows.is_empty()).then(|| format!("gain of segments over whole messages: {}; they are faster {crossover}", each.join(", ")))
}

fn table(rows: &[Row], markdown: bool) -> String {
    let peer = |case: &Case| match case.what {
        What::Put => "ib_write_lat",
        What::Chain => "ib_write_bw -l 64",
        What::Stream => "ib_write_bw",
        What::Rails => "sum of 4 ib_write_bw",
        What::Neighbor => "whole messages",
    };
    let verdict = |row: &Row| match (row.case.target, row.is_met()) {
        (Some(target), Some(met)) => format!("{target:.2} {}", if met { "met" } else { "MISSED" }),
        _ => "-".into(),
    };
    let cells = rows.iter().map(|row| {
        [
            row.case.name.into(),
            format!("{:.1}", row.ours.median),
            format!("{} {:.1}", peer(&row.case), row.theirs.median),
            format!("{:.2}", row.ratio()),
            format!("{:.2} to {:.2}", row.ratios.lower_quartile, row.ratios.upper_quartile),
            verdict(row),
        ]
    });
    let head = ["case", "rma, us", "compared with, us", "ratio", "middle half of the rounds", "target"].map(String::from);
    let rule = markdown.then(|| ["---", "--:", "--:", "--:", "--:", "--:"].map(String::from));
    let lines = std::iter::once(head).chain(rule).chain(cells).map(|cells| {
        if markdown {
            format!("| {} |", cells.join(" | "))
        } else {
            let [name, ours, theirs, ratio, spread, target] = cells;
            format!("{name:<31} {ours:>10} {theirs:>26} {ratio:>6} {spread:>26} {target:>12}")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(round: u32, ours: bool, us: f64) -> Figure {
        Figure { case: CASES[0].name.into(), ours, round, us }
    }

    #[test]
    fn a_row_is_the_ratio_of_medians_against_its_target() {
        let figures = [(0, 11.0, 10.0), (1, 12.0, 10.0), (2, 10.0, 20.0)];
        let figures: Vec<_> = figures.iter().flat_map(|&(n, a, b)| [figure(n, true, a), figure(n, false, b)]).collect();
        let row = row(&CASES[0], &figures, 3).unwrap();
        assert_eq!((row.ratio(), row.is_met()), (1.1, Some(true)));
        assert_eq!((row.ratios.min, row.ratios.max), (0.5, 1.2));
        assert!(table(&[row], true).contains("| put 8 B | 11.0 | ib_write_lat 10.0 | 1.10 |"));
    }

    #[test]
    fn gains_are_inverse_ratios_and_begin_where_they_stay() {
        let neighbors: Vec<_> = CASES.iter().filter(|case| case.what == What::Neighbor).collect();
        let row_of = |(case, us): (&&Case, f64)| {
            let figure = |ours, us| Figure { case: case.name.into(), ours, round: 0, us };
            row(case, &[figure(true, us), figure(false, 10.0)], 1).unwrap()
        };
        let rows_of = |times: [f64; 3]| neighbors[7..].iter().zip(times).map(row_of).collect::<Vec<_>>();
        let rows = rows_of([8.0, 12.5, 8.0]);
        assert_eq!(rows.iter().map(Row::is_met).collect::<Vec<_>>(), [Some(false), Some(false), None]);
        let gains_of = |times| gains(&rows_of(times)).unwrap();
        assert!(
            gains_of([8.0, 12.5, 8.0])
                .ends_with("1.25 at 128 KiB, 0.80 at 256 KiB, 1.25 at 512 KiB; they are faster from 512 KiB on")
        );
        assert!(gains_of([12.5, 12.5, 12.5]).ends_with("at none of these"));
        assert_eq!(gains(&[]), None);
    }

    #[test]
    fn a_round_counts_if_it_has_both_figures_and_half_of_them_must() {
        assert!(row(&CASES[0], &[figure(0, true, 1.0)], 1).is_err());
        let both = [figure(0, true, 4.0), figure(0, false, 2.0)];
        let row_of = |rounds, more: &[Figure]| row(&CASES[0], &[&both, more].concat(), rounds);
        assert_eq!(row_of(1, &[figure(1, true, 100.0)]).unwrap().ratio(), 2.0);
        assert!(row_of(2, &[]).is_err());
    }

    #[test]
    fn names_of_cases_differ_and_have_no_comma() {
        let names: std::collections::BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        let takes_four = |case: &Case| matches!(case.what, What::Rails | What::Neighbor);
        assert!(CASES.iter().all(|case| takes_four(case) == (case.place.rails() == 4)));
    }
}
