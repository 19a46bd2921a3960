//! A job of processes: started, read, and ended by a deadline whatever it does.
//! Builds the launcher once; knows nothing of what the ranks check.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// After this long a job has failed and is ended.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// The command `rma`, built beside these tests.
pub(crate) fn launcher() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let conformance = Path::new(env!("CARGO_BIN_EXE_rma-conformance"));
        // target/<triple>/<profile> or target/<profile>
        let profile_dir = conformance.parent().expect("a binary lies in a folder");
        let release = profile_dir.file_name().is_some_and(|name| name == "release");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
        cargo.args(["build", "--quiet", "--package", "rma-cli"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if release {
            cargo.arg("--release");
        }
        if let Some(target_dir) = profile_dir.parent() {
            cargo.arg("--target-dir").arg(target_dir);
        }
        let status = cargo.status().expect("cargo starts");
        assert!(status.success(), "building rma-cli: {status}");
        let rma = profile_dir.join("rma");
        assert!(rma.is_file(), "building rma-cli did not make {}", rma.display());
        rma
    })
}

/// Jobs take turns: a machine with few cores gives each its own.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `rma run` with so many ranks of a body. The environment is that of these tests without what other launchers set.
pub(crate) fn command(ranks: u32, body: &str, seed: u64) -> Command {
    let mut command = Command::new(launcher());
    command.args(["run", "-n", &ranks.to_string(), "--grace", "15", "--"]);
    command.arg(env!("CARGO_BIN_EXE_rma-conformance")).args([body, "--seed", &seed.to_string()]);
    command.env("RMA_TIMEOUT", "20").env("RMA_SETUP_TIMEOUT", "20").env("RUST_BACKTRACE", "0");
    for name in ["RMA_RANKS", "RMA_RAILS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"] {
        command.env_remove(name);
    }
    command
}

/// A job under way.
pub(crate) struct Job {
    pub(crate) child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    begin: Instant,
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
}

impl Job {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
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
        Self { child, lines, seen: Vec::new(), begin: Instant::now() }
    }

    /// The next line of any rank; `None` at the end of all output.
    fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE.saturating_sub(self.begin.elapsed())) {
            Ok(line) => {
                self.seen.push(line.clone());
                Some(line)
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // The launcher's end is the ranks' end; if not, a test of its own says so.
                let _ = self.child.kill();
                panic!("the job is not over after {DEADLINE:?}:\n{}", self.seen.join("\n"));
            }
        }
    }

    /// The process ids that so many ranks print.
    pub(crate) fn process_ids(&mut self, ranks: usize) -> Vec<i32> {
        let mut ids = Vec::new();
        while ids.len() < ranks {
            let line =
                self.line().unwrap_or_else(|| panic!("the job ended before its ranks were there:\n{}", self.seen.join("\n")));
            ids.extend(line.rsplit_once("pid ").and_then(|(_, id)| id.trim().parse::<i32>().ok()));
        }
        ids
    }

    /// Reads to the end and collects the status.
    pub(crate) fn finish(mut self) -> Outcome {
        while self.line().is_some() {}
        let status = self.child.wait().expect("the launcher is this process's child");
        Outcome { status, lines: std::mem::take(&mut self.seen) }
    }
}

/// Whether a process is there and not only waiting to be collected.
pub(crate) fn is_running(id: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state comes after the name, which is in parentheses.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Looks until none of the processes is running.
pub(crate) fn all_end(ids: &[i32]) {
    let begin = Instant::now();
    while let Some(id) = ids.iter().copied().find(|&id| is_running(id)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "process {id} of {ids:?} is still running after {:?}", begin.elapsed());
        std::thread::yield_now();
    }
}
