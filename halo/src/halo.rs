//! The exchange of ghosts: committed once, then started and waited for.
//! Owns the queues and the copies around them; what goes where is in `plan`.

use crate::agreement::agree;
use crate::copies::{BoxCopy, CopyPlan, Side};
use crate::decomposition::{Decomposition, Direction};
use crate::explain;
use crate::field::{Field, Parts, describe};
use crate::plan::{FieldPlan, Mode, Outline, Packing, Phase};
use crate::verify::Saved;
use ndarray::{Dim, Dimension};
use rma::bootstrap::all_or_none;
use rma::{Area, Comm, Deadline, Error, MsgHandle, Pod, Rank, ReadArea, Result, RmaWindow, WriteArea};
use rma_algorithms::{Cut, Exchange, Flight, Ready};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// What an exchange needs of a field, whatever its elements are.
pub(crate) trait AnyField<const N: usize> {
    fn plan(&self) -> FieldPlan<N>;
    fn decomposition(&self) -> &Decomposition<N>;
    fn window(&self) -> &RmaWindow;
    fn copy(&self, plan: CopyPlan<'_, N>, twin: Option<CopyPlan<'_, N>>) -> Result<Box<dyn BoxCopy>>;
    fn may_be_marked(&self, exposed_at_start: bool) -> Result<()>;
    fn mark(&self, arrived: &Arrived<'_>, number: usize, rank: Rank) -> Result<Saved>;
    fn put_back(&self, arrived: &Arrived<'_>, saved: &Saved) -> Result<()>;
    fn check(&self, arrived: &Arrived<'_>, number: usize, rank: Rank, mode: Mode, saved: &Saved) -> Result<()>;
}

impl<T: Pod, const N: usize> AnyField<N> for Parts<T, N>
where
    Dim<[usize; N]>: Dimension,
{
    fn plan(&self) -> FieldPlan<N> {
        FieldPlan::of::<T>(self.layout)
    }

    fn decomposition(&self) -> &Decomposition<N> {
        &self.decomposition
    }

    fn window(&self) -> &RmaWindow {
        &self.window
    }

    fn copy(&self, plan: CopyPlan<'_, N>, twin: Option<CopyPlan<'_, N>>) -> Result<Box<dyn BoxCopy>> {
        Parts::copy(self, plan, twin)
    }

    fn may_be_marked(&self, exposed_at_start: bool) -> Result<()> {
        Parts::may_be_marked(self, exposed_at_start)
    }

    fn put_back(&self, arrived: &Arrived<'_>, saved: &Saved) -> Result<()> {
        Parts::put_back(self, arrived, saved)
    }

    fn mark(&self, arrived: &Arrived<'_>, number: usize, rank: Rank) -> Result<Saved> {
        Parts::mark(self, arrived, number, rank)
    }

    fn check(&self, arrived: &Arrived<'_>, number: usize, rank: Rank, mode: Mode, saved: &Saved) -> Result<()> {
        Parts::check(self, arrived, number, rank, mode, saved)
    }
}

/// What a [`Halo`] is to exchange, and how.
pub struct HaloBuilder<'c, const N: usize> {
    comm: &'c Comm,
    fields: Vec<Rc<dyn AnyField<N>>>,
    mode: Mode,
    packing: Packing,
    cut: Cut,
    expose_at_start: bool,
    timeout: Option<Option<Duration>>,
}

/// An exchange of the ghosts of one or several fields, committed once and then started again and again: after the `wait` of an epoch every
/// ghost point holds what its owner had at the `start`.
pub struct Halo<const N: usize> {
    phases: Vec<Committed>,
    fields: Vec<Rc<dyn AnyField<N>>>,
    mode: Mode,
    exposed_at_start: bool,
    outline: String,
    /// Why no further epoch can be started: one was left between two phases, and neighbors wait in the later one.
    stuck: Option<String>,
}

impl<const N: usize> fmt::Debug for HaloBuilder<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HaloBuilder({} fields, {:?}, {:?})", self.fields.len(), self.mode, self.packing)
    }
}

impl<const N: usize> fmt::Debug for Halo<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Halo({} fields, {:?}, {} phases)", self.fields.len(), self.mode, self.phases.len())
    }
}

impl fmt::Debug for InFlight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({} phases to come)", self.rest.len())
    }
}

/// A phase, ready to be started.
struct Committed {
    exchange: Exchange<Ready>,
    gathers: Vec<Box<dyn BoxCopy>>,
    wraps: Vec<Box<dyn BoxCopy>>,
    landings: Vec<Box<dyn BoxCopy>>,
}

/// An exchange under way. Dropping it without `wait` makes the exchange unusable.
#[must_use = "an exchange that was started must be waited for"]
pub struct InFlight<'h> {
    /// `None` when there is nothing to exchange.
    now: Option<Flying<'h>>,
    rest: &'h mut [Committed],
    stuck: &'h mut Option<String>,
}

