//! The lab: the networks and RDMA devices of the ranks, as texts for `ip`, `rdma` and the guest's shell.
//! Rank r has on rail d the RDMA device `x{r}d{d}` over the network device `r{r}d{d}`, with the address 10.{d}.0.{r+1}.
//! Pure: knows nothing of how the texts come into a guest.

use anyhow::{Result, ensure};
use std::fmt::Write as _;

/// With it RoCE uses packets of 4096 bytes, its largest.
pub(super) const MTU: u32 = 4200;
pub(super) const MAX_RANKS: u32 = 16;
pub(super) const MAX_RAILS: u32 = 8;
const MAX_RATE_MBIT: u32 = 100_000;

/// What the ranks are connected by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lab {
    /// In two machines: one rank a machine.
    pub(crate) ranks: u32,
    pub(crate) rails: u32,
    /// How fast each device sends.
    pub(crate) rate_mbit: Option<u32>,
    /// Which share of its packets each device loses.
    pub(crate) loss_percent: f64,
}

/// Where a guest stands in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// All ranks are in one machine.
    Whole,
    /// It has the devices of one rank, its number.
    Half(u32),
}

impl Default for Lab {
    fn default() -> Self {
        Self { ranks: 2, rails: 1, rate_mbit: None, loss_percent: 0.0 }
    }
}

impl Lab {
    pub(super) fn check(&self) -> Result<()> {
        ensure!((2..=MAX_RANKS).contains(&self.ranks), "{} ranks: a lab has 2 to {MAX_RANKS}", self.ranks);
        ensure!((1..=MAX_RAILS).contains(&self.rails), "{} rails: a lab has 1 to {MAX_RAILS}", self.rails);
        let rate = self.rate_mbit.unwrap_or(1);
        ensure!((1..=MAX_RATE_MBIT).contains(&rate), "a rate of {rate} Mbit/s: use 1 to {MAX_RATE_MBIT}");
        let loss = self.loss_percent;
        ensure!((0.0..=100.0).contains(&loss), "a loss of {loss} percent: use 0 to 100");
        Ok(())
    }

    /// Names and contents of the files that a guest reads.
    pub(super) fn files(&self, site: Site, cpus: u32) -> Vec<(String, String)> {
        let mut files = vec![
            ("lab.ip".into(), self.networks(site)),
            ("lab.rdma".into(), self.devices(site)),
            ("lab.queues".into(), self.queues(site, cpus)),
            ("lab.shape".into(), self.shape()),
        ];
        if let Site::Half(rank) = site {
            let names = self.each_rail().map(|rail| format!("{} r{rank}d{rail}\n", mac(rank, rail)));
            files.push(("lab.names".into(), names.collect()));
        }
        files.extend(self.own(site).map(|(rank, rail)| (format!("up.r{rank}d{rail}"), self.paths(site, rank, rail))));
        files
    }

    /// The batch for `ip` that makes all networks.
    fn networks(&self, site: Site) -> String {
        let mut text = String::new();
        match site {
            Site::Whole => {
                // The address of a rank is local for every other. Sent through a device it must go out there none the less: the
                // table of that device is asked before the local one. What arrives is still found to be local.
                text.push_str("rule add pref 100 lookup local\nrule del pref 0\n");
                for rail in self.each_rail() {
                    self.wire(&mut text, rail);
                }
            }
            Site::Half(_) => {}
        }
        for (rank, rail) in self.own(site) {
            let device = format!("r{rank}d{rail}");
            let route = if site == Site::Whole { " noprefixroute" } else { "" };
            let _ = writeln!(text, "link set {device} mtu {MTU} address {}", mac(rank, rail));
            let _ = writeln!(text, "link set {device} up");
            let _ = writeln!(text, "addr add {}/24 dev {device}{route}", address(rank, rail));
            if site == Site::Whole {
                let _ = writeln!(text, "rule add pref 10 oif {device} lookup {}", table(rank, rail));
            }
            text.push_str(&self.paths(site, rank, rail));
        }
        text
    }

    /// Two ranks are the ends of a cable; more share a bridge.
    fn wire(&self, text: &mut String, rail: u32) {
        if self.ranks == 2 {
            let _ = writeln!(text, "link add r0d{rail} mtu {MTU} type veth peer name r1d{rail} mtu {MTU}");
            return;
        }
        let _ = writeln!(text, "link add b{rail} mtu {MTU} type bridge\nlink set b{rail} up");
        for rank in 0..self.ranks {
            let _ = writeln!(text, "link add r{rank}d{rail} mtu {MTU} type veth peer name p{rank}d{rail} mtu {MTU}");
            let _ = writeln!(text, "link set p{rank}d{rail} master b{rail} up");
        }
    }

