//! The RDMA devices of this host as plain facts, for people: what `rma info` lists.
//! Opens and asks; makes nothing on a device, and judges nothing (see `advice`).

use crate::ffi::{self, DeviceLimits, PortState};
use crate::gid::{self, Gid};
use crate::options::Options;
use crate::{advice, ports, window};
use rma::Rank;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};

pub use crate::advice::Problem;
pub use crate::gid::Kind as GidKind;

/// What this host has for this backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// Whether libibverbs is loaded.
    pub library: bool,
    /// In the order of their names.
    pub devices: Vec<DeviceFacts>,
    /// The names of the ports that would be rails, in order, or why there are none.
    pub rails: Result<Vec<String>, String>,
    /// How many bytes this process may lock for devices; `None` for no limit.
    pub lockable_bytes: Option<u64>,
    /// What stands in the way, each with its mend.
    pub problems: Vec<Problem>,
}

/// A device that the kernel or libibverbs knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// As in `mlx5_0`.
    pub name: String,
    /// What it is, as in `mlx5_core` or `in software over eth0`.
    pub driver: String,
    /// How programs get at it.
    pub file: DeviceFile,
    /// What it can do, or why it cannot be opened.
    pub limits: Result<Limits, String>,
    /// Whether it speaks InfiniBand's protocol, natively or as RoCE; else this backend cannot use it.
    pub speaks_infiniband: bool,
    /// None if it cannot be opened.
    pub ports: Vec<PortFacts>,
}

/// The device file that libibverbs opens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceFile {
    /// The kernel offers none: its module `ib_uverbs` is not loaded.
    NotOffered,
    /// It should be at this path.
    Missing(String),
    /// It is at this path, but this user may not read and write it.
    Forbidden(String),
    /// It is at this path.
    Usable(String),
}

