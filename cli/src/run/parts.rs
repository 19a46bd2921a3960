//! The parts of a job on several hosts, as the launcher sees them: remote shells that run `rma __part`, which reports what becomes
//! of its ranks. Owns the shells; a part answers for the processes of its ranks itself.

use super::guard::Guard;
use super::hosts::Share;
use super::orders::{Assignment, Order, Report};
use super::ranks::{Streams, end_of};
use super::spawn::{ends_with_launcher, raise_open_files};
use super::supervise::{Charges, Ended, list};
use super::{End, Hosts, Options, input};
use anyhow::{Context, Result};
use rma::Rank;
use rma::config::Token;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io::Write;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long reports may still come once the remote shell has ended: something that it started may keep its output open.
const REPORT_WAIT: Duration = Duration::from_secs(1);
/// How long orders may take to be on their way before the launcher stops.
const ORDER_WAIT: Duration = Duration::from_secs(1);
/// Failures that come within this time are told together, the likely cause first: the ways from the hosts differ in length.
const TOLD_TOGETHER: Duration = Duration::from_millis(100);
/// What must be known before other parts than that of rank 0 can be sent theirs.
const ROOT_UNKNOWN: &str = "";

pub(super) struct Parts {
    parts: Vec<Part>,
    guard: Guard,
    /// Ends that are not told yet, and since when.
    heard: Vec<Ended>,
    heard_since: Option<Instant>,
    /// To the thread that forwards the standard input.
    input_taken: Option<Sender<()>>,
}

struct Part {
    host: String,
    shell: String,
    process: Child,
    pid: Pid,
    ranks: Vec<Rank>,
    running: Vec<Rank>,
    /// What it still has to be told before its ranks start.
    waits_with: Option<Assignment>,
    /// Closed, it ends the part.
    orders: Option<Sender<Letter>>,
    /// How the shell ended, and until when reports may still come.
    shell_ended: Option<(End, Instant)>,
    reports_ended: bool,
    over: bool,
}

/// Bytes for a part, and who wants to know when they are written.
pub(super) struct Letter {
    bytes: Vec<u8>,
    written: Option<Sender<()>>,
}

impl Letter {
    pub(super) fn order(order: &Order) -> Self {
        Self { bytes: order.encode(), written: None }
    }
}

impl Parts {
    /// Starts a remote shell for each host. The ranks of the first one start at once, the others' when it is known where rank 0
    /// listens.
    pub(super) fn start(options: &Options, hosts: &Hosts, mark: &str) -> Result<(Self, Streams)> {
        let open_files = raise_open_files(3 * hosts.shares.len() as u64, &format!("{} hosts", hosts.shares.len()))?;
        let (token, directory) = (Token::random()?, std::env::current_dir().context("asking for the working directory")?);
        let (mut streams, mut input_order) = (Streams::default(), None);
        let mut parts = Self { parts: Vec::new(), guard: Guard::start()?, heard: Vec::new(), heard_since: None, input_taken: None };
        for share in &hosts.shares {
            let words = command_for(share, &hosts.remote_shell)?;
            let shell = if share.here { "rma".into() } else { hosts.remote_shell[0].to_string_lossy().into_owned() };
            let process = ends_with_launcher(None, open_files, words).spawn();
            let mut process = process.with_context(|| format!("cannot start {shell:?} for {}", share.name))?;
            // To one that was not to be started as far as this, the end of its input says so.
            let orders = process.stdin.take().map(write_orders).transpose()?;
            streams.add(&mut process);
            let assignment = Assignment {
                host: share.name.clone(),
                mark: mark.into(),
                token,
                ranks: options.ranks,
                first: share.ranks.start,
                count: share.ranks.len() as u32,
                root: ROOT_UNKNOWN.into(),
                address: share.address,
                bind: options.bind,
                prefix: options.prefix,
                stdin: options.stdin,
                directory: directory.clone().into(),
                variables: options.variables.clone(),
                command: [options.program.clone()].into_iter().chain(options.args.iter().cloned()).collect(),
            };
            let pid = Pid::from_child(&process);
            parts.guard.watch(pid);
            let ranks: Vec<_> = share.ranks.clone().map(Rank).collect();
            let mut part = Part {
                host: share.name.clone(),
                shell,
                process,
                pid,
                running: ranks.clone(),
                ranks,
                waits_with: Some(assignment),
                orders,
                shell_ended: None,
                reports_ended: false,
                over: false,
            };
            if share.ranks.contains(&0) {
                part.assign(None);
                input_order = part.orders.clone();
            }
            parts.parts.push(part);
        }
        if let Some(orders) = input_order.filter(|_| options.stdin) {
            let (taken, may_go_on) = channel();
            parts.input_taken = Some(taken);
            input::forward_as_orders(orders, may_go_on)?;
        }
        Ok((parts, streams))
    }

