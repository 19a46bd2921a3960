//! Prints what the ranks write: one thread a stream, from all pipes of that stream to the launcher's own.
//! Knows lines and pipes; does not know whether a rank still runs, but is told when none can write any more.

use super::Event;
use super::lines::Merge;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// One read, and about how much is collected before it is written.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long a pipe may stay open once every rank has ended: only a process that left its rank's group can do that.
const HELD_OPEN_WAIT: Duration = Duration::from_secs(1);
/// What is still taken from such a pipe: as much as a pipe can hold, so what the ranks wrote is complete.
const HELD_OPEN_BYTES: usize = 1024 * 1024;

/// The launcher's two outputs. If they are the same file, whole lines of one are never cut by lines of the other.
#[derive(Debug)]
pub(crate) struct Sinks {
    stdout: Sink,
    stderr: Sink,
}

#[derive(Debug)]
struct Sink {
    file: File,
    turn: Arc<Mutex<()>>,
}

impl Sinks {
    pub(crate) fn of_this_process() -> Result<Self> {
        // What was printed before goes before.
        let _ = io::stdout().flush();
        let dup = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from).context("duplicating the standard output");
        let (stdout, stderr) = (dup(io::stdout().as_fd())?, dup(io::stderr().as_fd())?);
        Ok(Self::of(stdout, stderr))
    }

    fn of(stdout: File, stderr: File) -> Self {
        let turn = Arc::new(Mutex::new(()));
        let same = match (rustix::fs::fstat(&stdout), rustix::fs::fstat(&stderr)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        };
        let other_turn = if same { turn.clone() } else { Arc::default() };
        Self { stdout: Sink { file: stdout, turn }, stderr: Sink { file: stderr, turn: other_turn } }
    }

    /// Starts a thread for each stream. Each ends, with an [`Event::OutputDone`], when every pipe and its control are closed.
    pub(crate) fn pump(self, stdouts: Pipes, stderrs: Pipes, events: &Sender<Event>) -> Result<Pumps> {
        let stdout = self.stdout.pump("stdout", stdouts, events.clone())?;
        let stderr = self.stderr.pump("stderr", stderrs, events.clone())?;
        rustix::io::ioctl_fionbio(&stderr, true).context("making the launcher's own message pipe non-blocking")?;
        Ok(Pumps { controls: Some((stdout, stderr)) })
    }
}

/// The pipes of one stream in the order of the ranks, or of the parts of a job, and what stands before each line of theirs.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) prefixes: Vec<Vec<u8>>,
    pub(crate) pipes: Vec<OwnedFd>,
    /// Whether an unfinished last line gets its newline.
    pub(crate) finish_lines: bool,
    /// What a line begins with that is a report to this launcher, and no output.
    pub(crate) mark: Option<Vec<u8>>,
}

/// The two threads that print.
#[derive(Debug)]
pub(crate) struct Pumps {
    controls: Option<(PipeWriter, PipeWriter)>,
}

impl Pumps {
    /// Prints a line of the launcher's own on the standard error, between the ranks' lines. Never blocks: if the standard
    /// error is stuck for so long that the pipe to its thread is full, the line is lost.
    pub(crate) fn say(&mut self, line: &str) {
        if let Some((_, stderr)) = &mut self.controls {
            let _ = stderr.write_all(format!("rma run: {line}\n").as_bytes());
        }
    }

    /// The same for a report to the launcher of the whole job, which is not lost: it is waited for until there is room.
    pub(crate) fn report(&mut self, mark: &str, report: &str) {
        let Some((_, stderr)) = &mut self.controls else { return };
        // Short enough for a pipe to take it whole or not at all.
        let line = format!("{mark} {report}\n");
        while let Err(error) = stderr.write_all(line.as_bytes()) {
            let full = error.kind() == ErrorKind::WouldBlock;
            if !full || wait(&mut [PollFd::new(&*stderr, PollFlags::OUT)], None).is_err() {
                return;
            }
        }
    }

    /// Tells the threads that every rank has ended: what is in the pipes is all there is.
    pub(crate) fn no_more(&mut self) {
        self.controls = None;
    }
}

