//! Answers for the ranks from the first to the end of the last: passes signals on, notices who ended and how, and carries out
//! the plan. The same for ranks of this host and for parts of a job on several; what differs is behind [`Charges`].

use super::lines::prefix;
use super::orders::{Order, Report};
use super::output::{Pipes, Pumps, Sinks};
use super::parts::Parts;
use super::plan::{Plan, Step};
use super::ranks::{Ranks, Streams};
use super::spawn::Starter;
use super::{End, Event, Hosts, Options, Outcome, Part, Placement, input, orders_thread, signals};
use anyhow::Result;
use rma::Rank;
use rma::config::Token;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGTSTP};
use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

/// How many ranks a message lists.
const MOST_LISTED: usize = 8;

/// What a supervisor answers for. When it is dropped, nothing that this host can end is left.
pub(super) trait Charges {
    /// The ranks that have not ended, as far as is known.
    fn running(&self) -> Vec<Rank>;
    /// Whether every process has ended, and all has been told.
    fn are_over(&self) -> bool;
    /// What has ended since it was last asked.
    fn ended(&mut self, now: Instant) -> Vec<Ended>;
    /// When to ask again, also if nothing happens.
    fn next_look(&self) -> Option<Instant> {
        None
    }
    fn signal_all(&mut self, signal: Signal);
    /// Returns when signals are on their way, or will not be.
    fn wait_for_orders(&mut self) {}
    /// Ends what a rank that has ended had started.
    fn end_rest_of(&mut self, _: &Ended) {}
    /// A part of the job reports.
    fn hear(&mut self, _source: usize, _report: &Report, _now: Instant) {}
    /// A part of the job will report no more.
    fn hear_no_more(&mut self, _source: usize) {}
    /// The ranks whose output comes through the pipes of this number.
    fn ranks_of(&self, source: usize) -> Vec<Rank>;
    /// Gives up what did not even end when it was killed; says what that is.
    fn abandon(&mut self) -> Option<String> {
        None
    }
    /// Ends all that is left.
    fn end(&mut self);
}

/// Ranks that have ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) ranks: Vec<Rank>,
    pub(super) end: End,
    /// The same as a sentence.
    pub(super) text: String,
}

impl Ended {
    pub(super) fn rank(rank: Rank, end: End) -> Self {
        Self { ranks: vec![rank], end, text: format!("{rank} {end}") }
    }
}

/// Starts what the options say, and returns when all of it has ended and its output is printed.
pub(super) fn supervise(options: &Options, events: Sender<Event>, inbox: &Receiver<Event>) -> Result<Outcome> {
    match &options.placement {
        Placement::Here => supervise_ranks(options, &Part::here(options.ranks)?, events, inbox),
        Placement::Part(part) => supervise_ranks(options, part, events, inbox),
        Placement::Hosts(hosts) => supervise_parts(options, hosts, events, inbox),
    }
}

fn supervise_ranks(options: &Options, part: &Part, events: Sender<Event>, inbox: &Receiver<Event>) -> Result<Outcome> {
    let mut starter = Starter::new(options, part)?;
    let (ranks, mut streams) = Ranks::start(&mut starter, part.ranks.start, part.ranks.len() as u32)?;
    let root = starter.root().to_owned();
    drop(starter);
    match (streams.stdin.take(), &part.launcher) {
        (pipe, Some(launcher)) => orders_thread(launcher, pipe.map(Into::into), &events)?,
        (Some(pipe), None) => input::forward(pipe.into())?,
        (None, None) => {}
    }
    let prefix = |rank| if options.prefix { prefix(rank, options.ranks) } else { Vec::new() };
    let prefixes = part.ranks.clone().map(prefix).collect();
    let mut pumps = pump(streams, prefixes, options.prefix, None, &events)?;
    // Only the threads send now: if all are gone, receiving fails instead of waiting for ever.
    drop(events);
    let mark = part.launcher.as_ref().map(|launcher| launcher.mark.clone());
    if let Some(mark) = mark.as_ref().filter(|_| part.ranks.contains(&0)) {
        pumps.report(mark, &Report::Root(root).encode());
    }
    Supervisor::new(Box::new(ranks), pumps, options, mark).run_to_the_end(inbox)
}

