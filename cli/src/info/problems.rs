//! What stands in the way of a job here, each with the command that mends it. Pure: judges facts, finds none itself.

use super::machine::{Limit, Machine};
use super::probe::Probes;
use super::variables::Variables;

/// Something to mend, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) what: String,
    /// A command line to type as it stands.
    pub(super) mend: String,
}

/// Below this many open files, a job of some hundred ranks cannot be started.
const FEW_FILES: u64 = 4096;
const ENOUGH_FILES: u64 = 65536;
/// Below this many processes and threads, a job of as many ranks and a few threads each is in danger.
const FEW_PROCESSES: u64 = 1024;
const ENOUGH_PROCESSES: u64 = 32768;

/// All problems, those that prevent a backend first.
pub(super) fn find(machine: &Machine, probes: &Probes, variables: &Variables) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |what: String, mend: String| problems.push(Problem { what, mend });
    let sandbox = "docker run --security-opt seccomp=unconfined ...   # or whatever else forbids the call";
    if let Err(error) = &probes.threads {
        add(format!("no thread can be started: {error}"), raise_limit("u", "nproc", machine.processes, ENOUGH_PROCESSES));
    }
    if let Err(error) = &probes.memfd {
        add(format!("memfd_create does not work ({error}): ranks as processes cannot share memory"), sandbox.into());
    }
    if let Err(error) = &probes.unix {
        add(format!("abstract unix sockets do not work ({error}): ranks as processes cannot hand over memory"), sandbox.into());
    }
    if let Err(error) = &probes.tcp {
        add(format!("tcp on 127.0.0.1 does not work ({error}): ranks cannot find each other"), "sudo ip link set lo up".into());
    }
    for (text, about) in &variables.refused {
        add(format!("a program of rma would refuse to start: {text}"), format!("unset {}", about.join(" ")));
    }
    for (name, meant) in &variables.unknown {
        match meant {
            Some(meant) => add(
                format!("{name} is no variable of rma and has no effect; {meant} is one"),
                format!("export {meant}=\"${name}\"; unset {name}"),
            ),
            None => add(format!("{name} is no variable of rma and has no effect"), format!("unset {name}")),
        }
    }
    let allowed = machine.cores_allowed.len();
    if let Some(quota) = machine.cpu_quota.filter(|&quota| quota < allowed as f64) {
        // A rank that waits spins; with more of them than the quota, all are paused in each period.
        let ranks = (quota as usize).max(1);
        add(
            format!(
                "a cgroup grants the time of {quota:.2} of the {allowed} cores: more ranks than that are paused again and again"
            ),
            format!("rma run -n {ranks} -- PROGRAM"),
        );
    }
    if let Some(files) = machine.open_files.soft.filter(|&files| files < FEW_FILES) {
        add(
            format!("{files} open files: a rank with that many peers, or a job of {} ranks, has too few", files / 2),
            raise_limit("n", "nofile", machine.open_files, ENOUGH_FILES),
        );
    }
    if let Some(processes) = machine.processes.soft.filter(|&processes| processes < FEW_PROCESSES) {
        add(
            format!("{processes} processes and threads of this user at most, in all sessions together"),
            raise_limit("u", "nproc", machine.processes, ENOUGH_PROCESSES),
        );
    }
    if let Some((processes, file)) = machine.pids_max.as_ref().filter(|(processes, _)| *processes < FEW_PROCESSES) {
        add(format!("a cgroup allows {processes} processes and threads"), format!("echo {ENOUGH_PROCESSES} | sudo tee '{file}'"));
    }
    problems
}

/// The command that raises a limit of the shell it is typed in: without privileges where the hard limit allows it.
fn raise_limit(letter: &str, name: &str, limit: Limit, enough: u64) -> String {
    match limit.hard {
        Some(hard) if hard < enough => format!("sudo prlimit --pid $$ --{name}={enough}:{enough}"),
        _ => format!("ulimit -{letter} {enough}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlimited() -> Machine {
        Machine { cores_allowed: vec![0, 1, 2, 3], ..Machine::default() }
    }

    fn working() -> Probes {
        Probes { threads: Ok(()), memfd: Ok(()), unix: Ok(()), tcp: Ok(()) }
    }

    fn nothing_set() -> Variables {
        Variables { own: Vec::new(), unknown: Vec::new(), launchers: Vec::new(), refused: Vec::new() }
    }

    fn mends(machine: &Machine, probes: &Probes, variables: &Variables) -> Vec<String> {
        find(machine, probes, variables).into_iter().map(|problem| problem.mend).collect()
    }

    #[test]
    fn a_machine_without_limits_has_no_problems() {
        assert_eq!(find(&unlimited(), &working(), &nothing_set()), []);
    }

    #[test]
    fn every_limit_has_the_command_that_this_user_can_type() {
        let limited = |soft, hard| Limit { soft: Some(soft), hard };
        let cases = [
            (Machine { open_files: limited(1024, None), ..unlimited() }, "ulimit -n 65536"),
            (Machine { open_files: limited(1024, Some(1024)), ..unlimited() }, "sudo prlimit --pid $$ --nofile=65536:65536"),
            (Machine { processes: limited(500, Some(100_000)), ..unlimited() }, "ulimit -u 32768"),
            (Machine { pids_max: Some((100, "/x/pids.max".into())), ..unlimited() }, "echo 32768 | sudo tee '/x/pids.max'"),
            (Machine { cpu_quota: Some(2.5), ..unlimited() }, "rma run -n 2 -- PROGRAM"),
            (Machine { cpu_quota: Some(0.5), ..unlimited() }, "rma run -n 1 -- PROGRAM"),
        ];
        for (machine, mend) in cases {
            assert_eq!(mends(&machine, &working(), &nothing_set()), [mend]);
        }
        assert_eq!(find(&Machine { cpu_quota: Some(4.0), ..unlimited() }, &working(), &nothing_set()), []);
    }

    #[test]
    fn what_does_not_work_and_what_is_mistyped_is_named() {
        let no = || Err("not permitted".to_string());
        let probes = Probes { memfd: no(), unix: no(), tcp: no(), threads: no() };
        let found = find(&unlimited(), &probes, &nothing_set());
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|problem| problem.what.contains("not permitted") && !problem.mend.is_empty()), "{found:?}");
        let variables = Variables {
            unknown: vec![("RMA_RIALS".into(), Some("RMA_RAILS")), ("RMA_X".into(), None)],
            refused: vec![("RMA_RANK=1: no".into(), vec!["RMA_RANK".into()])],
            ..nothing_set()
        };
        let expected = ["unset RMA_RANK", "export RMA_RAILS=\"$RMA_RIALS\"; unset RMA_RIALS", "unset RMA_X"];
        assert_eq!(mends(&unlimited(), &working(), &variables), expected);
    }
}
