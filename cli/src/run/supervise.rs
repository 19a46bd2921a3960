//! Answers for the ranks from the first to the end of the last: passes signals on, notices who ended and how, and carries out
//! the plan. Owns the processes; when it returns, none of them, and of what they started, is left.

use super::guard::Guard;
use super::lines::prefix;
use super::output::{Pipes, Pumps, Sinks};
use super::plan::{Plan, Step};
use super::spawn::Starter;
use super::{End, Event, Options, Outcome, input, signals};
use anyhow::Result;
use rma::Rank;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGTSTP};
use std::io::ErrorKind;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

/// How many ranks a message lists.
const MOST_LISTED: usize = 8;

/// Starts the ranks and returns when all have ended and their output is printed.
pub(super) fn supervise(options: &Options, events: Sender<Event>, inbox: &Receiver<Event>) -> Result<Outcome> {
    let mut job = Job { ranks: Vec::new(), guard: Guard::start()? };
    let mut starter = Starter::new(options)?;
    let (mut stdouts, mut stderrs) = (Vec::new(), Vec::new());
    for rank in 0..options.ranks {
        let mut process = starter.start(rank)?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        job.add(process);
        if let Some(stdin) = pipes.0 {
            input::forward(stdin)?;
        }
        stdouts.extend(pipes.1.map(Into::into));
        stderrs.extend(pipes.2.map(Into::into));
    }
    let prefixes: Vec<_> =
        (0..options.ranks).map(|rank| if options.prefix { prefix(rank, options.ranks) } else { Vec::new() }).collect();
    let pipes = |pipes| Pipes { prefixes: prefixes.clone(), pipes, finish_lines: options.prefix };
    let pumps = Sinks::of_this_process()?.pump(pipes(stdouts), pipes(stderrs), &events)?;
    // Only the threads send now: if all are gone, receiving fails instead of waiting for ever.
    drop(events);
    let plan = Plan::new(options.grace);
    let mut watch = Supervisor {
        job,
        pumps,
        plan,
        options,
        first_failure: None,
        also_failed: Vec::new(),
        asked: None,
        outputs: 2,
        last_words: Vec::new(),
    };
    watch.run(inbox)?;
    watch.finish(inbox);
    Ok(Outcome { first_failure: watch.first_failure })
}

struct Supervisor<'a> {
    job: Job,
    pumps: Pumps,
    plan: Plan,
    options: &'a Options,
    first_failure: Option<(Rank, End)>,
    /// Those that failed by themselves after the first.
    also_failed: Vec<Rank>,
    /// The signal that last asked the ranks to end: to be killed by it is what was asked for.
    asked: Option<i32>,
    /// How many streams are not yet printed to their end.
    outputs: u32,
    /// What is said when no thread prints any more.
    last_words: Vec<String>,
}

impl Supervisor<'_> {
    /// Until every rank has ended.
    fn run(&mut self, inbox: &Receiver<Event>) -> Result<()> {
        // The first look is for ranks that ended before the first SIGCHLD was watched for.
        loop {
            self.look();
            if self.job.running().is_empty() {
                return Ok(());
            }
            let event = match self.plan.next() {
                Some(until) => inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(event) => self.on(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("bug: the signal thread ended before the job"),
            }
            if let Some(step) = self.plan.due(Instant::now()) {
                self.carry_out(step);
            }
        }
    }

    fn on(&mut self, event: Event) {
        match event {
            // The look before the next wait finds who it was.
            Event::Signal(SIGCHLD) => {}
            Event::Signal(signal) => {
                if let Some(named) = Signal::from_named_raw(signal) {
                    self.job.signal_all(named);
                }
                if signal == SIGINT || signal == SIGTERM {
                    self.asked = Some(signal);
                    if let Some(step) = self.plan.asked(signal == SIGINT, Instant::now()) {
                        self.carry_out(step);
                    }
                } else if signal == SIGTSTP {
                    // The ranks have it; now this process stops as well, until SIGCONT.
                    let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
                }
            }
            Event::OutputDone { stream, result } => {
                self.outputs -= 1;
                match result {
                    Ok(held_open) if held_open.is_empty() => {}
                    Ok(held_open) => self.last_words.push(format!(
                        "{stream} of {} is still open in a process that left its rank's process group; not waiting for it",
                        list(&held_open)
                    )),
                    // Whoever read the output has seen enough.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                    Err(error) => self.pumps.say(&format!("cannot write the ranks' {stream}: {error}")),
                }
            }
        }
    }

    /// Notices who has ended since the last look.
    fn look(&mut self) {
        let mut ended = self.job.ended();
        causes_first(&mut ended);
        for (rank, end) in ended.into_iter().filter(|(_, end)| end.failed()) {
            // Its children must not keep its connections open: the others shall see that it is gone.
            self.job.kill(rank);
            let as_asked = self.asked.is_some_and(|signal| matches!(end, End::Killed { signal: by, .. } if by == signal));
            match self.first_failure {
                None => {
                    self.first_failure = Some((rank, end));
                    if !as_asked {
                        self.pumps.say(&format!("{rank} {end}"));
                    }
                }
                Some(_) if self.asked.is_none() => self.also_failed.push(rank),
                Some(_) => {}
            }
            self.plan.failed(Instant::now());
        }
    }

    fn carry_out(&mut self, step: Step) {
        let running = list(&self.job.running());
        match step {
            Step::Terminate => {
                self.asked = Some(SIGTERM);
                self.job.signal_all(Signal::TERM);
                let grace = self.options.grace.as_secs_f64();
                self.pumps.say(&format!("{running} did not end within {grace} s of the first failure; sending SIGTERM"));
            }
            Step::Kill => {
                let asked = self.asked.map_or("the request to end", signals::name);
                // A rank that this kills has not failed by itself; the plan has it as killed.
                self.asked = Some(Signal::KILL.as_raw());
                self.job.signal_all(Signal::KILL);
                self.pumps.say(&format!("{running} did not end after {asked}; killed"));
            }
        }
    }

    /// After the last rank: ends what they left, and waits for the rest of the output, not longer than that takes.
    fn finish(&mut self, inbox: &Receiver<Event>) {
        if !self.also_failed.is_empty() {
            let also = list(&self.also_failed);
            self.pumps.say(&format!("{also} failed after that"));
        }
        self.job.end();
        self.pumps.no_more();
        while self.outputs > 0 {
            match inbox.recv() {
                // Nobody is left to pass it on to: only a reader of this output who does not read keeps the launcher here.
                Ok(Event::Signal(SIGINT | SIGTERM)) | Err(_) => return,
                Ok(event) => self.on(event),
            }
        }
        for line in self.last_words.drain(..) {
            eprintln!("rma run: {line}");
        }
    }
}

