//! `rma info` on whatever machine this is.

mod common;

use common::{finish, rma};

#[test]
fn every_section_is_there_and_a_usable_backend_is_success() {
    let done = finish(rma(&["info"]));
    assert_eq!(done.code, 0, "{done:?}");
    let out = done.out();
    for section in [
        "cores",
        "memory",
        "limits",
        "needed by backends",
        "backends",
        "peach2 board (emulated)",
        "variables of rma",
        "variables of launchers",
        "problems",
    ] {
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
fn the_emulated_board_and_every_constant_of_its_clock_are_shown() {
    let mut command = rma(&["info"]);
    command.env("RMA_PEACH2_CLOCK", "hop_ns=300");
    let out = finish(command).out();
    assert!(out.contains("\n  peach2                   usable: emulated, "), "{out}");
    let board: Vec<_> =
        out.lines().skip_while(|line| *line != "peach2 board (emulated)").take_while(|line| !line.is_empty()).collect();
    let has = |beginning: &str| board.iter().any(|line| line.starts_with(beginning));
    for beginning in [
        "  channels                 4; ",
        "  boards                   a ring of 8; 32 at most",
        "    pio_ns                 550 ns: a store of the processor to another board",
        "    hop_ns                 300 ns (default 250): from one board to the next (P3: ",
    ] {
        assert!(has(beginning), "no {beginning:?} in\n{out}");
    }
    assert!(out.contains("\n  RMA_PEACH2_CLOCK         hop_ns=300 (default as `rma info` lists): "), "{out}");
    let mut command = rma(&["info"]);
    command.env("RMA_PEACH2_RING", "4");
    let done = finish(command);
    assert_eq!(done.code, 0, "other backends can be used: {done:?}");
    let out = done.out();
    assert!(out.contains("\n  peach2                   not usable: ") && out.contains("\n      unset RMA_PEACH2_RING\n"), "{out}");
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
