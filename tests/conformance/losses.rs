//! Ranks that are lost in ways of their own: that panic slowly, leak what they hold, or alone take a commit for failed.
//! Owns a bootstrap and a backend that let a commit fail on one rank after all others have taken it for good.

use crate::{DEADLINE, config};
use anyhow::{bail, ensure};
use rma::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use rma::bootstrap::threads::{ThreadsBootstrap, group};
use rma::bootstrap::{Bootstrap, Departure, Messages, Objection};
use rma::shm::{ShmBackend, ThreadSpace};
use rma::{Comm, Deadline, Error, Rank, Ready, RmaQueue};
use rma_tests::check::{self, Line, refused, tests_until_refused};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// That rank 0, which does `rank_0` with the queue of a put from rank 1, is told within a second that rank 1 died, when that one
/// panics in `rank_1`, and that the panic is passed on.
#[track_caller]
fn a_death_is_told(
    rank_0: fn(&mut RmaQueue<Ready>) -> anyhow::Result<Error>,
    rank_1: fn(RmaQueue<Ready>, Line) -> anyhow::Result<Error>,
) {
    let (sender, told) = mpsc::channel();
    let sender = Mutex::new(sender);
    let ranks = std::thread::spawn(move || {
        Comm::threads_with(2, config(), |comm| {
            let line = Line::new(&comm, 1, 0)?;
            let mut queue = line.queue(&comm)?.commit()?;
            line.step(&mut queue, 1)?;
            if comm.rank().0 == 1 {
                rank_1(queue, line)?;
                bail!("rank 1 did not panic");
            }
            let begin = Instant::now();
            let error = rank_0(&mut queue);
            // The receiver is gone only when the deadline is over.
            let _ = sender.lock().unwrap_or_else(PoisonError::into_inner).send((error, begin.elapsed()));
            Ok(())
        })
    });
    let (error, took) = told.recv_timeout(DEADLINE).expect("rank 0 is told before the deadline");
    let error = error.expect("an error of the library");
    let named = matches!(error, Error::PeerLost { rank: Rank(1), how: Departure::Died, .. });
    assert!(named, "another error: {error}");
    assert!(took < Duration::from_secs(1), "told only after {took:?}: {error}");
    let panic = ranks.join().expect_err("the panic is passed on");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"an expected panic of rank 1"));
}

fn waits(queue: &mut RmaQueue<Ready>) -> anyhow::Result<Error> {
    refused(queue.start()?.wait().map(drop))
}

fn tests(queue: &mut RmaQueue<Ready>) -> anyhow::Result<Error> {
    tests_until_refused(queue.start()?)
}

fn panics(_queue: RmaQueue<Ready>, _line: Line) -> anyhow::Result<Error> {
    std::panic::panic_any("an expected panic of rank 1")
}

/// Nothing of the queue is ever dropped, so nothing closes it; only the end of the thread tells.
fn leaks_and_panics(queue: RmaQueue<Ready>, line: Line) -> anyhow::Result<Error> {
    Box::leak(Box::new((queue, line)));
    std::panic::panic_any("an expected panic of rank 1")
}

/// A part of the program that takes its time when it is dropped.
struct Slow;

impl Drop for Slow {
    fn drop(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(30) {
            std::thread::yield_now();
        }
    }
}

/// The queue is closed long before the rank is seen to have gone.
fn panics_slowly(queue: RmaQueue<Ready>, line: Line) -> anyhow::Result<Error> {
    let _slow = Slow;
    let _first = (queue, line);
    std::panic::panic_any("an expected panic of rank 1")
}

#[test]
fn a_rank_that_panics_has_died_and_not_cleared() {
    a_death_is_told(waits, panics);
    a_death_is_told(waits, panics_slowly);
}

#[test]
fn a_rank_that_panics_has_died_for_who_only_tests() {
    a_death_is_told(tests, panics);
    a_death_is_told(tests, panics_slowly);
}

#[test]
fn a_rank_that_leaks_its_queue_and_panics_is_not_waited_for() {
    a_death_is_told(waits, leaks_and_panics);
    a_death_is_told(tests, leaks_and_panics);
}

/// Says of the first agreement after a backend's commit, if it is to fail, that it came too late here.
struct Late {
    boot: ThreadsBootstrap,
    built: Arc<AtomicBool>,
}

