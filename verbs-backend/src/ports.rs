//! The ports that are rails: which, in which order, and with which addresses.
//! Opens devices and asks them; makes nothing on them.

use crate::device::failed;
use crate::ffi::{self, Context, DeviceLimits, PortState, Refused};
use crate::gid::{Gid, Kind};
use crate::options::Options;
use rma::{Error, Rank, Result};
use std::rc::Rc;

/// A port that can be a rail.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) context: Rc<Context>,
    /// The name of the device.
    pub(crate) device: String,
    pub(crate) number: u8,
    /// As [`label`] gives it.
    pub(crate) name: String,
    pub(crate) limits: DeviceLimits,
    pub(crate) state: PortState,
    /// The addresses that may be used.
    pub(crate) gids: Vec<Gid>,
}

/// What a port is called: as in `mlx5_0`, or `mlx5_0:2` for another port than the first.
pub(crate) fn label(device: &str, port: u8) -> String {
    if port == 1 { device.to_owned() } else { format!("{device}:{port}") }
}

/// A device and a port of it, as an option names them.
fn parse_port(text: &str) -> Result<(&str, u8)> {
    match text.split_once(':') {
        None => Ok((text, 1)),
        Some((name, port)) => match port.parse() {
            Ok(port) if port > 0 => Ok((name, port)),
            _ => Err(Error::Launch(format!("RMA_VERBS_DEVICES: {text:?}: the port after the colon is a number from 1 on"))),
        },
    }
}

/// The ports that are the rails of a rank, in their order: those that the options name, else all that can be used.
pub(crate) fn rails(options: &Options, rank: Rank, local_rank: u32, most: Option<u16>) -> Result<Vec<Port>> {
    let names = ffi::device_names().map_err(|refused| {
        failed(
            "looking for RDMA devices: is libibverbs (rdma-core) installed, and the kernel module ib_uverbs loaded?".into(),
            refused,
        )
    })?;
    let (mut rails, unusable) = match options.devices.is_empty() {
        true => all(&names, options),
        false => (named(&names, options, rank, local_rank)?, Vec::new()),
    };
    if rails.is_empty() {
        let why = if names.is_empty() { "there is no RDMA device".into() } else { unusable.join("; ") };
        return Err(Error::Launch(format!(
            "no port of an RDMA device can be used on this host: {why}; `rma info` says more, and RMA_BACKEND=shm does without"
        )));
    }
    if let Some(most) = most {
        if usize::from(most) > rails.len() {
            return Err(Error::Limit {
                what: "RMA_RAILS",
                asked: most.into(),
                limit: rails.len() as u64,
                mend: "that is how many active ports there are; `rma info` lists them".into(),
            });
        }
        rails.truncate(most.into());
    }
    rails.truncate(rma::config::MAX_RAILS.into());
    Ok(rails)
}

/// Every port that can be used, in the order of the names, and why others cannot.
fn all(names: &[String], options: &Options) -> (Vec<Port>, Vec<String>) {
    let (mut ports, mut unusable) = (Vec::new(), Vec::new());
    let mut sorted = names.to_vec();
    sorted.sort_by(|a, b| in_order(a).cmp(&in_order(b)));
    for name in &sorted {
        let (context, limits) = match open(name) {
            Ok(opened) => opened,
            Err(error) => {
                unusable.push(error.full_text());
                continue;
            }
        };
        for number in 1..=limits.ports {
            match port(&context, name, number, limits, options) {
                Ok(port) => ports.push(port),
                Err(error) => unusable.push(error.full_text()),
            }
        }
    }
    (ports, unusable)
}

/// The ports that the options name.
fn named(names: &[String], options: &Options, rank: Rank, local_rank: u32) -> Result<Vec<Port>> {
    let mut ports = Vec::new();
    for pattern in &options.devices {
        let text = pattern.replace("{rank}", &rank.0.to_string()).replace("{local}", &local_rank.to_string());
        let (name, number) = parse_port(&text)?;
        if !names.iter().any(|other| other == name) {
            let there = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Error::Launch(format!(
                "RMA_VERBS_DEVICES={}: there is no RDMA device {name} on this host, but {there}; `rma info` lists them",
                options.devices.join(",")
            )));
        }
        let (context, limits) = open(name)?;
        ports.push(port(&context, name, number, limits, options)?);
    }
    Ok(ports)
}

