//! When a peer whose machine has gone without a word is given up: the system asks idle connections for a sign of life, and limits how
//! long what was sent stays unacknowledged. Owns the times; knows sockets, but not what they carry.
//!
//! The limit does not tell a peer that has gone from one that does not read, and a rank that computes may rightly not read for an
//! hour. So it is lifted from a connection on which so much was sent that it might fill the peer's buffer, and then a second
//! connection, on which nothing travels, watches the same peer.

use rustix::net::sockopt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long a peer may be silent before it is taken for gone. A link that is down for half as long does no harm.
const SILENCE: Duration = Duration::from_secs(4);
/// How long a connection is idle before the peer is asked, and how long each question waits.
const QUESTION: Duration = Duration::from_secs(1);
/// What a connection may carry in one direction while its limit stays. The least buffer that systems give to a receiver holds it.
pub(super) const LIGHT_BYTES: usize = 16 << 10;

/// Whether a peer can go without this machine.
pub(super) fn is_far(peer: IpAddr) -> bool {
    !peer.is_loopback()
}

/// Has the system give the peer up when it is silent. Before connecting, for the attempt as well.
pub(super) fn limit(socket: impl AsFd, peer: IpAddr) -> io::Result<()> {
    if !is_far(peer) {
        return Ok(());
    }
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, QUESTION)?;
    sockopt::set_tcp_keepintvl(&socket, QUESTION)?;
    sockopt::set_tcp_keepcnt(&socket, SILENCE.as_secs() as u32)?;
    Ok(sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)?)
}

/// Lets what was sent wait for as long as the peer does not read. An idle connection is still asked for a sign of life.
pub(super) fn lift(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_user_timeout(&socket, 0)?)
}

/// Whether this is what the system says of a peer that is silent or out of reach.
pub(super) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_far_peer_is_given_up_after_seconds_and_a_near_one_never() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let times = |peer: IpAddr| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            limit(&stream, peer).unwrap();
            let asks = sockopt::socket_keepalive(&stream).unwrap().then(|| {
                let (idle, each) = (sockopt::tcp_keepidle(&stream).unwrap(), sockopt::tcp_keepintvl(&stream).unwrap());
                idle + each * (sockopt::tcp_keepcnt(&stream).unwrap() - 1)
            });
            let limit = sockopt::tcp_user_timeout(&stream).unwrap();
            lift(&stream).unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0);
            (asks, limit)
        };
        assert_eq!(times([10, 0, 0, 1].into()), (Some(SILENCE), 4000));
        assert_eq!(times([127, 0, 0, 2].into()), (None, 0));
    }
}
