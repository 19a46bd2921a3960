//! An epoch under way, and an epoch that has arrived.
//! Owns what may be touched when; the waiting itself is in `wait`.

use super::Ready;
use crate::lifecycle::Call;
use crate::window::WindowInner;
#[cfg(feature = "ndarray")]
use crate::window::area::{Area, ReadArea, WriteArea};
use crate::window::leases::{self, ReadLease, WriteLease};
use crate::{Epoch, Error, Result, RmaWindow, VirtualSpan};
use bytemuck::Pod;
use std::ops::RangeBounds;
use std::rc::Rc;

/// A started epoch. Dropping it without `wait` makes the queue unusable, for its memory may still be read and written.
///
/// A flight that is not used is a warning, and with warnings denied an error:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # fn f(mut queue: rma::RmaQueue<rma::Ready>) -> rma::Result<()> {
/// queue.start()?;
/// # Ok(()) }
/// ```
#[must_use = "an epoch that was started must be waited for"]
#[derive(Debug)]
pub struct InFlight<'q> {
    /// `None` once `wait` has taken over.
    queue: Option<&'q mut Ready>,
    done: bool,
}

/// An epoch that has arrived: the received ranges may be read until this is dropped, which grants the next credits.
///
/// What is read from it cannot outlive it:
///
/// ```compile_fail,E0505
/// # fn f(arrived: rma::Arrived<'_>, window: &rma::RmaWindow) -> rma::Result<f64> {
/// let ghosts = arrived.read::<f64>(window, ..)?;
/// drop(arrived); // the origins may write again
/// Ok(ghosts[0])
/// # }
/// ```
#[derive(Debug)]
pub struct Arrived<'q> {
    pub(super) queue: &'q mut Ready,
}

impl<'q> InFlight<'q> {
    #[inline]
    pub(super) fn new(queue: &'q mut Ready) -> Self {
        Self { queue: Some(queue), done: false }
    }

    /// Looks once, and moves on what waited for credit: whether a `wait` would return at once.
    pub fn test(&mut self) -> Result<bool> {
        if !self.done
            && let Some(queue) = &mut self.queue
        {
            self.done = queue.test()?;
        }
        Ok(self.done)
    }

    /// Waits until this rank's puts are complete and every origin's have arrived. An error makes the queue unusable:
    /// [`Error::PeerLost`], [`Error::PeerCleared`], or, if a deadline was asked for, [`Error::WaitTimeout`].
    #[inline]
    pub fn wait(mut self) -> Result<Arrived<'q>> {
        let Some(queue) = self.queue.take() else { unreachable!("bug: a flight without a queue") };
        if !self.done {
            queue.wait()?;
        }
        // Here and not in `test`: that may see the end in one run and not in the next, with the same things done in between.
        queue.settle();
        if let Ok(arrived) = queue.life.get().after(Call::Arrive) {
            queue.life.set(arrived);
        }
        Ok(Arrived { queue })
    }
}

impl InFlight<'_> {
    /// The elements of an area that this rank itself fills in every epoch ([`RmaQueue::add_filled`](crate::RmaQueue::add_filled)), to
    /// read and write while the others' are on their way.
    #[cfg(feature = "ndarray")]
    pub fn write_area<'a, T: Pod, const N: usize>(&'a self, area: &'a Area<T, N>) -> Result<WriteArea<'a, T, N>> {
        let Some(queue) = &self.queue else { unreachable!("bug: a flight without a queue") };
        queue.check_window(area.window())?;
        area.fill(queue.id)
    }

    /// When the epoch was under way on an emulated device, once [`test`](Self::test) has said that it is complete. The clock stays where it
    /// is until the `wait`. `None` on a backend without a [virtual clock](crate::Comm::virtual_now).
    pub fn virtual_span(&self) -> Option<VirtualSpan> {
        self.queue.as_ref().filter(|_| self.done)?.virtual_span()
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.abandon();
        }
    }
}

impl Ready {
    fn check_window(&self, window: &WindowInner) -> Result<()> {
        if Rc::ptr_eq(&window.comm, &self.comm) {
            return Ok(());
        }
        let reason = format!("{} belongs to another Comm than {}", window.id, self.id);
        Err(Error::Invalid { what: "window of a lease", reason })
    }

    #[cold]
    fn abandon(&mut self) {
        let epoch = self.life.get().epoch();
        let reason = format!("the flight of {epoch} was dropped; wait for every flight");
        self.fail(Error::QueueState { queue: self.id, call: "leaving a flight without a wait", reason });
    }
}

impl Arrived<'_> {
    /// The epoch that has arrived.
    pub fn epoch(&self) -> Epoch {
        self.queue.life.get().epoch()
    }

    /// When the epoch was under way on an emulated device. `None` on a backend without a
    /// [virtual clock](crate::Comm::virtual_now).
    pub fn virtual_span(&self) -> Option<VirtualSpan> {
        self.queue.virtual_span()
    }

    /// Elements that may be read, over a range of bytes of this rank's part of `window`: received ranges of this queue, and
    /// whatever else no other queue or lease stands against.
    pub fn read<'a, T: Pod>(&'a self, window: &'a RmaWindow, bytes: impl RangeBounds<usize>) -> Result<ReadLease<'a, T>> {
        self.queue.check_window(&window.inner)?;
        leases::read(&window.inner, bytes, Some(self.queue.id))
    }

    /// The same to read and write.
    pub fn write<'a, T: Pod>(&'a self, window: &'a RmaWindow, bytes: impl RangeBounds<usize>) -> Result<WriteLease<'a, T>> {
        self.queue.check_window(&window.inner)?;
        leases::write(&window.inner, bytes, Some(self.queue.id))
    }

    /// The elements of an area, to read: received ones of this queue, and whatever else no other queue or lease stands against.
    #[cfg(feature = "ndarray")]
    pub fn read_area<'a, T: Pod, const N: usize>(&'a self, area: &'a Area<T, N>) -> Result<ReadArea<'a, T, N>> {
        self.queue.check_window(area.window())?;
        area.read_exempt(Some(self.queue.id))
    }

    /// The same to read and write.
    #[cfg(feature = "ndarray")]
    pub fn write_area<'a, T: Pod, const N: usize>(&'a self, area: &'a Area<T, N>) -> Result<WriteArea<'a, T, N>> {
        self.queue.check_window(area.window())?;
        area.write_exempt(Some(self.queue.id))
    }
}

impl Drop for Arrived<'_> {
    #[inline]
    fn drop(&mut self) {
        // Without effect after `start_after`, which has released it.
        self.queue.release(false);
    }
}