    /// What a device needs besides its address, and loses when its link goes down.
    fn paths(&self, site: Site, rank: u32, rail: u32) -> String {
        let device = format!("r{rank}d{rail}");
        let mut text = String::new();
        if site == Site::Whole {
            let _ = writeln!(text, "route replace 10.{rail}.0.0/24 dev {device} table {}", table(rank, rail));
        }
        // Its own, too: the routes above hide from it that it could reach itself.
        for peer in (0..self.ranks).filter(|&peer| peer != rank || site == Site::Whole) {
            let (address, mac) = (address(peer, rail), mac(peer, rail));
            let _ = writeln!(text, "neigh replace {address} lladdr {mac} dev {device} nud permanent");
        }
        text
    }

    /// The batch for `rdma`.
    fn devices(&self, site: Site) -> String {
        self.own(site).map(|(rank, rail)| format!("link add x{rank}d{rail} type rxe netdev r{rank}d{rail}\n")).collect()
    }

    /// Each device and the mask of the processor that receives for it, so that packets stay in order; a port of a bridge receives
    /// what its rank sends.
    fn queues(&self, site: Site, cpus: u32) -> String {
        let bridged = site == Site::Whole && self.ranks > 2;
        let line = |(rank, rail)| {
            let mask = 1_u64 << ((rank * self.rails + rail) % cpus);
            let port = if bridged { format!("p{rank}d{rail} {mask:x}\n") } else { String::new() };
            format!("r{rank}d{rail} {mask:x}\n{port}")
        };
        self.own(site).map(line).collect()
    }

    fn shape(&self) -> String {
        let (rate, loss) = (self.rate_mbit.unwrap_or(0), self.loss_percent);
        let shape = if rate > 0 || loss > 0.0 { format!("/mnt/lab shape {rate} {loss}\n") } else { String::new() };
        format!("set -e\n/mnt/lab pin\n{shape}")
    }

    /// The ranks and rails whose devices a guest has.
    fn own(&self, site: Site) -> impl Iterator<Item = (u32, u32)> + use<> {
        let ranks = match site {
            Site::Whole => 0..self.ranks,
            Site::Half(rank) => rank..rank + 1,
        };
        let rails = self.rails;
        ranks.flat_map(move |rank| (0..rails).map(move |rail| (rank, rail)))
    }

    fn each_rail(&self) -> std::ops::Range<u32> {
        0..self.rails
    }
}

/// Of the network device of a rank on a rail.
pub(super) fn mac(rank: u32, rail: u32) -> String {
    format!("02:00:00:00:{rail:02x}:{:02x}", rank + 1)
}

fn address(rank: u32, rail: u32) -> String {
    format!("10.{rail}.0.{}", rank + 1)
}

