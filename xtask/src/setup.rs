//! What has to be on the machine besides Rust: says what is there, and installs the rest where it can.

use crate::process::{Output, Spec, find_program};
use anyhow::{Result, bail};
use std::time::Duration;

/// Debian packages, and what each is for.
const PACKAGES: [(&str, &str); 8] = [
    ("gcc", "builds the peers of the benchmarks"),
    ("libc6-dev", "builds the peers of the benchmarks"),
    ("libopenmpi-dev", "peer: Open MPI and OpenSHMEM, headers"),
    ("openmpi-bin", "peer: Open MPI and OpenSHMEM, mpirun and oshrun"),
    ("libmpich-dev", "peer: MPICH, headers"),
    ("mpich", "peer: MPICH, mpiexec"),
    ("ucx-utils", "peer: ucx_perftest"),
    ("valgrind", "counts instructions"),
];

/// The same as programs, for a system without Debian's packages.
const PROGRAMS: [(&str, &str); 6] = [
    ("gcc", "a C compiler"),
    ("mpicc.openmpi", "Open MPI 4.1 or later"),
    ("oshcc", "OpenSHMEM, as Open MPI has it"),
    ("mpicc.mpich", "MPICH 4.0 or later"),
    ("ucx_perftest", "UCX 1.13 or later"),
    ("valgrind", "valgrind 3.19 or later"),
];

/// Parts of the Rust toolchain that the test uses.
const COMPONENTS: [(&str, &str); 2] = [("rustfmt", "cargo-fmt"), ("clippy", "cargo-clippy")];

const LIMIT: Duration = Duration::from_secs(1200);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    components(args.dry_run)?;
    if find_program("apt-get").is_none() || find_program("dpkg-query").is_none() {
        return without_apt();
    }
    let (present, missing): (Vec<_>, Vec<_>) = PACKAGES.iter().partition(|(package, _)| is_installed(package));
    present.iter().for_each(|(package, _)| println!("{package:<16} is there"));
    missing.iter().for_each(|(package, purpose)| println!("{package:<16} is missing: {purpose}"));
    if missing.is_empty() {
        println!("setup: nothing to install");
        return Ok(());
    }
    let update = Spec::new("apt-get").arg("update");
    let install =
        Spec::new("apt-get").args(["install", "-y", "--no-install-recommends"]).args(missing.iter().map(|(package, _)| *package));
    if args.dry_run {
        println!("would run:\n  {update}\n  {install}");
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("packages are missing, and installing them needs root; run:\n  sudo {update} && sudo {install}");
    }
    for step in [update, install] {
        println!("running: {step}");
        let finished = step.clone().env("DEBIAN_FRONTEND", "noninteractive").run(LIMIT, Output::Shown)?;
        if !finished.succeeded() {
            bail!("`{step}`: {}; is the network up, and does /etc/apt name a mirror?", finished.failure());
        }
    }
    println!("setup: {} packages installed", missing.len());
    Ok(())
}

/// rustfmt and clippy, which a minimal toolchain lacks.
fn components(dry_run: bool) -> Result<()> {
    let missing: Vec<_> = COMPONENTS.iter().filter(|(_, program)| !answers(program)).map(|(component, _)| *component).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let add = Spec::new("rustup").args(["component", "add"]).args(missing.iter().copied());
    if dry_run {
        println!("would run:\n  {add}");
        return Ok(());
    }
    if find_program("rustup").is_none() {
        bail!("the toolchain lacks {}, and there is no rustup to add it", missing.join(" and "));
    }
    println!("running: {add}");
    let finished = add.run(LIMIT, Output::Shown)?;
    if !finished.succeeded() {
        bail!("`{add}`: {}", finished.failure());
    }
    Ok(())
}

fn without_apt() -> Result<()> {
    println!("there is no apt-get here; the full test and the benchmarks use:");
    for (program, what) in PROGRAMS {
        let state = if find_program(program).is_some() { "is there" } else { "is missing" };
        println!("{program:<16} {state}: {what}");
    }
    println!(
        "setup: install what is missing with this system's own tools; what is not there is skipped or left out, with its name"
    );
    Ok(())
}

fn is_installed(package: &str) -> bool {
    let query = Spec::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]);
    query.run(Duration::from_secs(60), Output::Kept).is_ok_and(|finished| finished.succeeded() && finished.stdout == "installed")
}

fn answers(program: &str) -> bool {
    Spec::new(program).arg("--version").run(Duration::from_secs(60), Output::Kept).is_ok_and(|finished| finished.succeeded())
}
