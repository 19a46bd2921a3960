//! What of a survey stands in the way of a job over RDMA devices, and the command that mends it.
//! Pure: judges facts, finds none itself.

use crate::survey::{DeviceFacts, DeviceFile, GidKind, PortFacts, Survey};

/// Something to mend, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// A command line.
    pub mend: String,
}

/// What RoCE adds to the bytes of a packet, as the kernel reckons when it derives the one MTU from the other: 40 of a global
/// route, 8 of UDP, 12 of the base header, 4 and 28 of extensions, 4 of the checksum.
const ROCE_HEADER_BYTES: u32 = 96;
/// A round number that has room for the largest packet of RoCE.
const ENOUGH_MTU: u32 = 4200;

/// All problems, those that prevent the use first.
pub(crate) fn problems(survey: &Survey) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !survey.library {
        problems.push(problem(
            "libibverbs (libibverbs.so.1 of rdma-core) is not there: no RDMA device can be used".into(),
            "sudo apt install libibverbs1 ibverbs-providers   # elsewhere the package is rdma-core or libibverbs",
        ));
    }
    problems.extend(survey.devices.iter().filter_map(|device| unopened(device, survey.library)));
    let opened = || survey.devices.iter().filter(|device| device.limits.is_ok());
    problems.extend(opened().filter(|device| !device.speaks_infiniband).map(|device| {
        problem(
            format!("{} speaks neither InfiniBand nor RoCE (iWARP, perhaps) and cannot be a rail", device.name),
            "ibv_devinfo   # RMA_VERBS_DEVICES=NAME,NAME names those that can",
        )
    }));
    let ports = || opened().filter(|device| device.speaks_infiniband).flat_map(|device| &device.ports);
    if ports().next().is_some() && !ports().any(|port| port.active) {
        problems.extend(ports().map(inactive));
    }
    if let Err(reason) = &survey.rails
        && problems.is_empty()
        && !survey.devices.is_empty()
    {
        let named = ["RMA_VERBS_DEVICES", "RMA_VERBS_GID_INDEX", "RMA_RAILS"].into_iter().find(|name| reason.contains(name));
        // Other variables are judged where all are.
        let mend = named.map_or("rdma link; ip link".into(), |name| format!("unset {name}"));
        if named.is_some() || !reason.contains("RMA_VERBS_") {
            problems.push(problem(format!("verbs cannot be used: {reason}"), mend));
        }
    }
    let over_ethernet = || ports().filter(|port| port.ethernet && !port.rails.is_empty());
    problems.extend(over_ethernet().filter_map(poor_address));
    problems.extend(over_ethernet().filter_map(small_packets));
    problems
}

fn problem(what: String, mend: impl Into<String>) -> Problem {
    Problem { what, mend: mend.into() }
}

/// Why a device cannot be opened.
fn unopened(device: &DeviceFacts, library: bool) -> Option<Problem> {
    let name = &device.name;
    let reason = device.limits.as_ref().err()?;
    match &device.file {
        DeviceFile::NotOffered => Some(problem(
            format!("{name} has no device file: the kernel module ib_uverbs is not loaded"),
            "sudo modprobe ib_uverbs",
        )),
        DeviceFile::Missing(path) => Some(problem(
            format!("{path} of {name} is not there: a container has only the device files that it was given"),
            "docker run --device=/dev/infiniband --ulimit memlock=-1 ...   # on a host: sudo udevadm trigger",
        )),
        DeviceFile::Forbidden(path) => Some(problem(
            format!("{path} of {name} may not be read and written by this user"),
            format!("sudo chmod a+rw {path}   # until the next boot; a rule of udev makes it last"),
        )),
        // The missing library says it all.
        DeviceFile::Usable(_) if !library => None,
        DeviceFile::Usable(_) => Some(problem(
            format!("{name} cannot be opened ({reason}): its driver for libibverbs may be missing"),
            "sudo apt install ibverbs-providers",
        )),
    }
}

