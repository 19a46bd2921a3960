//! Leases: the only way from a program to the memory of its window, checked at run time.
//! Owns the list of live leases and the typed slices; knows no queue beyond the claims it left here.

use super::claims::Claim;
use super::extent::Extent;
use super::{RmaWindow, WindowInner};
use crate::lifecycle::Phase;
use crate::{Error, QueueId, Rank, Result};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::ptr::NonNull;
use std::rc::Rc;

#[derive(Debug)]
struct Lease {
    id: u64,
    extent: Extent,
    writes: bool,
}

/// Who uses what of one window of this rank.
#[derive(Debug, Default)]
pub(crate) struct Access {
    leases: Vec<Lease>,
    /// Wide enough never to come around.
    next_lease: u64,
    pub(super) claims: Vec<Rc<Claim>>,
}

/// Why a range cannot be had.
pub(super) enum Busy {
    /// It may be free once the partners of a cleared queue have cleared it too.
    Retiring(String),
    /// Only the program itself can change that.
    Held(String),
}

impl Access {
    pub(super) fn blocker(&self, extent: &Extent, writes: bool, exempt: Option<QueueId>) -> Option<Busy> {
        for claim in &self.claims {
            let mine = Some(claim.queue) == exempt;
            if !mine && claim.is_exposed() && extent.incoming_of(claim).is_some() {
                let queue = claim.queue;
                return Some(if claim.retiring.get() {
                    Busy::Retiring(format!("partners that have not cleared {queue} yet may still write it; clear it on every rank"))
                } else {
                    Busy::Held(match claim.life.get().phase() {
                        Phase::Failed => format!("origins of {queue}, which has failed, may still write it; clear the queue"),
                        _ => format!("origins of {queue} may write it; use what its wait returns, or clear the queue"),
                    })
                });
            }
            if writes && claim.is_reading() && extent.sources_of(claim).is_some() {
                return Some(Busy::Held(format!("puts of {} in flight read it; wait first", claim.queue)));
            }
        }
        let lease = self.leases.iter().find(|lease| (writes || lease.writes) && extent.overlaps(&lease.extent))?;
        Some(Busy::Held(format!(
            "a {} lease on {} is alive; drop it first",
            if lease.writes { "write" } else { "read" },
            lease.extent
        )))
    }

    /// What stands against starting the queue of `claim`: the bytes and the reason.
    pub(super) fn start_blocker(&self, claim: &Claim) -> Option<(Range<u64>, String)> {
        for lease in &self.leases {
            let sources = if lease.writes { lease.extent.sources_of(claim) } else { None };
            if let Some(bytes) = sources.or_else(|| lease.extent.incoming_of(claim)) {
                let kind = if lease.writes { "write" } else { "read" };
                return Some((bytes, format!("a {kind} lease is alive; drop it before starting {}", claim.queue)));
            }
        }
        for rival in self.claims.iter().filter(|rival| rival.queue != claim.queue) {
            // Sets are compared only where it matters: most rivals are at rest.
            let written = || claim.incoming.overlap_set(&rival.incoming).or_else(|| claim.sources.overlap_set(&rival.incoming));
            let read = || claim.incoming.overlap_set(&rival.sources);
            let written = if rival.is_exposed() { written() } else { None };
            let bytes = written.or_else(|| if rival.is_reading() { read() } else { None });
            if let Some(bytes) = bytes {
                let (rival, queue) = (rival, claim.queue);
                return Some(if rival.retiring.get() {
                    let rival = rival.queue;
                    (
                        bytes,
                        format!(
                            "partners that have not cleared {rival} yet may still write them; clear it there before starting {queue}"
                        ),
                    )
                } else {
                    (bytes, format!("{} is in flight on them; finish it before starting {queue}", rival.queue))
                });
            }
        }
        None
    }

    /// Whether a lease is alive on any of the bytes that origins of `claim` will write.
    pub(super) fn leased_incoming(&self, claim: &Claim) -> Option<Range<u64>> {
        self.leases.iter().find_map(|lease| lease.extent.incoming_of(claim))
    }

    fn add(&mut self, extent: Extent, writes: bool) -> u64 {
        let id = self.next_lease;
        self.next_lease += 1;
        self.leases.push(Lease { id, extent, writes });
        id
    }

    fn remove(&mut self, id: u64) {
        if let Some(at) = self.leases.iter().position(|lease| lease.id == id) {
            self.leases.swap_remove(at);
        }
    }
}

/// Elements of a window that may be read. Give it up by dropping it.
#[derive(Debug)]
pub struct ReadLease<'a, T> {
    /// Gives the lease up when it is dropped.
    _held: Held<'a>,
    first: NonNull<T>,
    len: usize,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a window that may be read and written. Give it up by dropping it.
#[derive(Debug)]
pub struct WriteLease<'a, T> {
    /// Gives the lease up when it is dropped.
    _held: Held<'a>,
    first: NonNull<T>,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

/// Keeps a lease until it is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    window: &'a WindowInner,
    id: u64,
}