struct Flying<'h> {
    flight: Flight<'h>,
    landings: &'h [Box<dyn BoxCopy>],
}

/// An exchange that is complete: ghosts may be read until this is dropped.
#[must_use = "ghosts are reached through this"]
#[derive(Debug)]
pub struct Arrived<'h> {
    /// `None` when there was nothing to exchange.
    last: Option<rma_algorithms::Arrived<'h>>,
}

impl<const N: usize> Halo<N> {
    /// An exchange over the ranks of a `Comm`; fields are added, then it is committed.
    pub fn of(comm: &Comm) -> HaloBuilder<'_, N> {
        let (mode, packing, cut) = (Mode::default(), Packing::default(), Cut::default());
        HaloBuilder { comm, fields: Vec::new(), mode, packing, cut, expose_at_start: false, timeout: None }
    }

    /// Starts the next epoch. Never blocks. Until the `wait` the owned points of the fields may be read, and their
    /// [interior](Field::interior) written.
    ///
    /// Refused, and nothing started, while the program writes what is to be sent.
    pub fn start(&mut self) -> Result<InFlight<'_>> {
        refuse_if(&self.stuck)?;
        let (now, rest) = match self.phases.split_first_mut() {
            Some((first, rest)) => (Some(first.start()?), rest),
            None => (None, Default::default()),
        };
        Ok(InFlight { now, rest, stuck: &mut self.stuck })
    }

    /// Collective: proves the exchange. Marks every point of all fields with what says where it belongs, exchanges, looks at every point,
    /// ghosts that are to be filled and ghosts that are not, and puts back what the owned points held.
    ///
    /// [`Error::Invalid`] on a rank with wrong points names the first, [`Error::CollectiveFailed`] says so on the others.
    /// Refused on every rank while a lease on any point of the fields is alive.
    pub fn verify(&mut self, comm: &Comm) -> Result<()> {
        let (fields, rank, mode) = (self.fields.clone(), comm.rank(), self.mode);
        let all_or_none = |mine| all_or_none(comm.bootstrap(), "verify", mine, Deadline::after(comm.config().setup_timeout));
        // A rank that cannot go on would leave the others waiting.
        all_or_none(fields.iter().try_for_each(|field| field.may_be_marked(self.exposed_at_start)))?;
        let arrived = self.start()?.wait()?;
        let mut saved = Vec::new();
        let marked = (0..).zip(&fields).try_for_each(|(number, field)| {
            saved.push(field.mark(&arrived, number, rank)?);
            Ok(())
        });
        if let Err(error) = all_or_none(marked) {
            fields.iter().zip(&saved).try_for_each(|(field, saved)| field.put_back(&arrived, saved))?;
            return Err(error);
        }
        drop(arrived);
        let arrived = self.start()?.wait()?;
        let checks = fields.iter().zip(&saved).enumerate();
        // All of them, as each puts back what stood in its field.
        let results: Vec<_> = checks.map(|(number, (field, saved))| field.check(&arrived, number, rank, mode, saved)).collect();
        drop(arrived);
        all_or_none(results.into_iter().collect())
    }

    /// What was built at commit, for people: who gets what, in which way.
    pub fn explain(&self) -> String {
        let exchanges = self.phases.iter().map(|phase| phase.exchange.explain());
        std::iter::once(self.outline.clone()).chain(exchanges).collect::<Vec<_>>().join("\n")
    }
}