fn supervise_parts(options: &Options, hosts: &Hosts, events: Sender<Event>, inbox: &Receiver<Event>) -> Result<Outcome> {
    // As hard to guess as the token, so that no output of a rank is taken for a report.
    let mark = Token::random()?.to_hex();
    let (parts, streams) = Parts::start(options, hosts, &mark)?;
    let pumps = pump(streams, vec![Vec::new(); hosts.shares.len()], options.prefix, Some(mark.into_bytes()), &events)?;
    drop(events);
    Supervisor::new(Box::new(parts), pumps, options, None).run_to_the_end(inbox)
}

fn pump(
    streams: Streams,
    prefixes: Vec<Vec<u8>>,
    finish_lines: bool,
    mark: Option<Vec<u8>>,
    events: &Sender<Event>,
) -> Result<Pumps> {
    let pipes = |pipes, mark| Pipes { prefixes: prefixes.clone(), pipes, finish_lines, mark };
    Sinks::of_this_process()?.pump(pipes(streams.stdouts, None), pipes(streams.stderrs, mark), events)
}

struct Supervisor<'a> {
    charges: Box<dyn Charges>,
    pumps: Pumps,
    plan: Plan,
    options: &'a Options,
    /// This is a part of a job: what happens is reported with this mark, and the launcher decides what follows.
    mark: Option<String>,
    first_failure: Option<End>,
    /// Those that failed by themselves after the first.
    also_failed: Vec<Rank>,
    /// The signal that last asked the ranks to end: to be killed by it is what was asked for.
    asked: Option<i32>,
    /// How many streams are not yet printed to their end.
    outputs: u32,
    /// What is said when no thread prints any more.
    last_words: Vec<String>,
}

impl<'a> Supervisor<'a> {
    fn new(charges: Box<dyn Charges>, pumps: Pumps, options: &'a Options, mark: Option<String>) -> Self {
        Self {
            charges,
            pumps,
            plan: Plan::new(options.grace),
            options,
            mark,
            first_failure: None,
            also_failed: Vec::new(),
            asked: None,
            outputs: 2,
            last_words: Vec::new(),
        }
    }

    fn run_to_the_end(mut self, inbox: &Receiver<Event>) -> Result<Outcome> {
        self.run(inbox);
        self.finish(inbox);
        Ok(Outcome { first_failure: self.first_failure })
    }

    /// Until every rank has ended.
    fn run(&mut self, inbox: &Receiver<Event>) {
        // The first look is for ranks that ended before the first SIGCHLD was watched for.
        loop {
            self.look();
            if self.charges.are_over() {
                return;
            }
            let event = match self.plan.next().into_iter().chain(self.charges.next_look()).min() {
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
                self.pass_on(signal);
                if signal == SIGTSTP {
                    // The ranks have it; now this process stops as well, with all its threads, until SIGCONT.
                    self.charges.wait_for_orders();
                    let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
                } else if self.mark.is_none() && (signal == SIGINT || signal == SIGTERM) {
                    self.asked = Some(signal);
                    if let Some(step) = self.plan.asked(signal == SIGINT, Instant::now()) {
                        self.carry_out(step);
                    }
                }
            }
            Event::Report(source, line) => match Report::parse(&line) {
                Some(report) => self.charges.hear(source, &report, Instant::now()),
                None => self.pumps.say(&format!("not understood: {:?}", String::from_utf8_lossy(&line))),
            },
            Event::ReportsEnd(source) => self.charges.hear_no_more(source),
            Event::Order(Order::Signal(signal)) => self.pass_on(signal),
            Event::Order(_) => {}
            // Nobody is left to run for.
            Event::Deserted => self.charges.signal_all(Signal::KILL),
            Event::Input { taken } => self.report(&if taken { Report::InputTaken } else { Report::InputClosed }),
            Event::OutputDone { stream, result } => {
                self.outputs -= 1;
                match result {
                    Ok(held_open) if held_open.is_empty() => {}
                    Ok(held_open) => {
                        let ranks: Vec<_> = held_open.into_iter().flat_map(|source| self.charges.ranks_of(source)).collect();
                        self.last_words.push(format!(
                            "{stream} of {} is still open in a process that left its rank's process group; not waiting for it",
                            list(&ranks)
                        ));
                    }
                    // Whoever read the output has seen enough.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                    Err(error) => self.pumps.say(&format!("cannot write the ranks' {stream}: {error}")),
                }
            }
        }
    }

    fn pass_on(&mut self, signal: i32) {
        if let Some(named) = Signal::from_named_raw(signal) {
            self.charges.signal_all(named);
        }
    }

