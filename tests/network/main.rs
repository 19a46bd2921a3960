//! Machines that go without a word, and cables that are out for a moment: hosts are network namespaces behind a bridge, and taking
//! down the bridge's end of a host's link leaves nobody a chance to say goodbye.
//!
//! Each test runs itself again in namespaces of its own, for which no privilege is needed where users may have any. Where not, the
//! tests say so and are skipped.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "why a test is skipped")]

mod hosts;

use hosts::{Hosts, in_namespaces};
use std::time::{Duration, Instant};

/// Within this it must be known that a machine has gone: about five seconds, and what a busy machine adds.
const KNOWN: &str = "12";
/// A patience that no test shall come to the end of.
const LONG: &str = "60";

#[test]
fn a_machine_that_goes_without_a_word_has_died_for_all_and_all_for_it() {
    in_namespaces("a_machine_that_goes_without_a_word_has_died_for_all_and_all_for_it", || {
        let mut hosts = Hosts::start(3);
        hosts.all("barrier 60", "ok");
        hosts.unplug(2);
        let departed = |rank: u32| format!("departed {KNOWN} {rank}");
        hosts.tell(0, &departed(2));
        hosts.tell(1, &departed(2));
        hosts.tell(2, &departed(0));
        (0..3).for_each(|rank| assert_eq!(hosts.answer(rank), "died"));
        hosts.tell(2, &departed(1));
        assert_eq!(hosts.answer(2), "died");
    });
}

#[test]
fn a_machine_that_goes_during_a_call_ends_it_on_all_others() {
    in_namespaces("a_machine_that_goes_during_a_call_ends_it_on_all_others", || {
        let mut hosts = Hosts::start(4);
        hosts.all("barrier 60", "ok");
        hosts.unplug(3);
        let begun = Instant::now();
        (0..3).for_each(|rank| hosts.tell(rank, &format!("barrier {LONG}")));
        for rank in 0..3 {
            let answer = hosts.answer(rank);
            assert!(answer.starts_with("rank 3 died while "), "rank {rank}: {answer}");
        }
        assert!(begun.elapsed() < Duration::from_secs(KNOWN.parse().unwrap()), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_machine_that_goes_before_it_was_spoken_to_is_known_to_who_connects_to_it() {
    in_namespaces("a_machine_that_goes_before_it_was_spoken_to_is_known_to_who_connects_to_it", || {
        let mut hosts = Hosts::start(3);
        // Rank 1 and rank 2 have no connection yet: both know only rank 0.
        hosts.unplug(2);
        let begun = Instant::now();
        hosts.tell(0, &format!("exchange {LONG}"));
        hosts.tell(1, &format!("exchange {LONG} 2 100"));
        for rank in 0..2 {
            let answer = hosts.answer(rank);
            assert!(answer.starts_with("rank 2 died while "), "rank {rank}: {answer}");
        }
        assert!(begun.elapsed() < Duration::from_secs(KNOWN.parse().unwrap()), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_cable_that_is_out_for_more_than_a_second_does_no_harm() {
    in_namespaces("a_cable_that_is_out_for_more_than_a_second_does_no_harm", || {
        let mut hosts = Hosts::start(3);
        hosts.all("barrier 60", "ok");
        hosts.unplug(2);
        // Frames are on their way from all sides while it is out.
        (0..3).for_each(|rank| hosts.tell(rank, &format!("exchange {LONG} {} 1000", (rank + 1) % 3)));
        assert_eq!(hosts.answer_within(2, Duration::from_millis(1500)), None, "the cable is not out");
        hosts.plug(2);
        (0..3).for_each(|rank| assert_eq!(hosts.answer(rank), "ok"));
        hosts.unplug(1);
        hosts.tell(0, "departed 2 1");
        assert_eq!(hosts.answer(0), "departed are only []");
        hosts.plug(1);
        hosts.all("barrier 60", "ok");
    });
}

#[test]
fn a_cable_that_is_out_while_ranks_connect_does_no_harm() {
    in_namespaces("a_cable_that_is_out_while_ranks_connect_does_no_harm", || {
        let mut hosts = Hosts::start(3);
        // Rank 1 and rank 2 have no connection yet.
        hosts.unplug(2);
        (0..3).for_each(|rank| hosts.tell(rank, &format!("exchange {LONG} {} 1000", (rank + 1) % 3)));
        assert_eq!(hosts.answer_within(1, Duration::from_millis(1500)), None, "the cable is not out");
        hosts.plug(2);
        (0..3).for_each(|rank| assert_eq!(hosts.answer(rank), "ok"));
    });
}

#[test]
fn a_rank_that_does_not_read_for_long_is_alive() {
    in_namespaces("a_rank_that_does_not_read_for_long_is_alive", || {
        let mut hosts = Hosts::start(2);
        hosts.all("barrier 60", "ok");
        // Rank 1 computes: far more waits for it than its buffers hold, for longer than a machine may be silent.
        hosts.tell(0, &format!("exchange {LONG} 1 20000000"));
        assert_eq!(hosts.answer_within(0, Duration::from_secs(8)), None);
        hosts.tell(1, &format!("exchange {LONG}"));
        (0..2).for_each(|rank| assert_eq!(hosts.answer(rank), "ok"));
        hosts.all("barrier 60", "ok");
    });
}

#[test]
fn a_machine_that_goes_while_much_waits_to_be_read_there_has_died() {
    in_namespaces("a_machine_that_goes_while_much_waits_to_be_read_there_has_died", || {
        let mut hosts = Hosts::start(2);
        hosts.all("barrier 60", "ok");
        hosts.tell(0, &format!("exchange {LONG} 1 20000000"));
        assert_eq!(hosts.answer_within(0, Duration::from_secs(2)), None);
        hosts.unplug(1);
        let begun = Instant::now();
        let answer = hosts.answer(0);
        assert!(answer.starts_with("rank 1 died while "), "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(KNOWN.parse().unwrap()), "{:?}", begun.elapsed());
    });
}
