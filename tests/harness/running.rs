//! A job of ranks: started, read, and ended by a deadline whatever it does.
//! Knows neither launcher nor what the ranks check.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A program that lies beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let path = own.with_file_name(name);
    ensure!(
        path.is_file(),
        "there is no {}: build the packages rma-cli, rma-tests and rma-examples with the features of this program",
        path.display()
    );
    Ok(path)
}

/// How a job ended, and every line it wrote.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) lines: Vec<String>,
}

impl Outcome {
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n")
    }

    pub(crate) fn succeeded(&self) -> Result<()> {
        ensure!(self.status.success(), "{}:\n{}", self.status, self.text());
        Ok(())
    }
}

/// Starts a job; after `deadline` without a word that was waited for it has failed.
pub(crate) fn start(mut command: Command, deadline: Duration) -> Result<Running> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    let (sender, lines) = mpsc::channel();
    let outputs: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|pipe| Box::new(pipe) as _), child.stderr.take().map(|pipe| Box::new(pipe) as _)];
    for output in outputs.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                // Nobody listens any more once the test is over.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
    }
    Ok(Running { child, lines, seen: Vec::new(), deadline, over_at: Instant::now() + deadline })
}

/// A job under way. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    deadline: Duration,
    over_at: Instant,
}

impl Running {
    /// The next line of any rank; `None` at the end of all output.
    fn line(&mut self) -> Result<Option<&String>> {
        match self.lines.recv_timeout(self.over_at.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.seen.push(line);
                Ok(self.seen.last())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Ok(None),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("the job is not over at its deadline:\n{}", self.seen.join("\n")),
        }
    }

    /// Reads until a line ends with these words, and begins the deadline anew; false at the end of all output.
    pub(crate) fn says(&mut self, words: &str) -> Result<bool> {
        while let Some(line) = self.line()? {
            if line.ends_with(words) {
                self.over_at = Instant::now() + self.deadline;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads to the end and collects the status.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        while self.line()?.is_some() {}
        let status = self.child.wait().context("waiting for the launcher")?;
        Ok(Outcome { status, lines: std::mem::take(&mut self.seen) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its ranks end with it. Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
