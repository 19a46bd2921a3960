//! Queues: puts that are committed together as a chain and started again and again.
//! Owns the states a program sees (`Open`, `Ready`, `InFlight`, `Arrived`); the rules are in `lifecycle`, the bytes in a backend.

pub(crate) mod agreement;
mod commit;
mod flight;
mod rails;
mod wait;

pub use flight::{Arrived, InFlight};

use crate::comm::{Active, CommInner};
use crate::layout::RangeSet;
use crate::lifecycle::{Call, Lifecycle, Phase};
use crate::window::WindowInner;
use crate::window::claims::{self, Exposure, Part};
use crate::{Epoch, Error, MsgHandle, QueueId, Rank, Result, RmaWindow, VirtualSpan};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use wait::Watch;

/// A queue of puts. [`Open`]: puts and origins are added. [`Ready`]: committed, to be started.
///
/// The states are types, so what cannot be does not compile:
///
/// ```compile_fail,E0599
/// # fn f(queue: rma::RmaQueue<rma::Open>) {
/// let mut queue = queue;
/// queue.start(); // not committed
/// # }
/// ```
/// ```compile_fail,E0599
/// # fn f(mut queue: rma::RmaQueue<rma::Ready>, put: &rma::MsgHandle) {
/// queue.push(put); // committed already
/// # }
/// ```
/// ```compile_fail,E0599
/// # fn f(mut queue: rma::RmaQueue<rma::Ready>) {
/// queue.add_origin(1u32); // committed already
/// # }
/// ```
/// ```compile_fail,E0599
/// # fn f(mut queue: rma::RmaQueue<rma::Ready>) {
/// queue.wait(); // not started
/// # }
/// ```
/// ```compile_fail,E0382
/// # fn f(queue: rma::RmaQueue<rma::Open>) -> rma::Result<()> {
/// let ready = queue.commit()?;
/// queue.commit()?; // committed already
/// # Ok(()) }
/// ```
/// ```compile_fail,E0499
/// # fn f(mut queue: rma::RmaQueue<rma::Ready>) -> rma::Result<()> {
/// let first = queue.start()?;
/// let second = queue.start()?; // the first is in flight
/// first.wait()?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0505
/// # fn f(mut queue: rma::RmaQueue<rma::Ready>) -> rma::Result<()> {
/// let flight = queue.start()?;
/// queue.clear(); // in flight
/// flight.wait()?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0382
/// # fn f(queue: rma::RmaQueue<rma::Ready>) -> rma::Result<()> {
/// queue.clear();
/// let mut queue = queue;
/// queue.start()?; // cleared
/// # Ok(()) }
/// ```
/// A queue, like everything of a rank, stays on its thread:
///
/// ```compile_fail,E0277
/// # fn f(queue: rma::RmaQueue<rma::Ready>) {
/// std::thread::spawn(move || drop(queue));
/// # }
/// ```
#[derive(Debug)]
pub struct RmaQueue<State> {
    state: State,
}

/// The state of a queue to which puts and origins are added.
#[derive(Debug)]
pub struct Open {
    comm: Rc<CommInner>,
    windows: Vec<Rc<WindowInner>>,
    puts: Vec<MsgHandle>,
    origins: BTreeSet<Rank>,
    /// What the program itself fills in every epoch.
    filled: Vec<(Rc<WindowInner>, RangeSet)>,
    exposure: Exposure,
    timeout: Option<Duration>,
}

/// The state of a queue that was committed.
pub struct Ready {
    comm: Rc<CommInner>,
    id: QueueId,
    exposure: Exposure,
    timeout: Option<Duration>,
    life: Rc<Cell<Lifecycle>>,
    parts: Vec<Part>,
    /// `None` only while the queue is being taken apart.
    active: Option<Rc<Active>>,
    /// How many polls before a wait looks at the clock.
    polls_per_look: u32,
    /// Whether epochs have a time on an emulated device.
    virtual_time: bool,
    /// The waiting of this epoch, once it takes long.
    watch: Option<Watch>,
    /// The first error, once there was one.
    failure: Option<(Epoch, String)>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").field("id", &self.id).field("life", &self.life.get()).finish_non_exhaustive()
    }
}

impl RmaQueue<Open> {
    pub(crate) fn alloc(comm: &Rc<CommInner>, window: &RmaWindow) -> Result<Self> {
        let mut queue = Self::empty(comm, comm.config.wait_timeout);
        queue.expose(window)?;
        Ok(queue)
    }

    fn empty(comm: &Rc<CommInner>, timeout: Option<Duration>) -> Self {
        Self {
            state: Open {
                comm: comm.clone(),
                windows: Vec::new(),
                puts: Vec::new(),
                origins: BTreeSet::new(),
                filled: Vec::new(),
                exposure: Exposure::Early,
                timeout,
            },
        }
    }

