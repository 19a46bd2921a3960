//! A run: starts the machines of a job, passes on what their commands say, and sees how each one ends.
//! Everything comes through the share, a folder on the host; the machines are killed at the end, whatever the end is.

use super::image::Image;
use super::job::Job;
use super::share::Share;
use crate::process::{Output, Running, Spec};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the share. Inotify would save the looks, and they cost a few microseconds.
const LOOK: Duration = Duration::from_millis(10);
const CONSOLE_LINES: usize = 20;
/// How a trace in the kernel's log begins, after which come its registers and its calls.
const COMPLAINTS: [&str; 4] = ["BUG: ", "Oops: ", "Kernel panic - ", "INFO: task "];

/// Of a machine that ended without a result, as `env` and `timeout` have it.
const BROKEN_STATUS: u8 = 125;
const TIMEOUT_STATUS: u8 = 124;
const KILLED_STATUS: u8 = 137;

/// How a command in a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this exit status, 128 and the number of a signal if it died of one.
    Exited(u8),
    /// The machine was killed because a command asked for that.
    Killed,
    /// It was stopped because the other machine is broken.
    Abandoned,
    /// It ran into the time limit. With the guest's console.
    TimedOut { console: String },
    /// The machine ended first, by a panic or because it could not start. With QEMU's words and the guest's console.
    Broken { reason: String, console: String },
}

/// What is left of one machine.
#[derive(Debug)]
#[allow(dead_code, reason = "what was said on stderr is for benchmarks; the others only pass it on")]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) machines: Vec<Ended>,
    limit: Duration,
}

impl Finished {
    /// The first status that is not 0; a machine that was killed on demand does not count if another one remains.
    pub(crate) fn status(&self) -> u8 {
        let statuses = self.machines.iter().map(|machine| match &machine.end {
            End::Exited(status) => Some(*status),
            End::Killed | End::Abandoned => None,
            End::TimedOut { .. } => Some(TIMEOUT_STATUS),
            End::Broken { .. } => Some(BROKEN_STATUS),
        });
        let counted: Vec<_> = statuses.flatten().collect();
        let first_failing = counted.iter().copied().find(|&status| status != 0);
        first_failing.unwrap_or(if counted.is_empty() { KILLED_STATUS } else { 0 })
    }

    /// What there is to say besides the command's own words, a paragraph a machine.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let name = |machine: usize| if self.machines.len() == 1 { "the machine".into() } else { format!("machine {machine}") };
        let remark = |(machine, ended): (usize, &Ended)| {
            let name = name(machine);
            Some(match &ended.end {
                End::Exited(_) => return None,
                End::Killed => format!("{name} was killed, as the command asked"),
                End::Abandoned => format!("{name} was stopped before its command ended"),
                End::TimedOut { console } => {
                    format!("{name} was killed at the time limit of {} s; {}", self.limit.as_secs(), last_lines(console))
                }
                End::Broken { reason, console } => format!("{name}: {reason}; {}", last_lines(console)),
            })
        };
        self.machines.iter().enumerate().filter_map(remark).collect()
    }
}

/// Runs a job to its end, or to its limit.
pub(crate) fn run(image: &Image, job: &Job, output: Output) -> Result<Finished> {
    job.check()?;
    let deadline = Instant::now() + job.timeout;
    let share = Share::create(image, job)?;
    let mut guests =
        (0..job.machines).map(|machine| Guest::start(image, job, &share, machine, output)).collect::<Result<Vec<_>>>()?;
    loop {
        for guest in &mut guests {
            guest.look(&share)?;
        }
        // The other one would wait for a broken machine's rank.
        if any_broken(&guests) || guests.iter().all(|guest| guest.end.is_some()) || Instant::now() >= deadline {
            break;
        }
        thread::sleep(LOOK);
    }
    let timed_out = !any_broken(&guests);
    let machines = guests.into_iter().map(|guest| guest.conclude(&share, timed_out)).collect::<Result<Vec<_>>>()?;
    Ok(Finished { machines, limit: job.timeout })
}

fn any_broken(guests: &[Guest]) -> bool {
    guests.iter().any(|guest| matches!(guest.end, Some(End::Broken { .. })))
}

