//! The standard input on its way to rank 0. A thread of its own, which nobody waits for: a read from a terminal cannot be
//! called off. Where rank 0 is on another host, its input goes there piece by piece, each sent when the one before was taken: orders
//! must not wait behind input that nobody reads.

use super::Event;
use super::orders::{MAX_INPUT_BYTES, Order};
use super::output::wait;
use super::parts::Letter;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

const CHUNK_BYTES: usize = 64 * 1024;
/// How often a launcher in the background looks whether it is in the foreground again.
const BACKGROUND_LOOK: Duration = Duration::from_millis(200);

/// Copies until the input ends, or rank 0 no longer reads.
pub(crate) fn forward(pipe: OwnedFd) -> Result<()> {
    let copy = move || {
        // Rank 0 sees the end of its input, whatever the reason.
        let _ = copy(pipe.into());
    };
    thread::Builder::new().name("stdin".into()).spawn(copy).context("starting a thread for the standard input")?;
    Ok(())
}

/// Sends the standard input to a part as orders. `taken` says for each piece that there may be more, and closes when rank 0 reads
/// no more.
pub(super) fn forward_as_orders(orders: Sender<Letter>, taken: Receiver<()>) -> Result<()> {
    let (mut reader, writer) = io::pipe().context("creating a pipe")?;
    forward(writer.into())?;
    let send = move || {
        let mut chunk = vec![0; MAX_INPUT_BYTES];
        loop {
            let order = match reader.read(&mut chunk) {
                Ok(count @ 1..) => Order::Input(chunk[..count].to_vec()),
                Ok(0) | Err(_) => Order::InputEnd,
            };
            let last = order == Order::InputEnd;
            // The reader ends with this thread, and with it the one that reads the standard input.
            if orders.send(Letter::order(&order)).is_err() || last || taken.recv().is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("input".into()).spawn(send).context("starting a thread for the standard input")?;
    Ok(())
}

/// On the part: gives rank 0 what comes, and tells when it was taken or will not be.
pub(crate) fn feed(pipe: OwnedFd, pieces: Receiver<Vec<u8>>, events: Sender<Event>) -> Result<()> {
    let feed = move || {
        let mut pipe = File::from(pipe);
        for piece in pieces {
            let taken = pipe.write_all(&piece).is_ok();
            if events.send(Event::Input { taken }).is_err() || !taken {
                return;
            }
        }
    };
    thread::Builder::new().name("input".into()).spawn(feed).context("starting a thread for the standard input")?;
    Ok(())
}

fn copy(mut pipe: File) -> io::Result<()> {
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
