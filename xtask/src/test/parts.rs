//! The parts of the test and what each runs. The order is from quick to slow, as far as one does not need another.

use super::{Outcome, Part, Steps, mpi, soft_roce};
use crate::metadata::Metadata;
use crate::process::{Output, Spec};
use crate::{instructions, licences};
use anyhow::{Result, ensure};
use std::time::Duration;

pub(super) const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

pub(super) const ALL: [Part; 20] = [
    Part { name: "fmt", about: "the code is formatted", limit: minutes(2), body: fmt },
    Part { name: "clippy", about: "no warning of the compiler or of clippy", limit: minutes(15), body: clippy },
    Part { name: "docs", about: "the documentation builds without a warning", limit: minutes(10), body: docs },
    Part { name: "licences", about: "every dependency has a licence that is allowed", limit: minutes(5), body: licences },
    Part { name: "unit", about: "unit tests of every package, and the command line", limit: minutes(15), body: unit },
    Part {
        name: "doctest",
        about: "the examples in the documentation; misuse that must not compile",
        limit: minutes(10),
        body: doctest,
    },
    Part { name: "conformance", about: "the semantics, ranks as threads", limit: minutes(10), body: conformance },
    Part { name: "multiprocess", about: "the semantics, ranks as processes; lost peers", limit: minutes(10), body: multiprocess },
    Part {
        name: "peach2",
        about: "the semantics on emulated PEACH2 boards, as threads and as processes",
        limit: minutes(15),
        body: peach2,
    },
    Part { name: "misuse", about: "every mistake is a named error, never a hang", limit: minutes(10), body: misuse },
    Part { name: "examples", about: "every example, as threads and as four processes", limit: minutes(10), body: examples },
    Part { name: "loom", about: "the orderings of the shared-memory flags, exhaustively", limit: minutes(15), body: loom },
    Part { name: "miri", about: "the unsafe code, interpreted", limit: minutes(20), body: miri },
    Part {
        name: "openmpi",
        about: "the semantics on ranks of Open MPI, over shared memory and over MPI",
        limit: minutes(20),
        body: mpi::openmpi,
    },
    Part {
        name: "mpich",
        about: "the semantics on ranks of MPICH, over shared memory and over MPI",
        limit: minutes(20),
        body: mpi::mpich,
    },
    Part {
        name: "soft-roce",
        about: "the semantics over RDMA devices of an emulated machine",
        limit: minutes(30),
        body: soft_roce::conformance,
    },
    Part {
        name: "soft-roce-pair",
        about: "the semantics over RDMA devices of two emulated machines; one that fails",
        limit: minutes(30),
        body: soft_roce::pair,
    },
    Part {
        name: "soft-roce-faults",
        about: "links, keys and processes that fail, on RDMA devices of an emulated machine",
        limit: minutes(30),
        body: soft_roce::faults,
    },
    Part {
        name: "soft-roce-mpirun",
        about: "the semantics over RDMA devices of an emulated machine, on ranks of Open MPI",
        limit: minutes(30),
        body: soft_roce::under_mpirun,
    },
    Part { name: "instructions", about: "instructions to start and wait for six puts", limit: minutes(20), body: instructions },
];

fn fmt(steps: &mut Steps) -> Result<Outcome> {
    steps.run(&Spec::cargo("fmt --all --check"))?;
    Ok(Outcome::Passed)
}

fn clippy(steps: &mut Steps) -> Result<Outcome> {
    for features in ["", " --all-features"] {
        steps.run(&Spec::cargo(&format!("clippy --workspace --all-targets{features} -- -D warnings")))?;
    }
    Ok(Outcome::Passed)
}

