//! `rma info`: what this machine offers to ranks, and what to do about what it does not.
//! Owns the text; the facts come from `machine` and `probe`, the judgment from `problems`.

mod machine;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "without_mpi.rs"]
mod mpi;
mod parse;
mod peach2;
mod probe;
mod problems;
mod variables;
#[cfg(feature = "verbs")]
mod verbs;
#[cfg(not(feature = "verbs"))]
#[path = "without_verbs.rs"]
mod verbs;

use crate::results;
use clap::Args;
use machine::{Limit, Machine};
use peach2::Peach2;
use probe::Probes;
use problems::Problem;
use rma::Config;
use std::fmt::Write as _;
use std::process::ExitCode;
use variables::Variables;
use verbs::Verbs;

const AFTER_HELP: &str = "\
Looks at cores, memory and limits, tries what the backends need (memfd,
sockets, threads), shows the emulated PEACH2 board and the constants of its
clock, lists RDMA devices and names the MPI library if built with them, and reads the variables that rma and other launchers set.
The last section, 'problems', has a command for each that mends it; commands
with ulimit act on the shell they are typed in.

Example:
  rma info                            before the first run on a machine
  rma run -n 1 -- rma info            as a rank sees it
  srun -n 1 rma info                  as a job of a cluster sees it

Exit status:
  0   some backend can be used, also if there are problems
  1   none can";

/// Show what this machine offers to ranks, and how to mend what it lacks.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, after_help = "Example: rma info\nMore with --help.")]
pub(crate) struct InfoArgs {}

/// `rma info`.
pub(crate) fn main(_: &InfoArgs) -> anyhow::Result<ExitCode> {
    let (machine, probes, variables) = (Machine::of_this_process()?, Probes::try_all(), Variables::of_this_process());
    let (config, place) = Config::from_env().unwrap_or_default();
    let (verbs, peach2) = (Verbs::seen_from(place.as_ref(), &config), Peach2::seen_from(place.as_ref(), &config));
    let mut problems = problems::find(&machine, &probes, &variables);
    problems.extend(verbs.problems(&machine));
    problems.extend(mpi::problems());
    let text = render(&machine, &probes, &variables, &verbs, &peach2, &problems);
    results::write(format_args!("{text}"))?;
    Ok(if probes.any_backend() || verbs.is_usable() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn render(
    machine: &Machine,
    probes: &Probes,
    variables: &Variables,
    verbs: &Verbs,
    peach2: &Peach2,
    problems: &[Problem],
) -> String {
    let mut text = Text::default();
    text.section("cores");
    text.line("online", machine.cores_online.map_or("unknown".into(), |n| n.to_string()));
    text.line("allowed here", format!("{} ({})", machine.cores_allowed.len(), parse::to_cpu_list(&machine.cores_allowed)));
    text.line("cgroup quota", machine.cpu_quota.map_or("none".into(), |cores| format!("{cores:.2} cores")));
    text.section("memory");
    text.line("total", optional_bytes(machine.memory_total, "unknown"));
    text.line("available", optional_bytes(machine.memory_available, "unknown"));
    text.line("cgroup limit", optional_bytes(machine.memory_limit, "none"));
    text.line("page", bytes(machine.page_bytes));
    text.line("huge pages", machine.huge_pages.as_deref().unwrap_or("not offered by this kernel"));
    text.line("huge pages, shared", machine.huge_pages_shared.as_deref().unwrap_or("not offered by this kernel"));
    text.section("limits");
    text.line("locked memory", limit(machine.locked_memory, bytes));
    text.line("open files", limit(machine.open_files, |n| n.to_string()));
    text.line("processes", limit(machine.processes, |n| n.to_string()));
    text.line("threads, system", machine.threads_max.map_or("unknown".into(), |n| n.to_string()));
    text.line("processes, cgroup", machine.pids_max.as_ref().map_or("unlimited".into(), |(n, _)| n.to_string()));
    text.section("needed by backends");
    for (what, result) in probes.all() {
        text.line(what, result.as_ref().map_or_else(|error| format!("no: {error}"), |()| "works".into()));
    }
    text.section("backends");
    for (backend, missing) in probes.backends() {
        text.line(backend, if missing.is_empty() { "usable".into() } else { format!("not usable: no {}", missing.join(", no ")) });
    }
    text.line("verbs", verbs.state());
    text.line("mpi", mpi::state());
    text.line("peach2", peach2.state(probes));
    verbs.render(&mut text);
    mpi::render(&mut text);
    peach2.render(&mut text);
    text.section("variables of rma");
    for variable in &variables.own {
        text.line(variable.name, variable.describe());
    }
    text.section("variables of launchers");
    for (name, value, launcher) in &variables.launchers {
        text.line(name, format!("{value} ({launcher})"));
    }
    if variables.launchers.is_empty() {
        text.plain("none");
    }
    text.section("problems");
    for Problem { what, mend } in problems {
        text.plain(what);
        text.plain(&format!("    {mend}"));
    }
    if problems.is_empty() {
        text.plain("none");
    }
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn section(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.0, "{gap}{name}");
    }

    fn line(&mut self, name: &str, value: impl AsRef<str>) {
        let _ = writeln!(self.0, "  {name:<24} {}", value.as_ref());
    }

    fn plain(&mut self, line: &str) {
        let _ = writeln!(self.0, "  {line}");
    }
}

fn limit(limit: Limit, show: impl Fn(u64) -> String) -> String {
    let show = |value: Option<u64>| value.map_or("unlimited".into(), &show);
    if limit.soft == limit.hard {
        show(limit.soft)
    } else {
        format!("{} (can be raised to {})", show(limit.soft), show(limit.hard))
    }
}

fn optional_bytes(value: Option<u64>, otherwise: &str) -> String {
    value.map_or_else(|| otherwise.into(), bytes)
}

/// As "8.0 MiB".
fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (value.max(1).ilog2() / 10).min(5) as usize;
    if unit == 0 { format!("{value} bytes") } else { format!("{:.1} {}", value as f64 / 1024f64.powi(unit as i32), UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_keeps_them_short() {
        assert_eq!([0, 1023, 4096, 8 << 20, 3 << 39].map(bytes), ["0 bytes", "1023 bytes", "4.0 KiB", "8.0 MiB", "1.5 TiB"]);
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }

    #[test]
    fn a_limit_says_whether_it_can_be_raised() {
        let show = |soft, hard| limit(Limit { soft, hard }, |n| n.to_string());
        assert_eq!(show(Some(5), Some(9)), "5 (can be raised to 9)");
        assert_eq!(show(Some(5), None), "5 (can be raised to unlimited)");
        assert_eq!(show(Some(9), Some(9)), "9");
        assert_eq!(show(None, None), "unlimited");
    }
}
