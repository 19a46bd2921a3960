//! `rma info` on whatever machine this is.

mod common;

use common::{finish, rma};

#[test]
fn every_section_is_there_and_a_usable_backend_is_success() {
    let done = finish(rma(&["info"]));
    assert_eq!(done.code, 0, "{done:?}");
    let out = done.out();
    for section in
        ["cores", "memory", "limits", "needed by backends", "backends", "variables of rma", "variables of launchers", "problems"]
    {
        assert!(out.lines().any(|line| line == section), "no section {section:?} in\n{out}");
    }
    assert!(out.contains("shm (threads)            usable"), "{out}");
    let verbs = out.lines().find_map(|line| line.strip_prefix("  verbs                    ")).unwrap_or_default();
    let listed = out.contains("\nverbs devices\n");
    if cfg!(feature = "verbs") {
        assert!(listed && (verbs.starts_with("usable: ") || verbs.starts_with("not usable: ")), "{out}");
    } else {
        assert!(!listed && verbs == "not built in", "{out}");
    }
}

#[test]
fn what_is_wrong_in_the_environment_is_a_problem_with_its_mend() {
    let mut command = rma(&["info"]);
    command.env("RMA_RAILS", "many").env("RMA_TIMEOUTT", "3");
    let done = finish(command);
    assert_eq!(done.code, 0, "problems are no failure: {done:?}");
    let out = done.out();
    assert!(out.contains("RMA_RAILS=\"many\": expected a whole number") && out.contains("\n      unset RMA_RAILS\n"), "{out}");
    assert!(out.contains("RMA_TIMEOUT is one") && out.contains("unset RMA_TIMEOUTT"), "{out}");
}

#[test]
fn limits_are_those_of_the_shell() {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -n 99; ulimit -l 64; exec \"$0\" info", env!("CARGO_BIN_EXE_rma")]);
    let out = finish(shell).out();
    assert!(out.contains("open files               99\n"), "{out}");
    assert!(out.contains("locked memory            64.0 KiB\n"), "{out}");
    assert!(out.contains("prlimit --pid $$ --nofile=65536:65536"), "{out}");
}

#[test]
fn a_rank_sees_its_place_but_shows_no_secret() {
    let done = finish(rma(&["run", "-n", "1", "--", env!("CARGO_BIN_EXE_rma"), "info"]));
    let out = done.out();
    assert!(out.contains("RMA_RANK                 0: ") && out.contains("RMA_TOKEN                set, not shown"), "{out}");
}
