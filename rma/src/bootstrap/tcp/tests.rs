//! The facts of the bootstrap over real sockets on the loopback interface: the contract, the way in, and loss.

use super::*;
use crate::bootstrap::contract::{Boot, Seed, contract, soon};
use crate::config::Token;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::time::Instant;

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let root = listener.local_addr().unwrap().to_string();
    (listener, root)
}

fn place(rank: u32, size: u32, root: &str) -> Place {
    Place { rank: Rank(rank), size, root: root.into(), token: Token([7; 16]), listen_fd: None, bind: Ipv4Addr::LOCALHOST.into() }
}

fn group(size: u32) -> Vec<TcpBootstrap> {
    let (listener, root) = listen();
    std::thread::scope(|scope| {
        let mut listener = Some(listener);
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (place, listener) = (place(rank, size, &root), listener.take());
                scope.spawn(move || TcpBootstrap::join(&place, listener, soon()).unwrap())
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn make(size: u32) -> Vec<Boot> {
    group(size).into_iter().map(|boot| Box::new(boot) as Boot).collect()
}

contract!(super::make);

fn within(limit: Duration, started: Instant) {
    assert!(started.elapsed() < limit, "took {:?}", started.elapsed());
}

/// Joins as every rank of `size` with `listener` at rank 0, while `aside` runs with the address to join at.
fn group_with(size: u32, aside: impl FnOnce(&str) + Send) -> Vec<Result<TcpBootstrap>> {
    let (listener, root) = listen();
    std::thread::scope(|scope| {
        let root = root.as_str();
        let mut listener = Some(listener);
        let mut join = |rank| {
            let (place, listener) = (place(rank, size, root), listener.take());
            scope.spawn(move || TcpBootstrap::join(&place, listener, soon()))
        };
        // The last rank comes only when `aside` is through with a job that still waits.
        let mut ranks: Vec<_> = (0..size - 1).map(&mut join).collect();
        scope.spawn(|| aside(root)).join().unwrap();
        ranks.push(join(size - 1));
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn all_are_well(group: Vec<Result<TcpBootstrap>>) {
    std::thread::scope(|scope| {
        for boot in group {
            scope.spawn(|| boot.unwrap().barrier(soon()).unwrap());
        }
    });
}

#[test]
fn a_rank_alone_needs_no_network() {
    let boot = TcpBootstrap::join(&place(0, 1, "nowhere.invalid:1"), None, soon()).unwrap();
    boot.barrier(soon()).unwrap();
}

#[test]
fn ranks_that_come_before_rank_0_listens_wait_for_it() {
    // An address of its own, so that nobody else is given the port while nobody listens.
    let host = Ipv4Addr::new(127, fastrand::u8(1..255), fastrand::u8(..), fastrand::u8(1..255));
    let root = TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..4)
            .map(|rank| {
                let place = place(rank, 4, &root);
                scope.spawn(move || TcpBootstrap::join(&place, None, soon()))
            })
            .collect();
        // One attempt at least is refused before anybody listens.
        let early =
            TcpBootstrap::join(&place(1, 4, &root), None, Deadline::after(Duration::from_millis(30))).unwrap_err().to_string();
        assert!(early.contains("rank 0 does not answer at RMA_ROOT=127."), "{early}");
        let first = TcpBootstrap::join(&place(0, 4, &root), None, soon());
        let mut group = vec![first];
        group.extend(others.into_iter().map(|rank| rank.join().unwrap()));
        all_are_well(group);
    });
}

#[test]
fn a_wrong_token_is_refused_and_the_job_goes_on() {
    all_are_well(group_with(3, |root| {
        let stranger = Place { token: Token([8; 16]), ..place(2, 3, root) };
        let error = TcpBootstrap::join(&stranger, None, soon()).unwrap_err().to_string();
        assert!(error.contains("RMA_TOKEN"), "{error}");
    }));
}

#[test]
fn a_rank_of_another_size_is_told_and_the_job_goes_on() {
    all_are_well(group_with(3, |root| {
        let error = TcpBootstrap::join(&place(3, 4, root), None, soon()).unwrap_err().to_string();
        assert!(error.contains("rank 3 of 4 by its RMA_SIZE, but this job has 3 ranks"), "{error}");
    }));
}

#[test]
fn of_two_that_join_as_one_rank_the_second_is_told_and_the_job_goes_on() {
    let (listener, root) = listen();
    std::thread::scope(|scope| {
        let root = root.as_str();
        let (sender, refused) = std::sync::mpsc::channel();
        let first = scope.spawn(move || TcpBootstrap::join(&place(0, 3, root), Some(listener), soon()));
        let twins: Vec<_> = (0..2)
            .map(|_| {
                let sender = sender.clone();
                scope.spawn(move || {
                    let joined = TcpBootstrap::join(&place(1, 3, root), None, soon());
                    joined.map_err(|error| sender.send(error.to_string()).unwrap()).ok()
                })
            })
            .collect();
        let error = refused.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(error.contains("another process has joined as rank 1 already"), "{error}");
        let last = TcpBootstrap::join(&place(2, 3, root), None, soon());
        let mut group: Vec<_> = twins.into_iter().filter_map(|twin| twin.join().unwrap().map(Ok)).collect();
        assert_eq!(group.len(), 1);
        group.extend([first.join().unwrap(), last]);
        all_are_well(group);
    });
}

#[test]
fn a_rank_that_never_joins_is_named_to_all() {
    let (listener, root) = listen();
    std::thread::scope(|scope| {
        let place_of = |rank| place(rank, 4, &root);
        let first =
            scope.spawn(move || TcpBootstrap::join(&place_of(0), Some(listener), Deadline::after(Duration::from_millis(150))));
        let other = TcpBootstrap::join(&place_of(2), None, soon()).unwrap_err().to_string();
        assert!(other.contains("rank 1, rank 3 not connected to"), "{other}");
        let first = first.join().unwrap().unwrap_err();
        assert!(matches!(&first, Error::SetupTimeout { missing, .. } if missing.contains("rank 1, rank 3")), "{first}");
    });
}

#[test]
fn random_bytes_at_the_listening_sockets_disturb_nobody() {
    let seed = Seed::new();
    all_are_well(group_with(5, |root| {
        let mut rng = seed.rng(0);
        let mut silent = Vec::new();
        for _ in 0..200 {
            let mut stream = TcpStream::connect(root).unwrap();
            let mut bytes = vec![0; rng.usize(..300)];
            rng.fill(&mut bytes);
            match rng.u8(..4) {
                // A true length, or a huge one, or the beginning of a hello.
                0 if bytes.len() > 4 => bytes[..4].copy_from_slice(&(rng.u32(..64)).to_le_bytes()),
                1 if bytes.len() > 4 => bytes[..4].fill(0xff),
                2 => bytes = [&30u32.to_le_bytes()[..], b"\x01rma1"].concat(),
                _ => {}
            }
            let _ = stream.write_all(&bytes);
            if rng.bool() {
                silent.push(stream);
            }
        }
    }));
}

#[test]
fn a_foreign_connection_is_closed_at_its_first_wrong_word() {
    let group = group(2);
    let root = match &group[0].mesh.lock().unwrap().phase {
        Phase::Joined(addrs) => addrs[0],
        phase => panic!("{phase:?}"),
    };
    let mut stream = TcpStream::connect(root).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Announces more than a hello may have, and sends none of it.
    stream.write_all(&1000u32.to_le_bytes()).unwrap();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let closed = scope.spawn(move || stream.read(&mut [0]).map_or(0, |count| count));
        while !closed.is_finished() {
            assert_eq!(group[0].departed(), []);
            // Sooner than the patience with connections that say nothing.
            within(Duration::from_secs(2), started);
        }
        assert_eq!(closed.join().unwrap(), 0);
    });
}

/// Kills one rank of a group and gives the time until `notice` has returned on all others, which get the rank that was killed.
fn kill_one(size: u32, killed: Rank, warm: bool, notice: impl Fn(&TcpBootstrap, Rank) + Sync) -> Duration {
    let group = group(size);
    let at = OnceLock::new();
    std::thread::scope(|scope| {
        for boot in &group {
            let (at, notice) = (&at, &notice);
            scope.spawn(move || {
                if warm {
                    boot.barrier(soon()).unwrap();
                }
                if boot.rank == killed {
                    at.set(Instant::now()).unwrap();
                    boot.mesh.lock().unwrap().kill();
                } else {
                    notice(boot, killed);
                }
            });
        }
    });
    at.get().unwrap().elapsed()
}

fn see_dead(boot: &TcpBootstrap, killed: Rank) {
    let started = Instant::now();
    while boot.departed() != [(killed, Departure::Died)] {
        within(Duration::from_secs(20), started);
        std::thread::yield_now();
    }
}

fn fail_a_call(boot: &TcpBootstrap, killed: Rank) {
    let error = boot.allgather(b"part", soon()).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank, how: Departure::Died, .. } if rank == killed), "{error}");
}

