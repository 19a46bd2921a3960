//! A job of ranks in this machine: started, read, and ended by a deadline whatever it does.
//! Knows where the programs are; nothing of what the ranks check.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// After this long a job has failed and is ended. The machine is emulated, and may share its processors with others.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
/// The deadline of waits and of collective calls, so that what hangs says itself what it waits for.
const PATIENCE_SECONDS: &str = "45";

/// A program that lies beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "there is no {}: build the packages rma-cli and rma-tests with their feature `verbs`", path.display());
    Ok(path)
}

/// Ranks that run a program over RDMA devices of the lab.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) ranks: u32,
    pub(crate) rails: u32,
    /// The program's name and arguments; it lies beside this one.
    pub(crate) program: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// A rank with another `RMA_VERBS_TIMEOUT` than the others.
    pub(crate) timeout_of: Option<(u32, u8)>,
    /// The rank that is started in this machine, and where rank 0 listens, if not all of them are.
    pub(crate) part: Option<(u32, String)>,
    pub(crate) deadline: Duration,
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

impl Job {
    pub(crate) fn new(ranks: u32, rails: u32, program: &[&str]) -> Self {
        let program = program.iter().map(|&word| word.into()).collect();
        Self { ranks, rails, program, env: Vec::new(), timeout_of: None, part: None, deadline: DEADLINE }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(beside("rma")?);
        command.args(["run", "-n", &self.ranks.to_string(), "--grace", "20"]);
        if let Some((rank, root)) = &self.part {
            command.args(["--part", &format!("{rank}-{rank}"), "--root", root]);
        }
        let [program, arguments @ ..] = self.program.as_slice() else { bail!("bug: a job without a program") };
        command.arg("--");
        if let Some((rank, timeout)) = self.timeout_of {
            let script = format!("[ $RMA_RANK = {rank} ] && export RMA_VERBS_TIMEOUT={timeout}; exec \"$@\"");
            command.args(["sh", "-c", &script, "sh"]);
        }
        command.arg(beside(program)?).args(arguments);
        let devices: Vec<_> = (0..self.rails).map(|rail| format!("x{{rank}}d{rail}")).collect();
        command.env("RMA_BACKEND", "verbs").env("RMA_VERBS_DEVICES", devices.join(","));
        command.env("RMA_TIMEOUT", PATIENCE_SECONDS).env("RMA_SETUP_TIMEOUT", PATIENCE_SECONDS);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs to the end; an error at the deadline, with all that was said until then.
    pub(crate) fn run(&self) -> Result<Outcome> {
        self.start()?.finish()
    }

    pub(crate) fn start(&self) -> Result<Running> {
        let mut child = self.command()?.spawn().context("starting `rma run`")?;
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
        Ok(Running { child, lines, seen: Vec::new(), deadline: self.deadline, over_at: Instant::now() + self.deadline })
    }
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
        let status = self.child.wait().context("waiting for `rma run`")?;
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
