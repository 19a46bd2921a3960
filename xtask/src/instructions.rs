//! Counts, under callgrind, the instructions of starting and waiting for six puts. Unlike a time the count is exact,
//! so a limit on it can stand in the test.

use crate::process::{Output, Spec, find_program};
use anyhow::{Context, Result, bail, ensure};
use std::process::ExitCode;
use std::time::Duration;

/// The program that is counted, of package rma-tests: set-up, then `CALLS` calls of `FUNCTION`.
const PROGRAM: &str = "rma-instructions";
const FUNCTION: &str = "start_and_wait_six_puts";
const CALLS: u64 = 1000;
/// The most instructions that one call may take.
const LIMIT: u64 = 400;

const BUILD_LIMIT: Duration = Duration::from_secs(900);
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// What came of it.
pub(crate) enum Outcome {
    /// Within the limit; the figure in words.
    Within(String),
    /// Not counted, and why.
    Skipped(String),
}

pub(crate) fn run() -> Result<ExitCode> {
    match count()? {
        Outcome::Within(figure) => println!("{figure}"),
        Outcome::Skipped(reason) => println!("skipped: {reason}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Over the limit is an error.
pub(crate) fn count() -> Result<Outcome> {
    if find_program("valgrind").is_none() {
        return Ok(Outcome::Skipped("valgrind is not installed; `cargo xtask setup` installs it".into()));
    }
    let build = Spec::cargo("build --release -p rma-tests --bin").arg(PROGRAM);
    println!("running: {build}");
    let built = build.run(BUILD_LIMIT, Output::Shown)?;
    ensure!(built.succeeded(), "`{build}`: {}", built.failure());

    let target = crate::metadata::Metadata::read()?.target_directory;
    let valgrind = Spec::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{FUNCTION}*"))
        .arg(format!("--callgrind-out-file={}", target.join("instructions.callgrind").display()))
        .arg(target.join("release").join(PROGRAM).display().to_string());
    println!("running: {valgrind}");
    let counted = valgrind.run(RUN_LIMIT, Output::Kept)?;
    if !counted.succeeded() {
        bail!("callgrind: {}\n{}", counted.failure(), counted.last_words(15));
    }
    let total = collected(&counted.stderr).with_context(|| format!("callgrind gave no count:\n{}", counted.last_words(15)))?;
    verdict(total).map(Outcome::Within)
}

fn verdict(total: u64) -> Result<String> {
    ensure!(total >= CALLS, "callgrind saw no call of {FUNCTION}: is it inlined, or renamed?");
    let figure = total as f64 / CALLS as f64;
    let words = format!("{figure:.1} instructions to start and wait for six puts; the limit is {LIMIT}");
    ensure!(total <= LIMIT * CALLS, "{words}");
    Ok(words)
}

/// The line `==pid== Collected : 123456`.
fn collected(report: &str) -> Option<u64> {
    let line = report.lines().rev().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_the_report() {
        let report = "==12== Events    : Ir\n==12== Collected : 390120\n==12== \n==12== I   refs:      390,120\n";
        assert_eq!(collected(report), Some(390_120));
        assert_eq!(collected("nothing"), None);
    }

    #[test]
    fn the_limit_is_the_last_count_that_passes() {
        assert!(verdict(400_000).unwrap().starts_with("400.0 instructions"));
        assert!(verdict(400_001).is_err());
    }

    #[test]
    fn a_function_that_never_ran_is_an_error() {
        assert!(verdict(0).unwrap_err().to_string().contains("inlined"));
    }
}