/// The best of three, since ranks that share a busy core with many others notice nothing while they do not run.
fn within_a_second(times: impl Fn() -> Duration) {
    let mut tries = (0..3).map(|_| times());
    assert!(tries.any(|time| time < Duration::from_secs(1)));
}

#[test]
fn a_killed_rank_has_died_on_all_within_a_second() {
    for size in [2, 3, 8, 16] {
        for (killed, warm) in [(0, false), (1, true), (size - 1, false), (size / 2, true)] {
            within_a_second(|| kill_one(size, Rank(killed), warm, see_dead));
        }
    }
}

#[test]
fn a_rank_killed_during_a_call_ends_it_on_all_within_a_second() {
    for size in [2, 3, 8, 16] {
        for killed in [0, 1, size - 1] {
            within_a_second(|| kill_one(size, Rank(killed), true, fail_a_call));
            within_a_second(|| kill_one(size, Rank(killed), false, fail_a_call));
        }
    }
}

#[test]
fn a_rank_that_gives_up_has_died_on_all_though_its_bootstrap_is_still_there() {
    let group = group(3);
    let given_up = &group[1];
    given_up.give_up();
    std::thread::scope(|scope| {
        for boot in group.iter().filter(|boot| boot.rank() != given_up.rank()) {
            scope.spawn(|| {
                fail_a_call(boot, given_up.rank());
                see_dead(boot, given_up.rank());
            });
        }
    });
}
