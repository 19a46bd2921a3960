//! Everything that can go wrong, with the numbers and the next thing to try.
//! Knows no backend: a backend's own cause travels as `source()`.

use crate::bootstrap::Departure;
use crate::{Epoch, QueueId, Rail, Rank, WindowId};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// The result of every call of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any cause from below: the operating system, a device, a decoder.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What went wrong.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer has gone, and this call cannot end without it.
    #[error("{rank} {} while {waiting}", departed(.how))]
    PeerLost {
        /// Who has gone.
        rank: Rank,
        /// How.
        how: Departure,
        /// What could not go on.
        waiting: String,
    },

    /// A collective call did not end in time.
    #[error(
        "{call} did not end within {:.1} s: {missing}; every rank must make the same collective calls in the same order, \
         raise RMA_SETUP_TIMEOUT if they rightly take longer", .patience.as_secs_f64()
    )]
    SetupTimeout {
        /// The call.
        call: &'static str,
        /// The patience it had.
        patience: Duration,
        /// Who or what is missing.
        missing: String,
    },

    /// Ranks made different collective calls at the same time.
    #[error(
        "{peer} is in {theirs} while {rank} is in {ours}: every rank must make the same collective calls, for the same, in the same order"
    )]
    CollectiveMismatch {
        /// This rank.
        rank: Rank,
        /// The call this rank makes.
        ours: String,
        /// Another rank.
        peer: Rank,
        /// The call that one makes.
        theirs: String,
    },

    /// A wait did not end in the time that was asked for.
    #[error("wait timed out after {:.1} s at {epoch} of {queue}: {missing}", .waited.as_secs_f64())]
    WaitTimeout {
        /// The queue.
        queue: QueueId,
        /// The epoch it is in.
        epoch: Epoch,
        /// How long the wait took.
        waited: Duration,
        /// What has not come.
        missing: String,
    },

    /// A partner cleared the queue before this epoch.
    #[error(
        "{rank} cleared or dropped {queue}{}, so {missing} cannot come; every partner must start a queue equally often, or {rank} \
         returned early: look at what it says", after(.epoch)
    )]
    PeerCleared {
        /// Who cleared it.
        rank: Rank,
        /// The queue.
        queue: QueueId,
        /// The last epoch that rank started, as far as it can be seen.
        epoch: Option<Epoch>,
        /// What will not come.
        missing: String,
    },

    /// The partners of a queue do not agree about it; nothing was committed anywhere.
    #[error("commit of {queue} refused by {rank}: {reason}")]
    CommitRefused {
        /// The queue.
        queue: QueueId,
        /// Who found the disagreement.
        rank: Rank,
        /// What disagrees, naming both sides.
        reason: String,
    },

    /// A collective call failed on a rank, so it failed on all.
    #[error("{call} failed on {rank}: {reason}")]
    CollectiveFailed {
        /// The call.
        call: &'static str,
        /// Where.
        rank: Rank,
        /// Why.
        reason: String,
    },

    /// A call that the life of a queue does not allow now.
    #[error("{queue} does not allow {call}: {reason}")]
    QueueState {
        /// The queue.
        queue: QueueId,
        /// The call.
        call: &'static str,
        /// The state it is in and the way out.
        reason: String,
    },

    /// An earlier error made the queue unusable.
    #[error("{queue} cannot be used any more since {epoch} failed ({reason}); clear it and commit anew")]
    Poisoned {
        /// The queue.
        queue: QueueId,
        /// The epoch that failed.
        epoch: Epoch,
        /// The text of the first error.
        reason: String,
    },

    /// Window memory that cannot be touched now.
    #[error("bytes {}..{} of {window} on {rank} cannot be {access} now: {reason}", .bytes.start, .bytes.end)]
    RangeBusy {
        /// This rank.
        rank: Rank,
        /// The window.
        window: WindowId,
        /// The bytes asked for.
        bytes: Range<usize>,
        /// "read", "written", ..
        access: &'static str,
        /// Who has them, and the way out.
        reason: String,
    },

    /// A range that is not inside its window.
    #[error("{what}: bytes {}..{} are not inside {window} of {rank}, which has {len_bytes} bytes", .bytes.start, .bytes.end)]
    OutOfRange {
        /// Which range.
        what: &'static str,
        /// The window.
        window: WindowId,
        /// Whose part of it.
        rank: Rank,
        /// The bytes asked for.
        bytes: Range<u128>,
        /// What there is.
        len_bytes: u64,
    },

    /// A rank that the job does not have.
    #[error("{what}: there is no {rank}, the job has {size} ranks (0 to {})", .size - 1)]
    NoSuchRank {
        /// Where it was named.
        what: &'static str,
        /// The number.
        rank: Rank,
        /// The ranks there are.
        size: u32,
    },

    /// A rail that the backend does not have.
    #[error("{what}: there is no {rail}, the {backend} backend has {rails} rails; set RMA_RAILS to have more")]
    NoSuchRail {
        /// Where it was named.
        what: &'static str,
        /// The number.
        rail: Rail,
        /// The backend.
        backend: &'static str,
        /// The rails there are.
        rails: u16,
    },

    /// An argument that cannot be used.
    #[error("{what}: {reason}")]
    Invalid {
        /// Which argument of which call.
        what: &'static str,
        /// The value, the limit and the mend.
        reason: String,
    },

    /// More than there is room for.
    #[error("{what} {asked} is over the limit of {limit}; {mend}")]
    Limit {
        /// What.
        what: &'static str,
        /// How much.
        asked: u64,
        /// How much there may be.
        limit: u64,
        /// What to do.
        mend: String,
    },

    /// A message that does not follow the protocol.
    #[error("malformed {what} from {from}: {reason}")]
    Malformed {
        /// Which message.
        what: &'static str,
        /// The sender, as far as it is known.
        from: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The environment that a launcher sets does not fit.
    #[error("{0}")]
    Launch(String),

    /// The operating system refused.
    #[error("{doing}")]
    Os {
        /// What was tried, with its numbers and the mend.
        doing: String,
        /// Its words.
        #[source]
        cause: std::io::Error,
    },

    /// A backend failed.
    #[error("{backend} backend: {doing}")]
    Backend {
        /// Which.
        backend: &'static str,
        /// What was tried, with its numbers.
        doing: String,
        /// Its cause.
        #[source]
        cause: Cause,
    },
}

/// The words, so that a program whose `main` returns an error prints what a person can use.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full_text())
    }
}

impl Error {
    /// An operating system error, with what was tried.
    pub fn os(doing: impl Into<String>, cause: impl Into<std::io::Error>) -> Self {
        Self::Os { doing: doing.into(), cause: cause.into() }
    }

    /// This error and all its causes in one line.
    pub fn full_text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(inner) = cause {
            text.push_str(&format!(": {inner}"));
            cause = inner.source();
        }
        text
    }

    /// Whether this error only follows from another rank's failure.
    pub fn is_secondary(&self) -> bool {
        matches!(self, Self::PeerLost { .. } | Self::PeerCleared { .. } | Self::CollectiveFailed { .. })
    }
}

fn after(epoch: &Option<Epoch>) -> String {
    epoch.map(|epoch| format!(" after {epoch}")).unwrap_or_default()
}

fn departed(how: &Departure) -> impl fmt::Display {
    match how {
        Departure::Died => "died",
        Departure::Left => "left the job",
    }
}
