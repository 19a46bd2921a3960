//! A decorator for any backend that writes down what happens when.
//! Owns the events and their file; where it is not asked for it is not there, so it costs nothing.

use crate::backend::{Backend, Caps, Chain, Committed, Missing, Progress, WindowMem, WindowSpec};
use crate::{Bootstrap, Deadline, Epoch, Error, QueueId, Rank, Result, VirtualSpan};
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something that happened, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it began, in nanoseconds of this host's monotonic clock: the same for all its ranks.
    pub at_ns: u64,
    /// How long it took; 0 for a moment.
    pub took_ns: u64,
    /// The queue.
    pub queue: QueueId,
    /// The epoch; 0 where there is none.
    pub epoch: Epoch,
    /// What.
    pub what: What,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The backend built a chain.
    Commit,
    /// An epoch was started: what could go at once was posted.
    Start,
    /// From the start of an epoch until it was found complete.
    Flight,
    /// From the first look at an epoch after its start, by a wait or a test, until it was found complete.
    Wait,
    /// A wait gave its core away.
    Park,
    /// Credits were given to the origins.
    Grant,
    /// The queue was closed.
    Close,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Start => "start",
            Self::Flight => "flight",
            Self::Wait => "wait",
            Self::Park => "park",
            Self::Grant => "grant",
            Self::Close => "close",
        }
    }
}

/// The events of a rank, the newest ones if there are too many.
#[derive(Debug)]
pub struct TraceLog {
    rank: Rank,
    /// How many ranks there are, which tells the files of one run from those that an earlier one left.
    size: u32,
    events: Mutex<VecDeque<Event>>,
}

/// The most events that are kept.
const CAPACITY: usize = 1 << 18;

impl TraceLog {
    /// All events so far, in the order they ended.
    pub fn events(&self) -> Vec<Event> {
        self.lock().iter().copied().collect()
    }

    /// Writes the events in the format of Chrome's trace viewer, which Perfetto reads too.
    pub fn write_to(&self, path: &Path) -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        let (rank, size) = (self.rank.0, self.size);
        write!(file, "[{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank} of {size}\"}}}}")?;
        for Event { at_ns, took_ns, queue, epoch, what } in self.events() {
            let (at_us, took_us) = (at_ns as f64 / 1e3, took_ns as f64 / 1e3);
            write!(
                file,
                ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"ts\":{at_us:.3},\"dur\":{took_us:.3},\"pid\":{rank},\"tid\":{},\"args\":{{\"epoch\":{}}}}}",
                what.name(),
                queue.0,
                epoch.0
            )?;
        }
        writeln!(file, "]")?;
        file.flush()
    }

    fn add(&self, event: Event) {
        let mut events = self.lock();
        if events.len() == CAPACITY {
            events.pop_front();
        }
        events.push_back(event);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A backend that is traced.
pub struct Traced {
    inner: Rc<dyn Backend>,
    log: Arc<TraceLog>,
    file: Option<PathBuf>,
}

impl std::fmt::Debug for Traced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Traced({})", self.inner.caps().name)
    }
}

impl Traced {
    /// Traces `inner` on this rank of so many.
    pub fn new(inner: Rc<dyn Backend>, rank: Rank, size: u32) -> Self {
        Self::with_file(inner, rank, size, None)
    }

    /// The same, and writes `PATH.RANK.json` when the backend is dropped.
    pub fn to_file(inner: Rc<dyn Backend>, rank: Rank, size: u32, path: &Path) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.json", rank.0));
        Self::with_file(inner, rank, size, Some(name.into()))
    }

    fn with_file(inner: Rc<dyn Backend>, rank: Rank, size: u32, file: Option<PathBuf>) -> Self {
        let log = TraceLog { rank, size, events: Mutex::new(VecDeque::with_capacity(CAPACITY)) };
        Self { inner, log: Arc::new(log), file }
    }

    /// What is written down, for as long as one likes.
    pub fn log(&self) -> Arc<TraceLog> {
        self.log.clone()
    }
}

/// Writes the file once the backend and everything committed on it are gone.
impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(path) = &self.file
            && let Err(error) = self.log.write_to(path)
        {
            tracing::error!(path = %path.display(), %error, "the trace could not be written");
        }
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Backend for Traced {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn admit(&self, window: &WindowSpec<'_>) -> Result<()> {
        self.inner.admit(window)
    }

    fn register(&self, window: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
        self.inner.register(window)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        let (at_ns, queue) = (now_ns(), chain.queue);
        let inner = self.inner.commit(chain, boot, deadline)?;
        let committed = TracedCommitted { inner, log: self.log.clone(), queue, epoch: Epoch(0), started_ns: None, looked_ns: None };
        committed.note(What::Commit, at_ns, now_ns());
        Ok(Box::new(committed))
    }

    fn virtual_now(&self) -> Option<Duration> {
        self.inner.virtual_now()
    }
}