fn inactive(port: &PortFacts) -> Problem {
    let PortFacts { name, state, .. } = port;
    let mend = match &port.interface {
        Some(interface) if interface.down => format!("sudo ip link set dev {} up", interface.name),
        _ if !port.ethernet && *state == "initializing" => {
            "sudo systemctl start opensm   # on one host, unless a switch manages the subnet".into()
        }
        _ => "rdma link show   # is the cable in, and the other end up?".into(),
    };
    problem(format!("{name} is {state}, and no other port of an RDMA device is active"), mend)
}

/// No address by which peers beyond the link can be reached.
fn poor_address(port: &PortFacts) -> Option<Problem> {
    let interface = port.interface.as_ref().map_or("INTERFACE", |interface| &interface.name);
    let add = format!("sudo ip addr add ADDRESS/24 dev {interface}");
    match port.gids.iter().find(|gid| gid.chosen) {
        None => Some(problem(format!("{} has no address (GID) that can be used", port.name), add)),
        Some(gid) if gid.link_local => Some(problem(
            format!(
                "{} has only the link-local address {}: it reaches no peer behind a router, and perhaps none",
                port.name, gid.address
            ),
            add,
        )),
        Some(gid) if gid.kind == GidKind::RoceV1 => Some(problem(
            format!("{} would use RoCE v1 (GID {}), which is not routed, and which other ports may not have", port.name, gid.index),
            format!("rdma link show; grep . /sys/class/infiniband/*/ports/{}/gid_attrs/types/* 2>/dev/null", port.number),
        )),
        Some(_) => None,
    }
}

