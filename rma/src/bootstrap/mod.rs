//! How ranks find each other and agree, off the hot path: set-up, commit, free.
//! Owns the trait every bootstrap implements. Knows no windows, no queues and no backend.
//!
//! # Contract
//! * A rank makes at most one collective call at a time, and all ranks make the same collective calls in the same order. A rank
//!   that makes another one gets, and causes, an error that names both calls; nobody hangs.
//! * Every collective call ends by its [`Deadline`]: with [`Error::SetupTimeout`] that names a missing
//!   rank, or, well before it, with [`Error::PeerLost`] when a rank the call cannot do without has gone.
//! * [`exchange`](Bootstrap::exchange) costs what a rank's own messages cost plus a logarithm of the ranks, never a message to
//!   every rank.
//! * What arrives is checked before it is used: a malformed or foreign message is refused and named, never trusted or panicked on.

#[cfg(test)]
mod contract;
mod conversation;
mod failure;
mod idle;
pub mod tcp;
pub mod threads;

pub use conversation::conversation;
pub use idle::while_waiting;
pub(crate) use idle::{Flights, move_on};

use crate::config::Place;
use crate::shm::inherit;
use crate::{Config, Deadline, Error, Purpose, Rank, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Whether this process has taken its place in a job.
static JOINED: AtomicBool = AtomicBool::new(false);

/// What came of it.
static JOB: OnceLock<Weak<tcp::TcpBootstrap>> = OnceLock::new();

/// Takes the place in a job of processes that [`Config::from_env`] found, over the listener that `rma run` left for rank 0 if it
/// did. What a backend makes its `Comm` of. A process can join one job, once.
pub fn join(place: &Place, config: &Config) -> Result<Arc<dyn Bootstrap>> {
    config.check()?;
    if JOINED.swap(true, Ordering::Relaxed) {
        return Err(Error::Launch("this process has joined its job already; make one Comm and use it for everything".into()));
    }
    let deadline = Deadline::after(config.setup_timeout).of(Purpose::SetUp);
    let joined = inherit::listener(place).and_then(|listener| tcp::TcpBootstrap::join(place, listener, deadline));
    idle::end();
    let joined = Arc::new(joined?);
    JOB.get_or_init(|| Arc::downgrade(&joined));
    Ok(joined)
}

/// If this process is still in its job, tells the others that it has died, as its end would: for who keeps the process, at its end,
/// waiting for those who wait for it.
pub fn leave() {
    if let Some(joined) = JOB.get().and_then(Weak::upgrade) {
        joined.give_up();
    }
}

/// Why a rank is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It ended without saying so: killed, crashed or panicked. Or nothing was heard of its machine for seconds.
    Died,
    /// It gave its `Comm` up in good order.
    Left,
}

/// A rank's reason for not agreeing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    /// Who objects.
    pub rank: Rank,
    /// Its words.
    pub reason: String,
}

/// Collective: what came of `call` on this rank, if it came to something on all ranks; else this rank's own error, or what the lowest
/// objecting rank says.
pub fn all_or_none<T>(boot: &dyn Bootstrap, call: &'static str, mine: Result<T>, deadline: Deadline) -> Result<T> {
    let objection = boot.agree(mine.as_ref().err().map(Error::full_text), deadline);
    // The own error says more than that the others could not be told of it.
    let mine = mine?;
    match objection? {
        None => Ok(mine),
        Some(Objection { rank, reason }) => Err(Error::CollectiveFailed { call, rank, reason }),
    }
}

/// Collective: an error on every rank unless all want the same of `call`. `mine` is what this rank wants, item by item, no item of two
/// lines; the error names the first item in which another rank differs.
pub fn all_alike(boot: &dyn Bootstrap, call: &str, mine: &[String], deadline: Deadline) -> Result<()> {
    let wish = [&[call.to_owned()], mine].concat().join("\n");
    let ours: Vec<_> = wish.lines().collect();
    for (peer, said) in (0..).map(Rank).zip(boot.allgather(wish.as_bytes(), deadline)?) {
        let said = String::from_utf8_lossy(&said);
        let theirs: Vec<_> = said.lines().collect();
        let differs = (0..ours.len().max(theirs.len())).find(|&item| ours.get(item) != theirs.get(item));
        if let Some(item) = differs {
            let say = |items: &[&str]| match (item, items.get(item).copied()) {
                (0, other) => other.unwrap_or_default().to_owned(),
                (_, wish) => format!("{call} with {}", wish.unwrap_or("nothing more")),
            };
            return Err(Error::CollectiveMismatch { rank: boot.rank(), ours: say(&ours), peer, theirs: say(&theirs) });
        }
    }
    Ok(())
}

/// Messages together with the rank at their other end.
pub type Messages = Vec<(Rank, Vec<u8>)>;

/// Set-up communication between the ranks of a job. See the module for the contract.
pub trait Bootstrap: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// How many ranks the job has.
    fn size(&self) -> u32;

    /// Collective: every rank's `mine`, in rank order.
    fn allgather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>>;

    /// Collective, sparse: delivers each message (at most one a rank; to oneself is allowed) and returns those that the others
    /// addressed to this rank, sorted by sender. A rank need not know who will write to it.
    fn exchange(&self, outgoing: Messages, deadline: Deadline) -> Result<Messages>;

    /// Collective: `None` everywhere when no rank objects, else the objection of the lowest objecting rank, the same everywhere.
    fn agree(&self, objection: Option<String>, deadline: Deadline) -> Result<Option<Objection>>;

    /// Collective: returns once every rank has called it.
    fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.agree(None, deadline).map(|_| ())
    }

    /// The ranks known to have gone, in rank order. Does not block; looks at the network, so not for the hot path.
    fn departed(&self) -> Vec<(Rank, Departure)>;
}
