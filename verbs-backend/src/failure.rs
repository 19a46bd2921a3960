//! Why a connection broke, in words: what the device said, the likely cause, and what to try.

use rma::{Epoch, Error, QueueId, Rail, Rank};
use std::time::Instant;

/// The end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// When it was seen.
    pub(crate) at: Instant,
    pub(crate) cause: Breakdown,
}

/// What ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breakdown {
    /// A request that ended with this status of `ibv_wc_status`.
    #[error("{} (status {status}, vendor code {vendor:#x}): {}", name(*status), likely(*status))]
    Completion { status: u32, vendor: u32 },
    /// A call that posts was refused.
    #[error("{call} was refused with error {number}: the device has ended the connection or is out of resources")]
    Post { call: &'static str, number: i32 },
    /// A notice that does not follow from those before.
    #[error(
        "a notice out of turn (immediate data {0:#010x}): ranks run different versions of the program, or a device wrote nonsense"
    )]
    Nonsense(u32),
    /// Ended by this side, because the peer has gone.
    #[error("the peer has gone")]
    Severed,
}

const WR_FLUSH: u32 = 5;
const REMOTE_INVALID: u32 = 9;
const REMOTE_ACCESS: u32 = 10;
const REMOTE_OPERATION: u32 = 11;
const RETRY_EXCEEDED: u32 = 12;
const RNR_RETRY_EXCEEDED: u32 = 13;

impl Breakdown {
    /// Whether it may be only the trace of a peer that died, of which the bootstrap will tell. The system takes the newest objects of
    /// a dead process away first: a window made after the first commit goes before the queue pairs, and a write to it is refused.
    pub(crate) fn may_be_a_death(self) -> bool {
        match self {
            Self::Severed => true,
            Self::Completion { status, .. } => {
                matches!(status, WR_FLUSH | REMOTE_INVALID | REMOTE_ACCESS | REMOTE_OPERATION | RETRY_EXCEEDED)
            }
            Self::Post { .. } | Self::Nonsense(_) => false,
        }
    }

    /// Whether another completion of the same connection may say more.
    pub(crate) fn is_vague(self) -> bool {
        matches!(self, Self::Completion { status: WR_FLUSH, .. })
    }
}

/// The names of the specification.
fn name(status: u32) -> &'static str {
    match status {
        1 => "local length error",
        2 => "local queue pair operation error",
        4 => "local protection error",
        WR_FLUSH => "work request flushed",
        7 => "bad response",
        8 => "local access error",
        REMOTE_INVALID => "remote invalid request",
        REMOTE_ACCESS => "remote access error",
        REMOTE_OPERATION => "remote operation error",
        RETRY_EXCEEDED => "transport retry counter exceeded",
        RNR_RETRY_EXCEEDED => "receiver-not-ready retry counter exceeded",
        16 => "remote aborted",
        19 => "fatal error of the device",
        20 => "response timeout",
        _ => "error of the device",
    }
}

fn likely(status: u32) -> &'static str {
    match status {
        2 => {
            "this device could not send: its link or network interface went down or lost its route; look at `rdma link`, `ip link` \
             and `ip route` here"
        }
        4 | 8 => "the source is not registered here any more, or was unmapped",
        WR_FLUSH => "the peer ended the connection after an error of its own, or died; its output says which",
        REMOTE_INVALID | REMOTE_ACCESS => {
            "the peer's device refused the write: the key or the range is none of its windows'; a window was freed while \
                   others write it, or the ranks run different programs"
        }
        REMOTE_OPERATION => "the peer's device could not carry the write out",
        RETRY_EXCEEDED => {
            "the peer's device did not answer: its machine or process is gone, the link or a switch is down or loses much, or the \
             MTU of the path is too small; look at `rdma link` and `rma info` on both sides, and raise RMA_VERBS_TIMEOUT for slow \
             networks"
        }
        RNR_RETRY_EXCEEDED => {
            "the peer had no receive posted: a queue without credits ran ahead of its target; raise RMA_VERBS_RECEIVES there, or \
             set RMA_VERBS_RNR_RETRIES=7"
        }
        _ => "see the system log of both machines",
    }
}

/// The error for a queue that cannot go on.
pub(crate) fn error(breakdown: Breakdown, peer: Rank, rail: Rail, device: &str, queue: QueueId, epoch: Epoch) -> Error {
    Error::Backend {
        backend: crate::NAME,
        doing: format!("the connection with {peer} on {rail} ({device}) broke with {queue} at {epoch}"),
        cause: Box::new(breakdown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_refused_by_a_window_that_has_just_gone_may_be_the_trace_of_a_death() {
        let may = |status| Breakdown::Completion { status, vendor: 0 }.may_be_a_death();
        for status in [WR_FLUSH, REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION, RETRY_EXCEEDED] {
            assert!(may(status), "{}", name(status));
        }
        for status in [1, 2, 4, 8, RNR_RETRY_EXCEEDED] {
            assert!(!may(status), "{}", name(status));
        }
    }
}
