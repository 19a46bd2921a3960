//! What has to be on the machine besides Rust: says what is there, and installs the rest where it can.

use crate::metadata::Metadata;
use crate::process::{Output, Spec, find_program};
use crate::vm::Image;
use anyhow::{Result, bail};
use std::time::Duration;

/// Debian packages, and what each is for.
const PACKAGES: &[(&str, &str)] = &[
    ("gcc", "builds the peers of the benchmarks"),
    ("libc6-dev", "builds the peers of the benchmarks"),
    ("libopenmpi-dev", "peer: Open MPI and OpenSHMEM, headers"),
    ("openmpi-bin", "peer: Open MPI and OpenSHMEM, mpirun and oshrun"),
    ("libmpich-dev", "peer: MPICH, headers"),
    ("mpich", "peer: MPICH, mpiexec"),
    ("ucx-utils", "peer: ucx_perftest"),
    ("valgrind", "counts instructions"),
    ("cmake", "builds what the verbs bindings need of rdma-core"),
    ("make", "the same, for CMake"),
    ("libclang-dev", "makes the verbs bindings from C headers"),
    ("libibverbs-dev", "verbs: headers, for peers in C"),
    ("ibverbs-providers", "verbs: the drivers, that of Soft-RoCE among them"),
    ("ibverbs-utils", "verbs: ibv_devinfo, to look at devices"),
    ("perftest", "peer: ib_write_lat and ib_write_bw"),
    ("rdma-core", "verbs: what RDMA devices are set up with"),
    ("qemu-system-x86", "vm: emulates the machine"),
    ("busybox-static", "vm: the programs of its start"),
    ("iproute2", "vm: makes its networks and RDMA devices"),
    ("kmod", "vm: finds what its modules need"),
    ("xz-utils", "vm: unpacks its kernel"),
];

/// The same as programs, for a system without Debian's packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("gcc", "a C compiler"),
    ("mpicc.openmpi", "Open MPI 4.1 or later"),
    ("oshcc", "OpenSHMEM, as Open MPI has it"),
    ("mpicc.mpich", "MPICH 4.0 or later"),
    ("ucx_perftest", "UCX 1.13 or later"),
    ("valgrind", "valgrind 3.19 or later"),
    ("cmake", "CMake 3.18 or later, for the verbs bindings"),
    ("make", "make, for CMake"),
    ("ib_write_lat", "perftest 4.5 or later"),
    ("qemu-system-x86_64", "QEMU 7.2 or later"),
    ("busybox", "busybox, statically linked"),
    ("rdma", "iproute2 6.1 or later: ip, tc and rdma"),
    ("depmod", "kmod 30 or later"),
    ("xz", "XZ Utils 5.4 or later"),
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
    present.iter().for_each(|(package, _)| println!("{package:<17} is there"));
    missing.iter().for_each(|(package, purpose)| println!("{package:<17} is missing: {purpose}"));
    if missing.is_empty() {
        println!("setup: nothing to install");
    } else {
        let packages: Vec<_> = missing.iter().map(|(package, _)| *package).collect();
        install(&packages, args.dry_run)?;
    }
    machine(args.dry_run)
}

fn install(packages: &[&str], dry_run: bool) -> Result<()> {
    let update = Spec::new("apt-get").arg("update");
    let install = Spec::new("apt-get").args(["install", "-y", "--no-install-recommends"]).args(packages.iter().copied());
    if dry_run {
        println!("would run:\n  {update}\n  {install}");
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("packages are missing, and installing them needs root; run:\n  sudo {update} && sudo {install}");
    }
    for step in [update, install] {
        apt(&step)?;
    }
    println!("setup: {} packages installed", packages.len());
    Ok(())
}

/// What the virtual machine boots, so that no later run needs the network.
fn machine(dry_run: bool) -> Result<()> {
    let target = Metadata::read()?.target_directory;
    if Image::is_built(&target)? {
        println!("the virtual machine is there");
        return Ok(());
    }
    if dry_run {
        println!("would run:\n  cargo xtask vm build");
        return Ok(());
    }
    if Image::needs_download(&target)? && rustix::process::geteuid().is_root() {
        // With old lists the kernel that they name may be gone from the mirror.
        apt(&Spec::new("apt-get").arg("update"))?;
    }
    Image::prepare(&target)?;
    println!("setup: the virtual machine is built");
    Ok(())
}

fn apt(step: &Spec) -> Result<()> {
    println!("running: {step}");
    let finished = step.clone().env("DEBIAN_FRONTEND", "noninteractive").run(LIMIT, Output::Shown)?;
    if !finished.succeeded() {
        bail!("`{step}`: {}; is the network up, and does /etc/apt name a mirror?", finished.failure());
    }
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
        println!("{program:<18} {state}: {what}");
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
