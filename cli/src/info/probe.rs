//! Tries what the backends need, the way they would use it, and undoes it. Knows which backend needs what.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

/// A local connection that takes longer does not work.
const TIMEOUT: Duration = Duration::from_secs(5);
const MESSAGE: &[u8; 8] = b"rma info";

type Tried = Result<(), String>;

/// What works here, or why not.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    pub(super) threads: Tried,
    pub(super) memfd: Tried,
    pub(super) unix: Tried,
    pub(super) tcp: Tried,
}

const THREADS: &str = "threads";
const MEMFD: &str = "memfd";
const UNIX: &str = "abstract unix sockets";
const TCP: &str = "loopback tcp";

impl Probes {
    pub(super) fn try_all() -> Self {
        let text = |result: io::Result<()>| result.map_err(|error| error.to_string());
        Self { threads: text(threads()), memfd: text(memfd()), unix: text(unix()), tcp: text(tcp()) }
    }

    pub(super) fn all(&self) -> [(&'static str, &Tried); 4] {
        [(THREADS, &self.threads), (MEMFD, &self.memfd), (UNIX, &self.unix), (TCP, &self.tcp)]
    }

    /// The backends that are built in, and what each lacks.
    pub(super) fn backends(&self) -> [(&'static str, Vec<&'static str>); 2] {
        let lacks = |needed: &[&str]| {
            self.all().iter().filter(|(name, tried)| needed.contains(name) && tried.is_err()).map(|(name, _)| *name).collect()
        };
        [("shm (threads)", lacks(&[THREADS])), ("shm (processes)", lacks(&[MEMFD, UNIX, TCP]))]
    }

    pub(super) fn any_backend(&self) -> bool {
        self.backends().iter().any(|(_, missing)| missing.is_empty())
    }
}

fn threads() -> io::Result<()> {
    let thread = thread::Builder::new().spawn(|| {})?;
    thread.join().map_err(|_| io::Error::other("a thread did not end well"))
}

/// Anonymous memory that can be handed to another process, and never shrinks under it.
fn memfd() -> io::Result<()> {
    let file: File = memfd_create("rma-info", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into();
    ftruncate(&file, 1 << 20)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    file.write_all_at(MESSAGE, (1 << 20) - MESSAGE.len() as u64)
}

fn unix() -> io::Result<()> {
    let random = rma::config::Token::random().map_err(io::Error::other)?.to_hex();
    let address = SocketAddr::from_abstract_name(format!("rma-info-{random}"))?;
    let listener = UnixListener::bind_addr(&address)?;
    // The connection waits in the backlog: no second thread is needed.
    let mut caller = UnixStream::connect_addr(&address)?;
    let (mut called, _) = listener.accept()?;
    called.set_read_timeout(Some(TIMEOUT))?;
    talk(&mut caller, &mut called)
}

fn tcp() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut caller = TcpStream::connect_timeout(&listener.local_addr()?, TIMEOUT)?;
    let (mut called, _) = listener.accept()?;
    called.set_read_timeout(Some(TIMEOUT))?;
    talk(&mut caller, &mut called)
}

fn talk(caller: &mut impl Write, called: &mut impl Read) -> io::Result<()> {
    caller.write_all(MESSAGE)?;
    let mut heard = [0; MESSAGE.len()];
    called.read_exact(&mut heard)?;
    if heard == *MESSAGE { Ok(()) } else { Err(io::Error::other("other bytes arrived than were sent")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(memfd: Tried, threads: Tried) -> Probes {
        Probes { threads, memfd, unix: Ok(()), tcp: Ok(()) }
    }

    #[test]
    fn a_backend_is_usable_if_nothing_it_needs_is_missing() {
        let probes = with(Err("no".into()), Ok(()));
        assert_eq!(probes.backends(), [("shm (threads)", vec![]), ("shm (processes)", vec!["memfd"])]);
        assert!(probes.any_backend());
        assert!(!with(Err("no".into()), Err("no".into())).any_backend());
    }
}
