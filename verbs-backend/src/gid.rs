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

    /// Whether other hosts than the neighbors on its link can be reached from it.
    fn is_routable(&self) -> bool {
        let is_loopback = self.ip().to_ipv4_mapped().map_or(self.ip().is_loopback(), |v4| v4.is_loopback());
        !self.is_link_local() && !is_loopback
    }

    /// How many bits from the left are the same; within one network all of them.
    fn nearness(&self, other: &Self) -> u32 {
        let usual = if self.is_v4() { USUAL_BITS_V4 } else { USUAL_BITS_V6 };
        let network_bits = self.prefix_bits.max(other.prefix_bits).unwrap_or(usual);
        let same_bits = (self.ip().to_bits() ^ other.ip().to_bits()).leading_zeros();
        if same_bits >= network_bits.into() { u128::BITS } else { same_bits }
    }

    fn is_set(&self) -> bool {
        // Where nothing is set, a table holds zeros, or a prefix (InfiniBand's default is link-local) with no interface behind it.
        if self.kind == Kind::InfiniBand || self.is_link_local() {
            return self.address[8..] != [0; 8];
        }
        !self.ip().to_ipv4_mapped().map_or(self.ip().is_unspecified(), |v4| v4.is_unspecified())
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
/// link-local, one network before two, of two the nearest, IPv4 before IPv6, low entries before high ones.
pub(crate) fn choose(mine: &[Gid], theirs: &[Gid]) -> Option<(Gid, Gid)> {
    let pairs = mine.iter().flat_map(|own| theirs.iter().map(move |peer| (*own, *peer)));
    pairs.filter(|(own, peer)| can_talk(own, peer)).max_by_key(|(own, peer)| {
        let routable = own.is_routable() && peer.is_routable();
        // Symmetric to the last, so that both sides end ties alike.
        let indexes = u64::from(own.index) + u64::from(peer.index);
        let low_first = Reverse((indexes, own.address.min(peer.address), own.address.max(peer.address)));
        (own.kind, routable, own.nearness(peer), own.is_v4(), low_first)
    })
}

fn can_talk(own: &Gid, peer: &Gid) -> bool {
    own.kind == peer.kind && own.is_set() && peer.is_set() && own.is_v4() == peer.is_v4()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Lines as `show_gids` prints them from the index on, without the IPv4 column and with the length of the prefix at the end:
    /// index, GID, version (`ib` for InfiniBand), interface, bits (`-` where the host has no such address).
    fn table(text: &str) -> Vec<Gid> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines
            .map(|line| {
                let [index, gid, version, _interface, bits] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                    panic!("{line:?} has not five words")
                };
                let ip: Ipv6Addr = gid.parse().unwrap();
                let mapped_bits = if ip.to_ipv4_mapped().is_some() { 96 } else { 0 };
                let kind = match version {
                    "v1" => Kind::RoceV1,
                    "v2" => Kind::RoceV2,
                    _ => Kind::InfiniBand,
                };
                let prefix_bits = bits.parse::<u8>().ok().map(|bits| mapped_bits + bits);
                Gid { index: index.parse().unwrap(), address: ip.octets(), kind, prefix_bits }
            })
            .collect()
    }

    /// The indexes that both sides choose, which must be the same ones.
    fn chosen(mine: &str, theirs: &str) -> Option<(u32, u32)> {
        let (mine, theirs) = (table(mine), table(theirs));
        let pair = choose(&mine, &theirs).map(|(own, peer)| (own.index, peer.index));
        let seen_from_there = choose(&theirs, &mine).map(|(own, peer)| (peer.index, own.index));
        assert_eq!(pair, seen_from_there, "the two sides disagree");
        pair
    }

    /// A port of an mlx5 card: v1 and v2 of a link-local and an IPv4 address, of those of a VLAN, and of an IPv6 address.
    const MLX5_A: &str = "
        0 fe80:0000:0000:0000:0e42:a1ff:fe12:3400 v1 ens1f0np0     64
        1 fe80:0000:0000:0000:0e42:a1ff:fe12:3400 v2 ens1f0np0     64
        2 0000:0000:0000:0000:0000:ffff:0a01:000b v1 ens1f0np0     24
        3 0000:0000:0000:0000:0000:ffff:0a01:000b v2 ens1f0np0     24
        4 fe80:0000:0000:0000:0e42:a1ff:fe12:3400 v1 ens1f0np0.100 64
        5 fe80:0000:0000:0000:0e42:a1ff:fe12:3400 v2 ens1f0np0.100 64
        6 0000:0000:0000:0000:0000:ffff:0a64:000b v1 ens1f0np0.100 16
        7 0000:0000:0000:0000:0000:ffff:0a64:000b v2 ens1f0np0.100 16
        8 2001:0db8:0007:0000:0000:0000:0000:000b v1 ens1f0np0     64
        9 2001:0db8:0007:0000:0000:0000:0000:000b v2 ens1f0np0     64";
    /// Its peer, where the VLAN came first.
    const MLX5_B: &str = "
        0 fe80:0000:0000:0000:0e42:a1ff:fe56:7800 v1 ens1f0np0     64
        1 fe80:0000:0000:0000:0e42:a1ff:fe56:7800 v2 ens1f0np0     64
        2 fe80:0000:0000:0000:0e42:a1ff:fe56:7800 v1 ens1f0np0.100 64
        3 fe80:0000:0000:0000:0e42:a1ff:fe56:7800 v2 ens1f0np0.100 64
        4 0000:0000:0000:0000:0000:ffff:0a64:000c v1 ens1f0np0.100 16
        5 0000:0000:0000:0000:0000:ffff:0a64:000c v2 ens1f0np0.100 16
        6 0000:0000:0000:0000:0000:ffff:0a01:000c v1 ens1f0np0     24
        7 0000:0000:0000:0000:0000:ffff:0a01:000c v2 ens1f0np0     24";
    /// A Soft-RoCE port over an interface with two IPv4 networks and an IPv6 one.
    const RXE: &str = "
        0 fe80:0000:0000:0000:0000:00ff:fe00:0001 v2 r0d0 64
        1 0000:0000:0000:0000:0000:ffff:0a00:0001 v2 r0d0 24
        2 2001:0db8:0001:0000:0000:0000:0000:0001 v2 r0d0 64
        3 0000:0000:0000:0000:0000:ffff:0a07:0009 v2 r0d0 30";
    /// Its peer, without IPv6: the first entry is there none the less.
    const RXE_PEER: &str = "
        0 fe80:0000:0000:0000:0000:00ff:fe00:0002 v2 r1d0 -
        1 0000:0000:0000:0000:0000:ffff:0a00:0002 v2 r1d0 24";

    #[test]
    fn a_network_that_both_have_is_used_with_ipv4_in_its_lowest_entry() {
        assert_eq!(chosen(MLX5_A, MLX5_B), Some((3, 7)));
        assert_eq!(chosen(RXE, RXE_PEER), Some((1, 1)));
        for same in [MLX5_A, MLX5_B, RXE, RXE_PEER] {
            let (own, peer) = chosen(same, same).unwrap();
            assert_eq!(own, peer);
        }
    }

    #[test]
    fn version_1_serves_only_where_a_side_has_no_other() {
        let only_v1 = "
            0 fe80:0000:0000:0000:f652:14ff:fe01:0203 v1 eth2 64
            1 0000:0000:0000:0000:0000:ffff:0a01:0063 v1 eth2 24";
        assert_eq!(chosen(MLX5_A, only_v1), Some((2, 1)));
        assert_eq!(chosen(RXE, only_v1), None);
    }

    #[test]
    fn a_bond_is_reached_by_its_own_address() {
        let bond = |host: u32| {
            format!(
                "0 fe80::ba59:9fff:fe00:{host:x} v1 enp1s0f0 64
                 1 fe80::ba59:9fff:fe00:{host:x} v2 enp1s0f0 64
                 2 fe80::ba59:9fff:fe00:{host:x} v1 bond0 64
                 3 fe80::ba59:9fff:fe00:{host:x} v2 bond0 64
                 4 ::ffff:172.16.0.{host} v1 bond0 22
                 5 ::ffff:172.16.0.{host} v2 bond0 22"
            )
        };
        assert_eq!(chosen(&bond(7), &bond(8)), Some((5, 5)));
    }

    #[test]
    fn with_several_networks_the_common_one_is_found_by_its_prefix() {
        // On one interface: a /16 whose hosts differ in the third byte, and cables between two hosts each.
        let a = "1 ::ffff:192.168.7.1 v2 eth0 30
                 2 ::ffff:10.1.3.4    v2 eth0 16";
        let b = "1 ::ffff:192.168.7.5 v2 eth0 30
                 2 ::ffff:10.1.200.9  v2 eth0 16";
        let c = "1 ::ffff:10.1.9.9    v2 eth0 16
                 2 ::ffff:192.168.7.2 v2 eth0 30";
        assert_eq!(chosen(a, b), Some((2, 2)));
        assert_eq!(chosen(a, c), Some((2, 1)), "of two equal sums the lowest address");
        let two_rails = "1 ::ffff:10.2.0.9 v2 eth0 24
                         2 ::ffff:10.1.0.9 v2 eth0 24";
        assert_eq!(chosen("1 ::ffff:10.1.0.8 v2 eth0 24", two_rails), Some((1, 2)));
    }

    #[test]
    fn without_a_common_network_the_nearest_addresses_are_used() {
        // A network a rack, in two ranges: the one range does not reach the other.
        let a = "2 ::ffff:10.1.1.5     v2 eth0 24
                 3 ::ffff:192.168.64.5 v2 eth0 24";
        let b = "2 ::ffff:192.168.96.6 v2 eth0 24
                 3 ::ffff:10.1.2.6     v2 eth0 24";
        assert_eq!(chosen(a, b), Some((2, 3)));
        // Some clouds give every host a network of its own.
        let cloud = "1 ::ffff:10.128.0.7 v2 eth0 32";
        assert_eq!(chosen(cloud, &cloud.replace("0.7", "0.8")), Some((1, 1)));
    }

    #[test]
    fn ipv6_serves_where_there_is_no_ipv4() {
        let host = |number: u32| {
            format!(
                "0 fe80::ff:fe00:{number} v1 eth0 64
                 1 fe80::ff:fe00:{number} v2 eth0 64
                 2 fd00:1::{number} v1 eth0 64
                 3 fd00:1::{number} v2 eth0 64"
            )
        };
        assert_eq!(chosen(&host(1), &host(2)), Some((3, 3)));
        // The ends of a cable, the first of them with the network's own number.
        assert_eq!(chosen("3 fd00:2:: v2 eth0 127", "3 fd00:2::1 v2 eth0 127"), Some((3, 3)));
        // Only one has IPv4: link-local is left.
        assert_eq!(chosen(RXE_PEER, &host(3)), Some((0, 1)));
    }

    #[test]
    fn infiniband_has_one_address_a_port_and_unset_ones_behind_it() {
        let host = |guid: &str| format!("0 fe80::{guid} ib - -\n1 fe80:: ib - -\n2 :: ib - -");
        let (a, b) = (host("0002:c903:00a0:1234"), host("0002:c903:00a0:5678"));
        assert_eq!(chosen(&a, &b), Some((0, 0)));
        assert_eq!(chosen(&a, RXE), None, "not over Ethernet");
        // With a prefix from the subnet manager.
        let managed = |guid: &str| format!("0 fec0:0:0:1:{guid} ib - -");
        assert_eq!(chosen(&managed("2:c903:a0:1"), &managed("2:c903:a0:2")), Some((0, 0)));
    }

    #[test]
    fn a_container_sees_addresses_without_prefixes_and_entries_without_addresses() {
        let host = |number: u32| {
            format!(
                "0 fe80::42:acff:fe11:{number} v2 - -
                 1 :: v1 - -
                 2 :: v2 - -
                 3 ::ffff:0.0.0.0 v2 - -
                 4 fe80:: v2 - -
                 5 ::ffff:127.0.0.1 v2 lo 8
                 6 ::ffff:172.17.0.{number} v2 - -"
            )
        };
        assert_eq!(chosen(&host(2), &host(3)), Some((6, 6)));
        let unset = "1 :: v2 - -\n3 ::ffff:0.0.0.0 v2 - -\n4 fe80:: v2 - -";
        assert_eq!((chosen(unset, unset), chosen(unset, RXE), chosen("", RXE)), (None, None, None));
    }

    #[test]
    fn an_override_leaves_the_other_side_to_find_what_fits() {
        let only = |text: &str, index: &str| text.lines().find(|line| line.trim().starts_with(index)).unwrap().to_owned();
        assert_eq!(chosen(&only(MLX5_A, "7"), MLX5_B), Some((7, 5)), "the VLAN's");
        assert_eq!(chosen(&only(MLX5_A, "2"), MLX5_B), Some((2, 6)), "v1");
        assert_eq!(chosen(&only(MLX5_A, "9"), MLX5_B), Some((9, 1)), "no routable IPv6 there");
        assert_eq!(chosen(&only(MLX5_A, "9"), &only(MLX5_B, "7")), None, "of two families");
    }

    #[test]
    fn numbers_beyond_all_tables_do_no_harm() {
        let gid = Gid { index: u32::MAX, prefix_bits: Some(255), ..table(RXE)[1] };
        assert_eq!(choose(&[gid], &[gid]), Some((gid, gid)));
    }

    /// Addresses that collide in every respect: networks, families, versions, prefixes, unset ones.
    fn random_table(random: &mut fastrand::Rng) -> Vec<Gid> {
        let mut indexes: Vec<u32> = (0..12).collect();
        random.shuffle(&mut indexes);
        let number = random.usize(0..9);
        let gid = |index| {
            let host = random.u16(0..3);
            let (text, most) = match random.u8(0..8) {
                0 => (format!("fe80::{host}"), 64),
                1 => (format!("fd00:{}::{host}", random.u8(0..2)), 128),
                2 => ("::".into(), 0),
                3 => (format!("::ffff:169.254.0.{host}"), 112),
                4 => (format!("::ffff:127.0.0.{host}"), 104),
                _ => (format!("::ffff:10.{}.{}.{host}", random.u8(0..2), random.u8(0..2)), 128),
            };
            let kind = [Kind::RoceV1, Kind::RoceV2, Kind::RoceV2, Kind::InfiniBand][random.usize(0..4)];
            let prefix_bits = random.bool().then(|| random.u8(0..=most));
            Gid { index, address: text.parse::<Ipv6Addr>().unwrap().octets(), kind, prefix_bits }
        };
        indexes.into_iter().take(number).map(gid).collect()
    }

    #[test]
    fn both_sides_choose_the_same_pair_in_whatever_order_the_tables_are() {
        let mut random = fastrand::Rng::with_seed(13);
        let mut kinds_seen = HashSet::new();
        for round in 0..20_000 {
            let (mut mine, mut theirs) = (random_table(&mut random), random_table(&mut random));
            let pair = choose(&mine, &theirs);
            let context = || format!("round {round}: {mine:?} {theirs:?}");
            assert_eq!(pair, choose(&theirs, &mine).map(|(own, peer)| (peer, own)), "{}", context());
            let possible = mine.iter().any(|own| theirs.iter().any(|peer| can_talk(own, peer)));
            assert_eq!(pair.is_some(), possible, "{}", context());
            if let Some((own, peer)) = pair {
                assert!(own.is_set() && peer.is_set() && own.kind == peer.kind && own.is_v4() == peer.is_v4(), "{}", context());
                kinds_seen.insert(format!("{:?}{}", own.kind, own.is_v4()));
            }
            random.shuffle(&mut mine);
            random.shuffle(&mut theirs);
            assert_eq!(pair, choose(&mine, &theirs), "round {round}: {mine:?} {theirs:?}");
        }
        assert_eq!(kinds_seen.len(), 6, "not every kind came about: {kinds_seen:?}");
    }
}