    /// Lets origins write another window of this rank in this queue, too.
    pub fn expose(&mut self, window: &RmaWindow) -> Result<&mut Self> {
        self.check_window("window of expose", &window.inner)?;
        if !self.state.windows.iter().any(|known| Rc::ptr_eq(known, &window.inner)) {
            self.state.windows.push(window.inner.clone());
        }
        Ok(self)
    }

    /// Adds a put to the chain. The same put may be in several queues. [`Error::Invalid`] when a window of it was freed.
    pub fn push(&mut self, put: &MsgHandle) -> Result<&mut Self> {
        self.check_window("window of push", &put.window)?;
        self.check_window("source of push", &put.source)?;
        let (asked, limit) = (self.state.puts.len() as u64 + 1, self.state.comm.backend.caps().max_chain_puts);
        if asked > limit {
            let mend = "push fewer puts, join neighboring ones with blocks, or use several queues".into();
            return Err(Error::Limit { what: "number of puts in a queue", asked, limit, mend });
        }
        self.state.puts.push(put.clone());
        Ok(self)
    }

    /// Says that `origin` will write here in every epoch; `wait` then waits for it. Adding a rank twice is adding it once.
    pub fn add_origin(&mut self, origin: impl Into<Rank>) -> Result<&mut Self> {
        let (rank, size) = (origin.into(), self.state.comm.size);
        if rank.0 >= size {
            return Err(Error::NoSuchRank { what: "origin of add_origin", rank, size });
        }
        self.state.origins.insert(rank);
        Ok(self)
    }

    /// Closes an area as if an origin wrote it: this rank itself fills it in every epoch, from the start on through
    /// [`InFlight::write_area`] or afterwards through [`Arrived::write_area`]. So who asks too early for what will be filled is refused
    /// like those who ask for what has not arrived.
    #[cfg(feature = "ndarray")]
    pub fn add_filled<T: bytemuck::Pod, const N: usize>(&mut self, area: &crate::Area<T, N>) -> Result<&mut Self> {
        self.check_window("area of add_filled", area.window())?;
        self.state.filled.push((area.window().clone(), area.bytes()));
        Ok(self)
    }

    /// Opens the received ranges to origins only from `start` to the end of what `wait` returns. In between they are ordinary
    /// memory, and queues may share them; but an origin's puts wait until this rank has started.
    pub fn expose_at_start(&mut self) -> &mut Self {
        self.state.exposure = Exposure::AtStart;
        self
    }

    /// Does without credits: an origin writes as soon as it starts, whether this rank has read the epoch before or not.
    /// All ranks of the queue must do the same.
    ///
    /// # Safety
    /// The program itself must make sure, by other means, that no origin starts an epoch before every one of its targets has
    /// dropped what `wait` returned for the epoch before, and, for the first epoch, has committed.
    #[expect(unsafe_code, reason = "declares a contract; contains no unsafe operation")]
    pub unsafe fn without_credits(&mut self) -> &mut Self {
        self.state.exposure = Exposure::Uncredited;
        self
    }

    /// The deadline of each `wait` on this queue, instead of `RMA_TIMEOUT`; `None` waits without end and reports stalls.
    pub fn timeout(&mut self, timeout: Option<Duration>) -> &mut Self {
        self.state.timeout = timeout;
        self
    }

    /// Collective over all ranks of the `Comm`: partners agree on every range, keys travel to those who will write, and the chain
    /// is built. Either it is committed on every rank, or every rank gets an error that names both sides of the disagreement:
    /// [`Error::CommitRefused`] for what does not fit together, [`Error::SetupTimeout`] and [`Error::PeerLost`] for who is missing.
    pub fn commit(self) -> Result<RmaQueue<Ready>> {
        commit::commit(self.state).map(|state| RmaQueue { state })
    }

    fn check_window(&self, what: &'static str, window: &WindowInner) -> Result<()> {
        let reason = if !Rc::ptr_eq(&window.comm, &self.state.comm) {
            format!("{} belongs to another Comm than the queue; make both on the same", window.id)
        } else if window.freed.get() {
            format!("{} was freed; declare the put on a window that is alive", window.id)
        } else {
            return Ok(());
        };
        Err(Error::Invalid { what, reason })
    }
}

impl RmaQueue<Ready> {
    /// Its id, the same on every rank.
    pub fn id(&self) -> QueueId {
        self.state.id
    }

    /// How many times it was started.
    pub fn epoch(&self) -> Epoch {
        self.state.life.get().epoch()
    }