struct TracedCommitted {
    inner: Box<dyn Committed>,
    log: Arc<TraceLog>,
    queue: QueueId,
    epoch: Epoch,
    /// Of the epoch that is not complete yet.
    started_ns: Option<u64>,
    looked_ns: Option<u64>,
}

impl TracedCommitted {
    fn note(&self, what: What, at_ns: u64, until_ns: u64) {
        self.log.add(Event { at_ns, took_ns: until_ns - at_ns, queue: self.queue, epoch: self.epoch, what });
    }
}

impl Committed for TracedCommitted {
    #[allow(unsafe_code, reason = "passes a contract on")]
    unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
        let at_ns = now_ns();
        self.epoch = epoch;
        (self.started_ns, self.looked_ns) = (Some(at_ns), None);
        // SAFETY: the caller's promise, passed on.
        let started = unsafe { self.inner.start(epoch) };
        self.note(What::Start, at_ns, now_ns());
        started
    }

    fn poll(&mut self, rounds: u32) -> Result<Progress> {
        if self.started_ns.is_some() && self.looked_ns.is_none() {
            self.looked_ns = Some(now_ns());
        }
        let progress = self.inner.poll(rounds)?;
        if progress == Progress::Done
            && let Some(at_ns) = self.started_ns.take()
        {
            let until_ns = now_ns();
            self.note(What::Wait, self.looked_ns.unwrap_or(until_ns), until_ns);
            self.note(What::Flight, at_ns, until_ns);
        }
        Ok(progress)
    }

    fn settle(&mut self) {
        self.inner.settle();
    }

    fn virtual_span(&self) -> Option<VirtualSpan> {
        self.inner.virtual_span()
    }

    fn grant(&mut self, epoch: Epoch) -> Result<()> {
        let at_ns = now_ns();
        let granted = self.inner.grant(epoch);
        self.note(What::Grant, at_ns, now_ns());
        granted
    }

    fn grant_with_start(&mut self, epoch: Epoch) -> Result<()> {
        let at_ns = now_ns();
        let granted = self.inner.grant_with_start(epoch);
        self.note(What::Grant, at_ns, now_ns());
        granted
    }

    fn park(&mut self, turn: u32, limit: Duration) {
        let at_ns = now_ns();
        self.inner.park(turn, limit);
        self.note(What::Park, at_ns, now_ns());
    }

    fn missing(&self) -> Vec<Missing> {
        self.inner.missing()
    }

    fn close(&mut self) {
        let at_ns = now_ns();
        self.inner.close();
        self.note(What::Close, at_ns, now_ns());
    }

    fn unclosed(&self) -> Vec<Rank> {
        self.inner.unclosed()
    }

    fn explain(&self) -> String {
        self.inner.explain()
    }
}

/// Refuses a path whose folder does not exist, before a long run instead of after it.
pub(crate) fn check_path(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if folder.is_dir() {
        return Ok(());
    }
    Err(Error::Launch(format!("RMA_TRACE={}: there is no folder {}; make it first", path.display(), folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Comm, Config};

    /// Runs a ring of three ranks for four epochs with these options.
    fn ring(config: Config) -> Result<()> {
        let ranks = Comm::threads_with(3, config, |comm| {
            let (me, size) = (comm.rank().0, comm.size());
            let window = comm.window_alloc(16)?;
            let mut queue = comm.queue_alloc(&window)?;
            queue.push(&comm.declare_write(&window, 0, &window, 8, 8, (me + 1) % size)?)?.add_origin((me + size - 1) % size)?;
            let mut queue = queue.commit()?;
            for _ in 0..4 {
                queue.start()?.wait()?;
            }
            Ok(())
        })?;
        ranks.into_iter().collect()
    }

    #[test]
    fn every_rank_writes_each_of_its_epochs_to_its_file() {
        let folder = std::env::temp_dir().join(format!("rma-trace-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        ring(Config { trace: Some(folder.join("ring")), ..Config::default() }).unwrap();
        for rank in 0..3 {
            let text = std::fs::read_to_string(folder.join(format!("ring.{rank}.json"))).unwrap();
            assert!(
                text.starts_with('[') && text.trim_end().ends_with(']') && text.contains(&format!("rank {rank} of 3")),
                "{text}"
            );
            for (event, times) in [("commit", 1), ("start", 4), ("flight", 4), ("wait", 4), ("grant", 5), ("close", 1)] {
                assert_eq!(text.matches(&format!("\"name\":\"{event}\"")).count(), times, "{event} in {text}");
            }
            for epoch in 1..=4 {
                assert!(text.contains(&format!("\"epoch\":{epoch}")), "no epoch {epoch} in {text}");
            }
            assert_eq!(text.matches('{').count(), text.matches('}').count());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_trace_into_a_folder_that_is_not_there_is_refused_before_the_run() {
        let trace = Some("no/such/folder/trace".into());
        let error = ring(Config { trace, ..Config::default() }).unwrap_err().to_string();
        assert!(error.contains("there is no folder no/such/folder; make it first"), "{error}");
    }
}