impl<'a> Held<'a> {
    /// Waits for the extent to be free, or says what stands against it.
    pub(super) fn on(window: &'a WindowInner, extent: Extent, writes: bool, exempt: Option<QueueId>) -> Result<Self> {
        window.wait_for_access(&extent, writes, exempt)?;
        let id = window.access.borrow_mut().add(extent, writes);
        window.comm.cautions.set(window.comm.cautions.get() + 1);
        Ok(Self { window, id })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.window.access.borrow_mut().remove(self.id);
        self.window.comm.cautions.set(self.window.comm.cautions.get() - 1);
    }
}

impl<T: Pod> Deref for ReadLease<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `acquire` checked the range, the alignment and that nobody writes these bytes while `_held` lives; any bit
        // pattern is a T (Pod); the window's memory outlives the borrow in `_held`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Pod> Deref for WriteLease<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as for a read lease; only this lease gives access to these bytes while `_held` lives.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for WriteLease<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes this the only slice of the only lease.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl RmaWindow {
    /// Elements that may be read, over a range of bytes of this rank's part; `..` is all of it.
    ///
    /// Refused with the reason while origins may write some of them, or a write lease on them is alive. Exposed ranges are read
    /// through what `wait` returns. On ranges of a queue that this rank has cleared, waits until its partners have cleared it,
    /// too, for at most the deadline of collective calls.
    pub fn read<T: Pod>(&self, bytes: impl RangeBounds<usize>) -> Result<ReadLease<'_, T>> {
        read(&self.inner, bytes, None)
    }

    /// Elements that may be read and written, over a range of bytes of this rank's part; `..` is all of it.
    ///
    /// Refused with the reason while origins may write some of them, puts in flight read them, or another lease on them is alive. Waits
    /// for partners that have not cleared a queue yet as [`read`](Self::read) does.
    pub fn write<T: Pod>(&self, bytes: impl RangeBounds<usize>) -> Result<WriteLease<'_, T>> {
        write(&self.inner, bytes, None)
    }
}

/// A read lease to which `exempt`'s own exposure is no hindrance.
pub(crate) fn read<'a, T: Pod>(
    window: &'a WindowInner,
    bytes: impl RangeBounds<usize>,
    exempt: Option<QueueId>,
) -> Result<ReadLease<'a, T>> {
    let (held, first, len) = acquire::<T>(window, bytes, false, exempt)?;
    Ok(ReadLease { _held: held, first, len, elements: PhantomData })
}

/// A write lease to which `exempt`'s own exposure is no hindrance.
pub(crate) fn write<'a, T: Pod>(
    window: &'a WindowInner,
    bytes: impl RangeBounds<usize>,
    exempt: Option<QueueId>,
) -> Result<WriteLease<'a, T>> {
    let (held, first, len) = acquire::<T>(window, bytes, true, exempt)?;
    Ok(WriteLease { _held: held, first, len, elements: PhantomData })
}

fn acquire<'a, T: Pod>(
    window: &'a WindowInner,
    bytes: impl RangeBounds<usize>,
    writes: bool,
    exempt: Option<QueueId>,
) -> Result<(Held<'a>, NonNull<T>, usize)> {
    let bytes = resolve(window, bytes)?;
    let element_bytes = size_of::<T>();
    let len_bytes = bytes.end - bytes.start;
    // Inside the window's memory, as `resolve` checked; wrapping only so that no unsafe is needed for arithmetic.
    let first = window.mem.base().as_ptr().wrapping_add(bytes.start).cast::<T>();
    if element_bytes == 0 || !len_bytes.is_multiple_of(element_bytes) || !first.is_aligned() {
        return Err(Error::Invalid {
            what: "lease",
            reason: format!(
                "bytes {}..{} are not whole {}s: begin at a multiple of {} bytes of memory and take a multiple of {} bytes",
                bytes.start,
                bytes.end,
                std::any::type_name::<T>(),
                align_of::<T>(),
                element_bytes.max(1)
            ),
        });
    }
    let Some(first) = NonNull::new(first) else { panic!("bug: a window at address 0") };
    let held = Held::on(window, Extent::range(bytes.start as u64..bytes.end as u64), writes, exempt)?;
    Ok((held, first, len_bytes / element_bytes))
}

/// A range of bytes with its ends filled in, inside the window.
fn resolve(window: &WindowInner, bytes: impl RangeBounds<usize>) -> Result<Range<usize>> {
    let len_bytes = window.mem.len_bytes();
    let start = match bytes.start_bound() {
        Bound::Included(&start) => start as u128,
        Bound::Excluded(&before) => before as u128 + 1,
        Bound::Unbounded => 0,
    };
    let end = match bytes.end_bound() {
        Bound::Included(&last) => last as u128 + 1,
        Bound::Excluded(&end) => end as u128,
        Bound::Unbounded => len_bytes as u128,
    };
    if start > end {
        let reason = format!("bytes {start}..{end} of {} end before they begin; give the smaller number first", window.id);
        return Err(Error::Invalid { what: "range of a lease", reason });
    }
    if end > len_bytes as u128 {
        let rank: Rank = window.comm.rank;
        return Err(Error::OutOfRange { what: "lease", window: window.id, rank, bytes: start..end, len_bytes: len_bytes as u64 });
    }
    Ok(start as usize..end as usize)
}
