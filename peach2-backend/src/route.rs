//! How packets get from board to board: by ports E and W along the ring, by S to the other ring. (Port N is the host's.) Pure.

use crate::address::Node;

/// A port of a board, but for the one of its own host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    East,
    West,
    South,
}

impl Port {
    const fn name(self) -> &'static str {
        match self {
            Self::East => "E",
            Self::West => "W",
            Self::South => "S",
        }
    }
}

/// How the boards are cabled (P3): E to W in a ring of 8 or 16, and two rings by S, each board to the one at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    ring: u8,
    rings: u8,
}

/// The most bytes that a packet carries.
pub(crate) const PACKET_PAYLOAD_BYTES: u64 = 256;

/// The boards of the longest rings, and of the shortest.
pub(crate) const RINGS: [u8; 2] = [8, 16];
/// The most boards: two rings of 16.
pub(crate) const MAX_BOARDS: u32 = 32;

impl Topology {
    /// For so many boards: one ring if they fit into it, else two. Without a length the shortest that will do is taken. `None` when they
    /// do not fit.
    pub(crate) fn of(boards: u32, ring: Option<u8>) -> Option<Self> {
        let fits = |rings: u8| move |&ring: &u8| boards <= u32::from(ring) * u32::from(rings);
        let lengths = || RINGS.into_iter().filter(move |&length| ring.is_none_or(|asked| asked == length));
        let one = lengths().find(fits(1)).map(|ring| Self { ring, rings: 1 });
        one.or_else(|| lengths().find(fits(2)).map(|ring| Self { ring, rings: 2 }))
    }

    /// The ports on the way to a board, in words.
    pub(crate) fn describe_path(self, from: Node, to: Node) -> String {
        let ports: Vec<_> = self.path(from, to).map(|(_, port)| port.name()).collect();
        if ports.is_empty() { "no cable".into() } else { format!("{} hop(s) {}", ports.len(), ports.join("-")) }
    }

    /// Where packets leave each board on their way, the shortest: along the ring, then to the other one. At equal lengths E is taken.
    pub(crate) fn path(self, from: Node, to: Node) -> impl Iterator<Item = (Node, Port)> {
        let mut at = from;
        std::iter::from_fn(move || {
            let port = self.port(at, to)?;
            let here = at;
            at = self.neighbor(at, port);
            Some((here, port))
        })
    }

    /// How many cables packets go over.
    pub(crate) fn hops(self, from: Node, to: Node) -> u32 {
        let along = self.along(from, to).unsigned_abs();
        u32::from(along) + u32::from(from.0 / self.ring != to.0 / self.ring)
    }

    /// The port by which a board sends on what is for `to`.
    fn port(self, at: Node, to: Node) -> Option<Port> {
        match self.along(at, to) {
            1.. => Some(Port::East),
            ..0 => Some(Port::West),
            0 if at.0 / self.ring != to.0 / self.ring => Some(Port::South),
            0 => None,
        }
    }

    /// How far along the ring, to the east if positive.
    fn along(self, from: Node, to: Node) -> i16 {
        let ring = i16::from(self.ring);
        let east = (i16::from(to.0) - i16::from(from.0)).rem_euclid(ring);
        if 2 * east <= ring { east } else { east - ring }
    }

    /// The board at the other end of a port's cable.
    fn neighbor(self, at: Node, port: Port) -> Node {
        let (ring, place) = (at.0 / self.ring, at.0 % self.ring);
        match port {
            Port::East => Node(ring * self.ring + (place + 1) % self.ring),
            Port::West => Node(ring * self.ring + (place + self.ring - 1) % self.ring),
            Port::South => Node((1 - ring) * self.ring + place),
        }
    }

    /// Boards of a ring.
    pub(crate) fn ring(self) -> u8 {
        self.ring
    }

    /// In words.
    pub(crate) fn describe(self) -> String {
        match self.rings {
            1 => format!("a ring of {}", self.ring),
            _ => format!("two rings of {}", self.ring),
        }
    }
}

/// The packets of a put: every block begins a new one.
pub(crate) fn packets(block_bytes: u64, blocks: u32) -> u64 {
    block_bytes.div_ceil(PACKET_PAYLOAD_BYTES).saturating_mul(blocks.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Topology; 4] = [
        Topology { ring: 8, rings: 1 },
        Topology { ring: 16, rings: 1 },
        Topology { ring: 8, rings: 2 },
        Topology { ring: 16, rings: 2 },
    ];

    fn pairs(topology: Topology) -> impl Iterator<Item = (Node, Node)> {
        let boards = topology.ring * topology.rings;
        (0..boards).flat_map(move |from| (0..boards).map(move |to| (Node(from), Node(to))))
    }

    #[test]
    fn every_path_leads_to_its_end_over_cables_that_are_there() {
        for topology in ALL {
            for (from, to) in pairs(topology) {
                let mut at = from;
                for (board, port) in topology.path(from, to) {
                    assert_eq!(board, at);
                    let next = topology.neighbor(at, port);
                    let back = match port {
                        Port::East => Port::West,
                        Port::West => Port::East,
                        Port::South => Port::South,
                    };
                    assert_eq!(topology.neighbor(next, back), at, "a cable has two ends");
                    assert!(next.0 < topology.ring * topology.rings);
                    at = next;
                }
                assert_eq!(at, to, "{topology:?} from {from:?}");
                assert_eq!(topology.path(from, to).count() as u32, topology.hops(from, to));
            }
        }
    }

    /// Against a search that knows nothing of rings.
    #[test]
    fn no_path_is_shorter() {
        for topology in ALL {
            for from in 0..topology.ring * topology.rings {
                let mut distance = vec![None; usize::from(topology.ring * topology.rings)];
                let mut reached = vec![Node(from)];
                let mut hops = 0;
                while !reached.is_empty() {
                    let mut next = Vec::new();
                    for node in reached {
                        let known = &mut distance[usize::from(node.0)];
                        if known.is_none() {
                            *known = Some(hops);
                            let ports = [Port::East, Port::West, Port::South];
                            let cabled = ports.into_iter().filter(|&port| port != Port::South || topology.rings == 2);
                            next.extend(cabled.map(|port| topology.neighbor(node, port)));
                        }
                    }
                    (reached, hops) = (next, hops + 1);
                }
                for (to, &expected) in (0..).zip(&distance) {
                    assert_eq!(Some(topology.hops(Node(from), Node(to))), expected, "{topology:?} from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn the_way_back_is_as_long() {
        for topology in ALL {
            assert!(pairs(topology).all(|(from, to)| topology.hops(from, to) == topology.hops(to, from)));
        }
    }

    #[test]
    fn few_boards_have_one_ring_and_many_two() {
        for (boards, ring, expected) in [
            (1, None, "a ring of 8"),
            (8, None, "a ring of 8"),
            (9, None, "a ring of 16"),
            (16, None, "a ring of 16"),
            (17, None, "two rings of 16"),
            (32, None, "two rings of 16"),
            (4, Some(16), "a ring of 16"),
            (9, Some(8), "two rings of 8"),
        ] {
            assert_eq!(Topology::of(boards, ring).map(Topology::describe).as_deref(), Some(expected));
        }
        for (boards, ring) in [(33, None), (17, Some(8)), (2, Some(4))] {
            assert_eq!(Topology::of(boards, ring), None);
        }
    }

    #[test]
    fn every_block_begins_a_packet() {
        assert_eq!([packets(0, 1), packets(1, 1), packets(256, 1), packets(257, 1), packets(8, 16)], [0, 1, 1, 2, 16]);
    }
}
