//! The hosts of a job: how `--hosts` is read, which ranks go where, and the address of each.
//! Knows names and addresses; starts nothing.

use anyhow::{Context, Result, ensure};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::ops::Range;

/// A host as it was named: `[USER@]NAME[=ADDRESS][:SLOTS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// What the remote shell gets.
    pub(crate) name: String,
    address: Option<IpAddr>,
    slots: Option<u32>,
}

/// The ranks of a job that run on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) name: String,
    /// On which its ranks listen, and where the others find them.
    pub(crate) address: IpAddr,
    pub(crate) ranks: Range<u32>,
    /// It is this host: no remote shell is needed.
    pub(crate) here: bool,
}

/// One host of the list.
pub(crate) fn parse(text: &str) -> Result<Host, String> {
    let form = || format!("{text:?}: expected a host, as in node1, node1:4, node1=10.0.0.1 or node1=10.0.0.1:4");
    // The colons of an IPv6 address stand in brackets.
    let (rest, slots) = match text.rsplit_once(':') {
        Some((rest, slots)) if !slots.contains(']') => (rest, Some(slots.parse::<u32>().map_err(|_| form())?)),
        _ => (text, None),
    };
    if slots == Some(0) {
        return Err(format!("{text:?}: a host has at least 1 slot; leave it out to use it for nothing"));
    }
    let (name, address) = match rest.split_once('=') {
        Some((name, address)) => (name, Some(bare(address).parse().map_err(|_| form())?)),
        None => (rest, None),
    };
    // A name with a dash in front would be an option of the remote shell.
    let unbracketed = bare(name) == name && name.contains(':');
    if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) || unbracketed {
        return Err(form());
    }
    Ok(Host { name: bare(name).into(), address, slots })
}

fn bare(name: &str) -> &str {
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}

/// Ranks in blocks, host by host. Hosts that are left over get none.
pub(crate) fn share_out(hosts: &[Host], ranks: u32) -> Result<Vec<Share>> {
    let counts = counts(hosts, ranks)?;
    let hosts = hosts.iter().zip(counts).filter(|(_, count)| *count > 0);
    let hosts: Vec<_> =
        hosts.map(|(host, count)| Ok((host, count, is_here(&host.name), host.known_address()?))).collect::<Result<_>>()?;
    let elsewhere = hosts.iter().find_map(|&(.., here, address)| address.filter(|_| !here));
    let mut first = 0;
    let share = |(host, count, here, address): (&Host, u32, bool, Option<IpAddr>)| {
        let address = match (address, elsewhere) {
            (Some(address), _) => address,
            (None, Some(other)) => towards(&SocketAddr::new(other, 1))?,
            (None, None) => Ipv4Addr::LOCALHOST.into(),
        };
        let ranks = first..first + count;
        first += count;
        Ok(Share { name: host.name.clone(), address, ranks, here })
    };
    hosts.into_iter().map(share).collect()
}

/// How many ranks each host gets: as many as it has slots while there are ranks; without any slots, all about as many.
fn counts(hosts: &[Host], ranks: u32) -> Result<Vec<u32>> {
    let n = hosts.len() as u32;
    if hosts.iter().all(|host| host.slots.is_none()) {
        return Ok((0..n).map(|host| ranks / n + u32::from(host < ranks % n)).collect());
    }
    let slots: Vec<_> = hosts.iter().map(|host| host.slots.unwrap_or(1)).collect();
    let sum = slots.iter().map(|&slots| u64::from(slots)).sum::<u64>();
    ensure!(
        sum >= ranks.into(),
        "--hosts has {sum} slots for {ranks} ranks; a host without a number has 1, or all without share evenly"
    );
    let mut left = ranks;
    let take = |slots: u32| {
        let taken = slots.min(left);
        left -= taken;
        taken
    };
    Ok(slots.into_iter().map(take).collect())
}

impl Host {
    /// The address that was given, or that the name is or has; `None` for names of this host, which mean a loopback address often.
    fn known_address(&self) -> Result<Option<IpAddr>> {
        let name = self.name.rsplit('@').next().unwrap_or(&self.name);
        if let Some(address) = self.address.or_else(|| name.parse().ok()) {
            return Ok(Some(address));
        }
        if is_here(&self.name) {
            return Ok(None);
        }
        let mend = || format!("looking for the address of {name}; give it, as in {name}=10.0.0.1");
        let found: Vec<_> = (name, 0).to_socket_addrs().with_context(mend)?.map(|addr| addr.ip()).collect();
        let best = found.iter().find(|ip| !ip.is_loopback()).or(found.first());
        best.copied().map(Some).with_context(mend)
    }
}

