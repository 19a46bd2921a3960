//! What a neighbor exchange takes: of any schedule, round by round or rail by rail; and for equal messages in closed form (P0, equations 1
//! to 3), with the size from which segments gain. Pure.

use crate::neighbor::{Segmentation, segmentation};
use crate::schedule::{Put, Schedule};
use std::collections::BTreeMap;

/// A machine, as far as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// L: latency and software cost of one step, in microseconds.
    pub step_us: f64,
    /// B: what a rail carries, in bytes a microsecond (which is MB/s).
    pub rail_bytes_per_us: f64,
}

impl Machine {
    /// The time of a schedule whose rounds follow each other: L a round, and its longest put.
    pub fn fenced_us(&self, schedule: &Schedule) -> f64 {
        let longest = |puts: &[Put]| puts.iter().map(|put| self.put_us(put)).fold(self.step_us, f64::max);
        schedule.rounds.iter().map(|round| longest(&round.puts)).sum()
    }

    /// The time of a schedule each of whose rails goes at its own pace: L a put and its bytes, on the rail that takes longest.
    pub fn streamed_us(&self, schedule: &Schedule) -> f64 {
        let mut rails: BTreeMap<_, f64> = BTreeMap::new();
        for put in schedule.puts() {
            *rails.entry(put.rail).or_default() += self.put_us(put);
        }
        rails.into_values().fold(0.0, f64::max)
    }

    fn put_us(&self, put: &Put) -> f64 {
        self.step_us + (put.bytes.end - put.bytes.start) as f64 / self.rail_bytes_per_us
    }

    /// The time of `messages` whole messages of `bytes` each: D = L ceil(N/C) + ceil(N/C) M/B (1).
    pub fn whole_us(&self, messages: usize, rails: u16, bytes: f64) -> f64 {
        let rounds = rounds(messages, rails);
        rounds * self.step_us + rounds * bytes / self.rail_bytes_per_us
    }

    /// The same in segments: D = L N' + (N'/C') M/B (2).
    pub fn segmented_us(&self, messages: usize, rails: u16, bytes: f64) -> f64 {
        let Segmentation { segments, steps } = segmentation(messages, rails);
        let steps = steps as f64;
        steps * self.step_us + steps / segments as f64 * bytes / self.rail_bytes_per_us
    }

    /// The bytes of a message from which segments gain; `None` where they never do.
    pub fn crossover_bytes(&self, messages: usize, rails: u16) -> Option<f64> {
        let Segmentation { segments, steps } = segmentation(messages, rails);
        let saved = rounds(messages, rails) - steps as f64 / segments as f64;
        let further_steps = steps as f64 - rounds(messages, rails);
        (saved > 0.0).then(|| further_steps * self.step_us * self.rail_bytes_per_us / saved)
    }
}

/// How many times faster segments make large messages: (C'/N') ceil(N/C) (3).
pub fn gain(messages: usize, rails: u16) -> f64 {
    let Segmentation { segments, steps } = segmentation(messages, rails);
    if steps == 0 { 1.0 } else { segments as f64 / steps as f64 * rounds(messages, rails) }
}

