//! Why a group of ranks stopped working, and how each rank is told: the same words from every bootstrap.
//! Owns the kinds of collective calls and the checks of their arguments. Knows no transport and no clock.

use super::{Departure, Messages};
use crate::{Deadline, Error, Purpose, Rank, Result};

/// The kinds of collective calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Allgather,
    Exchange,
    Agree,
    Barrier,
}

/// A collective call: its kind, and what it is for. Ranks whose calls differ in either do different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) purpose: Purpose,
}

impl Call {
    /// The name by which the program knows it.
    pub(super) const fn name(self) -> &'static str {
        match (self.purpose, self.kind) {
            (Purpose::SetUp, _) => "the making of its Comm",
            (Purpose::WindowAlloc, _) => "window_alloc",
            (Purpose::Commit, _) => "commit",
            (Purpose::Free, _) => "free",
            (Purpose::Barrier, _) => "barrier",
            (Purpose::Program, Kind::Allgather) => "allgather",
            (Purpose::Program, Kind::Exchange) => "exchange",
            (Purpose::Program, Kind::Agree) => "agree",
            (Purpose::Program, Kind::Barrier) => "barrier",
        }
    }
}

impl Kind {
    /// A call of this kind under a deadline.
    pub(super) const fn of(self, purpose: Purpose) -> Call {
        Call { kind: self, purpose }
    }
}

/// The first failure of a group. It ends the running call of every rank, and all later ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The number of the call that failed.
    pub(super) seq: u64,
    /// Who noticed.
    pub(super) rank: Rank,
    pub(super) why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A rank that the call needs has gone.
    Lost { rank: Rank, how: Departure },
    /// Two ranks, and what each of them called.
    Mismatch { one: (Rank, Call), other: (Rank, Call) },
    /// A rank sent what the protocol does not allow.
    Malformed { from: Rank, reason: String },
    /// Anything else, in words.
    Other { call: Call, reason: String },
}

impl Failure {
    /// What `me` gets for its call `ours`, the call number `seq`.
    pub(super) fn error(&self, me: Rank, ours: Call, seq: u64) -> Error {
        match &self.why {
            Why::Lost { rank, how } => {
                Error::PeerLost { rank: *rank, how: *how, waiting: format!("{me} is in {}, which needs every rank", ours.name()) }
            }
            Why::Mismatch { one, other } if seq == self.seq => {
                // They differ from each other, so at least one of them differs from ours.
                let (peer, theirs) = if other.1 == ours { one } else { other };
                mismatch(me, ours, *peer, *theirs)
            }
            Why::Mismatch { one, other } => {
                let first = mismatch(one.0, one.1, other.0, other.1);
                Error::CollectiveFailed { call: ours.name(), rank: self.rank, reason: format!("an earlier call failed: {first}") }
            }
            Why::Malformed { from, reason } => {
                Error::Malformed { what: "frame of the bootstrap", from: from.to_string(), reason: reason.clone() }
            }
            Why::Other { call, reason } if seq == self.seq && *call == ours => {
                Error::CollectiveFailed { call: ours.name(), rank: self.rank, reason: reason.clone() }
            }
            Why::Other { call, reason } => {
                let reason = format!("its call of {} failed: {reason}", call.name());
                Error::CollectiveFailed { call: ours.name(), rank: self.rank, reason }
            }
        }
    }
}

fn mismatch(rank: Rank, ours: Call, peer: Rank, theirs: Call) -> Error {
    Error::CollectiveMismatch { rank, ours: ours.name().into(), peer, theirs: theirs.name().into() }
}

/// The error of a call whose deadline is over.
pub(super) fn timeout(call: Call, deadline: Deadline, missing: String) -> Error {
    Error::SetupTimeout { call: call.name(), patience: deadline.patience(), missing }
}

/// "rank 1, rank 2 and 5 more": names the first few of many.
pub(super) fn list_ranks(ranks: impl IntoIterator<Item = Rank>) -> String {
    const NAMED: usize = 8;
    let mut ranks = ranks.into_iter();
    let named: Vec<_> = ranks.by_ref().take(NAMED).map(|rank| rank.to_string()).collect();
    match ranks.count() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Refuses messages to ranks that do not exist and second messages to one rank.
pub(super) fn check_outgoing(size: u32, outgoing: &Messages) -> Result<()> {
    let mut targets: Vec<_> = outgoing.iter().map(|(rank, _)| *rank).collect();
    targets.sort_unstable();
    if let Some(&rank) = targets.iter().find(|rank| rank.0 >= size) {
        return Err(Error::NoSuchRank { what: "target of exchange", rank, size });
    }
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Error::Invalid {
            what: "outgoing of exchange",
            reason: format!("several messages to {}; put what it shall get into one", pair[0]),
        }),
    }
}