impl Bootstrap for Late {
    fn rank(&self) -> Rank {
        self.boot.rank()
    }

    fn size(&self) -> u32 {
        self.boot.size()
    }

    fn allgather(&self, mine: &[u8], deadline: Deadline) -> rma::Result<Vec<Vec<u8>>> {
        self.boot.allgather(mine, deadline)
    }

    fn exchange(&self, outgoing: Messages, deadline: Deadline) -> rma::Result<Messages> {
        self.boot.exchange(outgoing, deadline)
    }

    fn agree(&self, objection: Option<String>, deadline: Deadline) -> rma::Result<Option<Objection>> {
        let agreed = self.boot.agree(objection, deadline)?;
        if self.built.swap(false, Ordering::Relaxed) {
            let missing = "the plan of this test says so".into();
            return Err(Error::SetupTimeout { call: "commit", patience: deadline.patience(), missing });
        }
        Ok(agreed)
    }

    fn departed(&self) -> Vec<(Rank, Departure)> {
        self.boot.departed()
    }
}

/// Notes, once it is armed, that a commit was built.
struct Building {
    shm: ShmBackend,
    armed: Arc<AtomicBool>,
    built: Arc<AtomicBool>,
}

impl Backend for Building {
    fn caps(&self) -> &Caps {
        self.shm.caps()
    }

    fn admit(&self, window: &WindowSpec<'_>) -> rma::Result<()> {
        self.shm.admit(window)
    }

    fn register(&self, window: &WindowSpec<'_>) -> rma::Result<Rc<dyn WindowMem>> {
        self.shm.register(window)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> rma::Result<Box<dyn Committed>> {
        let committed = self.shm.commit(chain, boot, deadline);
        self.built.store(self.armed.swap(false, Ordering::Relaxed), Ordering::Relaxed);
        committed
    }
}

/// The last step of a commit comes too late on one rank, and all others take the queue for committed: they are told that the rank has
/// no such queue as soon as they wait for it.
fn fails_on_one_rank(comm: &Comm, armed: &AtomicBool) -> anyhow::Result<()> {
    let (origin, target) = (0, comm.size() - 1);
    for late in [origin, target] {
        let line = Line::new(comm, origin, target)?;
        let queue = line.queue(comm)?;
        armed.store(comm.rank().0 == late, Ordering::Relaxed);
        let committed = queue.commit();
        if comm.rank().0 == late {
            let error = refused(committed)?;
            ensure!(matches!(error, Error::SetupTimeout { .. }), "another error: {error}");
        } else if comm.rank().0 == origin || comm.rank().0 == target {
            let error = refused(committed?.start()?.wait().map(drop))?;
            ensure!(matches!(error, Error::PeerCleared { rank, .. } if rank == Rank(late)), "another error: {error}");
        } else {
            committed?;
        }
        check::everything_still_works(comm)?;
    }
    Ok(())
}

#[test]
fn a_commit_that_fails_on_one_rank_alone_is_closed_to_the_others() {
    const SIZE: u32 = 3;
    let (done, finished) = mpsc::channel();
    let space = ThreadSpace::new(SIZE);
    for boot in group(SIZE) {
        let (done, space) = (done.clone(), space.clone());
        std::thread::spawn(move || {
            let (rank, armed, built) = (boot.rank(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let backend =
                Building { shm: ShmBackend::threads(&space, rank, &config()), armed: armed.clone(), built: built.clone() };
            // SAFETY: the library's own backend and bootstrap under wrappers that change nothing but one result, into an error that
            // every bootstrap may give; used through this Comm alone.
            #[expect(unsafe_code, reason = "a rank that fails where no other does has to be put together by hand")]
            let comm = unsafe { Comm::new(Rc::new(backend), Arc::new(Late { boot, built }), config()) };
            let outcome = comm.map_err(anyhow::Error::from).and_then(|comm| fails_on_one_rank(&comm, &armed));
            // The receiver is gone only when the test has failed.
            let _ = done.send((rank, outcome));
        });
    }
    for _ in 0..SIZE {
        let (rank, outcome) = finished.recv_timeout(DEADLINE).expect("every rank is over before the deadline");
        outcome.unwrap_or_else(|error| panic!("{rank}: {error:#}"));
    }
}
