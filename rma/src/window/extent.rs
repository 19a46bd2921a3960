//! The bytes that a lease covers: one range, or the rows of an area.
//! Owns the memory of which queues and areas an area touches, as comparing thousands of rows at every lease would cost too much.

use super::claims::Claim;
use crate::QueueId;
use crate::layout::RangeSet;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// How many answers an area remembers at most.
const REMEMBERED: usize = 64;

/// The bytes of a lease, in a window that both sides of every comparison are in.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    /// From the first byte to behind the last.
    bounds: Range<u64>,
    /// Which of them, if not all.
    rows: Option<Rc<Rows>>,
}

/// The bytes of an area.
#[derive(Debug)]
struct Rows {
    set: RangeSet,
    queues: RefCell<Vec<(QueueId, Touched)>>,
    /// Other areas, by an address that none gets again while it is remembered here, and whether they share a byte.
    areas: RefCell<Vec<(Weak<Rows>, bool)>>,
}

/// The first bytes that an area shares with a claim.
#[derive(Clone, Debug)]
struct Touched {
    incoming: Option<Range<u64>>,
    sources: Option<Range<u64>>,
    /// Whether no origin writes any of it.
    is_filled: bool,
}

impl Extent {
    pub(super) fn range(bytes: Range<u64>) -> Self {
        Self { bounds: bytes, rows: None }
    }

    #[cfg_attr(not(feature = "ndarray"), expect(dead_code, reason = "areas come with ndarray"))]
    pub(super) fn rows(set: RangeSet) -> Self {
        let bounds = set.bounds();
        Self { bounds, rows: Some(Rc::new(Rows { set, queues: RefCell::default(), areas: RefCell::default() })) }
    }

    /// From the first byte to behind the last.
    pub(super) fn bounds(&self) -> Range<u64> {
        self.bounds.clone()
    }

    /// The first bytes of it that origins of a claim write.
    pub(super) fn incoming_of(&self, claim: &Claim) -> Option<Range<u64>> {
        match &self.rows {
            None => claim.incoming.overlap(&self.bounds),
            Some(rows) => rows.touched(claim).incoming,
        }
    }

    /// The first bytes of it that puts of a claim read.
    pub(super) fn sources_of(&self, claim: &Claim) -> Option<Range<u64>> {
        match &self.rows {
            None => claim.sources.overlap(&self.bounds),
            Some(rows) => rows.touched(claim).sources,
        }
    }

    /// Whether the program itself fills all of it in every epoch of a claim's queue.
    #[cfg_attr(not(feature = "ndarray"), expect(dead_code, reason = "only areas are filled"))]
    pub(super) fn is_filled_in(&self, claim: &Claim) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.touched(claim).is_filled)
    }

    /// The bytes of an area.
    #[cfg_attr(not(feature = "ndarray"), expect(dead_code, reason = "areas come with ndarray"))]
    pub(super) fn set(&self) -> RangeSet {
        self.rows.as_ref().map(|rows| rows.set.clone()).unwrap_or_else(|| std::iter::once(self.bounds.clone()).collect())
    }

    /// Whether the two share a byte.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        if self.bounds.start.max(other.bounds.start) >= self.bounds.end.min(other.bounds.end) {
            return false;
        }
        match (&self.rows, &other.rows) {
            (None, None) => true,
            (Some(rows), None) => rows.set.overlap(&other.bounds).is_some(),
            (None, Some(rows)) => rows.set.overlap(&self.bounds).is_some(),
            (Some(mine), Some(theirs)) => mine.shares_with(theirs),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = if self.rows.is_some() { "an area in " } else { "" };
        write!(f, "{rows}bytes {}..{}", self.bounds.start, self.bounds.end)
    }
}

impl Rows {
    fn touched(&self, claim: &Claim) -> Touched {
        let mut known = self.queues.borrow_mut();
        if let Some((_, touched)) = known.iter().find(|(queue, _)| *queue == claim.queue) {
            return touched.clone();
        }
        // Neither the claim of a queue nor its number ever changes.
        let touched = Touched {
            incoming: self.set.overlap_set(&claim.incoming),
            sources: self.set.overlap_set(&claim.sources),
            is_filled: self.set.is_within(&claim.filled),
        };
        remember(&mut known, (claim.queue, touched.clone()));
        touched
    }

    fn shares_with(self: &Rc<Self>, other: &Rc<Self>) -> bool {
        if Rc::ptr_eq(self, other) {
            return true;
        }
        let mut known = self.areas.borrow_mut();
        if let Some((_, shares)) = known.iter().find(|(area, _)| area.as_ptr() == Rc::as_ptr(other)) {
            return *shares;
        }
        let shares = self.set.overlap_set(&other.set).is_some();
        remember(&mut known, (Rc::downgrade(other), shares));
        shares
    }
}

fn remember<T>(known: &mut Vec<T>, answer: T) {
    if known.len() >= REMEMBERED {
        known.clear();
    }
    known.push(answer);
}
