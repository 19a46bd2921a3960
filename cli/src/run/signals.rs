//! The signals a launcher passes on: which they are, and how they come to its thread. Does not know the ranks.

use super::Event;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Passed on to every process of every rank.
const FORWARDED: [i32; 8] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// Signals come as events while this lives; after it, they have their default effect again.
#[derive(Debug)]
pub(crate) struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It only reads and sends; if it panicked there is nothing to mend here.
            let _ = thread.join();
        }
        if let Some(idle) = &*IDLE.lock().unwrap_or_else(PoisonError::into_inner) {
            idle.store(true, Ordering::Relaxed);
        }
    }
}

/// True while no launch runs. A handler, once there, cannot be taken away again: without this flag a program that launches
/// and then goes on would never again be ended by SIGINT.
static IDLE: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Sends the signals to forward, and SIGCHLD, as events.
///
/// One that this process was told to ignore (`nohup`, a shell's background job) stays ignored, here and in the ranks.
pub(crate) fn watch(events: Sender<Event>) -> Result<Watch> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let watched = FORWARDED.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let watched: Vec<_> = watched.chain([SIGCHLD]).collect();
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*idle {
        Some(idle) => idle.store(false, Ordering::Relaxed),
        None => {
            let flag = Arc::new(AtomicBool::new(false));
            for &signal in watched.iter().filter(|&&signal| signal != SIGCHLD) {
                signal_hook::flag::register_conditional_default(signal, flag.clone()).context("handling signals")?;
            }
            *idle = Some(flag);
        }
    }
    drop(idle);
    let mut signals = Signals::new(watched).context("handling signals")?;
    let handle = signals.handle();
    let thread = thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if events.send(Event::Signal(signal)).is_err() {
                    break;
                }
            }
        })
        .context("starting a thread for signals")?;
    Ok(Watch { handle, thread: Some(thread) })
}

/// The usual name of a signal.
pub(crate) fn name(signal: i32) -> &'static str {
    match low_level::signal_name(signal) {
        Some(name) => name,
        None if (34..=64).contains(&signal) => "real-time",
        None => "unnamed",
    }
}

/// The mask of ignored signals, bit s - 1 for signal s, in the text of `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(ignored("Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }

    #[test]
    fn signals_have_their_usual_names() {
        assert_eq!((name(9), name(15), name(40)), ("SIGKILL", "SIGTERM", "real-time"));
    }
}