impl<const N: usize> HaloBuilder<'_, N> {
    /// Adds a field: all fields travel together, in one message to each neighbor.
    pub fn field<T: Pod>(mut self, field: &Field<T, N>) -> Self
    where
        Dim<[usize; N]>: Dimension,
    {
        self.fields.push(field.parts.clone());
        self
    }

    /// Which ghosts are filled; without it those beside faces.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How ghosts that lie scattered are filled; without it as is faster.
    pub fn packing(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    /// How messages are cut over several rails; without it as is predicted to be fastest.
    pub fn cut(mut self, cut: Cut) -> Self {
        self.cut = cut;
        self
    }

    /// Opens ghosts to neighbors only from `start` to the end of what `wait` returns, so that they are ordinary memory in between and
    /// several exchanges may fill the same ones; but a neighbor's points wait until this rank has started, too.
    pub fn expose_at_start(mut self) -> Self {
        self.expose_at_start = true;
        self
    }

    /// The deadline of each `wait`, instead of `RMA_TIMEOUT`; `None` waits without end.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Collective over all ranks of the `Comm`: builds the exchange.
    ///
    /// [`Error::CollectiveMismatch`] when ranks ask for different ones, [`Error::Invalid`] when there is no field or fields are spread
    /// over the ranks in different ways.
    pub fn commit(self) -> Result<Halo<N>> {
        let checked = self.check();
        let outline = agree(self.comm, "halo", checked, |fields| self.describe(fields))?;
        let Some(decomposition) = self.fields.first().map(|field| field.decomposition()) else { unreachable!("bug: no field") };
        let (mode, packing, gathers_freely) = (self.mode, self.packing, self.comm.caps().gathers_freely);
        let outline = Outline { decomposition, fields: &outline, mode, packing, gathers_freely };
        let plan = outline.plan(self.comm.rank());
        let (landing, outbox) = (self.comm.window_alloc(plan.landing_bytes)?, self.comm.window_alloc(plan.outbox_bytes)?);
        let at_start = self.expose_at_start || plan.phases.len() > 1;
        let phases =
            plan.phases.iter().map(|phase| self.commit_phase(phase, &landing, &outbox, at_start)).collect::<Result<_>>()?;
        let outline = explain::outline(&outline, self.comm.rank(), &plan);
        Ok(Halo { phases, mode, exposed_at_start: at_start, outline, fields: self.fields, stuck: None })
    }

    fn check(&self) -> Result<Vec<FieldPlan<N>>> {
        let Some(first) = self.fields.first() else {
            return Err(invalid("there is no field to exchange; add one before the commit".into()));
        };
        let other = self.fields.iter().position(|field| field.decomposition() != first.decomposition());
        if let Some(other) = other {
            return Err(invalid(format!(
                "fields 0 and {other} are spread over the ranks in different ways; make them of one decomposition, or use two exchanges"
            )));
        }
        // A put of nothing, as whoever has nothing to send would not notice that a window is of another Comm.
        let nothing = |window| self.comm.declare_write(window, 0, window, 0, 0, self.comm.rank()).map(drop);
        self.fields.iter().try_for_each(|field| nothing(field.window()))?;
        let is_again = |at: &usize| self.fields[..*at].iter().any(|field| Rc::ptr_eq(field, &self.fields[*at]));
        if let Some(again) = (0..self.fields.len()).find(is_again) {
            return Err(invalid(format!("field {again} is there already; add each field once")));
        }
        Ok(self.fields.iter().map(|field| field.plan()).collect())
    }

    fn describe(&self, fields: &[FieldPlan<N>]) -> Vec<String> {
        let mut lines = vec![format!("mode {:?}", self.mode), format!("packing {:?}", self.packing)];
        lines.push(format!("{} fields", fields.len()));
        for (number, (field, plan)) in self.fields.iter().zip(fields).enumerate() {
            lines.extend(describe(field.decomposition(), plan).into_iter().map(|line| format!("field {number} with {line}")));
            // Of fields that look alike, the packed ghosts of one would be taken for those of another.
            lines.push(format!("field {number} in {}", field.window().id()));
        }
        lines
    }

    fn commit_phase(&self, phase: &Phase<N>, landing: &RmaWindow, outbox: &RmaWindow, at_start: bool) -> Result<Committed> {
        let mut messages: Vec<(Direction<N>, Vec<MsgHandle>)> = Vec::new();
        for send in &phase.sends {
            let field = self.fields[send.field].window();
            let (source, target) =
                (if send.gather.is_some() { outbox } else { field }, if send.is_packed { landing } else { field });
            let puts = send.puts.iter().map(|put| {
                let message = self.comm.declare_write(target, put.to, source, put.from, put.block, send.to_rank)?;
                message.blocks(put.count, put.from_stride, put.to_stride)
            });
            let puts = puts.collect::<Result<Vec<_>>>()?;
            match messages.last_mut() {
                Some((direction, message)) if *direction == send.direction => message.extend(puts),
                _ => messages.push((send.direction, puts)),
            }
        }
        let gathers = phase.sends.iter().filter_map(|send| {
            let (from, offset_bytes) = send.gather?;
            let (len, from, to) = (from.len, Side::Field(from), Side::Packed(outbox, offset_bytes));
            Some((send.field, CopyPlan { len, from, to }))
        });
        let wraps = phase.wraps.iter().map(|wrap| {
            let (len, from, to) = (wrap.to.len, Side::Field(wrap.from), Side::Field(wrap.to));
            (wrap.field, CopyPlan { len, from, to })
        });
        let landings = phase.landings.iter().map(|landed| {
            let (len, from, to) = (landed.ghost.len, Side::Packed(landing, landed.offset_bytes), Side::Field(landed.ghost));
            (landed.field, CopyPlan { len, from, to })
        });
        let (gathers, wraps, landings) =
            (self.copies(gathers.collect())?, self.copies(wraps.collect())?, self.copies(landings.collect())?);

        let mut exchange = Exchange::new(self.comm, landing).cut(self.cut);
        for field in &self.fields {
            exchange = exchange.expose(field.window());
        }
        for (_, puts) in &messages {
            exchange = exchange.message(puts);
        }
        for &origin in &phase.origins {
            exchange = exchange.origin(origin);
        }
        for copy in wraps.iter().chain(&landings) {
            exchange = copy.add_to(exchange);
        }
        if at_start {
            exchange = exchange.expose_at_start();
        }
        if let Some(timeout) = self.timeout {
            exchange = exchange.timeout(timeout);
        }
        Ok(Committed { exchange: exchange.commit()?, gathers, wraps, landings })
    }

    /// Copies of boxes of fields, two of one shape together where there are.
    fn copies(&self, mut plans: Vec<(usize, CopyPlan<'_, N>)>) -> Result<Vec<Box<dyn BoxCopy>>> {
        let mut copies = Vec::new();
        while let Some((field, plan)) = plans.pop() {
            let twin = plans.iter().position(|(other, twin)| (*other, twin.len) == (field, plan.len)).map(|at| plans.remove(at).1);
            copies.push(self.fields[field].copy(plan, twin)?);
        }
        Ok(copies)
    }
}

fn invalid(reason: String) -> Error {
    Error::Invalid { what: "halo", reason }
}

impl Committed {
    fn start(&mut self) -> Result<Flying<'_>> {
        // Before the start, as it cannot be taken back: without a neighbor the queue itself reads nothing.
        self.wraps.iter().try_for_each(|wrap| wrap.check())?;
        self.gathers.iter().try_for_each(|gather| gather.gather())?;
        let flight = self.exchange.start()?;
        self.wraps.iter().try_for_each(|wrap| wrap.wrap(&flight))?;
        Ok(Flying { flight, landings: &self.landings })
    }
}

