//! The guard: a small process that outlives a launcher that was killed, and then ends the ranks' process groups.
//! Ranks die with the launcher by their parent-death signal; what they had started would not. Both sides are here: they
//! speak lines over a pipe, a group's number each, and `done` when the launcher has ended all of them itself.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ExitCode, Stdio};

/// The launcher's side.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard, in a group of its own: what is sent to the launcher's group does not reach it.
    pub(crate) fn start() -> Result<Self> {
        let mut process = super::spawn::this_binary(super::GUARD_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the process that ends the ranks if the launcher is killed")?;
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    /// From now on this group does not outlive the launcher.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.tell(&format!("{}\n", group.as_raw_pid()));
    }

    /// All groups have been ended; their numbers may soon be those of others.
    pub(crate) fn done(&mut self) {
        self.tell("done\n");
        self.pipe = None;
        let _ = self.process.wait();
    }

    /// A guard that was itself killed guards no more; the job goes on without it.
    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

/// The other side: the process `rma __guard`.
pub(crate) fn become_guard() -> ExitCode {
    for group in left_behind(BufReader::new(stdin())) {
        // A group that has ended meanwhile is no error.
        let _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

/// The groups to end once the pipe is closed: none if the launcher has said that it is done.
fn left_behind(pipe: impl BufRead) -> Vec<Pid> {
    let mut groups = Vec::new();
    for line in pipe.lines().map_while(Result::ok) {
        match line.parse().ok().filter(|&group| group > 1).and_then(Pid::from_raw) {
            Some(group) => groups.push(group),
            None if line == "done" => groups.clear(),
            // Not from a launcher: 0 and 1 would name this group, and everything.
            None => {}
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(text: &str) -> Vec<i32> {
        left_behind(text.as_bytes()).into_iter().map(Pid::as_raw_pid).collect()
    }

    #[test]
    fn only_the_groups_of_a_launcher_that_was_not_done_are_left() {
        assert_eq!(groups("12\n345\n"), [12, 345]);
        assert!(groups("12\n345\ndone\n").is_empty());
        assert!(groups("").is_empty());
    }

    #[test]
    fn no_line_names_this_process_group_or_every_process() {
        assert!(groups("0\n1\n-1\n-12\nx\n\n99999999999\n").is_empty());
    }
}