    fn report(&mut self, report: &Report) {
        if let Some(mark) = &self.mark {
            self.pumps.report(mark, &report.encode());
        }
    }

    /// Notices who has ended since the last look.
    fn look(&mut self) {
        let mut all = self.charges.ended(Instant::now());
        causes_first(&mut all);
        for ended in all {
            if ended.end.failed() {
                // Its children must not keep its connections open: the others shall see that it is gone.
                self.charges.end_rest_of(&ended);
            }
            match self.mark {
                Some(_) => ended.ranks.iter().for_each(|&rank| self.report(&Report::Ended(rank, ended.end))),
                None if ended.end.failed() => self.failed(ended),
                None => {}
            }
        }
    }

    fn failed(&mut self, ended: Ended) {
        let as_asked = self.asked.is_some_and(|signal| matches!(ended.end, End::Killed { signal: by, .. } if by == signal));
        match self.first_failure {
            None => {
                self.first_failure = Some(ended.end);
                if !as_asked {
                    self.pumps.say(&ended.text);
                }
            }
            Some(_) if self.asked.is_none() => self.also_failed.extend(ended.ranks),
            Some(_) => {}
        }
        self.plan.failed(Instant::now());
    }

    fn carry_out(&mut self, step: Step) {
        let running = self.charges.running();
        let (any, running) = (!running.is_empty(), list(&running));
        match step {
            Step::Terminate => {
                self.asked = Some(SIGTERM);
                self.charges.signal_all(Signal::TERM);
                let grace = self.options.grace.as_secs_f64();
                if any {
                    self.pumps.say(&format!("{running} did not end within {grace} s of the first failure; sending SIGTERM"));
                }
            }
            Step::Kill => {
                let asked = self.asked.map_or("the request to end", signals::name);
                // A rank that this kills has not failed by itself; the plan has it as killed.
                self.asked = Some(Signal::KILL.as_raw());
                self.charges.signal_all(Signal::KILL);
                if any {
                    self.pumps.say(&format!("{running} did not end after {asked}; killed"));
                }
            }
            Step::Abandon => {
                if let Some(left) = self.charges.abandon() {
                    self.pumps.say(&left);
                }
            }
        }
    }

    /// After the last rank: ends what they left, and waits for the rest of the output, not longer than that takes.
    fn finish(&mut self, inbox: &Receiver<Event>) {
        if !self.also_failed.is_empty() {
            self.also_failed.sort_unstable();
            let also = list(&self.also_failed);
            self.pumps.say(&format!("{also} failed after that"));
        }
        self.charges.end();
        self.pumps.no_more();
        while self.outputs > 0 {
            match inbox.recv() {
                // Nobody is left to pass it on to: only a reader of this output who does not read keeps the launcher here.
                Ok(Event::Signal(SIGINT | SIGTERM) | Event::Deserted) | Err(_) => return,
                Ok(event) => self.on(event),
            }
        }
        for line in self.last_words.drain(..) {
            eprintln!("rma run: {line}");
        }
    }
}

/// Which of several that ended at once was first cannot be known, but one killed by a signal is rather the cause than one
/// that gave up.
fn causes_first(ended: &mut [Ended]) {
    ended.sort_by_key(|ended| matches!(ended.end, End::Exited(_)));
}

/// "rank 3", "ranks 0, 1 and 5", "ranks 0, 1, .. and 60 more".
pub(super) fn list(ranks: &[Rank]) -> String {
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
        let mut ended = [(0, End::Exited(1)), (1, End::Exited(1)), (2, killed)].map(|(rank, end)| Ended::rank(Rank(rank), end));
        causes_first(&mut ended);
        let ended = ended.map(|ended| (ended.ranks, ended.text));
        assert_eq!(ended[0], (vec![Rank(2)], "rank 2 was killed by signal 9 (SIGKILL)".into()));
        assert_eq!([&ended[1].0, &ended[2].0], [&[Rank(0)], &[Rank(1)]]);
    }

    #[test]
    fn a_long_list_of_ranks_is_cut_and_says_so() {
        let ranks: Vec<_> = (0..20).map(Rank).collect();
        assert_eq!(list(&ranks[..1]), "rank 0");
        assert_eq!(list(&ranks[..3]), "ranks 0, 1 and 2");
        assert_eq!(list(&ranks), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
