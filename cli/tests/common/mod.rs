//! Drives the built `rma` with small shell programs. Everything here has a deadline.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Far more than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What a finished command left.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit status, or 128 and the signal.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Finished {
    pub(crate) fn out(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8(self.stderr.clone()).unwrap()
    }

    /// The lines of the output, in an order of their own: ranks are not ordered among each other.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.out().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

/// `rma` with these arguments, and no variable of a job that the tests themselves may run in.
pub(crate) fn rma(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rma"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RMA_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// `rma run` with these options for a shell script.
pub(crate) fn run_sh(options: &[&str], script: &str) -> Command {
    rma(&[&["run"], options, &["--", "sh", "-c", script]].concat())
}

/// Runs a command to its end.
pub(crate) fn finish(command: Command) -> Finished {
    Running::start(command).finish()
}

/// Runs a command to its end that writes to this, and not to the test.
pub(crate) fn finish_into(stdout: impl Into<Stdio>, mut command: Command) -> Finished {
    command.stdout(stdout);
    Running::start_with_stdout(command).finish()
}

/// A command whose output is read while it runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    stderr: Option<thread::JoinHandle<Vec<u8>>>,
    begin: Instant,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        Self::start_with_stdout(command)
    }

    /// Its output is read only if it is a pipe to here.
    fn start_with_stdout(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = child.stdout.take();
        thread::spawn(move || {
            let Some(stdout) = stdout else { return };
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            text
        });
        Self { stdin: child.stdin.take(), child, lines, stderr: Some(stderr), begin: Instant::now() }
    }

    /// With an input that the test writes and closes.
    pub(crate) fn with_stdin(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        Self::start(command)
    }

    /// Writes all of the input, from a thread, and closes it.
    pub(crate) fn feed(&mut self, input: Vec<u8>) {
        let mut stdin = self.stdin.take().unwrap();
        thread::spawn(move || stdin.write_all(&input));
    }

    /// The next line of the standard output.
    pub(crate) fn line(&self) -> String {
        let line = self.lines.recv_timeout(DEADLINE).expect("no further line of output");
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Until it has ended and its output is closed.
    pub(crate) fn finish(mut self) -> Finished {
        drop(self.stdin.take());
        let mut status = None;
        until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut stdout = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(DEADLINE.saturating_sub(self.begin.elapsed())) {
            stdout.extend(line);
        }
        let stderr = self.stderr.take().unwrap();
        until("the command's standard error is closed", || stderr.is_finished());
        let status = status.unwrap();
        let code = status.code().unwrap_or_else(|| 128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap());
        Finished { code, stdout, stderr: stderr.join().unwrap() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed half-way leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < DEADLINE, "after {DEADLINE:?} still not so: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The letter of a process's state, as in `ps`; none if there is no such process, or only what its parent has not yet asked for.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses before the state, may itself hold parentheses.
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// The process id in a line like "[3] pid 1234".
pub(crate) fn pid_in(line: &str) -> i32 {
    line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("no process id in {line:?}"))
}

/// A directory of a test's own, gone with it.
pub(crate) struct TemporaryDirectory {
    pub(crate) path: PathBuf,
}

impl TemporaryDirectory {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    /// A pipe with a name, by which the ranks of a test wait for each other.
    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