fn small_packets(port: &PortFacts) -> Option<Problem> {
    let interface = port.interface.as_ref()?;
    let mtu_bytes = interface.mtu_bytes.filter(|mtu| mtu.saturating_sub(ROCE_HEADER_BYTES) < port.max_mtu_bytes)?;
    (port.mtu_bytes < port.max_mtu_bytes).then(|| {
        problem(
            format!(
                "{} sends packets of {} bytes where it could send {}, because the MTU of {} is {mtu_bytes}",
                port.name, port.mtu_bytes, port.max_mtu_bytes, interface.name
            ),
            format!(
                "sudo ip link set dev {} mtu {ENOUGH_MTU}   # or 9000; on every host, and on the switches between them",
                interface.name
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::{GidFacts, Interface, Limits};

    fn gid(index: u32, address: &str, kind: GidKind) -> GidFacts {
        let link_local = address.starts_with("fe80") || address.starts_with("169.254");
        GidFacts { index, address: address.parse().unwrap(), kind, prefix_bits: None, link_local, chosen: true }
    }

    fn ethernet(name: &str) -> PortFacts {
        PortFacts {
            name: name.into(),
            number: 1,
            rails: vec![0],
            active: true,
            state: "active",
            ethernet: true,
            mtu_bytes: 4096,
            max_mtu_bytes: 4096,
            lid: None,
            speed: None,
            interface: Some(Interface { name: "eth0".into(), mtu_bytes: Some(9000), down: false }),
            gids: vec![gid(3, "10.0.0.1", GidKind::RoceV2)],
        }
    }

    fn down(port: PortFacts, state: &'static str) -> PortFacts {
        PortFacts { rails: Vec::new(), active: false, state, ..port }
    }

    fn device(ports: Vec<PortFacts>) -> DeviceFacts {
        let limits = Limits { queue_pairs: 9, requests: 9, pieces: 9, completions: 9, regions: 9, region_bytes: 9 };
        DeviceFacts {
            name: "mlx5_0".into(),
            driver: "mlx5_core".into(),
            file: DeviceFile::Usable("/dev/infiniband/uverbs0".into()),
            limits: Ok(limits),
            speaks_infiniband: true,
            ports,
        }
    }

    fn survey(devices: Vec<DeviceFacts>) -> Survey {
        let rails: Vec<_> = devices.iter().flat_map(|device| &device.ports).filter(|port| port.active).collect();
        let rails = rails.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
        let rails = if rails.is_empty() { Err("no port can be used".into()) } else { Ok(rails) };
        Survey { library: true, devices, rails, lockable_bytes: None, problems: Vec::new() }
    }

    /// What is said, and the mends, for one port.
    fn of_port(port: PortFacts) -> Vec<Problem> {
        problems(&survey(vec![device(vec![port])]))
    }

    #[test]
    fn a_good_port_has_no_problem_and_no_device_is_none() {
        assert_eq!(of_port(ethernet("mlx5_0")), []);
        assert_eq!(problems(&survey(Vec::new())), []);
    }

    #[test]
    fn a_missing_library_is_said_once() {
        let closed = DeviceFacts { limits: Err("no".into()), ports: Vec::new(), ..device(Vec::new()) };
        let found = problems(&Survey { library: false, ..survey(vec![closed]) });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].mend.contains("libibverbs1"));
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_told_by_its_file() {
        let path = || "/dev/infiniband/uverbs3".to_string();
        for (file, mend) in [
            (DeviceFile::NotOffered, "sudo modprobe ib_uverbs"),
            (DeviceFile::Missing(path()), "--device=/dev/infiniband"),
            (DeviceFile::Forbidden(path()), "sudo chmod a+rw /dev/infiniband/uverbs3"),
            (DeviceFile::Usable(path()), "ibverbs-providers"),
        ] {
            let closed = DeviceFacts { file, limits: Err("no".into()), ports: Vec::new(), ..device(Vec::new()) };
            let found = problems(&survey(vec![closed, device(vec![ethernet("mlx5_1")])]));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].mend.contains(mend), "{found:?}");
        }
    }

    #[test]
    fn inactive_ports_are_a_problem_only_if_no_other_is_active() {
        let interface = |down| Some(Interface { name: "eth0".into(), mtu_bytes: None, down });
        let infiniband = PortFacts { ethernet: false, interface: None, lid: Some(0), ..ethernet("mlx5_0") };
        for (port, mend) in [
            (down(PortFacts { interface: interface(true), ..ethernet("mlx5_0") }, "down"), "sudo ip link set dev eth0 up"),
            (down(PortFacts { interface: interface(false), ..ethernet("mlx5_0") }, "down"), "rdma link show"),
            (down(infiniband, "initializing"), "opensm"),
        ] {
            let found = of_port(port.clone());
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].what.contains(port.state) && found[0].mend.contains(mend), "{found:?}");
            assert_eq!(problems(&survey(vec![device(vec![port, ethernet("mlx5_0:2")])])), []);
        }
    }

    #[test]
    fn addresses_that_reach_too_few_are_named() {
        let with = |gids| of_port(PortFacts { gids, ..ethernet("mlx5_0") });
        for (gids, text) in [
            (Vec::new(), "mlx5_0 has no address"),
            (vec![gid(1, "fe80::1", GidKind::RoceV2)], "only the link-local address fe80::1"),
            (vec![gid(4, "10.0.0.1", GidKind::RoceV1)], "RoCE v1 (GID 4)"),
        ] {
            let found = with(gids);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].what.contains(text), "{found:?}");
        }
        // InfiniBand has its own numbers.
        assert_eq!(of_port(PortFacts { ethernet: false, gids: Vec::new(), ..ethernet("mlx5_0") }), []);
    }

    #[test]
    fn small_packets_are_blamed_on_the_interface_only_if_it_is_the_cause() {
        let with = |mtu_bytes, of_interface| {
            let interface = Some(Interface { name: "eth0".into(), mtu_bytes: Some(of_interface), down: false });
            of_port(PortFacts { mtu_bytes, interface, ..ethernet("mlx5_0") })
        };
        let found = with(1024, 1500);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("1024") && found[0].mend.starts_with("sudo ip link set dev eth0 mtu 4200"), "{found:?}");
        assert_eq!((with(4096, 4200), with(1024, 9000)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn what_variables_prevent_is_said_with_their_names() {
        let named = |reason: &str| {
            let unused = PortFacts { rails: Vec::new(), ..ethernet("mlx5_0") };
            problems(&Survey { rails: Err(reason.into()), ..survey(vec![device(vec![unused])]) })
        };
        assert_eq!(named("RMA_VERBS_DEVICES=x: there is no x")[0].mend, "unset RMA_VERBS_DEVICES");
        assert_eq!(named("RMA_RAILS: 9 asked for")[0].mend, "unset RMA_RAILS");
        // Said among the variables.
        assert_eq!(named("RMA_VERBS_TIMEOUT=99: use 1 to 31"), []);
    }
}