/// Opens a device and asks what it can do.
pub(crate) fn open(name: &str) -> Result<(Rc<Context>, DeviceLimits)> {
    let context = Context::open(name)
        .map_err(|refused| failed(format!("opening {name}: may this user read and write /dev/infiniband/uverbs*?"), refused))?;
    let context = context.ok_or_else(|| Error::Launch(format!("libibverbs does not see the RDMA device {name} any more")))?;
    let limits = context.limits().map_err(|refused| failed(format!("asking {name} what it can do"), refused))?;
    Ok((context, limits))
}

fn port(context: &Rc<Context>, device: &str, number: u8, limits: DeviceLimits, options: &Options) -> Result<Port> {
    let name = label(device, number);
    if !context.speaks_infiniband() {
        return Err(Error::Launch(format!("{name} speaks neither InfiniBand nor RoCE; iWARP cannot notify with a write")));
    }
    if number > limits.ports {
        return Err(Error::Launch(format!("{name}: the device has {} port(s)", limits.ports)));
    }
    let state = context.port(number).map_err(|refused| failed(format!("asking for the state of {name}"), refused))?;
    if !state.active {
        return Err(Error::Launch(format!(
            "{name} is not active (state {}): is the link up? `rdma link` and `ip link` show it",
            state.state
        )));
    }
    let table = table(context, number, &state);
    let table = table.map_err(|refused| failed(format!("reading the addresses (GIDs) of {name}"), refused))?;
    let gids = match options.gid_index {
        None => table.into_iter().map(|(gid, _)| gid).collect(),
        Some(index) => vec![the_one(index, &table, &name)?],
    };
    Ok(Port { context: context.clone(), device: device.into(), number, name, limits, state, gids })
}

fn the_one(index: u8, table: &[(Gid, u32)], name: &str) -> Result<Gid> {
    table.iter().map(|(gid, _)| *gid).find(|gid| gid.index == u32::from(index)).ok_or_else(|| {
        let there: Vec<_> = table.iter().map(|(gid, _)| gid.to_string()).collect();
        Error::Launch(format!("RMA_VERBS_GID_INDEX={index}: {name} has {}", there.join(", ")))
    })
}

/// The addresses of a port, each with the number of its network interface, 0 for none.
pub(crate) fn table(context: &Context, number: u8, state: &PortState) -> Result<Vec<(Gid, u32)>, Refused> {
    let table = context.gids(number)?;
    let interfaces = ffi::interface_addresses();
    let gid = |entry: &ffi::GidEntry| Gid {
        index: entry.index,
        address: entry.gid,
        kind: match (entry.kind, state.ethernet) {
            (_, false) => Kind::InfiniBand,
            (2, true) => Kind::RoceV2,
            (_, true) => Kind::RoceV1,
        },
        prefix_bits: interfaces
            .iter()
            .find(|(index, address, _)| *index == entry.interface && *address == entry.gid)
            .map(|(_, _, bits)| *bits),
    };
    // A queue pair names an entry with 8 bits.
    Ok(table.iter().filter(|entry| entry.index <= u8::MAX.into()).map(|entry| (gid(entry), entry.interface)).collect())
}

/// What device names are sorted by: the number behind the name as a number, so that `mlx5_2` stands before `mlx5_10`.
fn in_order(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_names_of_ports_fit() {
        for (text, port) in [("mlx5_0", ("mlx5_0", 1)), ("mlx5_0:2", ("mlx5_0", 2))] {
            assert_eq!(parse_port(text).unwrap(), port);
            assert_eq!(label(port.0, port.1), text);
        }
        for text in ["mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:256"] {
            let error = parse_port(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("a number from 1 on"), "{error}");
        }
    }

    #[test]
    fn a_named_entry_is_the_only_one_and_must_be_there() {
        let gid = |index| Gid { index, address: [7; 16], kind: Kind::RoceV2, prefix_bits: None };
        let table = [(gid(1), 0), (gid(3), 0)];
        assert_eq!(the_one(3, &table, "x").unwrap(), gid(3));
        let error = the_one(2, &table, "mlx5_0").unwrap_err().to_string();
        assert!(error.starts_with("RMA_VERBS_GID_INDEX=2: mlx5_0 has") && error.contains("GID 3"), "{error}");
    }
}