    fn hear_end(&mut self, ended: Ended, now: Instant) {
        self.heard_since.get_or_insert(now);
        self.heard.push(ended);
    }
}

impl Charges for Parts {
    fn running(&self) -> Vec<Rank> {
        self.parts.iter().flat_map(|part| part.running.iter().copied()).collect()
    }

    fn are_over(&self) -> bool {
        self.parts.iter().all(|part| part.over) && self.heard.is_empty()
    }

    fn ended(&mut self, now: Instant) -> Vec<Ended> {
        let lost: Vec<_> = self.parts.iter_mut().filter_map(|part| part.look(now)).collect();
        if !lost.is_empty() {
            self.parts.iter_mut().for_each(Part::call_off);
        }
        lost.into_iter().for_each(|ended| self.hear_end(ended, now));
        let failed = self.heard.iter().any(|ended| ended.end.failed());
        if failed && self.heard_since.is_some_and(|since| now < since + TOLD_TOGETHER) {
            return Vec::new();
        }
        self.heard_since = None;
        std::mem::take(&mut self.heard)
    }

    fn next_look(&self) -> Option<Instant> {
        let shells = self.parts.iter().filter(|part| !part.over).filter_map(|part| part.shell_ended.map(|(_, until)| until));
        shells.chain(self.heard_since.map(|since| since + TOLD_TOGETHER)).min()
    }

    fn signal_all(&mut self, signal: Signal) {
        let now = Instant::now();
        let ended: Vec<_> = self.parts.iter_mut().filter_map(|part| part.signal(signal)).collect();
        ended.into_iter().for_each(|ended| self.hear_end(ended, now));
    }

    fn wait_for_orders(&mut self) {
        let (written, all_written) = channel();
        for part in &self.parts {
            part.send(Letter { bytes: Vec::new(), written: Some(written.clone()) });
        }
        drop(written);
        let until = Instant::now() + ORDER_WAIT;
        while all_written.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }

    fn hear(&mut self, source: usize, report: &Report, now: Instant) {
        match report {
            Report::Root(root) => self.parts.iter_mut().for_each(|part| part.assign(Some(root))),
            Report::Ended(rank, end) => {
                let Some(part) = self.parts.get_mut(source) else { return };
                let before = part.running.len();
                part.running.retain(|running| running != rank);
                if part.running.len() < before {
                    self.hear_end(Ended::rank(*rank, *end), now);
                }
            }
            Report::InputTaken => {
                // The thread has ended if the input has.
                let _ = self.input_taken.as_ref().map(|taken| taken.send(()));
            }
            Report::InputClosed => self.input_taken = None,
        }
    }

    fn hear_no_more(&mut self, source: usize) {
        if let Some(part) = self.parts.get_mut(source) {
            part.reports_ended = true;
        }
    }

    fn ranks_of(&self, source: usize) -> Vec<Rank> {
        self.parts.get(source).map_or(Vec::new(), |part| part.ranks.clone())
    }

    fn abandon(&mut self) -> Option<String> {
        let left: Vec<_> = self.parts.iter().filter(|part| !part.over).collect();
        for part in &left {
            let _ = kill_process_group(part.pid, Signal::KILL);
        }
        let hosts: Vec<_> = left.iter().filter(|part| !part.running.is_empty()).map(|part| part.host.as_str()).collect();
        (!hosts.is_empty()).then(|| format!("{} cannot be reached any more; ranks may be left there", hosts.join(", ")))
    }

    fn end(&mut self) {
        self.input_taken = None;
        for part in &mut self.parts {
            part.orders = None;
            if !part.over {
                let _ = kill_process_group(part.pid, Signal::KILL);
            }
        }
        self.guard.done();
        for mut part in self.parts.drain(..) {
            let _ = part.process.wait();
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.end();
    }
}

impl Part {
    /// Sends the assignment if it is still to be sent.
    fn assign(&mut self, root: Option<&str>) {
        if let Some(mut assignment) = self.waits_with.take() {
            assignment.root = root.unwrap_or(ROOT_UNKNOWN).into();
            self.send(Letter { bytes: assignment.encode(), written: None });
        }
    }

