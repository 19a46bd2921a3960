//! Which of a port's addresses to use for a peer: a score for every pair of own and peer's address.
//! Pure, and the same seen from both sides, so that each side chooses what the other does.

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt;
use std::net::Ipv6Addr;

/// How an address travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kind {
    /// In InfiniBand packets.
    InfiniBand,
    /// In Ethernet frames, not routed.
    RoceV1,
    /// In UDP packets.
    RoceV2,
}

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) address: [u8; 16],
    pub(crate) kind: Kind,
    /// How many bits of the address are its network's; `None` where the host has no such address.
    pub(crate) prefix_bits: Option<u8>,
}

/// A prefix where nothing else is known: what most networks use.
const USUAL_BITS_V4: u8 = 96 + 24;
const USUAL_BITS_V6: u8 = 64;

impl Gid {
    fn ip(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.address)
    }

    fn is_v4(&self) -> bool {
        self.ip().to_ipv4_mapped().is_some()
    }

    /// Whether it is meant for one link only.
    pub(crate) fn is_link_local(&self) -> bool {
        self.ip().to_ipv4_mapped().map_or((self.ip().segments()[0] & 0xffc0) == 0xfe80, |v4| v4.is_link_local())
    }

    /// Whether both are of one network.
    fn shares_subnet(&self, other: &Self) -> bool {
        let usual = if self.is_v4() { USUAL_BITS_V4 } else { USUAL_BITS_V6 };
        let bits = self.prefix_bits.max(other.prefix_bits).unwrap_or(usual).min(128);
        let network = |gid: &Self| gid.ip().to_bits().checked_shr(128 - u32::from(bits)).unwrap_or(0);
        network(self) == network(other)
    }

    fn is_set(&self) -> bool {
        // An InfiniBand table holds a default prefix with no interface behind it where nothing is set.
        self.address[8..] != [0; 8]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, kind, .. } = self;
        match self.ip().to_ipv4_mapped() {
            Some(v4) => write!(f, "{v4} (GID {index}, {kind})"),
            None => write!(f, "{} (GID {index}, {kind})", self.ip()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// The own address and the peer's to use together; `None` if no two can reach each other. RoCE v2 before v1, routable before
/// link-local, one network before two, IPv4 before IPv6, low entries before high ones.
pub(crate) fn choose(mine: &[Gid], theirs: &[Gid]) -> Option<(Gid, Gid)> {
    let pairs = mine.iter().flat_map(|own| theirs.iter().map(move |peer| (*own, *peer)));
    pairs.filter(|(own, peer)| can_talk(own, peer)).max_by_key(|(own, peer)| {
        let routable = !own.is_link_local() && !peer.is_link_local();
        // Symmetric to the last, so that both sides end ties alike.
        let low_first = Reverse((own.index + peer.index, own.address.min(peer.address), own.address.max(peer.address)));
        (own.kind, routable, own.shares_subnet(peer), own.is_v4(), low_first)
    })
}

fn can_talk(own: &Gid, peer: &Gid) -> bool {
    own.kind == peer.kind && own.is_set() && peer.is_set() && own.is_v4() == peer.is_v4()
}