/// One machine that runs. It runs on after its command has ended: the other may still have something to say to its kernel.
struct Guest {
    machine: u32,
    qemu: Option<Running>,
    stdout: Tail,
    stderr: Tail,
    end: Option<End>,
}

impl Guest {
    fn start(image: &Image, job: &Job, share: &Share, machine: u32, output: Output) -> Result<Self> {
        let prefix = match job.machines {
            1 => "",
            _ if machine == 0 => "[a] ",
            _ => "[b] ",
        };
        let sink = |sink| (output == Output::Shown).then_some(sink);
        let stdout = Tail::open(&share.of(machine).join("stdout"), prefix, sink(Sink::Stdout))?;
        let stderr = Tail::open(&share.of(machine).join("stderr"), prefix, sink(Sink::Stderr))?;
        // The kernel kills it when this program ends, however it ends.
        let qemu = Spec::new("setpriv").args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        let qemu = qemu.args(job.qemu_arguments(image, machine)).folder(share.run_folder()).start(Output::Kept)?;
        Ok(Self { machine, qemu: Some(qemu), stdout, stderr, end: None })
    }

    fn look(&mut self, share: &Share) -> Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        // In this order: what was said before the status is there when the status is.
        let ended = self.qemu.as_ref().is_none_or(Running::has_ended);
        let status = share.status(self.machine)?;
        self.pass_on()?;
        if let Some(status) = status {
            self.end = Some(End::Exited(status));
        } else if share.wants_killed(self.machine) {
            self.kill()?;
            self.pass_on()?;
            self.end = Some(End::Killed);
        } else if ended {
            let words = self.kill()?;
            let console = share.console(self.machine);
            self.end = Some(End::Broken { reason: reason(&console, &words), console });
        }
        Ok(())
    }

    fn pass_on(&mut self) -> Result<()> {
        self.stdout.pass_on()?;
        self.stderr.pass_on()
    }

    /// What QEMU itself had to say.
    fn kill(&mut self) -> Result<String> {
        self.qemu.take().map_or(Ok(String::new()), |qemu| Ok(qemu.kill()?.last_words(5)))
    }

    fn conclude(mut self, share: &Share, timed_out: bool) -> Result<Ended> {
        self.kill()?;
        self.pass_on()?;
        let end = self.end.take().unwrap_or_else(|| {
            let console = share.console(self.machine);
            if timed_out { End::TimedOut { console } } else { End::Abandoned }
        });
        Ok(Ended { end, stdout: self.stdout.finish(), stderr: self.stderr.finish() })
    }
}

fn reason(console: &str, words: &str) -> String {
    if !words.is_empty() {
        format!("it ended without a result: {words}")
    } else if console.contains("Kernel panic") {
        "its kernel panicked".into()
    } else {
        "it ended without a result".into()
    }
}

/// What to show of a console: from the kernel's first complaint on, or else the end.
fn last_lines(console: &str) -> String {
    let lines: Vec<_> = console.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "its console is empty".into();
    }
    let complaint = lines.iter().position(|line| COMPLAINTS.iter().any(|words| line.contains(words)));
    let shown = match complaint {
        Some(first) => &lines[first..lines.len().min(first + CONSOLE_LINES)],
        None => &lines[lines.len().saturating_sub(CONSOLE_LINES)..],
    };
    format!("its console:\n  {}", shown.join("\n  "))
}

#[derive(Clone, Copy)]
enum Sink {
    Stdout,
    Stderr,
}

/// One output of a command: a file on the share that grows.
struct Tail {
    file: File,
    kept: Vec<u8>,
    passed_on: usize,
    prefix: &'static str,
    sink: Option<Sink>,
}

impl Tail {
    fn open(path: &Path, prefix: &'static str, sink: Option<Sink>) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file, kept: Vec::new(), passed_on: 0, prefix, sink })
    }