/// The routing table of a device; the kernel's own end at 255.
fn table(rank: u32, rail: u32) -> u32 {
    1000 + rail * 100 + rank
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lab: &Lab, site: Site, name: &str) -> String {
        let files = lab.files(site, 2);
        files.into_iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    #[test]
    fn two_ranks_are_the_ends_of_a_cable() {
        let text = file(&Lab::default(), Site::Whole, "lab.ip");
        let expected = "rule add pref 100 lookup local
rule del pref 0
link add r0d0 mtu 4200 type veth peer name r1d0 mtu 4200
link set r0d0 mtu 4200 address 02:00:00:00:00:01
link set r0d0 up
addr add 10.0.0.1/24 dev r0d0 noprefixroute
rule add pref 10 oif r0d0 lookup 1000
route replace 10.0.0.0/24 dev r0d0 table 1000
neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev r0d0 nud permanent
neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev r0d0 nud permanent
link set r1d0 mtu 4200 address 02:00:00:00:00:02
link set r1d0 up
addr add 10.0.0.2/24 dev r1d0 noprefixroute
rule add pref 10 oif r1d0 lookup 1001
route replace 10.0.0.0/24 dev r1d0 table 1001
neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev r1d0 nud permanent
neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev r1d0 nud permanent
";
        assert_eq!(text, expected);
    }

    #[test]
    fn more_ranks_share_a_bridge_a_rail_and_know_all_others() {
        let lab = Lab { ranks: 4, rails: 3, ..Lab::default() };
        let text = file(&lab, Site::Whole, "lab.ip");
        assert_eq!(text.matches("type bridge").count(), 3);
        assert_eq!(text.matches("type veth").count(), 12);
        assert_eq!(text.matches("neigh replace").count(), 4 * 3 * 4);
        assert!(text.contains("link set p3d2 master b2 up\n"));
        let tables: std::collections::BTreeSet<_> = text.lines().filter(|line| line.contains(" oif ")).collect();
        assert_eq!(tables.len(), 12);
    }

    #[test]
    fn every_rank_has_an_rdma_device_on_every_rail() {
        let lab = Lab { rails: 2, ..Lab::default() };
        assert_eq!(
            file(&lab, Site::Whole, "lab.rdma"),
            "link add x0d0 type rxe netdev r0d0\nlink add x0d1 type rxe netdev r0d1\n\
             link add x1d0 type rxe netdev r1d0\nlink add x1d1 type rxe netdev r1d1\n"
        );
        assert_eq!(
            file(&lab, Site::Half(1), "lab.rdma"),
            "link add x1d0 type rxe netdev r1d0\nlink add x1d1 type rxe netdev r1d1\n"
        );
    }

    #[test]
    fn a_machine_of_two_has_its_own_devices_and_plain_routes() {
        let lab = Lab { rails: 2, ..Lab::default() };
        assert_eq!(file(&lab, Site::Half(1), "lab.names"), "02:00:00:00:00:02 r1d0\n02:00:00:00:01:02 r1d1\n");
        let text = file(&lab, Site::Half(1), "lab.ip");
        assert!(text.contains("addr add 10.1.0.2/24 dev r1d1\n") && !text.contains("rule") && !text.contains("r0d"), "{text}");
        assert!(lab.files(Site::Whole, 2).iter().all(|(name, _)| name != "lab.names"));
    }

    #[test]
    fn a_link_that_comes_back_gets_its_routes_and_neighbors() {
        let lab = Lab { ranks: 3, ..Lab::default() };
        assert_eq!(
            file(&lab, Site::Whole, "up.r1d0"),
            "route replace 10.0.0.0/24 dev r1d0 table 1001\n\
             neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev r1d0 nud permanent\n\
             neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev r1d0 nud permanent\n\
             neigh replace 10.0.0.3 lladdr 02:00:00:00:00:03 dev r1d0 nud permanent\n"
        );
    }

    #[test]
    fn receive_queues_go_round_the_processors() {
        let lab = Lab { rails: 1, ..Lab::default() };
        assert_eq!(file(&lab, Site::Whole, "lab.queues"), "r0d0 1\nr1d0 2\n");
        let bridged = Lab { ranks: 3, ..Lab::default() };
        assert_eq!(file(&bridged, Site::Whole, "lab.queues"), "r0d0 1\np0d0 1\nr1d0 2\np1d0 2\nr2d0 1\np2d0 1\n");
    }

    #[test]
    fn shaping_is_only_what_was_asked_for() {
        assert_eq!(Lab::default().shape(), "set -e\n/mnt/lab pin\n");
        let lab = Lab { rate_mbit: Some(50), loss_percent: 0.5, ..Lab::default() };
        assert_eq!(lab.shape(), "set -e\n/mnt/lab pin\n/mnt/lab shape 50 0.5\n");
    }

    #[test]
    fn what_a_lab_cannot_be_is_refused_with_the_limit() {
        let refusal = |lab: Lab| lab.check().unwrap_err().to_string();
        assert_eq!(refusal(Lab { ranks: 1, ..Lab::default() }), "1 ranks: a lab has 2 to 16");
        assert_eq!(refusal(Lab { rails: 9, ..Lab::default() }), "9 rails: a lab has 1 to 8");
        assert!(refusal(Lab { rate_mbit: Some(0), ..Lab::default() }).contains("1 to 100000"));
        assert!(refusal(Lab { loss_percent: -1.0, ..Lab::default() }).contains("0 to 100"));
        assert!(refusal(Lab { loss_percent: f64::NAN, ..Lab::default() }).contains("0 to 100"));
        assert!(Lab { ranks: 16, rails: 8, rate_mbit: Some(1), loss_percent: 100.0 }.check().is_ok());
    }
}
