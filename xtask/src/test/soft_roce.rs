//! The parts of the test that need RDMA devices: they run in the emulated machine, all tests of a lab in one boot.
//! Owns which labs there are; what is tested is in tests/soft-roce and tests/mpi.

use super::{Outcome, Steps, mpi};
use crate::metadata::Metadata;
use crate::mpi::Library;
use crate::process::Spec;
use crate::vm::{self, Image, Job, Lab};
use anyhow::{Result, bail, ensure};
use std::path::PathBuf;

const BUILD: &str =
    "build --profile quick -p rma-cli -p rma-tests -p rma-examples --features rma-cli/verbs,rma-tests/verbs,rma-examples/verbs";
/// Of each machine. A rank registers its windows, and the machine keeps its files in memory.
const MEMORY_MIB: u32 = 1536;

/// Jobs of fewer ranks, and on fewer rails, use some of the devices.
const LAB: Lab = Lab { ranks: 4, rails: 4, rate_mbit: None, loss_percent: 0.0 };

/// Every promise with few ranks and rails, with many of one, and with many of both; there every example, too.
pub(super) fn conformance(steps: &mut Steps) -> Result<Outcome> {
    let metadata = Metadata::read()?;
    let examples = metadata.package("rma-examples")?.programs().join(",");
    inside(steps, LAB, 1, &["conformance", "--shapes", "2x1,2x4,4x4", "--programs", &examples])
}

/// Every promise between two machines, on 4 rails, as those of one rail are kept inside of one; and the end of one of them.
pub(super) fn pair(steps: &mut Steps) -> Result<Outcome> {
    inside(steps, Lab { ranks: 2, ..LAB }, 2, &["pair", "--rails", "4"])
}

/// What goes wrong on purpose.
pub(super) fn faults(steps: &mut Steps) -> Result<Outcome> {
    inside(steps, LAB, 1, &["faults"])
}

/// Every promise on ranks that Open MPI started, as on a cluster.
pub(super) fn under_mpirun(steps: &mut Steps) -> Result<Outcome> {
    let library = Library::named("openmpi")?;
    let build = library.spec(&format!("{} --features rma-cli/verbs,rma-tests/verbs,rma-examples/verbs", mpi::BUILD));
    let arguments = ["--backends", "verbs", "--ranks", "2", "--without-faults", "--programs", "03_ring,04_strided_tiles"];
    let env = [("RMA_VERBS_DEVICES", "x{rank}d0"), ("RMA_TEST_LIVES", "15")];
    boot(steps, LAB, 1, &build, library.program("debug/rma-mpi-tests"), &arguments, &env)
}

fn inside(steps: &mut Steps, lab: Lab, machines: u32, arguments: &[&str]) -> Result<Outcome> {
    let program = Metadata::read()?.target_directory.join("quick/rma-soft-roce");
    boot(steps, lab, machines, &Spec::cargo(BUILD), program, arguments, &[])
}

/// Builds what runs inside, boots, runs the tests, and counts them.
fn boot(
    steps: &mut Steps,
    lab: Lab,
    machines: u32,
    build: &Spec,
    program: PathBuf,
    arguments: &[&str],
    env: &[(&str, &str)],
) -> Result<Outcome> {
    let target = Metadata::read()?.target_directory;
    let image = match Image::prepare(&target) {
        Ok(image) => image,
        Err(error) => return Ok(Outcome::Skipped(format!("the machine cannot be had here: {error:#}"))),
    };
    steps.run(build)?;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let what = format!("{name} {}", arguments.join(" "));
    let command = [program.into_os_string()].into_iter().chain(arguments.iter().map(Into::into));
    let mut job = Job::new(command)?;
    job.env = env.iter().map(|(name, value)| ((*name).into(), value.into())).collect();
    job.lab = Some(lab);
    job.machines = machines;
    job.memory_mib = MEMORY_MIB;
    job.timeout = steps.left();
    println!("$ cargo xtask vm run .. -- {what}");
    let finished = vm::run_job(&image, &job, steps.output)?;
    let remarks = finished.remarks();
    match finished.status() {
        0 => {}
        status if remarks.is_empty() => bail!("{what}: exit status {status}"),
        _ => bail!("{}", remarks.join("\n")),
    }
    ensure!(finished.machines.len() == machines as usize, "{} of {machines} machines have ended", finished.machines.len());
    // What both machines of two run is one test, which the first of them counts.
    steps.count(&String::from_utf8_lossy(&finished.machines[0].stdout))?;
    Ok(Outcome::Passed)
}
