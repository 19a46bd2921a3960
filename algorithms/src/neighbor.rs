//! The neighbor exchange (P0): every message of a rank over rails that all have something to do. Pure.

use crate::schedule::{Message, Put, Round, Schedule};
use rma::Rail;
use std::ops::Range;

/// Whole messages (P0, Algorithm 1): as many a round as there are rails.
pub fn whole(messages: &[Message], rails: u16) -> Schedule {
    steps(messages, rails, Segmentation { segments: 1, steps: messages.len().div_ceil(rails.max(1).into()) })
}

/// Messages in equal segments (P0, Algorithms 2 and 3), so that every rail has something to do in every round. Where there are no more
/// messages than rails, whole ones.
pub fn segmented(messages: &[Message], rails: u16) -> Schedule {
    steps(messages, rails, segmentation(messages.len(), rails))
}

/// Messages laid end to end and wrapped around the rails (McNaughton): each rail carries an equal share of all bytes, to a byte, however
/// much the messages differ, and a message is cut only where a share ends.
pub fn balanced(messages: &[Message], rails: u16) -> Schedule {
    let total: u128 = messages.iter().map(|message| u128::from(message.bytes)).sum();
    let rails = u128::from(rails.max(1));
    let mut columns: Vec<Vec<Put>> = (0..rails).map(|_| Vec::new()).collect();
    let mut begin = 0;
    for (number, message) in messages.iter().enumerate().filter(|(_, message)| message.bytes > 0) {
        let end = begin + u128::from(message.bytes);
        let mut segment = 0;
        for (rail, column) in columns.iter_mut().enumerate() {
            let share = total * rail as u128 / rails..total * (rail as u128 + 1) / rails;
            let piece = share.start.max(begin)..share.end.min(end);
            if !piece.is_empty() {
                let bytes = (piece.start - begin) as u64..(piece.end - begin) as u64;
                column.push(Put { message: number, target: message.target, segment, bytes, rail: Rail(rail as u16) });
                segment += 1;
            }
        }
        begin = end;
    }
    // An empty message is announced, too: where the fewest puts are.
    for (number, message) in messages.iter().enumerate().filter(|(_, message)| message.bytes == 0) {
        let shortest = (0..columns.len()).min_by_key(|&rail| columns[rail].len()).unwrap_or(0);
        let rail = Rail(shortest as u16);
        columns[shortest].push(Put { message: number, target: message.target, segment: 0, bytes: 0..0, rail });
    }
    let rounds = columns.iter().map(Vec::len).max().unwrap_or(0);
    let round =
        |number| Round { puts: columns.iter().filter_map(|column| column.get(number)).cloned().collect(), origins: Vec::new() };
    Schedule { rounds: (0..rounds).map(round).collect() }
}

/// How messages are cut for so many rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segmentation {
    /// C': the segments of each message.
    pub(crate) segments: u64,
    /// N': the steps.
    pub(crate) steps: usize,
}

