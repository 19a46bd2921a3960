//! Child processes: each in a process group of its own, under a time limit, its output kept and, if wanted, passed on.
//! Nothing it started outlives it. Waiting costs no processor time, so that a benchmark is alone on its cores.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Between the polite signal and the final one. mpirun needs it to stop its ranks.
const GRACE: Duration = Duration::from_secs(5);
/// How long output is awaited after the process has ended: a stray grandchild may hold the pipe.
const DRAIN: Duration = Duration::from_secs(5);

/// The groups that run now; a signal to this program is passed on to them.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// What becomes of a child's output, besides being kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Passed on as it comes.
    Shown,
    /// Only kept.
    Kept,
}

/// A command to be run.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    program: String,
    args: Vec<String>,
    set: Vec<(String, String)>,
    unset: Vec<String>,
    folder: Option<PathBuf>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Exit status; `None` if it was stopped at its time limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    limit: Duration,
}

impl Spec {
    pub(crate) fn new(program: impl Into<String>) -> Self {
        Self { program: program.into(), args: Vec::new(), set: Vec::new(), unset: Vec::new(), folder: None }
    }

    /// `cargo`, the one that runs this program.
    pub(crate) fn cargo(args: &str) -> Self {
        Self::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())).args(args.split_whitespace())
    }

    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn arg(self, arg: impl Into<String>) -> Self {
        self.args([arg.into()])
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.unset.push(name.into());
        self
    }

    /// Starts it in this folder instead of the current one.
    pub(crate) fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Adds to a variable that holds words, as `RUSTFLAGS` does, without losing the user's own.
    pub(crate) fn env_append(self, name: &str, words: &str) -> Self {
        let value = match std::env::var(name) {
            Ok(own) if !own.trim().is_empty() => format!("{own} {words}"),
            _ => words.into(),
        };
        self.env(name, value)
    }

    /// Runs to the end, or to the limit.
    pub(crate) fn run(&self, limit: Duration, output: Output) -> Result<Finished> {
        self.start(output)?.finish(limit)
    }

    /// Starts without waiting.
    pub(crate) fn start(&self, output: Output) -> Result<Running> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.set.iter().map(|(name, value)| (name, value)));
        self.unset.iter().for_each(|name| _ = command.env_remove(name));
        self.folder.iter().for_each(|folder| _ = command.current_dir(folder));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // The lock is held across the start: a signal meanwhile would otherwise miss the child.
        let mut running = lock(&RUNNING);
        let mut child = command.spawn().with_context(|| format!("cannot run `{}`", self.program))?;
        let pid = Pid::from_child(&child);
        running.insert(pid.as_raw_nonzero().get());
        drop(running);
        let stdout = Stream::follow(child.stdout.take(), (output == Output::Shown).then(std::io::stdout));
        let stderr = Stream::follow(child.stderr.take(), (output == Output::Shown).then(std::io::stderr));
        Ok(Running { child, pid, stdout, stderr, over: false })
    }
}

/// As one would type it.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.set {
            write!(f, "{name}={} ", quoted(value))?;
        }
        let program = Path::new(&self.program);
        let here = std::env::current_dir().unwrap_or_default();
        let is_cargo = program.file_name().is_some_and(|name| name == "cargo");
        let program = if is_cargo { Path::new("cargo") } else { program.strip_prefix(here).unwrap_or(program) };
        write!(f, "{}", quoted(&program.to_string_lossy()))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

impl Finished {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Why it did not succeed, in words.
    pub(crate) fn failure(&self) -> String {
        match self.status {
            None => format!("stopped at its time limit of {} s", self.limit.as_secs()),
            Some(status) => status.to_string(),
        }
    }

    /// The last lines of what it said on stderr, for an error.
    pub(crate) fn last_words(&self, lines: usize) -> String {
        let all: Vec<_> = self.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// A child that runs. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Running {
    child: std::process::Child,
    pid: Pid,
    stdout: Stream,
    stderr: Stream,
    over: bool,
}

impl Running {
    /// Waits for the end or the limit, then removes what is left of the group.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Finished> {
        let pid = self.pid;
        let (ended, watch) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || {
            let late = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                stop(pid, Signal::TERM);
                if watch.recv_timeout(GRACE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    stop(pid, Signal::KILL);
                }
            }
            late
        });
        // The dead child is left for `reap`: until then its id cannot be given to another process.
        let waited = wait_for_exit(pid);
        drop(ended);
        let late = watchdog.join().unwrap_or(false);
        waited.context("cannot wait for a child")?;
        let status = self.reap()?;
        Ok(self.conclude((!late).then_some(status), limit))
    }

    /// Whether it has ended by itself, without waiting.
    pub(crate) fn has_ended(&self) -> bool {
        !lives(self.pid)
    }

    /// Ends it at once and the hard way, with what is left of its group.
    pub(crate) fn kill(mut self) -> Result<Finished> {
        let status = self.reap()?;
        Ok(self.conclude(Some(status), Duration::ZERO))
    }

    fn conclude(&self, status: Option<ExitStatus>, limit: Duration) -> Finished {
        let drained = Instant::now() + DRAIN;
        Finished { status, stdout: self.stdout.text(drained), stderr: self.stderr.text(drained), limit }
    }

    fn reap(&mut self) -> Result<ExitStatus> {
        self.over = true;
        stop(self.pid, Signal::KILL);
        lock(&RUNNING).remove(&self.pid.as_raw_nonzero().get());
        self.child.wait().context("cannot wait for a child")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            // There is nothing to do about a child that cannot be waited for.
            let _ = self.reap();
        }
    }
}