impl<'h> Flying<'h> {
    fn wait(self) -> Result<rma_algorithms::Arrived<'h>> {
        let arrived = self.flight.wait()?;
        self.landings.iter().try_for_each(|landing| landing.unpack(&arrived))?;
        Ok(arrived)
    }
}

impl<'h> InFlight<'h> {
    /// Looks once, and moves on what can be: whether a `wait` would return at once.
    pub fn test(&mut self) -> Result<bool> {
        self.check()?;
        while let Some(flying) = &mut self.now {
            if !flying.flight.test()? {
                return Ok(false);
            }
            if self.rest.is_empty() {
                return Ok(true);
            }
            self.next()?;
        }
        Ok(true)
    }

    /// Waits until this rank's points have gone out and every ghost is filled. An error makes the exchange unusable.
    pub fn wait(mut self) -> Result<Arrived<'h>> {
        self.check()?;
        while !self.rest.is_empty() {
            self.next()?;
        }
        let last = self.now.take().map(Flying::wait).transpose()?;
        *self.stuck = None;
        Ok(Arrived { last })
    }

    /// Waits for a phase and starts the one behind it. After an error there is nothing more to wait for.
    fn next(&mut self) -> Result<()> {
        let (now, rest) = (self.now.take(), std::mem::take(&mut self.rest));
        let over = now.map_or(Ok(()), |flying| flying.wait().map(drop));
        let Some((next, rest)) = rest.split_first_mut() else { return over };
        let started = over.and_then(|()| next.start());
        let left = |_: &_| "an epoch was left before it was complete; wait for every flight".into();
        *self.stuck = Some(started.as_ref().map_or_else(Error::full_text, left));
        (self.now, self.rest) = (Some(started?), rest);
        Ok(())
    }

    /// Nobody may take ghosts for filled because an error was overlooked.
    fn check(&self) -> Result<()> {
        if self.now.is_none() { refuse_if(self.stuck) } else { Ok(()) }
    }
}

fn refuse_if(stuck: &Option<String>) -> Result<()> {
    match stuck {
        None => Ok(()),
        Some(reason) => Err(Error::Invalid { what: "exchange that failed", reason: reason.clone() }),
    }
}

impl Arrived<'_> {
    /// All points of a field, ghosts included, to read.
    pub fn padded<'a, T: Pod, const N: usize>(&'a self, field: &'a Field<T, N>) -> Result<ReadArea<'a, T, N>> {
        let padded = &field.parts.padded;
        self.last.as_ref().map_or_else(|| padded.read(), |arrived| arrived.read_area(padded))
    }

    pub(crate) fn write_area<'a, T: Pod, const N: usize>(&'a self, area: &'a Area<T, N>) -> Result<WriteArea<'a, T, N>> {
        self.last.as_ref().map_or_else(|| area.write(), |arrived| arrived.write_area(area))
    }

    /// The same to read and write.
    pub fn padded_mut<'a, T: Pod, const N: usize>(&'a self, field: &'a Field<T, N>) -> Result<WriteArea<'a, T, N>> {
        self.write_area(&field.parts.padded)
    }
}