/// P0: with k the greatest common divisor of N messages and C rails, N' = N / k and C' = C / k.
pub(crate) fn segmentation(messages: usize, rails: u16) -> Segmentation {
    let rails = usize::from(rails);
    if messages <= rails {
        return Segmentation { segments: 1, steps: usize::from(messages > 0) };
    }
    let k = gcd(messages, rails.max(1));
    Segmentation { segments: (rails.max(1) / k) as u64, steps: messages / k }
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// P0, step i, rail j: q = j + i*C goes over, which is segment q / N of message q mod N. What is empty is left out, also where only some
/// messages are; the others keep their places.
fn steps(messages: &[Message], rails: u16, segmentation: Segmentation) -> Schedule {
    let (count, rails) = (messages.len(), usize::from(rails.max(1)));
    let put = |step: usize, rail: usize| {
        let q = rail + step * rails;
        let (segment, message) = ((q / count) as u64, q % count);
        if segment >= segmentation.segments {
            return None;
        }
        let Message { target, bytes: all } = messages[message];
        let bytes = segment_bytes(all, segment, segmentation.segments);
        // An empty message is announced, too: by its first segment.
        let sent = !bytes.is_empty() || (all == 0 && segment == 0);
        sent.then_some(Put { message, target, segment, bytes, rail: Rail(rail as u16) })
    };
    let round = |step| Round { puts: (0..rails).filter_map(|rail| put(step, rail)).collect(), origins: Vec::new() };
    Schedule { rounds: (0..segmentation.steps).map(round).collect() }
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
    use rma::Rank;

    /// One message for each length, to one rank after the other.
    fn of(bytes: &[u64]) -> Vec<Message> {
        (10..).map(Rank).zip(bytes).map(|(target, &bytes)| Message { target, bytes }).collect()
    }

    /// What has to hold of a schedule of these messages, whatever it is.
    fn check(schedule: &Schedule, messages: &[Message], rails: u16, what: &str) {
        let mut sent: Vec<Vec<Range<u64>>> = vec![Vec::new(); messages.len()];
        for round in &schedule.rounds {
            assert!(round.puts.is_sorted_by(|a, b| a.rail < b.rail), "{what}: a rail twice in a round");
            for put in &round.puts {
                assert!(put.rail.0 < rails, "{what}: {}", put.rail);
                assert_eq!(put.target, messages[put.message].target, "{what}: message {}", put.message);
                sent[put.message].push(put.bytes.clone());
            }
        }
        for (message, (mut ranges, Message { bytes, .. })) in sent.into_iter().zip(messages).enumerate() {
            ranges.sort_unstable_by_key(|range| range.start);
            let empty = ranges.iter().filter(|range| range.is_empty()).count();
            assert_eq!(empty, usize::from(*bytes == 0), "{what}: message {message} is announced without bytes {empty} times");
            let mut at = 0;
            for range in ranges {
                assert_eq!(range.start, at, "{what}: message {message}");
                at = range.end;
            }
            assert_eq!(at, *bytes, "{what}: message {message}");
        }
    }

    fn check_no_message_twice_in_a_round(schedule: &Schedule, what: &str) {
        for round in &schedule.rounds {
            let mut messages: Vec<_> = round.puts.iter().map(|put| put.message).collect();
            messages.sort_unstable();
            assert!(messages.is_sorted_by(|a, b| a < b), "{what}: a message twice in a round: {round:?}");
        }
    }

    fn bytes_by_rail(schedule: &Schedule, rails: u16) -> Vec<u64> {
        let of = |rail| schedule.puts().filter(|put| put.rail == Rail(rail)).map(|put| put.bytes.end - put.bytes.start).sum();
        (0..rails).map(of).collect()
    }

    /// Equal ones, and uneven ones of which some are empty or much longer than others.
    fn draws(random: &mut fastrand::Rng, messages: usize) -> [Vec<Message>; 3] {
        let even = vec![random.u64(..1000); messages];
        let uneven = (0..messages).map(|_| if random.bool() { random.u64(..1000) } else { random.u64(..4) }).collect();
        let one_long = (0..messages).map(|message| if message == messages / 2 { 5000 } else { random.u64(..100) }).collect();
        [even, uneven, one_long].map(|bytes: Vec<u64>| of(&bytes))
    }

    #[test]
    fn every_byte_is_sent_once_and_no_round_has_a_rail_or_a_message_twice() {
        let mut random = fastrand::Rng::with_seed(1);
        for count in 0..=64 {
            for rails in 1..=64 {
                for messages in draws(&mut random, count) {
                    for (name, cut) in [("whole", whole as fn(&[_], _) -> _), ("segmented", segmented)] {
                        let (schedule, what) = (cut(&messages, rails), format!("{count} messages, {name}, on {rails} rails"));
                        check(&schedule, &messages, rails, &what);
                        check_no_message_twice_in_a_round(&schedule, &what);
                    }
                }
            }
        }
    }

    #[test]
    fn balanced_rails_differ_by_a_byte_at_most_whatever_the_messages() {
        let mut random = fastrand::Rng::with_seed(2);
        for count in 0..=64 {
            for rails in 1..=64 {
                for messages in draws(&mut random, count) {
                    let (schedule, what) = (balanced(&messages, rails), format!("{count} messages, balanced, on {rails} rails"));
                    check(&schedule, &messages, rails, &what);
                    let loads = bytes_by_rail(&schedule, rails);
                    let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
                    assert!(most - least <= 1, "{what}: {loads:?}");
                    // Cut only where a share ends.
                    let full = messages.iter().filter(|message| message.bytes > 0).count();
                    let empty = messages.len() - full;
                    assert!(schedule.puts().count() < full.max(1) + empty + usize::from(rails), "{what}");
                    if messages.iter().all(|message| message.bytes <= *least) {
                        check_no_message_twice_in_a_round(&schedule, &what);
                    }
                }
            }
        }
    }

    #[test]
    fn messages_in_segments_keep_every_rail_busy_in_every_round() {
        for messages in 2..=64usize {
            for rails in 2..messages.min(64) as u16 {
                let Segmentation { segments, steps } = segmentation(messages, rails);
                let schedule = segmented(&of(&vec![segments * 10; messages]), rails);
                assert_eq!(schedule.rounds.len(), steps);
                for round in &schedule.rounds {
                    assert_eq!(round.puts.len(), usize::from(rails), "{messages} messages on {rails} rails");
                    assert!(round.puts.iter().all(|put| put.bytes.end - put.bytes.start == 10));
                }
            }
        }
    }

    fn rounds(schedule: &Schedule) -> Vec<Vec<(usize, u64)>> {
        schedule.rounds.iter().map(|round| round.puts.iter().map(|put| (put.message, put.segment)).collect()).collect()
    }

    /// Six messages on four rails (P0): three steps of halves in place of two of whole ones.
    #[test]
    fn six_messages_on_four_rails_take_three_steps_of_halves() {
        let schedule = segmented(&of(&[100; 6]), 4);
        assert_eq!(
            rounds(&schedule),
            [[(0, 0), (1, 0), (2, 0), (3, 0)], [(4, 0), (5, 0), (0, 1), (1, 1)], [(2, 1), (3, 1), (4, 1), (5, 1)]]
        );
        assert_eq!(schedule.rounds[1].puts[2].bytes, 50..100);
        let schedule = whole(&of(&[100; 6]), 4);
        assert_eq!(schedule.rounds.iter().map(|round| round.puts.len()).collect::<Vec<_>>(), [4, 2]);
    }

    /// Shares of 150 bytes: the second message ends the first share and begins the second, and so on.
    #[test]
    fn balanced_messages_are_cut_where_a_share_ends() {
        let schedule = balanced(&of(&[100; 6]), 4);
        assert_eq!(rounds(&schedule), [[(0, 0), (1, 1), (3, 0), (4, 1)], [(1, 0), (2, 0), (4, 0), (5, 0)]]);
        let schedule = balanced(&of(&[0, 350, 50, 0]), 4);
        assert_eq!(rounds(&schedule), [vec![(1, 0), (1, 1), (1, 2), (1, 3)], vec![(0, 0), (3, 0), (2, 0)]]);
    }

    #[test]
    fn no_more_messages_than_rails_are_sent_whole() {
        for messages in 1..=8 {
            for rails in messages..=8u16 {
                let messages = of(&vec![77; messages.into()]);
                assert_eq!(segmented(&messages, rails), whole(&messages, rails));
                assert_eq!(whole(&messages, rails).rounds.len(), 1);
            }
        }
    }

    #[test]
    fn an_empty_message_is_announced_and_an_empty_segment_is_not() {
        let schedule = segmented(&of(&[0, 1, 5, 0, 9, 2]), 4);
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