/// One output of a child, read by a thread.
#[derive(Debug)]
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    ended: mpsc::Receiver<()>,
}

impl Stream {
    fn follow(source: Option<impl Read + Send + 'static>, mut copy: Option<impl Write + Send + 'static>) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = mpsc::channel();
        let kept = Arc::clone(&text);
        thread::spawn(move || {
            let _end: mpsc::Sender<()> = end;
            let Some(mut source) = source else { return };
            let mut chunk = [0; 8192];
            while let Ok(len @ 1..) = source.read(&mut chunk) {
                lock(&kept).extend_from_slice(&chunk[..len]);
                if let Some(copy) = &mut copy {
                    // A reader that went away does not stop the child.
                    let _ = copy.write_all(&chunk[..len]).and_then(|()| copy.flush());
                }
            }
        });
        Self { text, ended }
    }

    fn text(&self, deadline: Instant) -> String {
        // Err in both cases: the thread has ended, or the deadline has passed.
        let _ = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        String::from_utf8_lossy(&lock(&self.text)).into_owned()
    }
}

/// Passes an interruption on to the children: in groups of their own they would not see it.
pub(crate) fn stop_children_on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let running = lock(&RUNNING);
            let groups: Vec<_> = running.iter().filter_map(|&pid| Pid::from_raw(pid)).collect();
            groups.iter().for_each(|&pid| stop(pid, Signal::TERM));
            let deadline = Instant::now() + GRACE;
            while groups.iter().any(|&pid| lives(pid)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
            }
            groups.iter().for_each(|&pid| stop(pid, Signal::KILL));
            eprintln!("stopped by signal {signal}");
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Where a program is, if it is on the path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn wait_for_exit(pid: Pid) -> rustix::io::Result<()> {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a child, not yet reaped, still runs.
fn lives(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    waitid(WaitId::Pid(pid), options).is_ok_and(|status| status.is_none())
}

fn stop(group: Pid, signal: Signal) {
    // Fails only if the group is gone already.
    let _ = kill_process_group(group, signal);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+%@".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Spec {
        Spec::new("sh").args(["-c", script])
    }

    #[test]
    fn output_and_status_are_kept() {
        let finished = shell("echo out; echo err >&2; exit 3").run(Duration::from_secs(20), Output::Kept).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert!(!finished.succeeded());
        assert_eq!(finished.status.and_then(|status| status.code()), Some(3));
    }

    #[test]
    fn the_time_limit_stops_the_whole_group() {
        let finished = shell("sleep 600 & echo $!; wait").run(Duration::from_millis(200), Output::Kept).unwrap();
        assert!(finished.status.is_none() && finished.failure().contains("time limit"));
        let grandchild = finished.stdout.trim().to_owned();
        let deadline = Instant::now() + Duration::from_secs(10);
        // A killed process stays visible as a zombie until its new parent takes note.
        let lives = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        while lives() {
            assert!(Instant::now() < deadline, "process {grandchild} outlived its group");
            thread::yield_now();
        }
    }

    #[test]
    fn a_deaf_process_is_killed() {
        let started = Instant::now();
        let finished = shell("trap '' TERM; while :; do sleep 1; done").run(Duration::from_millis(100), Output::Kept).unwrap();
        assert!(finished.status.is_none());
        assert!(started.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_is_left_in_the_background_goes_with_its_parent() {
        let started = Instant::now();
        let finished = shell("sleep 600 & echo done").run(Duration::from_secs(60), Output::Kept).unwrap();
        assert!(finished.succeeded() && started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_process_can_be_looked_at_and_killed() {
        let ended = shell("exit 3").start(Output::Kept).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !ended.has_ended() {
            assert!(Instant::now() < deadline, "the process does not end");
            thread::yield_now();
        }
        assert_eq!(ended.kill().unwrap().status.and_then(|status| status.code()), Some(3));
        let deaf = shell("trap '' TERM; sleep 600").start(Output::Kept).unwrap();
        assert!(!deaf.has_ended());
        assert_eq!(deaf.kill().unwrap().status.and_then(|status| status.code()), None);
    }

    #[test]
    fn a_command_runs_in_its_folder() {
        let finished = shell("pwd").folder("/").run(Duration::from_secs(20), Output::Kept).unwrap();
        assert_eq!(finished.stdout, "/\n");
    }

    #[test]
    fn a_missing_program_is_an_error_with_its_name() {
        let error = Spec::new("no-such-program").run(Duration::from_secs(1), Output::Kept).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program"), "{error:#}");
    }

    #[test]
    fn a_command_is_shown_as_one_types_it() {
        let spec = Spec::new("/usr/bin/cargo").args(["test", "a b"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(spec.to_string(), "RUSTFLAGS='--cfg loom' cargo test 'a b'");
    }
}
