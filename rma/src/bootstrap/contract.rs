//! The contract of [`Bootstrap`] as tests: one body a fact, run on every bootstrap.
//! Knows only the trait; a bootstrap gives a way to make a group, and lists the facts with `contract!`.
#![allow(clippy::print_stderr)]

use super::{Bootstrap, Departure, Messages, Objection, all_alike};
use crate::{Deadline, Error, Rank, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Makes a group of ranks, in rank order.
pub(super) type Make = fn(u32) -> Vec<Boot>;
pub(super) type Boot = Box<dyn Bootstrap>;

/// Defines a test for every fact, on the groups that `$make` gives.
macro_rules! contract {
    ($make:expr; $($fact:ident),* $(,)?) => {
        mod contract {
            $(#[test]
            fn $fact() {
                $crate::bootstrap::contract::$fact($make);
            })*
        }
    };
    ($make:expr) => {
        $crate::bootstrap::contract::contract! { $make;
            ranks_and_size_are_those_of_the_group,
            allgather_gives_every_part_in_rank_order,
            exchange_delivers_what_a_naive_oracle_says,
            agree_picks_the_lowest_objection,
            all_alike_names_the_first_difference_on_every_rank,
            no_rank_leaves_a_barrier_before_all_have_entered,
            different_calls_are_named_on_every_rank,
            a_missing_rank_is_named_when_the_deadline_ends,
            a_failed_group_fails_at_once_ever_after,
            refused_arguments_end_the_call_of_all,
            a_rank_that_left_ends_the_calls_of_the_others,
            a_rank_that_leaves_during_a_call_ends_it,
            a_panicking_rank_died,
            leaving_right_after_a_barrier_breaks_nobody,
            leaving_right_after_an_exchange_breaks_nobody,
            large_messages_both_ways_do_not_deadlock,
            random_calls_in_a_row_do_not_mix,
        }
    };
}
pub(super) use contract;

const SIZES: [u32; 6] = [1, 2, 3, 5, 8, 16];

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Runs `body` for every rank on a thread of its own, and gives the results in rank order. Each end is dropped when its body ends.
pub(super) fn each<T: Send>(group: Vec<Boot>, body: impl Fn(Boot) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = group.into_iter().map(|boot| scope.spawn(move || body(boot))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The same for a group that is still needed afterwards.
fn each_of<T: Send>(group: &[Boot], body: impl Fn(&dyn Bootstrap) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = group.iter().map(|boot| scope.spawn(move || body(boot.as_ref()))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A seed, and its number on the screen when the test fails.
pub(super) struct Seed(pub(super) u64);

impl Seed {
    pub(super) fn new() -> Self {
        Self(std::env::var("RMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..)))
    }

    /// The same numbers on every rank that asks for the same `stream`.
    pub(super) fn rng(&self, stream: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.0 ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with RMA_TEST_SEED={}", self.0);
        }
    }
}

fn bytes(rng: &mut fastrand::Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; if rng.u8(..4) == 0 { 0 } else { rng.usize(..=most) }];
    rng.fill(&mut bytes);
    bytes
}

pub(super) fn ranks_and_size_are_those_of_the_group(make: Make) {
    for size in SIZES {
        let seen = each(make(size), |boot| (boot.rank(), boot.size()));
        assert_eq!(seen, (0..size).map(|rank| (Rank(rank), size)).collect::<Vec<_>>());
    }
}

pub(super) fn allgather_gives_every_part_in_rank_order(make: Make) {
    let seed = Seed::new();
    for size in SIZES {
        each(make(size), |boot| {
            for round in 0..50 {
                let parts: Vec<_> = (0..size).map(|rank| bytes(&mut seed.rng(u64::from(round * 100 + rank)), 3000)).collect();
                assert_eq!(boot.allgather(&parts[boot.rank().index()], soon()).unwrap(), parts);
            }
        });
    }
}

/// All messages of a round, by sender, from numbers that every rank can draw for itself.
fn sparse_round(seed: &Seed, size: u32, round: u64) -> Vec<Messages> {
    let mut rng = seed.rng(round);
    let density = rng.f64() * rng.f64();
    let mut messages: Vec<Messages> = vec![Vec::new(); size as usize];
    for from in &mut messages {
        for to in 0..size {
            if rng.f64() < density {
                from.push((Rank(to), bytes(&mut rng, 200)));
            }
        }
        rng.shuffle(from);
    }
    messages
}

fn incoming(messages: &[Messages], to: Rank) -> Messages {
    let mut incoming = Vec::new();
    for (from, sent) in (0..).map(Rank).zip(messages) {
        incoming.extend(sent.iter().filter(|(target, _)| *target == to).map(|(_, message)| (from, message.clone())));
    }
    incoming
}

pub(super) fn exchange_delivers_what_a_naive_oracle_says(make: Make) {
    let seed = Seed::new();
    for size in SIZES {
        each(make(size), |boot| {
            for round in 0..6000 / u64::from(size) {
                let messages = sparse_round(&seed, size, round);
                let got = boot.exchange(messages[boot.rank().index()].clone(), soon()).unwrap();
                assert_eq!(got, incoming(&messages, boot.rank()), "{} of {size}, round {round}", boot.rank());
            }
        });
    }
}

pub(super) fn agree_picks_the_lowest_objection(make: Make) {
    let seed = Seed::new();
    for size in SIZES {
        each(make(size), |boot| {
            for round in 0..100 {
                let mut rng = seed.rng(round);
                let chance = rng.f64();
                let objectors: Vec<_> = (0..size).map(Rank).filter(|_| rng.f64() < chance * chance).collect();
                let mine = objectors.contains(&boot.rank()).then(|| format!("no {round} from {}", boot.rank()));
                let lowest = objectors.first().map(|&rank| Objection { rank, reason: format!("no {round} from {rank}") });
                assert_eq!(boot.agree(mine, soon()).unwrap(), lowest);
            }
        });
    }
}

pub(super) fn all_alike_names_the_first_difference_on_every_rank(make: Make) {
    let wish =
        |color: &str, more: &[&str]| [&["4 cells", color], more].concat().iter().map(ToString::to_string).collect::<Vec<_>>();
    for size in SIZES {
        for odd in [0, size / 2, size - 1] {
            each(make(size), |boot| {
                all_alike(boot.as_ref(), "field", &wish("red", &[]), soon()).unwrap();
                let call = if boot.rank() == Rank(odd) { "halo" } else { "field" };
                let texts = |error: Error| error.to_string().contains("in halo") && error.to_string().contains("in field");
                assert_eq!(all_alike(boot.as_ref(), call, &wish("red", &[]), soon()).is_err_and(texts), size > 1);
                for other in [wish("blue", &["tall"]), wish("red", &["tall"]), wish("red", &["tall", "wide"])] {
                    let mine = if boot.rank() == Rank(odd) { other.clone() } else { wish("red", &[]) };
                    let met = all_alike(boot.as_ref(), "field", &mine, soon());
                    if size == 1 {
                        return met.unwrap();
                    }
                    let Error::CollectiveMismatch { rank, ours, peer, theirs } = met.unwrap_err() else { panic!("another error") };
                    assert_eq!(rank, boot.rank());
                    let says = if other[1] == "blue" {
                        ["field with blue", "field with red"]
                    } else {
                        ["field with tall", "field with nothing more"]
                    };
                    let (mine, others) = if rank == Rank(odd) { (says[0], says[1]) } else { (says[1], says[0]) };
                    assert_eq!((ours.as_str(), theirs.as_str()), (mine, others));
                    assert_eq!(rank != Rank(odd), peer == Rank(odd));
                }
            });
        }
    }
}

pub(super) fn no_rank_leaves_a_barrier_before_all_have_entered(make: Make) {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    for size in SIZES {
        let entered = AtomicU32::new(0);
        each(make(size), |boot| {
            for round in 1..=200 {
                entered.fetch_add(1, SeqCst);
                boot.barrier(soon()).unwrap();
                let count = entered.load(SeqCst);
                assert!(count >= round * size, "{} is out of barrier {round} with {count} entries", boot.rank());
            }
        });
    }
}

fn call(boot: &dyn Bootstrap, which: usize) -> Result<()> {
    match which {
        0 => boot.allgather(b"part", soon()).map(|_| ()),
        1 => boot.exchange(vec![(Rank(0), b"message".to_vec())], soon()).map(|_| ()),
        2 => boot.agree(Some("no".into()), soon()).map(|_| ()),
        _ => boot.barrier(soon()),
    }
}

const NAMES: [&str; 4] = ["allgather", "exchange", "agree", "barrier"];

pub(super) fn different_calls_are_named_on_every_rank(make: Make) {
    let seed = Seed::new();
    for round in 0..60 {
        let mut rng = seed.rng(round);
        let size = SIZES[rng.usize(1..SIZES.len())];
        let before = rng.u32(..3);
        let (common, odd, other) = (rng.usize(..4), rng.u32(..size), rng.usize(1..4));
        let calls: Vec<_> = (0..size).map(|rank| if rank == odd { (common + other) % 4 } else { common }).collect();
        let errors = each(make(size), |boot| {
            for _ in 0..before {
                boot.barrier(soon()).unwrap();
            }
            let error = call(boot.as_ref(), calls[boot.rank().index()]).unwrap_err();
            // Nobody leaves before all have their error.
            (boot, error)
        });
        for (boot, error) in errors {
            let Error::CollectiveMismatch { rank, ours, peer, theirs } = error else { panic!("{}: {error}", boot.rank()) };
            assert_eq!((rank, ours.as_str()), (boot.rank(), NAMES[calls[rank.index()]]));
            assert_eq!(theirs, NAMES[calls[peer.index()]]);
            assert_ne!(ours, theirs);
        }
    }
}

pub(super) fn a_missing_rank_is_named_when_the_deadline_ends(make: Make) {
    for size in [2, 3, 5, 8] {
        for missing in [0, 1, size - 1] {
            for which in 0..3 {
                // On a busy machine a rank may be late by more than a short patience, and then it is rightly called missing too.
                let mut patience = [60, 300, 3000].map(Duration::from_millis).into_iter();
                while let Err(text) = name_missing(make(size), Rank(missing), which, patience.next().unwrap()) {
                    assert_ne!(patience.len(), 0, "{text}");
                }
            }
        }
    }
}

/// Lets all but one rank call; whether each of them is told who is missing, or else what they are told.
fn name_missing(group: Vec<Boot>, missing: Rank, which: usize, patience: Duration) -> Result<(), String> {
    let started = Instant::now();
    let errors = each_of(&group, |boot| {
        let soon = Deadline::after(patience);
        match (boot.rank() == missing, which) {
            (true, _) => None,
            (_, 0) => boot.barrier(soon).err(),
            (_, 1) => boot.allgather(b"", soon).err(),
            _ => boot.exchange(Vec::new(), soon).err(),
        }
    });
    assert!(started.elapsed() < patience + Duration::from_secs(10), "took {:?}", started.elapsed());
    let text = missing.to_string();
    let errors: Vec<_> = errors.into_iter().flatten().collect();
    assert_eq!(errors.len(), group.len() - 1);
    assert!(errors.iter().any(|error| matches!(error, Error::SetupTimeout { .. })), "{errors:?}");
    let named = errors.iter().all(|error| match error {
        Error::SetupTimeout { missing, .. } => missing.contains(&text),
        // Another rank's deadline ended a little earlier, and it told this one.
        Error::CollectiveFailed { reason, .. } => reason.contains(&text),
        _ => false,
    });
    if named { Ok(()) } else { Err(format!("{text} of {} is not named to all: {errors:?}", group.len())) }
}

pub(super) fn a_failed_group_fails_at_once_ever_after(make: Make) {
    let group = make(4);
    each_of(&group, |boot| call(boot, if boot.rank().0 == 2 { 0 } else { 3 }).unwrap_err());
    let started = Instant::now();
    for which in 0..4 {
        for boot in &group {
            let error = call(boot.as_ref(), which).unwrap_err();
            assert!(matches!(error, Error::CollectiveFailed { .. }), "{error}");
            assert!(
                error.to_string().contains("rank 2 is in allgather") || error.to_string().contains("while rank 2 is in"),
                "{error}"
            );
        }
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

pub(super) fn refused_arguments_end_the_call_of_all(make: Make) {
    let bad: [(Messages, &str); 2] = [
        (vec![(Rank(4), Vec::new())], "there is no rank 4, the job has 4"),
        (vec![(Rank(1), vec![1]), (Rank(1), vec![2])], "several messages to rank 1"),
    ];
    for (outgoing, text) in bad {
        let group = make(4);
        let errors = each_of(&group, |boot| {
            let outgoing = if boot.rank().0 == 3 { outgoing.clone() } else { Vec::new() };
            boot.exchange(outgoing, soon()).unwrap_err()
        });
        assert!(matches!(errors[3], Error::NoSuchRank { .. } | Error::Invalid { .. }), "{}", errors[3]);
        for error in &errors[..3] {
            assert!(matches!(error, Error::CollectiveFailed { rank: Rank(3), .. }), "{error}");
        }
        for error in errors {
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

/// Looks until `rank` is known to have gone; the news of it travel while one looks.
pub(super) fn see_departed(boot: &dyn Bootstrap, rank: Rank, how: Departure) {
    let started = Instant::now();
    while !boot.departed().contains(&(rank, how)) {
        assert!(started.elapsed() < Duration::from_secs(20), "{}: {rank} never {how:?}: {:?}", boot.rank(), boot.departed());
        std::thread::yield_now();
    }
}

pub(super) fn a_rank_that_left_ends_the_calls_of_the_others(make: Make) {
    for size in [2, 3, 8] {
        for gone in [0, size - 1] {
            each(make(size), |boot| {
                boot.barrier(soon()).unwrap();
                assert_eq!(boot.departed().iter().find(|(rank, _)| rank.0 != gone), None);
                if boot.rank().0 == gone {
                    return None;
                }
                see_departed(boot.as_ref(), Rank(gone), Departure::Left);
                let started = Instant::now();
                let error = call(boot.as_ref(), 0).unwrap_err();
                assert!(matches!(error, Error::PeerLost { rank, how: Departure::Left, .. } if rank.0 == gone), "{error}");
                assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
                Some(boot)
            });
        }
    }
}

pub(super) fn a_rank_that_leaves_during_a_call_ends_it(make: Make) {
    for (size, gone) in [(2, 1), (3, 0), (8, 5)] {
        for which in 0..4 {
            let errors = each(make(size), |boot| {
                let started = Instant::now();
                let error = (boot.rank().0 != gone).then(|| call(boot.as_ref(), which).unwrap_err());
                assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
                error.map(|error| (boot, error))
            });
            for (_, error) in errors.iter().flatten() {
                assert!(matches!(error, Error::PeerLost { rank, how: Departure::Left, .. } if rank.0 == gone), "{error}");
            }
        }
    }
}

pub(super) fn a_panicking_rank_died(make: Make) {
    each(make(3), |boot| {
        if boot.rank().0 == 1 {
            let boot = AssertUnwindSafe(boot);
            let caught = catch_unwind(move || {
                let boot = boot;
                boot.0.barrier(soon()).unwrap();
                std::panic::resume_unwind(Box::new(()));
            });
            assert!(caught.is_err());
            return;
        }
        // The barrier that the rank completed before is not harmed by its death.
        boot.barrier(soon()).unwrap();
        see_departed(boot.as_ref(), Rank(1), Departure::Died);
        let error = boot.barrier(soon()).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    });
}

pub(super) fn leaving_right_after_a_barrier_breaks_nobody(make: Make) {
    for size in [2, 3, 5, 8] {
        for _ in 0..40 {
            each(make(size), |boot| boot.barrier(soon()).unwrap());
        }
    }
}

pub(super) fn leaving_right_after_an_exchange_breaks_nobody(make: Make) {
    let seed = Seed::new();
    for size in [2, 3, 5, 8] {
        for round in 0..25 {
            let messages = sparse_round(&seed, size, round);
            each(make(size), |boot| {
                let got = boot.exchange(messages[boot.rank().index()].clone(), soon()).unwrap();
                assert_eq!(got, incoming(&messages, boot.rank()));
                let all = boot.allgather(&[boot.rank().0 as u8; 1000], soon()).unwrap();
                assert_eq!(all.len(), size as usize);
            });
        }
    }
}

pub(super) fn large_messages_both_ways_do_not_deadlock(make: Make) {
    const LEN: usize = 6 << 20;
    for size in [2, 3] {
        each(make(size), |boot| {
            let message = |from: Rank, to: u32| vec![(from.0 * 16 + to) as u8; LEN + to as usize];
            for _ in 0..2 {
                let outgoing = (0..size).map(|to| (Rank(to), message(boot.rank(), to))).collect();
                let got = boot.exchange(outgoing, soon()).unwrap();
                assert_eq!(got.len(), size as usize);
                for (from, bytes) in got {
                    assert!(bytes == message(from, boot.rank().0), "{from} to {}", boot.rank());
                }
                let all = boot.allgather(&message(boot.rank(), 0), soon()).unwrap();
                assert!((0..).map(Rank).zip(&all).all(|(from, bytes)| *bytes == message(from, 0)));
            }
        });
    }
}

pub(super) fn random_calls_in_a_row_do_not_mix(make: Make) {
    let seed = Seed::new();
    for size in SIZES {
        each(make(size), |boot| {
            let mut shared = seed.rng(1);
            let mut own = seed.rng(1000 + u64::from(boot.rank().0));
            for round in 0..300 {
                if own.u8(..8) == 0 {
                    std::thread::yield_now();
                }
                match shared.u8(..4) {
                    0 => {
                        let all = boot.allgather(&[round as u8, boot.rank().0 as u8], soon()).unwrap();
                        assert_eq!(all, (0..size).map(|rank| vec![round as u8, rank as u8]).collect::<Vec<_>>());
                    }
                    1 => {
                        let messages = sparse_round(&seed, size, round);
                        let got = boot.exchange(messages[boot.rank().index()].clone(), soon()).unwrap();
                        assert_eq!(got, incoming(&messages, boot.rank()));
                    }
                    2 => {
                        let objector = Rank(shared.u32(..size));
                        let mine = (boot.rank() == objector).then(|| round.to_string());
                        let got = boot.agree(mine, soon()).unwrap();
                        assert_eq!(got, Some(Objection { rank: objector, reason: round.to_string() }));
                    }
                    _ => boot.barrier(soon()).unwrap(),
                }
                if own.u8(..16) == 0 {
                    assert!(round > 200 || boot.departed().is_empty());
                }
            }
        });
    }
}