/// What a device can have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many queue pairs.
    pub queue_pairs: u32,
    /// Requests of one queue pair, in each direction.
    pub requests: u32,
    /// Pieces of one request.
    pub pieces: u32,
    /// Completions of one completion queue.
    pub completions: u32,
    /// How many memory regions.
    pub regions: u32,
    /// The length of one of those.
    pub region_bytes: u64,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortFacts {
    /// As `RMA_VERBS_DEVICES` takes it: `mlx5_0`, or `mlx5_0:2` for another port than the first.
    pub name: String,
    /// From 1 on.
    pub number: u8,
    /// The rails that it would be; more than one if it was named more than once.
    pub rails: Vec<u16>,
    /// Whether it can send and receive.
    pub active: bool,
    /// `active`, `down` and so on.
    pub state: &'static str,
    /// Ethernet, else InfiniBand.
    pub ethernet: bool,
    /// Bytes of a packet.
    pub mtu_bytes: u32,
    /// What these could be.
    pub max_mtu_bytes: u32,
    /// The number within an InfiniBand subnet.
    pub lid: Option<u16>,
    /// As the kernel says it, `100 Gb/sec (4X EDR)`.
    pub speed: Option<String>,
    /// The network interface behind it.
    pub interface: Option<Interface>,
    /// Its table of addresses.
    pub gids: Vec<GidFacts>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// As in `eth0`.
    pub name: String,
    /// Bytes of a frame without its header.
    pub mtu_bytes: Option<u32>,
    /// Whether it was taken down by hand, or never up; what is up may still lack a cable.
    pub down: bool,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidFacts {
    /// The place in the table, which `RMA_VERBS_GID_INDEX` takes.
    pub index: u32,
    /// IPv4 where it is one.
    pub address: IpAddr,
    /// How it travels.
    pub kind: GidKind,
    /// How many bits of `address` are the network's, where the host has the address.
    pub prefix_bits: Option<u8>,
    /// Whether it stays within one link.
    pub link_local: bool,
    /// Whether a peer with addresses of the same networks would be talked to from this one.
    pub chosen: bool,
}

/// Looks at every RDMA device of this host, the way a rank of this number would with the variables that are set.
pub fn survey(rank: Rank, local_rank: u32, rails: Option<u16>) -> Survey {
    // A bad variable stops a rank; here it is only a reason not to have rails.
    let options = Options::from_env();
    let known = options.as_ref().cloned().unwrap_or_default();
    let rails = options.and_then(|options| ports::rails(&options, rank, local_rank, rails));
    let rails = rails.map_err(|error| error.full_text());
    let chosen: Vec<_> = rails.iter().flatten().map(|port| (port.device.clone(), port.number)).collect();
    let devices = names().into_iter().map(|name| device(name, &chosen, &known)).collect();
    let mut survey = Survey {
        library: ffi::library_is_there(),
        devices,
        rails: rails.map(|rails| rails.into_iter().map(|port| port.name).collect()),
        lockable_bytes: window::locked_limit(),
        problems: Vec::new(),
    };
    survey.problems = advice::problems(&survey);
    survey
}

/// What libibverbs has, and what only the kernel has.
fn names() -> Vec<String> {
    let mut names = ffi::device_names().unwrap_or_default();
    names.extend(entries("/sys/class/infiniband"));
    names.sort();
    names.dedup();
    names
}

fn device(name: String, chosen: &[(String, u8)], options: &Options) -> DeviceFacts {
    let file = device_file(&name);
    let driver = driver(&name);
    match ports::open(&name) {
        Err(error) => {
            DeviceFacts { name, driver, file, limits: Err(error.full_text()), speaks_infiniband: true, ports: Vec::new() }
        }
        Ok((context, limits)) => {
            let port = |number| {
                let state = context.port(number).ok()?;
                let table = ports::table(&context, number, &state).unwrap_or_default();
                let mut port = port(&name, number, &state, &table, options.gid_index);
                port.rails = (0..).zip(chosen).filter(|(_, rail)| **rail == (name.clone(), number)).map(|(at, _)| at).collect();
                Some(port)
            };
            let ports = (1..=limits.ports).filter_map(port).collect();
            DeviceFacts { driver, file, limits: Ok(limits.into()), speaks_infiniband: context.speaks_infiniband(), ports, name }
        }
    }
}

impl From<DeviceLimits> for Limits {
    fn from(limits: DeviceLimits) -> Self {
        let DeviceLimits { ports: _, queue_pairs, requests, pieces, completions, regions, region_bytes } = limits;
        Self { queue_pairs, requests, pieces, completions, regions, region_bytes }
    }
}

fn port(device: &str, number: u8, state: &PortState, table: &[(Gid, u32)], gid_index: Option<u8>) -> PortFacts {
    let allowed = |gid: &&Gid| gid_index.is_none_or(|index| u32::from(index) == gid.index);
    let gids: Vec<Gid> = table.iter().map(|(gid, _)| *gid).collect();
    let usable: Vec<Gid> = gids.iter().filter(allowed).copied().collect();
    let best = gid::choose(&usable, &usable).map(|(own, _)| own);
    let port_folder = format!("/sys/class/infiniband/{device}/ports/{number}");
    PortFacts {
        name: ports::label(device, number),
        number,
        rails: Vec::new(),
        active: state.active,
        state: state_name(state.state),
        ethernet: state.ethernet,
        mtu_bytes: state.mtu_bytes,
        max_mtu_bytes: state.max_mtu_bytes,
        lid: (!state.ethernet).then_some(state.lid),
        speed: line(&format!("{port_folder}/rate")),
        interface: interface(device, table.iter().map(|(_, interface)| *interface)),
        gids: gids.into_iter().map(|gid| GidFacts { chosen: state.active && best == Some(gid), ..gid.into() }).collect(),
    }
}

impl From<Gid> for GidFacts {
    fn from(gid: Gid) -> Self {
        let address = Ipv6Addr::from(gid.address);
        let v4 = address.to_ipv4_mapped();
        Self {
            index: gid.index,
            address: v4.map_or(address.into(), IpAddr::from),
            kind: gid.kind,
            prefix_bits: gid.prefix_bits.map(|bits| if v4.is_some() { bits.saturating_sub(96) } else { bits }),
            link_local: gid.is_link_local(),
            chosen: false,
        }
    }
}

/// The names of `ibv_port_state`.
fn state_name(state: u32) -> &'static str {
    match state {
        1 => "down",
        2 => "initializing",
        3 => "armed",
        4 => "active",
        5 => "active, but deferred",
        _ => "in no known state",
    }
}

/// `IFF_UP` of an interface's flags.
const UP: u32 = 1;