/// The processes of the ranks.
///
/// None is reaped before the end: while a rank is a zombie, the number of its process group can belong to nobody else, so a
/// signal sent to the group cannot hit a stranger.
struct Job {
    ranks: Vec<RankProcess>,
    guard: Guard,
}

struct RankProcess {
    process: Child,
    pid: Pid,
    end: Option<End>,
}

impl Job {
    fn add(&mut self, process: Child) {
        let pid = Pid::from_child(&process);
        self.guard.watch(pid);
        self.ranks.push(RankProcess { process, pid, end: None });
    }

    fn running(&self) -> Vec<Rank> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter(|(_, rank)| rank.end.is_none()).map(|(number, _)| Rank(number as u32)).collect()
    }

    /// Those that have ended since it was last asked.
    fn ended(&mut self) -> Vec<(Rank, End)> {
        let mut ended = Vec::new();
        for (number, rank) in self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.end.is_none()) {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            let end = match waitid(WaitId::Pid(rank.pid), look) {
                Ok(None) => continue,
                Ok(Some(status)) => match status.terminating_signal() {
                    Some(signal) => End::Killed { signal, core_dumped: status.dumped() },
                    None => End::Exited(status.exit_status().unwrap_or(0)),
                },
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => panic!("bug: rank {number} is no child of its launcher: {error}"),
            };
            rank.end = Some(end);
            ended.push((Rank(number as u32), end));
        }
        ended
    }

    /// To every process of every rank's group, also of those that have ended: what they started may run.
    fn signal_all(&self, signal: Signal) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
    }

    fn kill(&self, rank: Rank) {
        self.ranks[rank.0 as usize].signal(Signal::KILL);
    }

    /// Ends all that is left, and forgets it.
    fn end(&mut self) {
        self.signal_all(Signal::KILL);
        // Before the numbers are given back.
        self.guard.done();
        for mut rank in self.ranks.drain(..) {
            let _ = rank.process.wait();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

impl RankProcess {
    fn signal(&self, signal: Signal) {
        // A group without living processes is no error.
        let _ = kill_process_group(self.pid, signal);
        if self.end.is_none() && rustix::process::getpgid(Some(self.pid)).is_ok_and(|group| group != self.pid) {
            // The rank itself moved to another group.
            let _ = kill_process(self.pid, signal);
        }
    }
}

/// Which of several that ended at once was first cannot be known, but one killed by a signal is rather the cause than one
/// that gave up.
fn causes_first(ended: &mut [(Rank, End)]) {
    ended.sort_by_key(|(_, end)| matches!(end, End::Exited(_)));
}

/// "rank 3", "ranks 0, 1 and 5", "ranks 0, 1, .. and 60 more".
fn list(ranks: &[Rank]) -> String {
    let numbers = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(", ");
    match ranks {
        [] => "no rank".into(),
        [rank] => rank.to_string(),
        [all @ .., last] if all.len() < MOST_LISTED => format!("ranks {} and {}", numbers(all), last.0),
        all => format!("ranks {} and {} more", numbers(&all[..MOST_LISTED]), all.len() - MOST_LISTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ranks_that_ended_at_once_the_killed_one_is_the_first() {
        let killed = End::Killed { signal: 9, core_dumped: false };
        let mut ended = [(Rank(0), End::Exited(1)), (Rank(1), End::Exited(1)), (Rank(2), killed)];
        causes_first(&mut ended);
        assert_eq!(ended, [(Rank(2), killed), (Rank(0), End::Exited(1)), (Rank(1), End::Exited(1))]);
    }

    #[test]
    fn a_long_list_of_ranks_is_cut_and_says_so() {
        let ranks: Vec<_> = (0..20).map(Rank).collect();
        assert_eq!(list(&ranks[..1]), "rank 0");
        assert_eq!(list(&ranks[..3]), "ranks 0, 1 and 2");
        assert_eq!(list(&ranks), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
