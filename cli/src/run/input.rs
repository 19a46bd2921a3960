//! The standard input on its way to rank 0. A thread of its own, which nobody waits for: a read from a terminal cannot be
//! called off.

use super::output::wait;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ChildStdin;
use std::thread;
use std::time::Duration;

const CHUNK_BYTES: usize = 64 * 1024;
/// How often a launcher in the background looks whether it is in the foreground again.
const BACKGROUND_LOOK: Duration = Duration::from_millis(200);

/// Copies until the input ends, or rank 0 no longer reads.
pub(crate) fn forward(pipe: ChildStdin) -> Result<()> {
    let copy = move || {
        // Rank 0 sees the end of its input, whatever the reason.
        let _ = copy(pipe);
    };
    thread::Builder::new().name("stdin".into()).spawn(copy).context("starting a thread for the standard input")?;
    Ok(())
}

fn copy(mut pipe: ChildStdin) -> io::Result<()> {
    // Not through std's buffer: what rank 0 does not read stays where it is.
    let stdin = rustix::stdio::stdin();
    let terminal = io::stdin().is_terminal();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if terminal && in_background() {
            // Reading now would stop the whole launcher (SIGTTIN).
            wait(&mut [PollFd::new(&pipe, PollFlags::empty())], Some(BACKGROUND_LOOK))?;
            continue;
        }
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&pipe, PollFlags::empty())];
        wait(&mut fds, None)?;
        // An error on a pipe's writing end: nobody reads any more.
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        if terminal && in_background() {
            continue;
        }
        match rustix::io::read(stdin, &mut chunk[..]).map_err(io::Error::from) {
            Ok(0) => return Ok(()),
            Ok(count) => pipe.write_all(&chunk[..count])?,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
}

fn in_background() -> bool {
    rustix::termios::tcgetpgrp(rustix::stdio::stdin()).is_ok_and(|foreground| foreground != rustix::process::getpgrp())
}