/// ceil(N/C).
fn rounds(messages: usize, rails: u16) -> f64 {
    messages.div_ceil(rails.max(1).into()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, balanced, segmented, whole};
    use rma::Rank;

    /// P0: six neighbors, four rails, 1 us, 5 GB/s.
    const PAPER: Machine = Machine { step_us: 1.0, rail_bytes_per_us: 5000.0 };

    #[test]
    fn the_figures_of_the_paper_come_out() {
        let throughput = |us: f64| 6.0 * 8e6 / us / 1000.0;
        assert!((throughput(PAPER.whole_us(6, 4, 8e6)) - 15.0).abs() < 0.01);
        assert!((throughput(PAPER.segmented_us(6, 4, 8e6)) - 20.0).abs() < 0.03);
        assert!((gain(6, 4) - 4.0 / 3.0).abs() < 1e-12);
        assert_eq!(PAPER.crossover_bytes(6, 4), Some(10_000.0));
    }

    /// FX10: 12 us, a rail of 3.43 GB/s, and 12 GB/s for all of a node's together.
    #[test]
    fn the_measured_machine_is_met() {
        let machine = Machine { step_us: 12.0, rail_bytes_per_us: 3430.0 };
        let node_bytes_per_us = 12_000.0;
        let capped = |us: f64| (6.0 * 8e6 / us).min(node_bytes_per_us) / 1000.0;
        let whole = Machine { rail_bytes_per_us: node_bytes_per_us / 4.0, ..machine };
        // Four rails at once are more than the node has; the two of the second round are not.
        let whole_us = whole.whole_us(4, 4, 8e6) + machine.whole_us(2, 4, 8e6);
        assert!((capped(whole_us) - 9.6).abs() < 0.1, "{}", capped(whole_us));
        assert!((capped(machine.segmented_us(6, 4, 8e6)) - 12.0).abs() < 1e-9);
    }

    fn equal(count: usize, bytes: u64) -> Vec<Message> {
        vec![Message { target: Rank(0), bytes }; count]
    }

    #[test]
    fn schedules_of_equal_messages_take_what_the_closed_forms_say() {
        let near = |time: f64, closed: f64| (time - closed).abs() < 1e-9 * closed.max(1.0);
        for count in 0..=64usize {
            for rails in 1..=64u16 {
                // Every segment has as many bytes.
                let bytes = segmentation(count, rails).segments * 1000;
                let messages = equal(count, bytes);
                for (name, schedule, closed) in [
                    ("whole", whole(&messages, rails), PAPER.whole_us(count, rails, bytes as f64)),
                    ("segmented", segmented(&messages, rails), PAPER.segmented_us(count, rails, bytes as f64)),
                ] {
                    let (fenced, streamed) = (PAPER.fenced_us(&schedule), PAPER.streamed_us(&schedule));
                    assert!(near(fenced, closed), "{count} {name} on {rails} rails, fenced: {fenced}, not {closed}");
                    assert!(near(streamed, closed), "{count} {name} on {rails} rails, streamed: {streamed}, not {closed}");
                }
            }
        }
    }

    /// Rails that are not in step do not wait for the longest put of a round.
    #[test]
    fn uneven_messages_take_longer_in_rounds_than_rail_by_rail() {
        let messages = [3000, 1000, 1000, 3000].map(|bytes| Message { target: Rank(0), bytes });
        let machine = Machine { step_us: 2.0, rail_bytes_per_us: 1000.0 };
        let schedule = whole(&messages, 2);
        assert_eq!((machine.fenced_us(&schedule), machine.streamed_us(&schedule)), (2.0 + 3.0 + 2.0 + 3.0, 2.0 + 3.0 + 2.0 + 1.0));
        // Equal shares, and a rail that carries two messages.
        let messages = [6000, 1000, 1000].map(|bytes| Message { target: Rank(0), bytes });
        assert_eq!(machine.streamed_us(&whole(&messages, 2)), 2.0 + 6.0 + 2.0 + 1.0);
        assert_eq!(machine.streamed_us(&balanced(&messages, 2)), 3.0 * 2.0 + 4.0);
        // A round in which this rank only hears takes its step, too.
        let mut hears = whole(&messages, 4);
        hears.hear(Rank(1), &[1]);
        assert_eq!(machine.fenced_us(&hears), machine.fenced_us(&whole(&messages, 4)) + 2.0);
    }

    #[test]
    fn the_gain_is_that_of_the_schedules_and_always_below_two() {
        for messages in 2..=64usize {
            for rails in 2..messages.min(64) as u16 {
                let gain = gain(messages, rails);
                // So long a message that every segment has as many bytes.
                let Segmentation { segments, .. } = segmentation(messages, rails);
                let equal = equal(messages, segments);
                let busiest = |schedule: Schedule| {
                    let longest = |round: &crate::Round| round.puts.iter().map(|put| put.bytes.end - put.bytes.start).max();
                    schedule.rounds.iter().filter_map(longest).sum::<u64>()
                };
                let measured = busiest(whole(&equal, rails)) as f64 / busiest(segmented(&equal, rails)) as f64;
                assert!((measured - gain).abs() < 1e-12, "{messages} messages on {rails} rails: {measured}, not {gain}");
                assert!((1.0..2.0).contains(&gain), "{messages} messages on {rails} rails: {gain}");
            }
        }
        for rails in 2..=63u16 {
            let gain = gain(usize::from(rails) + 1, rails);
            assert!((gain - 2.0 * f64::from(rails) / f64::from(rails + 1)).abs() < 1e-12);
        }
    }

    #[test]
    fn both_take_as_long_at_the_crossover_and_segments_win_above_it() {
        for messages in 1..=20 {
            for rails in 1..=20 {
                let times = |bytes| (PAPER.whole_us(messages, rails, bytes), PAPER.segmented_us(messages, rails, bytes));
                match PAPER.crossover_bytes(messages, rails) {
                    Some(bytes) => {
                        let (whole, segmented) = times(bytes);
                        assert!((whole / segmented - 1.0).abs() < 1e-9);
                        let (whole, segmented) = times(bytes * 2.0 + 1.0);
                        assert!(segmented < whole, "{messages} on {rails}");
                    }
                    None => assert!(times(1e12).1 >= times(1e12).0, "{messages} on {rails}"),
                }
            }
        }
    }
}