/// The interface of the most addresses, else the one that the device says it belongs to.
fn interface(device: &str, of_gids: impl Iterator<Item = u32>) -> Option<Interface> {
    let mut counts = BTreeMap::<u32, (usize, u32)>::new();
    for index in of_gids.filter(|&index| index != 0) {
        // Among equals the lowest, which a VLAN's is not.
        counts.entry(index).or_insert((0, u32::MAX - index)).0 += 1;
    }
    let number = counts.into_iter().max_by_key(|(_, count)| *count).map(|(index, _)| index);
    let named = number.and_then(|number| {
        let number = number.to_string();
        entries("/sys/class/net").find(|name| line(&format!("/sys/class/net/{name}/ifindex")).as_ref() == Some(&number))
    });
    let folder = format!("/sys/class/infiniband/{device}");
    let name = named.or_else(|| line(&format!("{folder}/parent"))).or_else(|| entries(&format!("{folder}/device/net")).next())?;
    let mtu_bytes = line(&format!("/sys/class/net/{name}/mtu")).and_then(|text| text.parse().ok());
    let flags = line(&format!("/sys/class/net/{name}/flags"));
    let flags = flags.and_then(|hex| u32::from_str_radix(hex.trim_start_matches("0x"), 16).ok());
    Some(Interface { name, mtu_bytes, down: flags.is_some_and(|flags| flags & UP == 0) })
}

fn driver(device: &str) -> String {
    let folder = format!("/sys/class/infiniband/{device}");
    let link = fs::read_link(format!("{folder}/device/driver")).ok();
    let driver = link.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
    let over = || line(&format!("{folder}/parent")).map(|parent| format!("in software over {parent}"));
    driver.or_else(over).unwrap_or_else(|| "driver unknown".into())
}

fn device_file(device: &str) -> DeviceFile {
    const CLASS: &str = "/sys/class/infiniband_verbs";
    let of_device = |name: &String| line(&format!("{CLASS}/{name}/ibdev")).is_some_and(|of| of == device);
    let Some(name) = entries(CLASS).find(of_device) else { return DeviceFile::NotOffered };
    let path = format!("/dev/infiniband/{name}");
    let access = |access| rustix::fs::access(path.as_str(), access).is_ok();
    if !access(rustix::fs::Access::EXISTS) {
        DeviceFile::Missing(path)
    } else if access(rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK) {
        DeviceFile::Usable(path)
    } else {
        DeviceFile::Forbidden(path)
    }
}

/// The names in a folder; none if it is not there.
fn entries(folder: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// What a file of the kernel says; `None` if nothing.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_says_something_wherever_it_is_made() {
        let survey = survey(Rank(0), 0, None);
        let usable = survey.devices.iter().flat_map(|device| &device.ports).filter(|port| !port.rails.is_empty()).count();
        match &survey.rails {
            Ok(rails) => assert!(survey.library && usable == rails.len() && usable > 0, "{survey:?}"),
            Err(reason) => assert!(!reason.is_empty() && usable == 0, "{survey:?}"),
        }
        assert!(survey.library || !survey.problems.is_empty(), "{survey:?}");
    }

    #[test]
    fn addresses_are_those_that_people_know() {
        let gid = |address: &str, bits| {
            let address: Ipv6Addr = address.parse().unwrap();
            GidFacts::from(Gid { index: 0, address: address.octets(), kind: GidKind::RoceV2, prefix_bits: Some(bits) })
        };
        let v4 = gid("::ffff:10.1.2.3", 96 + 20);
        assert_eq!((v4.address.to_string().as_str(), v4.prefix_bits, v4.link_local), ("10.1.2.3", Some(20), false));
        let v6 = gid("fe80::1", 64);
        assert_eq!((v6.address.to_string().as_str(), v6.prefix_bits, v6.link_local), ("fe80::1", Some(64), true));
    }

    #[test]
    fn what_the_kernel_does_not_offer_is_not_there() {
        assert_eq!(device_file("no such device"), DeviceFile::NotOffered);
        assert_eq!((driver("no such device").as_str(), interface("no such device", [0].into_iter())), ("driver unknown", None));
        let loopback = interface("no such device", [1].into_iter()).map(|interface| (interface.name, interface.down));
        assert_eq!(loopback.map(|(name, _)| name).as_deref(), Some("lo"));
    }
}
