//! The runner: an exchange of messages as committed queues that are started again and again.
//! Owns what a program says of an exchange and what it may do with it; how ranks agree is in `commit`, what flies in `flight`.

mod agreement;
mod commit;
mod explain;
mod flight;
mod probe;
mod rounds;
mod times;

pub use flight::{Arrived, Flight};
pub use probe::probe;

use crate::cut::{Cut, Stepping};
use crate::model::Machine;
use crate::schedule::Schedule;
use explain::Plan;
use flight::Flying;
use rma::{Comm, Epoch, MsgHandle, Rank, Result, RmaQueue, RmaWindow};
use rounds::Rounds;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;
use times::Times;

/// An exchange of messages that fills every rail. [`Open`]: messages and origins are added. [`Ready`]: committed, to be started.
///
/// ```
/// use rma::Comm;
/// use rma_algorithms::Exchange;
///
/// # fn main() -> rma::Result<()> {
/// Comm::launch(2, |comm| {
///     let other = 1 - comm.rank().0;
///     let (outbox, inbox) = (comm.window_alloc(64)?, comm.window_alloc(64)?);
///     let message = comm.declare_write(&inbox, 0, &outbox, 0, 64, other)?;
///     let mut exchange = Exchange::new(&comm, &inbox).message([&message]).origin(other).commit()?;
///     outbox.write::<u64>(..)?.fill(comm.rank().0.into());
///     let arrived = exchange.start()?.wait()?;
///     assert_eq!(arrived.read::<u64>(&inbox, ..)?[..], [u64::from(other); 8]);
///     Ok::<(), rma::Error>(())
/// })
/// # }
/// ```
/// The states are types, so what cannot be does not compile:
///
/// ```compile_fail,E0599
/// # fn f(mut exchange: rma_algorithms::Exchange<rma_algorithms::Open<'_>>) {
/// exchange.start(); // not committed
/// # }
/// ```
/// ```compile_fail,E0599
/// # fn f(exchange: rma_algorithms::Exchange<rma_algorithms::Ready>) {
/// exchange.origin(1u32); // committed already
/// # }
/// ```
/// ```compile_fail,E0499
/// # fn f(mut exchange: rma_algorithms::Exchange<rma_algorithms::Ready>) -> rma::Result<()> {
/// let first = exchange.start()?;
/// let second = exchange.start()?; // the first is in flight
/// first.wait()?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0499
/// # fn f(mut exchange: rma_algorithms::Exchange<rma_algorithms::Ready>) -> rma::Result<()> {
/// let arrived = exchange.start()?.wait()?;
/// exchange.start()?.wait()?; // what has arrived is still being read
/// drop(arrived);
/// # Ok(()) }
/// ```
/// ```compile_fail,E0505
/// # fn f(mut exchange: rma_algorithms::Exchange<rma_algorithms::Ready>) -> rma::Result<()> {
/// let flight = exchange.start()?;
/// drop(exchange); // in flight
/// flight.wait()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Exchange<State> {
    state: State,
}

/// Tells a queue of an area, whatever the type of its elements.
type Filled<'c> = Box<dyn Fn(&mut RmaQueue<rma::Open>) -> Result<()> + 'c>;

/// The state of an exchange to which messages and origins are added.
pub struct Open<'c> {
    comm: &'c Comm,
    windows: Vec<&'c RmaWindow>,
    /// The puts of each message.
    messages: Vec<Vec<MsgHandle>>,
    origins: BTreeSet<Rank>,
    filled: Vec<Filled<'c>>,
    cut: Cut,
    stepping: Stepping,
    rails: Option<u16>,
    machine: Option<Machine>,
    exposed_at_start: bool,
    /// `None` leaves it to the options in force.
    timeout: Option<Option<Duration>>,
}

/// The state of an exchange that was committed. Dropping it is as [`RmaQueue::clear`].
#[derive(Debug)]
pub struct Ready {
    queues: Queues,
    schedule: Schedule,
    plan: Plan,
    times: Times,
}

impl fmt::Debug for Open<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, origins, cut, stepping, .. } = self;
        f.debug_struct("Open")
            .field("messages", messages)
            .field("origins", origins)
            .field("cut", cut)
            .field("stepping", stepping)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Queues {
    Streamed(RmaQueue<rma::Ready>),
    Fenced(Rounds),
}

impl<'c> Exchange<Open<'c>> {
    /// An exchange without messages. `window` is what others will write here; further ones are added with [`expose`](Self::expose).
    ///
    /// What is wrong with what is added here is an error of [`commit`](Self::commit), on every rank.
    pub fn new(comm: &'c Comm, window: &'c RmaWindow) -> Self {
        Self {
            state: Open {
                comm,
                windows: vec![window],
                messages: Vec::new(),
                origins: BTreeSet::new(),
                filled: Vec::new(),
                cut: Cut::default(),
                stepping: Stepping::default(),
                rails: None,
                machine: None,
                exposed_at_start: false,
                timeout: None,
            },
        }
    }