fn docs(steps: &mut Steps) -> Result<Outcome> {
    steps.run(&Spec::cargo("doc --workspace --no-deps").env_append("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(Outcome::Passed)
}

fn licences(steps: &mut Steps) -> Result<Outcome> {
    steps.detail = Some(licences::check(&Metadata::read()?)?);
    Ok(Outcome::Passed)
}

fn unit(steps: &mut Steps) -> Result<Outcome> {
    steps.test(&Spec::cargo("test --workspace --lib --bins"))?;
    steps.test(&Spec::cargo("test -p rma-cli --test *"))?;
    Ok(Outcome::Passed)
}

fn doctest(steps: &mut Steps) -> Result<Outcome> {
    steps.test(&Spec::cargo("test --workspace --doc"))?;
    Ok(Outcome::Passed)
}

fn conformance(steps: &mut Steps) -> Result<Outcome> {
    steps.test(&Spec::cargo("test -p rma-tests --test threads"))?;
    Ok(Outcome::Passed)
}

fn multiprocess(steps: &mut Steps) -> Result<Outcome> {
    steps.test(&Spec::cargo("test -p rma-tests --test multiprocess"))?;
    steps.test(&Spec::cargo("test -p rma-tests --test network"))?;
    Ok(Outcome::Passed)
}

/// Every promise and every example, on 2 to 16 boards, and what the paper says of them.
fn peach2(steps: &mut Steps) -> Result<Outcome> {
    steps.test(&Spec::cargo("test -p rma-peach2 --test *"))?;
    steps.run(&Spec::cargo("build -p rma-cli -p rma-tests -p rma-examples --bins"))?;
    let metadata = Metadata::read()?;
    let programs = metadata.package("rma-examples")?.programs().join(",");
    let tests = metadata.target_directory.join("debug/rma-peach2-tests").display().to_string();
    steps.test(&Spec::new(tests).args(["--programs", &programs]))?;
    Ok(Outcome::Passed)
}

fn misuse(steps: &mut Steps) -> Result<Outcome> {
    steps.test(&Spec::cargo("test -p rma-tests --test misuse"))?;
    Ok(Outcome::Passed)
}

/// Every program of the package, found through cargo, so that a new example is run without being listed here.
fn examples(steps: &mut Steps) -> Result<Outcome> {
    let metadata = Metadata::read()?;
    let package = metadata.package("rma-examples")?;
    let debug = metadata.target_directory.join("debug");
    let mut programs = Vec::new();
    for target in &package.targets {
        match target.kind.first().map(String::as_str) {
            Some("bin") => programs.push(debug.join(&target.name)),
            Some("example") => programs.push(debug.join("examples").join(&target.name)),
            _ => {}
        }
    }
    ensure!(!programs.is_empty(), "package rma-examples has no example");
    steps.run(&Spec::cargo("build -p rma-examples --bins --examples"))?;
    steps.run(&Spec::cargo("build -p rma-cli"))?;
    for program in &programs {
        let program = program.display().to_string();
        steps.run(&Spec::new(&program))?;
        steps.run(&Spec::new(debug.join("rma").display().to_string()).args(["run", "-n", "4", "--"]).arg(program))?;
    }
    steps.detail = Some(format!("{} examples", programs.len()));
    Ok(Outcome::Passed)
}

/// In a target folder of its own: with the flag every dependency is built anew.
fn loom(steps: &mut Steps) -> Result<Outcome> {
    let spec = Spec::cargo("test -p rma --profile quick --lib loom_");
    steps.test(&spec.env_append("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom"))?;
    Ok(Outcome::Passed)
}

fn miri(steps: &mut Steps) -> Result<Outcome> {
    // The toolchain that runs this program would otherwise win over the one asked for.
    let plain = |args: &str| Spec::cargo(args);
    let nightly = |args: &str| Spec::new("cargo").arg("+nightly").args(args.split_whitespace()).env_remove("RUSTUP_TOOLCHAIN");
    let answers = |spec: Spec| spec.run(minutes(1), Output::Kept).is_ok_and(|finished| finished.succeeded());
    let cargo: &dyn Fn(&str) -> Spec = if answers(plain("miri --version")) {
        &plain
    } else if answers(nightly("miri --version")) {
        &nightly
    } else {
        return Ok(Outcome::Skipped("miri is not installed; `rustup +nightly component add miri` installs it".into()));
    };
    // Isolation would refuse the clock, which deadlines need.
    steps.test(&cargo("miri test -p rma --lib").env_append("MIRIFLAGS", "-Zmiri-disable-isolation"))?;
    Ok(Outcome::Passed)
}

fn instructions(steps: &mut Steps) -> Result<Outcome> {
    match instructions::count()? {
        instructions::Outcome::Within(figure) => {
            steps.detail = Some(figure);
            Ok(Outcome::Passed)
        }
        instructions::Outcome::Skipped(reason) => Ok(Outcome::Skipped(reason)),
    }
}
