//! A part of a job on several hosts, started by a launcher elsewhere: `rma __part` reads from its standard input what to start, and
//! then orders. Runs the ranks as any launcher does, but reports what becomes of them instead of deciding what follows; when the
//! launcher goes away, which closes the input, it ends them.

use super::orders::{Assignment, Order};
use super::{Event, Options, Part, Placement, input};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How a part and its launcher know each other.
#[derive(Clone)]
pub(crate) struct Launcher {
    /// What a report to it begins with.
    pub(crate) mark: String,
    /// Where its orders come from; taken once.
    orders: Arc<Mutex<Option<BufReader<File>>>>,
}

impl std::fmt::Debug for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Launcher(..)")
    }
}

/// The process `rma __part`. Its exit status says only whether it got as far as to report.
pub(crate) fn become_part() -> Result<ExitCode> {
    let stdin = rustix::stdio::stdin().try_clone_to_owned().context("taking the standard input")?;
    let mut orders = BufReader::new(File::from(stdin));
    let Some(assignment) = Assignment::read(&mut orders).context("reading what to start")? else { return Ok(ExitCode::FAILURE) };
    let host = assignment.host.clone();
    run(assignment, orders).with_context(|| format!("on {host}"))
}

fn run(assignment: Assignment, orders: BufReader<File>) -> Result<ExitCode> {
    let directory = &assignment.directory;
    std::env::set_current_dir(directory)
        .with_context(|| format!("changing to the directory {directory:?}; have it on every host"))?;
    let launcher = Launcher { mark: assignment.mark, orders: Arc::new(Mutex::new(Some(orders))) };
    let part = Part {
        ranks: assignment.first..assignment.first + assignment.count,
        root: Some(assignment.root).filter(|root| !root.is_empty()),
        token: assignment.token,
        address: assignment.address,
        launcher: Some(launcher),
    };
    let mut command = assignment.command.into_iter();
    super::launch(&Options {
        ranks: assignment.ranks,
        program: command.next().unwrap_or_default(),
        args: command.collect(),
        variables: assignment.variables,
        bind: assignment.bind,
        prefix: assignment.prefix,
        stdin: assignment.stdin,
        grace: Duration::ZERO,
        placement: Placement::Part(part),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the thread that takes orders; input for rank 0 goes to `pipe`.
pub(crate) fn orders_thread(launcher: &Launcher, pipe: Option<OwnedFd>, events: &Sender<Event>) -> Result<()> {
    let orders = launcher.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut orders = orders.context("bug: two threads that take orders")?;
    let mut pieces = None;
    if let Some(pipe) = pipe {
        let (sender, receiver) = channel();
        pieces = Some(sender);
        input::feed(pipe, receiver, events.clone())?;
    }
    let events = events.clone();
    let take = move || {
        loop {
            let event = match Order::read(&mut orders) {
                Ok(Some(Order::Input(bytes))) => {
                    // Rank 0 may have ended; then the launcher is told so.
                    let _ = pieces.as_ref().map(|pieces| pieces.send(bytes));
                    continue;
                }
                Ok(Some(Order::InputEnd)) => {
                    pieces = None;
                    continue;
                }
                Ok(Some(order)) => Event::Order(order),
                Ok(None) | Err(_) => Event::Deserted,
            };
            let last = matches!(event, Event::Deserted);
            if events.send(event).is_err() || last {
                return;
            }
        }
    };
    thread::Builder::new().name("orders".into()).spawn(take).context("starting a thread for orders")?;
    Ok(())
}