    /// Lets origins write another window of this rank, too.
    pub fn expose(mut self, window: &'c RmaWindow) -> Self {
        self.state.windows.push(window);
        self
    }

    /// Adds a message: one put or more to the same target, their bytes one after the other. There may be any number of messages to a
    /// rank, also to this one. The rails are those of the schedule, whatever the puts say.
    pub fn message<'m>(mut self, puts: impl IntoIterator<Item = &'m MsgHandle>) -> Self {
        self.state.messages.push(puts.into_iter().cloned().collect());
        self
    }

    /// Says that `origin` has at least one message for this rank. Adding a rank twice is adding it once.
    pub fn origin(mut self, origin: impl Into<Rank>) -> Self {
        self.state.origins.insert(origin.into());
        self
    }

    /// Closes an area as if an origin wrote it, in every round: this rank itself fills it in every epoch, through [`Flight::write_area`] or
    /// [`Arrived::write_area`], as in [`RmaQueue::add_filled`].
    #[cfg(feature = "ndarray")]
    pub fn filled<T: rma::Pod, const N: usize>(mut self, area: &'c rma::Area<T, N>) -> Self {
        self.state.filled.push(Box::new(|queue| queue.add_filled(area).map(drop)));
        self
    }

    /// How the messages are cut, the same on every rank; without it [`Cut::Auto`].
    pub fn cut(mut self, cut: Cut) -> Self {
        self.state.cut = cut;
        self
    }

    /// How the rounds follow each other, the same on every rank; without it [`Stepping::Streamed`].
    pub fn stepping(mut self, stepping: Stepping) -> Self {
        self.state.stepping = stepping;
        self
    }

    /// Over how many rails, the same on every rank; without it all that the backend has.
    pub fn rails(mut self, rails: u16) -> Self {
        self.state.rails = Some(rails);
        self
    }

    /// What [`Cut::Auto`] reckons with, on every rank; without it that is measured at commit, by [`probe`].
    pub fn machine(mut self, machine: Machine) -> Self {
        self.state.machine = Some(machine);
        self
    }

    /// Opens the received ranges to origins only from `start` to the end of what `wait` returns, as
    /// [`RmaQueue::expose_at_start`] does. A fenced exchange always does so.
    pub fn expose_at_start(mut self) -> Self {
        self.state.exposed_at_start = true;
        self
    }

    /// The deadline of each wait, of a round if it is fenced, instead of `RMA_TIMEOUT`; `None` waits without end and reports stalls.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.state.timeout = Some(timeout);
        self
    }

    /// Collective over all ranks of the `Comm`: the cut is chosen, the same on every rank, and the queues are committed. Either on every
    /// rank, or every rank gets an error.
    pub fn commit(self) -> Result<Exchange<Ready>> {
        commit::commit(&self.state).map(|state| Exchange { state })
    }
}

impl Exchange<Ready> {
    /// Starts the next epoch, or its first round; never blocks. What [`RmaQueue::start`] refuses is refused.
    ///
    /// Until the flight is over, nothing that it sends may be written. In a streamed exchange that is refused; in a fenced one only what
    /// the present round sends, and a write lease that is alive when a later round begins makes the exchange unusable.
    #[inline]
    pub fn start(&mut self) -> Result<Flight<'_>> {
        let Ready { queues, times, .. } = &mut self.state;
        let stopwatch = times.begin();
        let flying = match queues {
            Queues::Streamed(queue) => Flying::Streamed(queue.start()?),
            Queues::Fenced(rounds) => Flying::Fenced(rounds.start()?),
        };
        Ok(Flight::new(flying, stopwatch))
    }

    /// How many times it was started.
    pub fn epoch(&self) -> Epoch {
        match &self.state.queues {
            Queues::Streamed(queue) => queue.epoch(),
            Queues::Fenced(rounds) => rounds.epoch(),
        }
    }

    /// How the messages are cut: what was asked for, or what [`Cut::Auto`] came to.
    pub fn cut(&self) -> Cut {
        self.state.plan.cut
    }

    /// How the rounds follow each other.
    pub fn stepping(&self) -> Stepping {
        self.state.plan.stepping
    }

    /// What this rank sends in which round and, if it is fenced, whom each round waits for.
    pub fn schedule(&self) -> &Schedule {
        &self.state.schedule
    }

    /// What the times were predicted with, if they were.
    pub fn machine(&self) -> Option<Machine> {
        self.state.plan.forecast.as_ref().map(|forecast| forecast.machine)
    }

    /// What was built at commit, why, and what it takes, for people.
    pub fn explain(&self) -> String {
        let Ready { plan, schedule, times, queues } = &self.state;
        let of_queues = match queues {
            Queues::Streamed(queue) => queue.explain(),
            Queues::Fenced(rounds) => rounds.explain(),
        };
        explain::explain(plan, schedule, times) + &of_queues
    }
}