impl Sink {
    fn pump(self, stream: &'static str, pipes: Pipes, events: Sender<Event>) -> Result<PipeWriter> {
        let (control, control_writer) = io::pipe().context("creating a pipe")?;
        // The control is one more source, the last: the launcher's own lines, with nothing before them.
        let merge = Merge::new(pipes.prefixes.into_iter().chain([Vec::new()]), pipes.finish_lines).with_reports(pipes.mark);
        let pipes = pipes.pipes.into_iter().map(|fd| Some(File::from(fd))).collect();
        let (control, events_of_pump) = (Some(control), events.clone());
        let mut pump =
            Pump { merge, pipes, control, sink: self, events: events_of_pump, taken_after_end: 0, waited: Duration::ZERO };
        thread::Builder::new()
            .name(stream.into())
            .spawn(move || {
                // An error of the sink closes all pipes, and the ranks get the signal or error they would get without a launcher.
                let result = pump.run();
                drop(pump);
                let _ = events.send(Event::OutputDone { stream, result });
            })
            .context("starting a thread for the ranks' output")?;
        Ok(control_writer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Poisoned by a panic of the other thread: its line is cut anyway.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                // Someone made the file description, which others share, non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(&mut [PollFd::new(&self.file, PollFlags::OUT)], None)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

struct Pump {
    merge: Merge,
    pipes: Vec<Option<File>>,
    control: Option<PipeReader>,
    sink: Sink,
    events: Sender<Event>,
    /// Bytes taken, and time spent waiting, since the control was closed.
    taken_after_end: usize,
    waited: Duration,
}

impl Pump {
    fn run(&mut self) -> io::Result<Vec<usize>> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while self.control.is_some() || self.pipes.iter().any(Option::is_some) {
            let ready = self.ready()?;
            if ready.is_empty() {
                break;
            }
            for source in ready {
                self.read(source, &mut chunk);
                if self.merge.out().len() >= CHUNK_BYTES {
                    self.flush()?;
                }
            }
            self.flush()?;
        }
        let open = |(source, pipe): (usize, &Option<File>)| pipe.as_ref().map(|_| source);
        let held_open: Vec<_> = self.pipes.iter().enumerate().filter_map(open).collect();
        for &source in &held_open {
            self.merge.end(source);
        }
        self.flush()?;
        Ok(held_open)
    }

    /// The sources that have something, or have ended; none when the wait for the last ones is over.
    fn ready(&mut self) -> io::Result<Vec<usize>> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        let pipes = self.pipes.iter().map(|pipe| pipe.as_ref().map(AsFd::as_fd));
        for (source, fd) in pipes.chain([self.control.as_ref().map(AsFd::as_fd)]).enumerate() {
            if let Some(fd) = fd {
                sources.push(source);
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            }
        }
        let timeout = match self.control {
            Some(_) => None,
            None if self.taken_after_end > HELD_OPEN_BYTES * self.pipes.len() => return Ok(Vec::new()),
            None => Some(HELD_OPEN_WAIT.saturating_sub(self.waited)),
        };
        let begin = Instant::now();
        wait(&mut fds, timeout)?;
        if timeout.is_some() {
            self.waited += begin.elapsed();
        }
        Ok(sources.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(source, _)| source).collect())
    }

    fn read(&mut self, source: usize, chunk: &mut [u8]) {
        let result = match self.pipes.get_mut(source) {
            Some(Some(pipe)) => pipe.read(chunk),
            Some(None) => return,
            None => self.control.as_mut().map_or(Ok(0), |control| control.read(chunk)),
        };
        match result {
            Ok(0) => self.end(source),
            Ok(count) => {
                self.merge.feed(source, &chunk[..count]);
                self.taken_after_end += if self.control.is_none() { count } else { 0 };
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => self.end(source),
        }
    }

    fn end(&mut self, source: usize) {
        self.merge.end(source);
        match self.pipes.get_mut(source) {
            Some(pipe) => *pipe = None,
            None => self.control = None,
        }
        if self.merge.has_reports() {
            self.tell();
            let _ = self.events.send(Event::ReportsEnd(source));
        }
    }

    /// Passes reports on.
    fn tell(&mut self) {
        for (source, report) in self.merge.reports() {
            // Nobody listens any more when the job is over.
            let _ = self.events.send(Event::Report(source, report));
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tell();
        let result = self.sink.write(self.merge.out());
        self.merge.out().clear();
        result
    }
}

/// Waits until one of the descriptors is ready or the timeout is over.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    loop {
        match poll(fds, timeout.as_ref()) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    #[test]
    fn writes_to_one_file_do_not_cut_each_other() {
        const WRITES: usize = 20;
        // Larger than the pipe: each write is done in parts, and the other stream's may come between them.
        const LINES: usize = 20_000;
        let (reader, writer) = io::pipe().unwrap();
        let file = |writer: PipeWriter| File::from(OwnedFd::from(writer));
        let sinks = Sinks::of(file(writer.try_clone().unwrap()), file(writer));
        let threads = [(sinks.stdout, b"out-out-out\n"), (sinks.stderr, b"err-err-err\n")].map(|(mut sink, line)| {
            thread::spawn(move || {
                let text = line.repeat(LINES);
                for _ in 0..WRITES {
                    sink.write(&text).unwrap();
                }
            })
        });
        let lines: Vec<_> = io::BufReader::new(reader).lines().map(Result::unwrap).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let cut = lines.iter().find(|line| *line != "out-out-out" && *line != "err-err-err");
        assert_eq!((cut, lines.len()), (None, 2 * WRITES * LINES));
    }
}
