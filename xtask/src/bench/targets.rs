//! What `rma` is meant to reach: a ratio to a peer, by benchmark and size. Plain data.

use super::contenders::Group;
use super::rounds::Label;

/// The most that ours may take, over what the peer takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) peer: Peer,
    pub(super) ratio: f64,
}

/// Whom a target compares with. Of several that fit, the one with the lowest median over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The best of this library's ways.
    BestOf(&'static str),
    /// This way of whatever library.
    Way(&'static str),
    /// The best of all peers; a floor is none.
    Best,
    /// What the machine takes for the bytes alone.
    Floor,
}

/// What is asked of this benchmark at this size.
pub(super) fn targets(group: &Group, bytes: u64) -> Vec<Target> {
    let of = |peer, ratio| Target { peer, ratio };
    let (peer, ratio) = match (group.bench, group.ranks, bytes) {
        ("array", ..) => return vec![of(Peer::Way("persistent"), 0.6), of(Peer::Floor, 3.0)],
        _ if group.mpi.is_some() => (Peer::Way("pscw"), 1.05),
        ("put", 2, 8 | 1024 | 4096) => (Peer::BestOf("openshmem"), 0.75),
        ("put", 2, 65_536) => (Peer::BestOf("openshmem"), 0.9),
        ("put", 2, 1_048_576) => (Peer::Best, 1.0),
        ("halo", 2, 1024) => (Peer::BestOf("openmpi"), 0.6),
        ("halo", 2, 4096) => (Peer::BestOf("openmpi"), 0.7),
        ("halo", 2, 16_384) => (Peer::BestOf("openmpi"), 0.8),
        ("halo", 2, 65_536) => (Peer::BestOf("openmpi"), 0.9),
        ("halo", 8, _) => (Peer::BestOf("openmpi"), 0.6),
        _ => return Vec::new(),
    };
    vec![of(peer, ratio)]
}

impl Peer {
    pub(super) fn fits(self, label: &Label) -> bool {
        match self {
            Self::BestOf(name) => label.is_peer() && label.backend == name,
            Self::Way(mode) => label.is_peer() && label.mode == mode,
            Self::Best => label.is_peer(),
            Self::Floor => label.is_floor(),
        }
    }
}
