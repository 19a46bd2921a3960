//! What a neighbor exchange takes (P0, equations 1 to 3): closed forms, and the size from which segments gain. Pure.

use crate::neighbor::{Cut, cut};

/// A machine, as far as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// L: latency and software cost of one step, in microseconds.
    pub step_us: f64,
    /// B: what a rail carries, in bytes a microsecond (which is MB/s).
    pub rail_bytes_per_us: f64,
}

impl Machine {
    /// The time of `messages` whole messages of `bytes` each: D = L ceil(N/C) + ceil(N/C) M/B (1).
    pub fn whole_us(&self, messages: usize, rails: u16, bytes: f64) -> f64 {
        let rounds = rounds(messages, rails);
        rounds * self.step_us + rounds * bytes / self.rail_bytes_per_us
    }

    /// The same in segments: D = L N' + (N'/C') M/B (2).
    pub fn segmented_us(&self, messages: usize, rails: u16, bytes: f64) -> f64 {
        let Cut { segments, steps } = cut(messages, rails);
        let steps = steps as f64;
        steps * self.step_us + steps / segments as f64 * bytes / self.rail_bytes_per_us
    }

    /// The bytes of a message from which segments gain; `None` where they never do.
    pub fn crossover_bytes(&self, messages: usize, rails: u16) -> Option<f64> {
        let Cut { segments, steps } = cut(messages, rails);
        let saved = rounds(messages, rails) - steps as f64 / segments as f64;
        let further_steps = steps as f64 - rounds(messages, rails);
        (saved > 0.0).then(|| further_steps * self.step_us * self.rail_bytes_per_us / saved)
    }
}

/// How many times faster segments make large messages: (C'/N') ceil(N/C) (3).
pub fn gain(messages: usize, rails: u16) -> f64 {
    let Cut { segments, steps } = cut(messages, rails);
    if steps == 0 { 1.0 } else { segments as f64 / steps as f64 * rounds(messages, rails) }
}

/// ceil(N/C).
fn rounds(messages: usize, rails: u16) -> f64 {
    messages.div_ceil(rails.max(1).into()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{segmented, whole};

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

    #[test]
    fn the_gain_is_that_of_the_schedules_and_always_below_two() {
        for messages in 2..=64usize {
            for rails in 2..messages.min(64) as u16 {
                let gain = gain(messages, rails);
                // So long a message that every segment has as many bytes.
                let Cut { segments, .. } = cut(messages, rails);
                let bytes = vec![segments; messages];
                let busiest = |schedule: crate::Schedule| {
                    let longest = |round: &crate::Round| round.puts.iter().map(|put| put.bytes.end - put.bytes.start).max();
                    schedule.rounds.iter().filter_map(longest).sum::<u64>()
                };
                let measured = busiest(whole(&bytes, rails)) as f64 / busiest(segmented(&bytes, rails)) as f64;
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