    fn send(&self, letter: Letter) {
        // A part that takes no more orders has ended, or will be found to have.
        let _ = self.orders.as_ref().map(|orders| orders.send(letter));
    }

    /// Passes a signal on. A part that has no ranks yet ends by one that ends programs, as if its ranks had.
    fn signal(&mut self, signal: Signal) -> Option<Ended> {
        let ends = [Signal::TERM, Signal::INT, Signal::KILL, Signal::HUP, Signal::QUIT].contains(&signal);
        if self.waits_with.is_none() {
            self.send(Letter::order(&Order::Signal(signal.as_raw())));
        }
        if signal == Signal::KILL && self.running.is_empty() && !self.over {
            // It should have ended by itself, and leaves nothing behind.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        if !ends || self.waits_with.is_none() {
            return None;
        }
        let (ranks, end) = (self.running.clone(), End::Killed { signal: signal.as_raw(), core_dumped: false });
        self.call_off();
        let text = format!("{} on {} had not started when {signal:?} came", list(&ranks), self.host);
        Some(Ended { ranks, end, text })
    }

    /// Ends a part that has no ranks yet.
    fn call_off(&mut self) {
        if self.waits_with.take().is_some() {
            self.orders = None;
            self.running.clear();
        }
    }

    /// Whether the part has ended, and what it has not told about.
    fn look(&mut self, now: Instant) -> Option<Ended> {
        if self.over {
            return None;
        }
        let (end, until) = match self.shell_ended {
            Some(seen) => seen,
            None => *self.shell_ended.insert((end_of(self.pid)?, now + REPORT_WAIT)),
        };
        self.over = self.running.is_empty() || self.reports_ended || now >= until;
        if !self.over || self.running.is_empty() {
            return None;
        }
        let ranks = std::mem::take(&mut self.running);
        let text = format!("{} on {} {end} before {} had ended", self.shell, self.host, list(&ranks));
        let end = if end.failed() { end } else { End::Exited(1) };
        Some(Ended { ranks, end, text })
    }
}

/// What to run for a host: the part itself here, or through the remote shell.
fn command_for(share: &Share, remote_shell: &[OsString]) -> Result<Vec<OsString>> {
    if share.here {
        return Ok(vec!["/proc/self/exe".into(), super::PART_COMMAND.into()]);
    }
    let own = std::env::current_exe().context("asking where this command is")?;
    let mut words = remote_shell.to_vec();
    words.extend([share.name.clone().into(), quoted(own.into_os_string()), super::PART_COMMAND.into()]);
    Ok(words)
}

/// As a shell reads it; remote shells join their arguments and have a shell take them apart.
fn quoted(word: OsString) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(byte);
    match word.to_str() {
        Some(text) if !text.bytes().all(|byte| plain(&byte)) => format!("'{}'", text.replace('\'', r"'\''")).into(),
        _ => word,
    }
}

/// A thread that writes orders: a shell that does not read must not keep the launcher from anything else.
fn write_orders(mut pipe: ChildStdin) -> Result<Sender<Letter>> {
    let (sender, letters): (_, Receiver<Letter>) = channel();
    let write = move || {
        for Letter { bytes, written } in letters {
            if pipe.write_all(&bytes).is_err() {
                return;
            }
            // Who asked may have waited long enough.
            let _ = written.map(|written| written.send(()));
        }
    };
    thread::Builder::new().name("orders".into()).spawn(write).context("starting a thread for orders to a host")?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_for_the_other_shell_only_where_it_has_to_be() {
        assert_eq!(quoted("/usr/bin/rma-1.0".into()), "/usr/bin/rma-1.0");
        assert_eq!(quoted("/my dir/it's/rma".into()), r"'/my dir/it'\''s/rma'");
    }

    #[test]
    fn this_host_needs_no_remote_shell() {
        let share = |here| Share { name: "n".into(), address: [127, 0, 0, 1].into(), ranks: 0..1, here };
        assert_eq!(command_for(&share(true), &["ssh".into()]).unwrap(), ["/proc/self/exe", "__part"]);
        let words = command_for(&share(false), &["ssh".into(), "-q".into()]).unwrap();
        assert_eq!((&words[..3], words.len()), (&["ssh".into(), "-q".into(), OsString::from("n")][..], 5));
    }
}
