//! `cargo xtask test`: every part in turn, each with a name and a time limit, then a table and one line of counts.
//! Owns the list of parts; what is missing fails, and only what this machine cannot do is skipped, with the reason.

mod mpi;
mod parts;
mod soft_roce;

use crate::process::{Output, Spec};
use anyhow::{Context, Result, bail, ensure};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run this part only; may be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the parts, and run nothing
    #[arg(long)]
    list: bool,
}

/// One part of the test.
struct Part {
    name: &'static str,
    /// What it shows, for `--list`.
    about: &'static str,
    limit: Duration,
    body: fn(&mut Steps) -> Result<Outcome>,
}

/// How a part ended, when it did not fail.
enum Outcome {
    Passed,
    Skipped(String),
}

/// The commands of one part: under its time limit, and with the tests counted that they ran.
struct Steps {
    deadline: Instant,
    limit: Duration,
    output: Output,
    tests: u64,
    detail: Option<String>,
}

/// A row of the final table.
struct Row {
    name: &'static str,
    verdict: Verdict,
    took: Duration,
    detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let parts = chosen(&args.only)?;
    if args.list {
        parts.iter().for_each(|part| println!("{:<16} {}", part.name, part.about));
        return Ok(ExitCode::SUCCESS);
    }
    let root = crate::metadata::Metadata::read()?.workspace_root;
    std::env::set_current_dir(root)?;
    let rows: Vec<_> = parts.iter().map(|part| run_part(part)).collect();
    println!("\n{}", table(&rows));
    println!("{}", counts(&rows));
    Ok(if rows.iter().any(|row| row.verdict == Verdict::Failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn chosen(only: &[String]) -> Result<Vec<&'static Part>> {
    if let Some(unknown) = only.iter().find(|name| !parts::ALL.iter().any(|part| part.name == *name)) {
        let names: Vec<_> = parts::ALL.iter().map(|part| part.name).collect();
        bail!("there is no part {unknown:?}; the parts are: {}", names.join(", "));
    }
    Ok(parts::ALL.iter().filter(|part| only.is_empty() || only.iter().any(|name| name == part.name)).collect())
}

fn run_part(part: &'static Part) -> Row {
    println!("\n== {}: {}", part.name, part.about);
    let started = Instant::now();
    let mut steps = Steps::under(part.limit, Output::Shown);
    let (verdict, detail) = match (part.body)(&mut steps) {
        Ok(Outcome::Passed) => (Verdict::Passed, steps.summary()),
        Ok(Outcome::Skipped(reason)) => (Verdict::Skipped, reason),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    };
    let row = Row { name: part.name, verdict, took: started.elapsed(), detail };
    println!("== {}: {} after {:.1} s{}", row.name, verdict.word(), row.took.as_secs_f64(), indented(&row.detail));
    row
}

impl Steps {
    fn under(limit: Duration, output: Output) -> Self {
        Self { deadline: Instant::now() + limit, limit, output, tests: 0, detail: None }
    }

    /// Runs a command to its end; an error if it fails or the part's time is up.
    fn run(&mut self, spec: &Spec) -> Result<String> {
        println!("$ {spec}");
        let finished = spec.run(self.left(), self.output)?;
        if finished.status.is_none() {
            bail!("`{spec}`: stopped at the time limit of this part, {} s", self.limit.as_secs());
        }
        ensure!(finished.succeeded(), "`{spec}`: {}", finished.failure());
        Ok(finished.stdout)
    }

    /// The same for a command that runs tests: none at all is a failure, since then the tests are missing.
    fn test(&mut self, spec: &Spec) -> Result<()> {
        let output = self.run(spec)?;
        self.count(&output).with_context(|| format!("`{spec}`"))
    }

    /// Counts the tests of an output.
    fn count(&mut self, output: &str) -> Result<()> {
        let passed = tests_passed(output);
        ensure!(passed > 0, "no test ran");
        self.tests += passed;
        Ok(())
    }

    /// The time that the part has left.
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn summary(&self) -> String {
        self.detail.clone().unwrap_or_else(|| if self.tests > 0 { format!("{} tests", self.tests) } else { String::new() })
    }
}

/// Adds up the lines `test result: ok. 12 passed; 0 failed; ..`.
fn tests_passed(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| line.trim().strip_prefix("test result: ok. "));
    results.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum()
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

fn indented(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {}", detail.replace('\n', "\n   ")) }
}

fn table(rows: &[Row]) -> String {
    let line = |row: &Row| {
        // The whole of an error stands above, where the part ran.
        let detail = row.detail.lines().next().unwrap_or_default();
        format!("{:<16} {:<8} {:>7.1} s  {detail}", row.name, row.verdict.word(), row.took.as_secs_f64()).trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn counts(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    format!("{} passed, {} failed, {} skipped", count(Verdict::Passed), count(Verdict::Failed), count(Verdict::Skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, verdict: Verdict, detail: &str) -> Row {
        Row { name, verdict, took: Duration::from_millis(1500), detail: detail.into() }
    }

    #[test]
    fn the_closing_line_counts_the_parts() {
        let rows = [row("fmt", Verdict::Passed, ""), row("miri", Verdict::Skipped, "no miri"), row("unit", Verdict::Passed, "")];
        assert_eq!(counts(&rows), "2 passed, 0 failed, 1 skipped");
        assert_eq!(counts(&[]), "0 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn the_table_keeps_one_line_a_part() {
        let rows = [row("unit", Verdict::Failed, "exit status: 101\nand more"), row("fmt", Verdict::Passed, "")];
        assert_eq!(table(&rows), "unit             FAILED       1.5 s  exit status: 101\nfmt              passed       1.5 s");
    }

    #[test]
    fn an_unknown_part_is_refused_with_the_names_of_all() {
        let error = chosen(&["no-such".into()]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(parts::ALL.iter().all(|part| error.contains(part.name)), "{error}");
    }

    #[test]
    fn tests_are_added_up_over_all_targets() {
        let output = "test result: ok. 12 passed; 0 failed; 0 ignored\n..\ntest result: ok. 3 passed; 0 failed\n";
        assert_eq!(tests_passed(output), 15);
        assert_eq!(tests_passed("test result: FAILED. 12 passed; 1 failed"), 0);
    }

    #[test]
    fn a_part_over_its_limit_fails_and_says_so() {
        let mut steps = Steps::under(Duration::from_secs(1), Output::Kept);
        let error = steps.run(&Spec::new("sleep").arg("600")).unwrap_err();
        assert!(error.to_string().contains("time limit of this part, 1 s"), "{error}");
    }

    #[test]
    fn a_test_command_that_runs_no_test_fails() {
        let mut steps = Steps::under(Duration::from_secs(60), Output::Kept);
        assert!(steps.test(&Spec::new("echo").arg("test result: ok. 0 passed; 0 failed")).is_err());
        assert!(steps.test(&Spec::new("echo").arg("test result: ok. 2 passed; 0 failed")).is_ok());
    }
}
