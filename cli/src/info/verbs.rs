//! The RDMA devices, as the verbs backend sees them: its facts as lines, and its problems among the others.

use super::machine::{Limit, Machine};
use super::problems::Problem;
use super::variables::OfBackend;
use super::{Text, bytes};
use rma::config::Place;
use rma::{Config, Rank};
use rma_verbs::{DeviceFacts, GidFacts, Interface, PortFacts, Survey};
use std::net::IpAddr;

/// What this host has for the backend.
#[derive(Clone, Debug)]
pub(super) struct Verbs(Survey);

pub(super) fn variables() -> OfBackend {
    OfBackend::Here {
        all: rma_verbs::variables(),
        check: |variable| rma_verbs::Options::check_variables(variable),
        over: "RDMA devices",
    }
}

impl Verbs {
    /// As a rank sees it, if this is one; ranks of a job are taken to be all on this host.
    pub(super) fn seen_from(place: Option<&Place>, config: &Config) -> Self {
        let rank = place.map_or(Rank(0), |place| place.rank);
        Self(rma_verbs::survey(rank, rank.0, config.rails))
    }

    pub(super) fn is_usable(&self) -> bool {
        self.0.rails.is_ok()
    }

    /// Usable, or why not.
    pub(super) fn state(&self) -> String {
        match &self.0 {
            Survey { rails: Ok(rails), .. } => format!("usable: {} rail(s), {}", rails.len(), rails.join(" ")),
            Survey { library: false, .. } => "not usable: no libibverbs".into(),
            Survey { devices, .. } if devices.is_empty() => "not usable: no RDMA device".into(),
            Survey { problems, .. } if !problems.is_empty() => "not usable: see the problems below".into(),
            Survey { rails: Err(reason), .. } => format!("not usable: {reason}"),
        }
    }

    pub(super) fn render(&self, text: &mut Text) {
        text.section("verbs devices");
        if self.0.devices.is_empty() {
            text.plain("none");
        }
        for device in &self.0.devices {
            render_device(device, text);
        }
    }

    /// What stands in the way of a job over these devices.
    pub(super) fn problems(&self, machine: &Machine) -> Vec<Problem> {
        let own = self.0.problems.iter().map(|problem| Problem { what: problem.what.clone(), mend: problem.mend.clone() });
        let locked = self.0.lockable_bytes.filter(|_| !self.0.devices.is_empty());
        own.chain(locked.and_then(|locked| too_little_locked(locked, machine))).collect()
    }
}

/// Windows are locked for devices, once a rail; who can lock all memory is not limited.
fn too_little_locked(locked: u64, machine: &Machine) -> Option<Problem> {
    let what =
        format!("{} may be locked: too little for windows of RDMA devices, which lock them once for every rail", bytes(locked));
    let mend = match machine.locked_memory {
        Limit { hard: None, .. } => "ulimit -l unlimited",
        Limit { .. } => "sudo prlimit --pid $$ --memlock=unlimited:unlimited",
    };
    machine.memory_total.is_none_or(|total| locked < total).then(|| Problem { what, mend: mend.into() })
}

fn render_device(device: &DeviceFacts, text: &mut Text) {
    text.line(&device.name, &device.driver);
    match &device.limits {
        Err(reason) => text.line("", format!("cannot be opened: {reason}")),
        Ok(limits) => {
            let queue_pairs = format!("{} queue pairs of {} requests", limits.queue_pairs, limits.requests);
            text.line("", format!("{queue_pairs}, {} pieces a request, {} completions", limits.pieces, limits.completions));
            let longest = if limits.region_bytes >= 1 << 62 {
                "any length".into()
            } else {
                format!("{} at most", bytes(limits.region_bytes))
            };
            text.line("", format!("{} memory regions of {longest}", limits.regions));
        }
    }
    if !device.speaks_infiniband {
        text.line("", "neither InfiniBand nor RoCE: cannot be a rail");
    }
    for port in &device.ports {
        render_port(port, text);
    }
}

fn render_port(port: &PortFacts, text: &mut Text) {
    let rails: Vec<_> = port.rails.iter().map(u16::to_string).collect();
    let rail = if rails.is_empty() { String::new() } else { format!(", rail {}", rails.join(", ")) };
    text.line(&format!("  port {}{rail}", port.number), describe_port(port));
    for gid in &port.gids {
        let chosen = if gid.chosen { "   <- for peers of the same networks" } else { "" };
        text.line(&format!("    GID {}", gid.index), format!("{}{chosen}", describe_gid(gid)));
    }
}

fn describe_port(port: &PortFacts) -> String {
    let layer = if port.ethernet { "Ethernet" } else { "InfiniBand" };
    let mut facts = vec![port.state.to_owned(), layer.into()];
    facts.push(match port.max_mtu_bytes > port.mtu_bytes {
        true => format!("packets of {} bytes (of {})", port.mtu_bytes, port.max_mtu_bytes),
        false => format!("packets of {} bytes", port.mtu_bytes),
    });
    facts.extend(port.lid.map(|lid| format!("lid {lid}")));
    facts.extend(port.speed.clone());
    facts.extend(port.interface.as_ref().map(|Interface { name, mtu_bytes, .. }| match mtu_bytes {
        Some(mtu) => format!("{name} with MTU {mtu}"),
        None => name.clone(),
    }));
    facts.join(", ")
}

fn describe_gid(gid: &GidFacts) -> String {
    let GidFacts { address, kind, .. } = gid;
    match (gid.prefix_bits, address) {
        (Some(bits), _) => format!("{address}/{bits}, {kind}"),
        (None, IpAddr::V4(_)) => format!("{address} (no address of an interface here), {kind}"),
        (None, IpAddr::V6(_)) => format!("{address}, {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_locked_memory_matters_only_below_the_memory_there_is() {
        let machine = |hard| Machine {
            memory_total: Some(1 << 30),
            locked_memory: Limit { soft: Some(8 << 20), hard },
            ..Machine::default()
        };
        let mend = |locked, hard| too_little_locked(locked, &machine(hard)).map(|problem| problem.mend);
        assert_eq!(mend(8 << 20, None).as_deref(), Some("ulimit -l unlimited"));
        assert_eq!(mend(8 << 20, Some(8 << 20)).as_deref(), Some("sudo prlimit --pid $$ --memlock=unlimited:unlimited"));
        assert_eq!(mend(1 << 30, None), None);
    }
}
