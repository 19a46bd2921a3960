//! A job of ranks in this machine: how `rma run` is to start it.
//! Knows where the programs are; nothing of what the ranks check.

use crate::harness::{Outcome, Running, beside, start};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Duration;

/// After this long a job has failed and is ended. The machine is emulated, and may share its processors with others.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
/// The deadline of waits and of collective calls, so that what hangs says itself what it waits for.
const PATIENCE_SECONDS: &str = "45";

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
        Ok(command)
    }

    /// Runs to the end; an error at the deadline, with all that was said until then.
    pub(crate) fn run(&self) -> Result<Outcome> {
        self.start()?.finish()
    }

    pub(crate) fn start(&self) -> Result<Running> {
        start(self.command()?, self.deadline)
    }
}
