//! Takes over the listening socket that a launcher left open for rank 0.
//! Owns the one place where a descriptor number becomes a descriptor.

use crate::config::Place;
use crate::{Error, Rank, Result};
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// The listener of `RMA_LISTEN_FD`, if this rank has one. Call it once a process: the descriptor has one owner.
pub(crate) fn listener(place: &Place) -> Result<Option<TcpListener>> {
    let Some(number) = place.listen_fd.filter(|_| place.rank == Rank(0)) else { return Ok(None) };
    let is_socket = std::fs::read_link(format!("/proc/self/fd/{number}"))
        .is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
    if number < 3 || !is_socket {
        return Err(Error::Launch(format!("RMA_LISTEN_FD={number} is no open socket; unset it, and rank 0 listens by itself")));
    }
    let doing = || format!("taking over the listening socket RMA_LISTEN_FD={number}");
    // SAFETY: the descriptor is open (looked up above), and nothing closes it before the end of this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if !rustix::net::sockopt::socket_acceptconn(borrowed).map_err(|cause| Error::os(doing(), cause))? {
        return Err(Error::Launch(format!("RMA_LISTEN_FD={number} does not listen; unset it, and rank 0 listens by itself")));
    }
    // SAFETY: the launcher left the descriptor for this process to own, and said so in the environment; a process joins once.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC).map_err(|cause| Error::os(doing(), cause))?;
    Ok(Some(TcpListener::from(descriptor)))
}
