//! A rank's place in the job: where windows and queues come from.
//! Owns the numbering of collective objects and the queues that were cleared but whose partners have not cleared them yet.

use crate::backend::{Backend, Committed, WindowMem};
use crate::bootstrap::{self, threads};
use crate::config::Place;
use crate::fault::{FaultPlan, Faulty};
use crate::lifecycle::{Lifecycle, Phase};

use crate::provider;
use crate::queue::Open;
use crate::shm::ThreadSpace;
use crate::trace::Traced;
use crate::window::WindowInner;
use crate::{Bootstrap, Config, Deadline, Error, MsgHandle, Purpose, QueueId, Rank, Result, RmaQueue, RmaWindow};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// A rank's place in its job: which rank it is, of how many, and how it reaches the others.
///
/// A `Comm` and everything made from it stay on the thread that made it; the slices of leases may be used by any thread.
///
/// ```
/// let sums = rma::Comm::threads(3, |comm| comm.rank().0 + comm.size())?;
/// assert_eq!(sums, [3, 4, 5]);
/// # Ok::<(), rma::Error>(())
/// ```
#[derive(Debug)]
pub struct Comm {
    inner: Rc<CommInner>,
}

pub(crate) struct CommInner {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) config: Config,
    pub(crate) backend: Rc<dyn Backend>,
    pub(crate) boot: Arc<dyn Bootstrap>,
    pub(crate) next_window: Cell<u32>,
    pub(crate) next_queue: Cell<u32>,
    /// How many leases are alive and how many claims have rivals: while there are none, a start need not look at either.
    pub(crate) cautions: Cell<u64>,
    /// Every committed queue, so that a wait for one moves the others on, too.
    active: RefCell<Vec<Weak<Active>>>,
    retired: RefCell<Vec<Retired>>,
}

/// What a backend built for a queue, shared between the queue and its Comm.
pub(crate) struct Active {
    pub(crate) life: Rc<Cell<Lifecycle>>,
    pub(crate) committed: RefCell<Box<dyn Committed>>,
}

/// A cleared queue whose partners may still write here.
struct Retired {
    queue: QueueId,
    active: Rc<Active>,
    /// The claims that still protect what may be written ..
    windows: Vec<Weak<WindowInner>>,
    /// .. and the memory itself, should the program have dropped its windows.
    _memory: Vec<Rc<dyn WindowMem>>,
}

impl fmt::Debug for CommInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm({} of {}, {})", self.rank, self.size, self.backend.caps().name)
    }
}

impl Comm {
    /// The place that the environment gives: under `rma run` one of its ranks, otherwise alone as rank 0 of 1.
    ///
    /// Refuses, with what to do, when another launcher started several ranks that this program cannot join.
    pub fn from_env() -> Result<Self> {
        let (config, place) = Config::from_env()?;
        match place {
            None => Self::alone(config),
            Some(place) => Self::join(&place, config),
        }
    }

    /// Rank 0 of 1.
    pub fn alone(config: Config) -> Result<Self> {
        config.check()?;
        let boot = threads::group(1).pop().map(|boot| Arc::new(boot) as Arc<dyn Bootstrap>);
        let boot = boot.ok_or_else(|| Error::Launch("bug: a group of one rank has none".into()))?;
        Self::over(provider::open_for_threads(&boot, &ThreadSpace::new(1), &config)?, boot, config)
    }

    /// One rank of a job of processes. A process can join one job, once.
    pub fn join(place: &Place, config: Config) -> Result<Self> {
        let boot = bootstrap::join(place, &config)?;
        Self::over(provider::open_for_processes(&boot, &config, place.token)?, boot, config)
    }

    /// A Comm over any backend and bootstrap.
    ///
    /// # Safety
    /// What leases promise rests on both: the backend keeps the contract of [`backend`](crate::backend) and the bootstrap that of
    /// [`bootstrap`](crate::bootstrap), and neither is used in any other way while the Comm or anything made from it is alive.
    #[allow(unsafe_code, reason = "declares a contract; contains no unsafe operation")]
    pub unsafe fn new(backend: Rc<dyn Backend>, boot: Arc<dyn Bootstrap>, config: Config) -> Result<Self> {
        Self::over(backend, boot, config)
    }

