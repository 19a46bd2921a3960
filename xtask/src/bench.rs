//! `cargo xtask bench`: `rma`, its peers and the floor in turn, round after round; ratios within a round, against targets.
//! Owns the order of things; who is timed, how, and what it amounts to are modules of their own.

mod contenders;
mod csv;
mod peers;
mod report;
mod rounds;
pub(crate) mod stats;
mod targets;
mod torus;
mod ucx;

use crate::metadata::Metadata;
use crate::process::{Output, Spec, find_program};
use anyhow::{Context, Result, bail, ensure};
use contenders::{GROUPS, Group, Setting};
use peers::Peers;
use report::Tally;
use rounds::InTurn;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Not timed against anyone, so it runs only when asked for.
const PAGE_TABLES: &str = "page-tables";
const BUILD_LIMIT: Duration = Duration::from_secs(900);
const PAGE_TABLES_LIMIT: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Three short rounds: shows that everything runs, proves nothing
    #[arg(long)]
    quick: bool,
    /// Only this one: put, halo (halo-2, halo-8, halo-openmpi, halo-mpich), array (array-2, array-8) or page-tables; may be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// How often every contender runs [default: 15, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Print tables in Markdown, for the README
    #[arg(long)]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let groups = chosen(&args.only)?;
    let metadata = Metadata::read()?;
    if args.only.iter().any(|name| name == PAGE_TABLES) {
        page_tables(&rma(&metadata.target_directory)?)?;
    }
    if groups.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let setting = setting(args.quick, &metadata)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 15 }) as usize;
    let mut turns: Vec<_> = groups.into_iter().map(|group| InTurn::new(group, setting.contenders(group))).collect();
    for round in 0..rounds {
        for turn in &mut turns {
            eprintln!("round {}/{rounds}, {}", round + 1, turn.group.name);
            turn.round(round);
        }
    }
    keep_raw(&turns, &metadata.target_directory.join("bench.csv"))?;
    Ok(conclude(&turns, args.markdown, rounds, setting.cores))
}

fn chosen(only: &[String]) -> Result<Vec<&'static Group>> {
    let fits = |group: &Group, name: &str| name == group.name || name == group.bench;
    if let Some(unknown) = only.iter().find(|name| *name != PAGE_TABLES && !GROUPS.iter().any(|group| fits(group, name))) {
        let names: Vec<_> = GROUPS.iter().map(|group| group.name).chain(["halo", PAGE_TABLES]).collect();
        bail!("there is no benchmark {unknown:?}; the benchmarks are: {}", names.join(", "));
    }
    Ok(GROUPS.iter().filter(|group| only.is_empty() || only.iter().any(|name| fits(group, name))).collect())
}

fn setting(quick: bool, metadata: &Metadata) -> Result<Setting> {
    let cores = std::thread::available_parallelism().context("cannot count the cores")?.get() as u32;
    ensure!(cores >= 2, "the benchmarks need two cores, and here is {cores}");
    let rma = rma(&metadata.target_directory);
    eprintln!("building the peers");
    let peers = Peers::build(&metadata.workspace_root, &metadata.target_directory)?;
    let batch = Duration::from_millis(if quick { 4 } else { 10 });
    Ok(Setting { rma, peers, cores, repeats: 5, batch, target: metadata.target_directory.clone() })
}

/// The command `rma`, built for release.
fn rma(target: &Path) -> Result<PathBuf> {
    build(&Spec::cargo("build --release -p rma-cli"))?;
    Ok(target.join("release/rma"))
}

fn build(spec: &Spec) -> Result<()> {
    eprintln!("running: {spec}");
    let built = spec.run(BUILD_LIMIT, Output::Shown)?;
    ensure!(built.succeeded(), "`{spec}`: {}", built.failure());
    Ok(())
}

/// How large the page tables of many ranks grow; the figures are `rma`'s own.
fn page_tables(rma: &Path) -> Result<()> {
    let spec = Spec::new(rma.display().to_string());
    let spec = spec.args(["bench", "page-tables", "--ranks", "240", "--bytes", "2097152", "--mode", "threads"]);
    eprintln!("running: {spec}");
    let finished = spec.run(PAGE_TABLES_LIMIT, Output::Shown)?;
    ensure!(finished.succeeded(), "`{spec}`: {}", finished.failure());
    Ok(())
}

fn keep_raw(turns: &[InTurn<'_>], path: &Path) -> Result<()> {
    let rows: String = turns.iter().map(|turn| turn.measured.raw_csv(turn.group)).collect();
    std::fs::write(path, format!("round,bench,backend,mode,ranks,bytes,median_us\n{rows}"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("every figure is in {}", path.display());
    Ok(())
}

fn conclude(turns: &[InTurn<'_>], markdown: bool, rounds: usize, cores: u32) -> ExitCode {
    let mut total = Tally::default();
    println!("{}\n", machine(rounds, cores));
    for InTurn { group, measured, .. } in turns {
        println!("{}", if markdown { report::markdown(group, measured) } else { report::text(group, measured) });
        measured.remarks.iter().for_each(|remark| println!("{}: {}", group.name, remark.lines().next().unwrap_or_default()));
        if !measured.remarks.is_empty() {
            println!();
        }
        let tally = report::tally(group, measured);
        total.met += tally.met;
        total.missed += tally.missed;
        total.unmeasured += tally.unmeasured;
    }
    println!("targets: {} met, {} missed, {} not measured", total.met, total.missed, total.unmeasured);
    if total.missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the figures were taken on and with.
fn machine(rounds: usize, cores: u32) -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    });
    let version = |program: &str, args: &[&str]| {
        find_program(program)?;
        let said = Spec::new(program).args(args.iter().copied()).run(Duration::from_secs(20), Output::Kept).ok()?.stdout;
        said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.')).map(str::to_owned)
    };
    let peers = [
        ("Open MPI", version("mpirun.openmpi", &["--version"])),
        ("MPICH", version("mpichversion", &[])),
        ("UCX", version("ucx_info", &["-v"])),
    ];
    let peers: Vec<_> = peers.into_iter().filter_map(|(name, version)| Some(format!("{name} {}", version?))).collect();
    let model = model.unwrap_or_else(|| "unknown processor".into());
    let peers = if peers.is_empty() { "no peers".into() } else { peers.join(", ") };
    format!("{cores} cores of {model}; {peers}; median of {rounds} rounds, all in turn.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str]) -> Vec<&'static str> {
        let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
        chosen(&only).unwrap().iter().map(|group| group.name).collect()
    }

    #[test]
    fn a_benchmark_is_chosen_by_its_name_or_its_kind() {
        assert_eq!(names(&[]), ["put", "halo-2", "halo-8", "array-2", "array-8", "halo-openmpi", "halo-mpich"]);
        assert_eq!(names(&["halo"]), ["halo-2", "halo-8", "halo-openmpi", "halo-mpich"]);
        assert_eq!(names(&["halo-8", "put"]), ["put", "halo-8"]);
        assert_eq!(names(&["page-tables"]), [""; 0]);
    }

    #[test]
    fn an_unknown_benchmark_is_refused_with_the_names_of_all() {
        let error = chosen(&["nothing".into()]).err().unwrap().to_string();
        assert!(error.contains("halo-8") && error.contains("page-tables"), "{error}");
    }
}