    fn pass_on(&mut self) -> Result<()> {
        self.file.read_to_end(&mut self.kept).context("cannot read a machine's output")?;
        let new = &self.kept[self.passed_on..];
        // With a prefix whole lines only.
        let len =
            if self.prefix.is_empty() { new.len() } else { new.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1) };
        self.write(len);
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.write(self.kept.len() - self.passed_on);
        self.kept
    }

    fn write(&mut self, len: usize) {
        let new = &self.kept[self.passed_on..][..len];
        self.passed_on += len;
        if new.is_empty() {
            return;
        }
        let lines = prefixed(new, self.prefix);
        // A reader that went away does not stop the machine.
        let _ = match self.sink {
            None => Ok(()),
            Some(Sink::Stdout) => std::io::stdout().write_all(&lines).and_then(|()| std::io::stdout().flush()),
            Some(Sink::Stderr) => std::io::stderr().write_all(&lines),
        };
    }
}

/// Every line with the prefix before it; the last one is ended, so that another machine's begins anew.
fn prefixed(text: &[u8], prefix: &str) -> Vec<u8> {
    if prefix.is_empty() {
        return text.to_vec();
    }
    let mut lines = Vec::new();
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        lines.extend_from_slice(prefix.as_bytes());
        lines.extend_from_slice(line);
    }
    if !lines.ends_with(b"\n") {
        lines.push(b'\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(ends: &[End]) -> Finished {
        let machines = ends.iter().map(|end| Ended { end: end.clone(), stdout: Vec::new(), stderr: Vec::new() }).collect();
        Finished { machines, limit: Duration::from_secs(7) }
    }

    fn broken() -> End {
        End::Broken { reason: "its kernel panicked".into(), console: "one\r\n\r\ntwo\r\n".into() }
    }

    #[test]
    fn the_first_failing_status_is_that_of_the_job() {
        assert_eq!(finished(&[End::Exited(0), End::Exited(0)]).status(), 0);
        assert_eq!(finished(&[End::Exited(0), End::Exited(3)]).status(), 3);
        assert_eq!(finished(&[End::Exited(77), End::TimedOut { console: String::new() }]).status(), 77);
        assert_eq!(finished(&[End::TimedOut { console: String::new() }]).status(), 124);
        assert_eq!(finished(&[End::Exited(0), broken()]).status(), 125);
    }

    #[test]
    fn a_machine_killed_on_demand_does_not_count() {
        assert_eq!(finished(&[End::Exited(0), End::Killed]).status(), 0);
        assert_eq!(finished(&[End::Killed, End::Exited(4)]).status(), 4);
        assert_eq!(finished(&[End::Killed, End::Killed]).status(), 137);
        assert_eq!(finished(&[End::Abandoned, broken()]).status(), 125);
    }

    #[test]
    fn a_broken_machine_is_named_with_its_last_lines() {
        assert_eq!(finished(&[broken()]).remarks(), ["the machine: its kernel panicked; its console:\n  one\n  two"]);
        let late = finished(&[End::Exited(0), End::TimedOut { console: String::new() }]).remarks();
        assert_eq!(late, ["machine 1 was killed at the time limit of 7 s; its console is empty"]);
    }

    #[test]
    fn a_console_is_shown_from_the_first_complaint_on() {
        let lines: String = (0..60).map(|line| if line == 30 { "BUG: bad\n".into() } else { format!("line {line}\n") }).collect();
        let shown = last_lines(&lines);
        assert!(shown.starts_with("its console:\n  BUG: bad\n  line 31\n") && shown.ends_with("line 49"), "{shown}");
        assert!(last_lines(&lines.replace("BUG", "bug")).ends_with("line 58\n  line 59"));
    }

    #[test]
    fn the_reason_is_qemus_word_or_the_kernels() {
        assert!(reason("", "cannot set up guest memory").ends_with("cannot set up guest memory"));
        assert!(reason("[ 1.2] Kernel panic - not syncing: x", "").contains("panicked"));
        assert_eq!(reason("init: no", ""), "it ended without a result");
    }

    #[test]
    fn a_prefix_stands_before_every_line_and_no_byte_is_changed() {
        assert_eq!(prefixed(b"one\n\xff\n", "[a] "), b"[a] one\n[a] \xff\n");
        assert_eq!(prefixed(b"open", "[b] "), b"[b] open\n");
        assert_eq!(prefixed(b"open", ""), b"open");
    }
}