    /// What was built at commit, for people.
    pub fn explain(&self) -> String {
        self.state.active.as_ref().map(|active| active.committed.borrow().explain()).unwrap_or_default()
    }

    /// Starts the next epoch. Never blocks: a put that lacks its target's credit goes out in `test` or `wait`.
    ///
    /// Refused, and nothing started, while a write lease of this rank is alive on what the puts read, or (exposed at start) any
    /// lease on what the origins write, or another queue that shares memory with this one is in flight.
    #[inline]
    pub fn start(&mut self) -> Result<InFlight<'_>> {
        self.state.start()?;
        Ok(InFlight::new(&mut self.state))
    }

    /// Gives back what has arrived in another queue and starts the next epoch of this one: the same as dropping `arrived` and then
    /// [`start`](Self::start), but where both queues have a partner in common, its credit and the puts to it travel as one
    /// message. For queues that take turns: a ping-pong, two buffers.
    ///
    /// ```
    /// # use rma::{Comm, Rank};
    /// # Comm::launch(2, |comm| {
    /// # let (me, other) = (comm.rank(), Rank(1 - comm.rank().0));
    /// # let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
    /// # let commit = |from: Rank| {
    /// #     let mut queue = comm.queue_alloc(&inbox)?;
    /// #     if me == from { queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, other)?)?; }
    /// #     else { queue.add_origin(other)?; }
    /// #     queue.commit()
    /// # };
    /// # let (mut ping, mut pong) = (commit(Rank(0))?, commit(Rank(1))?);
    /// # if me == Rank(0) { ping.start()?.wait()?; pong.start()?.wait()?; } else {
    /// let arrived = ping.start()?.wait()?;
    /// outbox.write::<u64>(..)?[0] = 2 * arrived.read::<u64>(&inbox, ..)?[0];
    /// pong.start_after(arrived)?.wait()?;
    /// # }
    /// # Ok::<(), rma::Error>(()) })?;
    /// # Ok::<(), rma::Error>(())
    /// ```
    #[inline]
    pub fn start_after(&mut self, arrived: Arrived<'_>) -> Result<InFlight<'_>> {
        // Another Comm has other connections, and nothing of this start goes over them.
        arrived.queue.release(Rc::ptr_eq(&arrived.queue.comm, &self.state.comm));
        if let Err(error) = self.state.start() {
            // Nothing went out that could have taken the credit along.
            arrived.queue.advance();
            return Err(error);
        }
        Ok(InFlight::new(&mut self.state))
    }

    /// Takes the queue apart and returns an empty one. Partners that wait for it get an error that says so. The ranges that they
    /// may still write stay closed to leases until they have cleared the queue, too.
    pub fn clear(self) -> RmaQueue<Open> {
        RmaQueue::empty(&self.state.comm, self.state.timeout)
    }
}

impl Ready {
    #[inline]
    fn start(&mut self) -> Result<()> {
        if self.life.get().phase() == Phase::Failed {
            return Err(self.poisoned());
        }
        let Some(active) = &self.active else { return Err(self.poisoned()) };
        let started = {
            let committed = &mut **active.committed.borrow_mut();
            claims::start(&self.parts, &self.comm.cautions, &self.life, self.id, self.exposure, committed)
        };
        started.map_err(|error| self.start_failed(error))
    }

    #[cold]
    fn start_failed(&mut self, error: Error) -> Error {
        // Refusals leave the queue as it was; an error of the backend, after the life went on, does not.
        if self.life.get().phase() == Phase::InFlight && !matches!(error, Error::QueueState { .. }) {
            return self.fail(error);
        }
        error
    }

    #[cold]
    fn poisoned(&self) -> Error {
        let (epoch, reason) = self.failure.clone().unwrap_or_else(|| (self.life.get().epoch(), "it is being cleared".into()));
        Error::Poisoned { queue: self.id, epoch, reason }
    }