/// Whether a name means this host.
fn is_here(name: &str) -> bool {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match name.parse::<IpAddr>() {
        // Only an address of this host can be listened on.
        Ok(address) => TcpListener::bind((address, 0)).is_ok(),
        Err(_) => name == "localhost" || name == own || Some(name) == own.split('.').next(),
    }
}

/// The address of this host by which it reaches another.
pub(crate) fn towards(other: &SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let doing = || format!("looking for the address of this host by which it reaches {}", other.ip());
    // Connecting sends nothing; it only looks for the way.
    let socket = UdpSocket::bind((any, 0)).with_context(doing)?;
    socket.connect(other).with_context(doing)?;
    Ok(socket.local_addr().with_context(doing)?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Vec<Host> {
        list.split(',').map(|text| parse(text).unwrap()).collect()
    }

    fn counted(list: &str, ranks: u32) -> Result<Vec<u32>, String> {
        counts(&hosts(list), ranks).map_err(|error| error.to_string())
    }

    #[test]
    fn a_host_has_a_name_and_perhaps_an_address_and_slots() {
        let host = |name: &str, address: Option<&str>, slots| {
            Ok(Host { name: name.into(), address: address.map(|address| address.parse().unwrap()), slots })
        };
        assert_eq!(parse("node1"), host("node1", None, None));
        assert_eq!(parse("me@node1:4"), host("me@node1", None, Some(4)));
        assert_eq!(parse("node1=10.0.0.1:4"), host("node1", Some("10.0.0.1"), Some(4)));
        assert_eq!(parse("10.0.0.1:4"), host("10.0.0.1", None, Some(4)));
        assert_eq!(parse("[fe80::1]:2"), host("fe80::1", None, Some(2)));
        assert_eq!(parse("n=[fe80::1]"), host("n", Some("fe80::1"), None));
        for bad in ["", "fe80::1", ":3", "a:", "a:b", "a:-1", "a=b", "=10.0.0.1", "-oProxyCommand=x", "a b"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse("a:0").unwrap_err().contains("at least 1 slot"));
    }

    #[test]
    fn ranks_are_shared_out_in_blocks_by_slots_or_else_evenly() {
        assert_eq!(counted("a,b", 4), Ok(vec![2, 2]));
        assert_eq!(counted("a,b,c", 5), Ok(vec![2, 2, 1]));
        assert_eq!(counted("a,b,c", 2), Ok(vec![1, 1, 0]));
        assert_eq!(counted("a:3,b", 4), Ok(vec![3, 1]));
        assert_eq!(counted("a:3,b:3,c:1", 4), Ok(vec![3, 1, 0]));
        let error = counted("a:2,b", 4).unwrap_err();
        assert!(error.contains("3 slots for 4 ranks"), "{error}");
    }

    #[test]
    fn names_of_this_host_need_no_remote_shell_and_have_an_address_that_the_others_reach() {
        let shares = share_out(&hosts("localhost,127.0.0.2,elsewhere=127.0.0.3"), 5).unwrap();
        let seen: Vec<_> = shares.iter().map(|share| (share.address.to_string(), share.ranks.clone(), share.here)).collect();
        // By which this host reaches 127.0.0.3.
        assert_eq!(seen[0], ("127.0.0.1".into(), 0..2, true));
        assert_eq!(seen[1], ("127.0.0.2".into(), 2..4, true));
        assert_eq!(seen[2], ("127.0.0.3".into(), 4..5, false));
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(is_here(&own) && !is_here("elsewhere") && !is_here("192.0.2.1"));
    }

    #[test]
    fn a_host_without_an_address_is_named_with_the_mend() {
        let error = share_out(&hosts("localhost,no-such-host.invalid"), 2).unwrap_err();
        assert!(format!("{error:#}").contains("as in no-such-host.invalid=10.0.0.1"), "{error:#}");
    }
}
