//! How the ranks of a communicator learn where rank 0 listens, and on which communicator they have met.
//! Owns the choice of addresses. After it, nothing of the bootstrap goes over MPI.

use crate::failed;
use crate::ffi::{Communicator, Outcome, Turn};
use rma::bootstrap::all_or_none;
use rma::config::{Place, Token};
use rma::{Bootstrap, Deadline, Error, Hosts, Rank, Result};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, TcpListener, ToSocketAddrs, UdpSocket};

/// What rank 0 tells all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Root {
    address: String,
    token: [u8; 16],
}

thread_local! {
    /// Where this rank has met the others. A process joins one job, so there is never another.
    static MET: Cell<Option<&'static Communicator>> = const { Cell::new(None) };
}

/// Collective: this rank's place among the ranks of a communicator. One that the program `chose` stays, whatever places are asked for
/// besides.
pub(crate) fn place(communicator: Communicator, chose: bool) -> Result<Place> {
    // Never freed: MPI does that when it is finalized, and freeing is collective.
    let communicator: &'static Communicator = Box::leak(Box::new(communicator));
    let place = meet(communicator)?;
    if chose || MET.get().is_none() {
        MET.set(Some(communicator));
    }
    // What this rank had to say to others may still be here, and many libraries send only while they are called.
    rma::bootstrap::while_waiting(|| {
        if let Ok(_turn) = crate::ffi::initialize() {
            communicator.progress();
        }
    });
    Ok(place)
}

/// Collective: the communicator whose ranks are those of this job, and the right to use it.
pub(crate) fn communicator_of(boot: &dyn Bootstrap, hosts: &Hosts, deadline: Deadline) -> Result<(&'static Communicator, Turn)> {
    all_or_none(boot, "opening MPI", find(boot, hosts), deadline)
}

fn find(boot: &dyn Bootstrap, hosts: &Hosts) -> Result<(&'static Communicator, Turn)> {
    let (rank, size) = (boot.rank().0, boot.size());
    let start =
        format!("start the program with `mpirun -n {size} PROGRAM` of the MPI that it was built with ({})", crate::built_with());
    if hosts.share_a_process() {
        return Err(Error::Launch(format!("the ranks are threads of one process, and MPI knows processes only; {start}")));
    }
    let asked = |refused| failed("asking for the ranks that MPI sees", refused);
    let turn = crate::ffi::initialize()?;
    let met = MET.get();
    // Asked before a copy is made: that takes all ranks of the other launcher, which may not be here.
    let seen = met.map_or_else(Communicator::place_in_world, |met| Ok((met.rank()?, met.size()?))).map_err(asked)?;
    if seen != (rank, size) {
        let (seen_rank, seen_size) = seen;
        return Err(Error::Launch(format!(
            "this is rank {rank} of {size}, but {} sees rank {seen_rank} of {seen_size}: another launcher started the ranks; {start}",
            crate::library()
        )));
    }
    let communicator = match met {
        Some(communicator) => communicator,
        None => {
            let world = Communicator::world().map_err(|refused| failed("copying MPI_COMM_WORLD", refused))?;
            &*Box::leak(Box::new(world))
        }
    };
    Ok((communicator, turn))
}

