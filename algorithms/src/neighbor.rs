//! The neighbor exchange (P0): every message of a rank over rails that all have something to do. Pure.

use crate::schedule::{Put, Round, Schedule};
use rma::Rail;
use std::ops::Range;

/// Whole messages (P0, Algorithm 1): as many a round as there are rails.
pub fn whole(message_bytes: &[u64], rails: u16) -> Schedule {
    steps(message_bytes, rails.into(), 1, message_bytes.len().div_ceil(rails.max(1).into()))
}

/// Messages in segments (P0, Algorithms 2 and 3), so that every rail has something to do in every round. Where there are no more messages
/// than rails, whole ones.
pub fn segmented(message_bytes: &[u64], rails: u16) -> Schedule {
    let Cut { segments, steps: count } = cut(message_bytes.len(), rails);
    steps(message_bytes, rails.into(), segments, count)
}

/// How messages are cut for so many rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// C': the segments of each message.
    pub(crate) segments: u64,
    /// N': the steps.
    pub(crate) steps: usize,
}

/// P0: with k the greatest common divisor of N messages and C rails, N' = N / k and C' = C / k.
pub(crate) fn cut(messages: usize, rails: u16) -> Cut {
    let rails = usize::from(rails);
    if messages <= rails {
        return Cut { segments: 1, steps: usize::from(messages > 0) };
    }
    let k = gcd(messages, rails.max(1));
    Cut { segments: (rails.max(1) / k) as u64, steps: messages / k }
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// P0, step i, rail j: q = j + i*C goes over, which is segment q / N of message q mod N. What is empty is left out, also where only some
/// messages are; the others keep their places, so that both sides of a put agree on its rail without a word.
fn steps(message_bytes: &[u64], rails: usize, segments: u64, count: usize) -> Schedule {
    let messages = message_bytes.len();
    let put = |step: usize, rail: usize| {
        let q = rail + step * rails;
        let (segment, message) = ((q / messages) as u64, q % messages);
        if segment >= segments {
            return None;
        }
        let bytes = segment_bytes(message_bytes[message], segment, segments);
        // An empty message is announced, too: by its first segment.
        let sent = !bytes.is_empty() || (message_bytes[message] == 0 && segment == 0);
        sent.then_some(Put { message, segment, bytes, rail: Rail(rail as u16) })
    };
    let round = |step| Round { puts: (0..rails).filter_map(|rail| put(step, rail)).collect() };
    let rounds = if messages == 0 { Vec::new() } else { (0..count).map(round).collect() };
    Schedule { rounds }
}

/// A segment of a message: all as long, but where the bytes do not divide the last of them are shorter or empty (P0, trap e).
fn segment_bytes(bytes: u64, segment: u64, segments: u64) -> Range<u64> {
    let length = bytes.div_ceil(segments);
    let at = |segment: u64| segment.saturating_mul(length).min(bytes);
    at(segment)..at(segment + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has to hold of a schedule of these messages, whatever it is.
    fn check(schedule: &Schedule, message_bytes: &[u64], rails: u16, what: &str) {
        let mut sent: Vec<Vec<Range<u64>>> = vec![Vec::new(); message_bytes.len()];
        for round in &schedule.rounds {
            let (mut messages, mut used) = (Vec::new(), Vec::new());
            for put in &round.puts {
                assert!(put.rail.0 < rails && !used.contains(&put.rail), "{what}: {} twice in a round", put.rail);
                assert!(!messages.contains(&put.message), "{what}: message {} twice in a round", put.message);
                used.push(put.rail);
                messages.push(put.message);
                sent[put.message].push(put.bytes.clone());
            }
        }
        for (message, (mut ranges, &bytes)) in sent.into_iter().zip(message_bytes).enumerate() {
            ranges.sort_unstable_by_key(|range| range.start);
            assert!(!ranges.is_empty(), "{what}: message {message} is never sent");
            let mut at = 0;
            for range in ranges {
                assert_eq!(range.start, at, "{what}: message {message}");
                at = range.end;
            }
            assert_eq!(at, bytes, "{what}: message {message}");
        }
    }

    #[test]
    fn every_byte_is_sent_once_and_no_round_has_a_rail_or_a_message_twice() {
        let mut random = fastrand::Rng::with_seed(1);
        for messages in 0..=64 {
            for rails in 1..=64 {
                let even = vec![random.u64(..1000); messages];
                let uneven: Vec<_> =
                    (0..messages).map(|_| if random.bool() { random.u64(..1000) } else { random.u64(..4) }).collect();
                for bytes in [even, uneven] {
                    check(&whole(&bytes, rails), &bytes, rails, &format!("{messages} whole messages on {rails} rails"));
                    check(&segmented(&bytes, rails), &bytes, rails, &format!("{messages} messages in segments on {rails} rails"));
                }
            }
        }
    }

    #[test]
    fn messages_in_segments_keep_every_rail_busy_in_every_round() {
        for messages in 2..=64usize {
            for rails in 2..messages.min(64) as u16 {
                let Cut { segments, steps } = cut(messages, rails);
                let schedule = segmented(&vec![segments * 10; messages], rails);
                assert_eq!(schedule.rounds.len(), steps);
                for round in &schedule.rounds {
                    assert_eq!(round.puts.len(), usize::from(rails), "{messages} messages on {rails} rails");
                    assert!(round.puts.iter().all(|put| put.bytes.end - put.bytes.start == 10));
                }
            }
        }
    }

    /// Six messages on four rails (P0): three steps of halves in place of two of whole ones.
    #[test]
    fn six_messages_on_four_rails_take_three_steps_of_halves() {
        let schedule = segmented(&[100; 6], 4);
        let steps: Vec<Vec<_>> =
            schedule.rounds.iter().map(|round| round.puts.iter().map(|put| (put.message, put.segment)).collect()).collect();
        assert_eq!(steps, [[(0, 0), (1, 0), (2, 0), (3, 0)], [(4, 0), (5, 0), (0, 1), (1, 1)], [(2, 1), (3, 1), (4, 1), (5, 1)]]);
        assert_eq!(schedule.rounds[1].puts[2].bytes, 50..100);
        assert_eq!(whole(&[100; 6], 4).rounds.iter().map(|round| round.puts.len()).collect::<Vec<_>>(), [4, 2]);
    }

    #[test]
    fn no_more_messages_than_rails_are_sent_whole() {
        for messages in 1..=8 {
            for rails in messages..=8u16 {
                let bytes = vec![77; messages.into()];
                assert_eq!(segmented(&bytes, rails), whole(&bytes, rails));
                assert_eq!(whole(&bytes, rails).rounds.len(), 1);
            }
        }
    }

    #[test]
    fn an_empty_message_is_announced_and_an_empty_segment_is_not() {
        let schedule = segmented(&[0, 1, 5, 0, 9, 2], 4);
        let of = |message: usize| {
            schedule.puts().filter(|put| put.message == message).map(|put| (put.bytes.start, put.bytes.end)).collect::<Vec<_>>()
        };
        let expected = [&[(0, 0)][..], &[(0, 1)], &[(0, 3), (3, 5)], &[(0, 0)], &[(0, 5), (5, 9)], &[(0, 1), (1, 2)]];
        for (message, expected) in expected.into_iter().enumerate() {
            assert_eq!(of(message), expected, "message {message}");
        }
        assert_eq!(schedule.rails_of(4), [Rail(0), Rail(2)]);
    }
}