    /// The same, for the library's own.
    pub(crate) fn over(backend: Rc<dyn Backend>, boot: Arc<dyn Bootstrap>, config: Config) -> Result<Self> {
        config.check()?;
        let (rank, size) = (boot.rank(), boot.size());
        if let Some(FaultPlan { victim: Some((victim, ..)), .. }) = config.faults
            && victim.0 >= size
        {
            return Err(Error::NoSuchRank { what: "victim in RMA_FAULTS", rank: victim, size });
        }
        let backend = decorate(backend, rank, size, &config);
        let inner = CommInner {
            rank,
            size,
            config,
            backend,
            boot,
            next_window: Cell::new(0),
            next_queue: Cell::new(0),
            cautions: Cell::new(0),
            active: RefCell::default(),
            retired: RefCell::default(),
        };
        let inner = Rc::new(inner);
        bootstrap::move_on(Rc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// How many rails a put can choose from.
    pub fn rails(&self) -> u16 {
        self.inner.backend.caps().rails
    }

    /// What the backend can do.
    pub fn caps(&self) -> &crate::backend::Caps {
        self.inner.backend.caps()
    }

    /// The options in force.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The time of this rank on an emulated device, from when it was opened: the same on every run. `None` on a backend that takes
    /// the time it takes. A [`wait`](crate::InFlight::wait) moves it on to the end of its epoch, and nothing else does: what goes over
    /// the [bootstrap](Self::bootstrap) and what the program computes takes none of it, nor does a [`test`](crate::InFlight::test).
    pub fn virtual_now(&self) -> Option<Duration> {
        self.inner.backend.virtual_now()
    }

    /// Set-up communication between the ranks, for what a program wants to agree on itself. Not for the hot path.
    pub fn bootstrap(&self) -> &dyn Bootstrap {
        &*self.inner.boot
    }

    /// Collective: returns once every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.inner.boot.barrier(Deadline::after(self.inner.config.setup_timeout).of(Purpose::Barrier))
    }

    /// Collective: a window in which this rank has `bytes` bytes, all zero. The ranks may differ in length, also zero.
    ///
    /// [`Error::Limit`] when the ranks' parts together are more than there is memory for; [`Error::CollectiveFailed`] when another
    /// rank's part could not be made, so that none is.
    pub fn window_alloc(&self, bytes: usize) -> Result<RmaWindow> {
        RmaWindow::alloc(&self.inner, bytes)
    }

    /// Declares a put of `len_bytes` bytes: from `source_offset` of this rank's part of `source` to `target_offset` of the part
    /// that `target` has of `window`. Offsets are in bytes. For several blocks at equal distances see [`MsgHandle::blocks`].
    ///
    /// [`Error::OutOfRange`] when a range is not inside its window, [`Error::NoSuchRank`] when there is no such target.
    pub fn declare_write(
        &self,
        window: &RmaWindow,
        target_offset: usize,
        source: &RmaWindow,
        source_offset: usize,
        len_bytes: usize,
        target: impl Into<Rank>,
    ) -> Result<MsgHandle> {
        MsgHandle::declare(&self.inner, (window, target_offset), (source, source_offset), len_bytes, target.into())
    }

    /// An empty queue. `window` is what others will write here; further ones are added with [`RmaQueue::expose`].
    pub fn queue_alloc(&self, window: &RmaWindow) -> Result<RmaQueue<Open>> {
        RmaQueue::alloc(&self.inner, window)
    }
}

/// The backend with what the options put around it.
fn decorate(mut backend: Rc<dyn Backend>, rank: Rank, size: u32, config: &Config) -> Rc<dyn Backend> {
    if let Some(plan) = config.faults {
        backend = Rc::new(Faulty::new(backend, rank, plan));
    }
    if let Some(path) = &config.trace {
        backend = Rc::new(Traced::to_file(backend, rank, size, path));
    }
    backend
}

impl bootstrap::Flights for Weak<CommInner> {
    fn advance(&self) -> Option<bool> {
        self.upgrade().map(|comm| CommInner::advance(&comm, None))
    }
}

impl CommInner {
    /// What a collective call came to on all ranks: everywhere a value, or everywhere an error.
    pub(crate) fn all_or_none<T>(&self, call: &'static str, mine: Result<T>, deadline: Deadline) -> Result<T> {
        bootstrap::all_or_none(&*self.boot, call, mine, deadline)
    }

    /// Takes note of a queue that was committed.
    pub(crate) fn activate(&self, life: &Rc<Cell<Lifecycle>>, committed: Box<dyn Committed>) -> Rc<Active> {
        let active = Rc::new(Active { life: life.clone(), committed: RefCell::new(committed) });
        let mut all = self.active.borrow_mut();
        all.retain(|other| other.strong_count() > 0);
        all.push(Rc::downgrade(&active));
        active
    }

    /// Moves on what other queues have under way: a put that waited for its credit goes out although the program waits for
    /// something else. Says whether there is such a queue. Errors come up again when the queue itself is waited for.
    pub(crate) fn advance_others(&self, than: &Rc<Active>) -> bool {
        self.advance(Some(than))
    }

    fn advance(&self, but: Option<&Rc<Active>>) -> bool {
        let mut flying = false;
        let others = self.active.borrow();
        for other in others.iter().filter_map(Weak::upgrade).filter(|other| but.is_none_or(|but| !Rc::ptr_eq(other, but))) {
            flying |= other.life.get().phase() == Phase::InFlight;
            if other.life.get().phase() != Phase::Failed
                && let Ok(mut committed) = other.committed.try_borrow_mut()
            {
                let _ = committed.poll(1);
            }
        }
        flying
    }

    /// Keeps a closed queue until its partners have closed it too.
    pub(crate) fn retire(&self, queue: QueueId, active: Rc<Active>, windows: Vec<Rc<WindowInner>>) {
        self.active.borrow_mut().retain(|other| other.as_ptr() != Rc::as_ptr(&active));
        let memory = windows.iter().map(|window| window.mem.clone()).collect();
        let windows = windows.iter().map(Rc::downgrade).collect();
        self.retired.borrow_mut().push(Retired { queue, active, windows, _memory: memory });
        self.reap();
    }

    /// Lets go of every cleared queue that no partner can write through any more.
    pub(crate) fn reap(&self) {
        let quiet: Vec<Retired> = match self.retired.try_borrow_mut() {
            Ok(mut retired) => retired.extract_if(.., |queue| queue.active.committed.borrow().unclosed().is_empty()).collect(),
            Err(_) => return,
        };
        for queue in quiet {
            queue.windows.iter().filter_map(Weak::upgrade).for_each(|window| window.remove_claim(queue.queue));
        }
    }

    /// One more look at the cleared queues, for a caller in a loop. False when the time is up.
    pub(crate) fn reap_again(&self, deadline: Deadline) -> bool {
        if deadline.is_over() {
            return false;
        }
        let before = self.retired.borrow().len();
        self.advance(None);
        self.reap();
        if self.retired.borrow().len() == before {
            std::thread::park_timeout(deadline.left(Duration::from_micros(200)));
        }
        true
    }
}