    /// Remembers the first error; from here on only `clear` is left.
    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        let life = self.life.get();
        if let Ok(failed) = life.after(Call::Fail) {
            self.life.set(failed);
            self.failure.get_or_insert_with(|| (life.epoch(), error.full_text()));
        }
        error
    }

    /// The end of what `wait` returned: the next credits go out, with the start that follows at once if there is one.
    #[inline]
    fn release(&mut self, with_start: bool) {
        let Ok(ready) = self.life.get().after(Call::Release) else { return };
        self.life.set(ready);
        if self.exposure == Exposure::Early
            && let Some(active) = &self.active
        {
            let (mut committed, epoch) = (active.committed.borrow_mut(), ready.epoch().next());
            let granted = if with_start { committed.grant_with_start(epoch) } else { committed.grant(epoch) };
            drop(committed);
            if let Err(error) = granted {
                self.fail(error);
            }
        }
    }

    /// The program may use what has arrived from here on.
    #[inline]
    fn settle(&self) {
        if self.virtual_time
            && let Some(active) = &self.active
        {
            active.committed.borrow_mut().settle();
        }
    }

    /// When an epoch that is done was under way on an emulated device.
    fn virtual_span(&self) -> Option<VirtualSpan> {
        self.active.as_ref()?.committed.borrow().virtual_span()
    }

    /// Has the backend send what it holds back. Errors come up again when the queue is waited for.
    #[cold]
    fn advance(&self) {
        if let Some(active) = &self.active {
            let _ = active.committed.borrow_mut().poll(1);
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(active) = self.active.take() {
            active.committed.borrow_mut().close();
            // Exposed at start and between two epochs: no credit is out, so nobody can write any more.
            let quiet = self.exposure == Exposure::AtStart && self.life.get().phase() == Phase::Ready;
            for part in &self.parts {
                part.claim.retiring.set(!quiet);
                if quiet {
                    part.window.remove_claim(self.id);
                }
            }
            if let Ok(cleared) = self.life.get().after(Call::Clear) {
                self.life.set(cleared);
            }
            self.comm.retire(self.id, active, self.parts.iter().map(|part| part.window.clone()).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Caps, Chain, Committed, Missing, Progress, WindowMem, WindowSpec};
    use crate::bootstrap::threads;
    use crate::shm::{ShmBackend, ThreadSpace};
    use crate::{Bootstrap, Comm, Config, Deadline, Ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Shared memory that counts the credits which it was allowed to hold back.
    struct Counting(ShmBackend, Arc<AtomicU32>);

    impl Backend for Counting {
        fn caps(&self) -> &Caps {
            self.0.caps()
        }

        fn register(&self, window: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
            self.0.register(window)
        }

        fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
            Ok(Box::new(CountingCommitted(self.0.commit(chain, boot, deadline)?, self.1.clone())))
        }
    }

    struct CountingCommitted(Box<dyn Committed>, Arc<AtomicU32>);

    impl Committed for CountingCommitted {
        #[allow(unsafe_code, reason = "takes over a contract")]
        unsafe fn start(&mut self, epoch: Epoch) -> Result<()> {
            // SAFETY: the caller's promise.
            unsafe { self.0.start(epoch) }
        }

        fn poll(&mut self, rounds: u32) -> Result<Progress> {
            self.0.poll(rounds)
        }

        fn grant(&mut self, epoch: Epoch) -> Result<()> {
            self.0.grant(epoch)
        }

        fn grant_with_start(&mut self, epoch: Epoch) -> Result<()> {
            self.1.fetch_add(1, Relaxed);
            self.0.grant(epoch)
        }

        fn park(&mut self, turn: u32, limit: Duration) {
            self.0.park(turn, limit);
        }

        fn missing(&self) -> Vec<Missing> {
            self.0.missing()
        }

        fn close(&mut self) {
            self.0.close();
        }

        fn unclosed(&self) -> Vec<Rank> {
            self.0.unclosed()
        }

        fn explain(&self) -> String {
            self.0.explain()
        }
    }

    fn alone(held_back: &Arc<AtomicU32>) -> Comm {
        let config = Config::default();
        let boot: Arc<dyn Bootstrap> = Arc::new(threads::group(1).pop().unwrap());
        let shared_memory = ShmBackend::threads(&ThreadSpace::new(1), Rank(0), &config);
        Comm::over(Rc::new(Counting(shared_memory, held_back.clone())), boot, config).unwrap()
    }

    fn to_itself(comm: &Comm) -> RmaQueue<Ready> {
        let window = comm.window_alloc(16).unwrap();
        let mut queue = comm.queue_alloc(&window).unwrap();
        queue.push(&comm.declare_write(&window, 0, &window, 8, 8, 0u32).unwrap()).unwrap();
        queue.add_origin(0u32).unwrap();
        queue.commit().unwrap()
    }

    #[test]
    fn a_credit_is_held_back_only_for_a_start_on_the_same_comm() {
        let held_back = Arc::new(AtomicU32::new(0));
        let (comm, other) = (alone(&held_back), alone(&held_back));
        let (mut ping, mut pong, mut elsewhere) = (to_itself(&comm), to_itself(&comm), to_itself(&other));
        let arrived = ping.start().unwrap().wait().unwrap();
        drop(elsewhere.start_after(arrived).unwrap().wait().unwrap());
        assert_eq!(held_back.load(Relaxed), 0);
        let arrived = ping.start().unwrap().wait().unwrap();
        drop(pong.start_after(arrived).unwrap().wait().unwrap());
        assert_eq!(held_back.load(Relaxed), 1);
    }
}