fn meet(communicator: &Communicator) -> Result<Place> {
    let asked = |outcome: Outcome<u32>| outcome.map_err(|refused| failed("asking for this rank's place", refused));
    let (rank, size) = (asked(communicator.rank())?, asked(communicator.size())?);
    let one_host = is_one_host(communicator, size).map_err(|refused| failed("finding out which ranks share a host", refused))?;
    // Who cannot go on says so before it goes: the others would wait for it in a call of MPI, which has no deadline.
    let bind = bind_address(one_host);
    let mut listener = None;
    let mut words = Vec::new();
    if rank == 0 {
        let root = bind.as_ref().map_err(Error::full_text).and_then(|&bind| {
            let (bound, root) = listen(bind).map_err(|error| error.full_text())?;
            listener = Some(bound);
            Ok(root)
        });
        words = postcard::to_stdvec(&root).expect("bug: an address cannot be encoded");
    }
    let words = communicator.broadcast(words).map_err(|refused| failed("hearing where rank 0 listens", refused))?;
    let found = bind.and_then(|bind| {
        let root = postcard::from_bytes::<std::result::Result<Root, String>>(&words)
            .map_err(|cause| Error::Malformed { what: "address of rank 0", from: Rank(0).to_string(), reason: cause.to_string() })?
            .map_err(|reason| Error::Launch(format!("rank 0: {reason}")))?;
        let bind = bind.map_or_else(|| facing(&root.address), Ok)?;
        Ok((root, bind))
    });
    let all_found = communicator.all(found.is_ok()).map_err(|refused| failed("agreeing on the way to rank 0", refused))?;
    let (root, bind) = found?;
    if !all_found {
        return Err(Error::Launch("another rank has no address to listen on; its own error says why".into()));
    }
    let place = Place::new(Rank(rank), size, root.address, Token(root.token), bind);
    Ok(match listener {
        Some(listener) => place.listening(listener),
        None => place,
    })
}

fn is_one_host(communicator: &Communicator, size: u32) -> Outcome<bool> {
    let here = communicator.on_this_host()?.size()?;
    communicator.all(here == size)
}

/// Where this rank is to listen, if that is known by now: `RMA_BIND`, or loopback where that reaches all.
fn bind_address(one_host: bool) -> Result<Option<IpAddr>> {
    match std::env::var("RMA_BIND") {
        Ok(text) => {
            let address = text.trim().parse().map_err(|_| Error::Launch(format!("RMA_BIND={text:?}: expected an IP address")))?;
            Ok(Some(address))
        }
        Err(_) if one_host => Ok(Some(Ipv4Addr::LOCALHOST.into())),
        Err(_) => Ok(None),
    }
}

/// Rank 0: listens at the address, or at the one that this host's name stands for.
fn listen(bind: Option<IpAddr>) -> Result<(TcpListener, Root)> {
    let address = match bind {
        Some(address) => address,
        None => own_address()?,
    };
    let listener = TcpListener::bind((address, 0)).map_err(|cause| Error::Os {
        doing: format!("listening at {address}; set RMA_BIND on every host to an address that the others reach"),
        cause,
    })?;
    let bound = listener.local_addr().map_err(|cause| Error::os("asking a listener for its port", cause))?;
    Ok((listener, Root { address: bound.to_string(), token: Token::random()?.0 }))
}

/// The address under which other hosts know this one.
fn own_address() -> Result<IpAddr> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let known = (name, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip());
    let useful: Vec<_> = known.filter(|address| !address.is_loopback() && !address.is_unspecified()).collect();
    useful.iter().find(|address| address.is_ipv4()).or(useful.first()).copied().ok_or_else(|| {
        Error::Launch(format!(
            "the ranks are on several hosts, and the name of rank 0's, {name:?}, stands for no address that others reach; set RMA_BIND on \
             every host to an address of its own that they do"
        ))
    })
}

/// This host's address towards another one.
fn facing(root: &str) -> Result<IpAddr> {
    let open = if root.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    // Connecting a datagram socket sends nothing; it only chooses the way.
    let towards = UdpSocket::bind(open).and_then(|socket| {
        socket.connect(root)?;
        socket.local_addr()
    });
    towards.map(|address| address.ip()).map_err(|cause| Error::Os {
        doing: format!("looking for a way to rank 0 at {root}; set RMA_BIND on every host to an address that the others reach"),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_listens_where_it_says() {
        let (listener, root) = listen(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        assert_eq!(root.address, listener.local_addr().unwrap().to_string());
        assert_eq!(facing(&root.address).unwrap(), IpAddr::from(Ipv4Addr::LOCALHOST));
        std::net::TcpStream::connect(&root.address).unwrap();
    }

    #[test]
    fn an_address_that_this_host_has_not_is_named_with_its_mend() {
        // Kept free for documentation: nobody has it.
        let error = listen(Some(Ipv4Addr::new(192, 0, 2, 1).into())).unwrap_err().full_text();
        assert!(error.contains("192.0.2.1") && error.contains("RMA_BIND"), "{error}");
    }
}
