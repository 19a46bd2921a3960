//! One line a test, as cargo's harness has it, and a closing line that can be counted.
//! Owns what is printed; knows no test.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// The tests of this program so far.
#[derive(Debug)]
pub(crate) struct Report {
    only: Option<String>,
    passed: u32,
    failed: Vec<String>,
    begun: Instant,
}

impl Report {
    /// Of the tests whose name has these words in it, or of all.
    pub(crate) fn of(only: Option<String>) -> Self {
        Self { only, passed: 0, failed: Vec::new(), begun: Instant::now() }
    }

    /// Whether a test of this name is to be run.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|words| name.contains(words.as_str()))
    }

    /// Runs a test, and says how it went.
    pub(crate) fn test(&mut self, name: &str, body: impl FnOnce() -> anyhow::Result<()>) {
        if !self.wants(name) {
            return;
        }
        say(&format!("test {name} ... "));
        let begun = Instant::now();
        let outcome = body();
        let took = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                say(&format!("ok ({took:.1} s)\n"));
            }
            Err(error) => {
                self.failed.push(name.into());
                say(&format!("FAILED ({took:.1} s)\n---- {name} ----\n{error:#}\n----\n"));
            }
        }
    }

    /// The closing lines.
    pub(crate) fn close(self) -> ExitCode {
        let (passed, failed) = (self.passed, self.failed.len());
        if failed > 0 {
            say(&format!("\nfailures:\n    {}\n", self.failed.join("\n    ")));
        }
        let verdict = if failed == 0 && passed > 0 { "ok" } else { "FAILED" };
        let took = self.begun.elapsed().as_secs_f64();
        say(&format!("\ntest result: {verdict}. {passed} passed; {failed} failed; finished in {took:.1} s\n"));
        if verdict == "ok" { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    // Who reads no longer wants nothing more to be said.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
