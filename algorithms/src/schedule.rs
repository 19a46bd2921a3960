//! What a rank sends and hears, in which order: plain data. Knows ranks and rails by their numbers, no memory and no clock.

use rma::{Rail, Rank};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a rank has for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who gets it; maybe the rank itself, and maybe more than one message.
    pub target: Rank,
    /// How long it is. An empty one is announced all the same.
    pub bytes: u64,
}

/// A piece of a message, on its way in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Which of the rank's messages.
    pub message: usize,
    /// Who gets that one.
    pub target: Rank,
    /// Which of its pieces.
    pub segment: u64,
    /// Which bytes of it.
    pub bytes: Range<u64>,
    /// Over which rail.
    pub rail: Rail,
}

/// What may be under way together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// By ascending rail, at most one on each. No two of one message, unless that is longer than what a rail carries in all.
    pub puts: Vec<Put>,
    /// Whose puts this round waits for, ascending.
    pub origins: Vec<Rank>,
}

/// All that a rank sends and waits for.
///
/// It is made of a rank's own messages. Who writes here in which round is known to the others: each tells its targets by
/// [`announcements`](Self::announcements), and each target takes note with [`hear`](Self::hear). A program sends them over a bootstrap; a
/// simulator hands them from one schedule to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In their order.
    pub rounds: Vec<Round>,
}

impl Schedule {
    /// Every put, round by round.
    pub fn puts(&self) -> impl Iterator<Item = &Put> {
        self.rounds.iter().flat_map(|round| &round.puts)
    }

    /// The rails over which a message goes, ascending: its target hears of it once on each.
    pub fn rails_of(&self, message: usize) -> Vec<Rail> {
        let mut rails: Vec<_> = self.puts().filter(|put| put.message == message).map(|put| put.rail).collect();
        rails.sort_unstable();
        rails.dedup();
        rails
    }

    /// In which rounds, ascending, this rank writes whom.
    pub fn announcements(&self) -> BTreeMap<Rank, Vec<usize>> {
        let mut announcements: BTreeMap<Rank, Vec<usize>> = BTreeMap::new();
        for (number, round) in self.rounds.iter().enumerate() {
            for put in &round.puts {
                let rounds = announcements.entry(put.target).or_default();
                if rounds.last() != Some(&number) {
                    rounds.push(number);
                }
            }
        }
        announcements
    }

    /// Takes note that `origin` writes here in these rounds. Where it has more rounds than this rank, empty ones follow.
    pub fn hear(&mut self, origin: Rank, rounds: &[usize]) {
        for &number in rounds {
            self.extend_to(number + 1);
            let origins = &mut self.rounds[number].origins;
            if let Err(place) = origins.binary_search(&origin) {
                origins.insert(place, origin);
            }
        }
    }

    /// Has empty rounds follow until there are so many, for ranks that do as many rounds all together.
    pub fn extend_to(&mut self, rounds: usize) {
        if self.rounds.len() < rounds {
            self.rounds.resize_with(rounds, Round::default);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{balanced, segmented, whole};

    /// Lists of messages of every rank of a job, drawn at random: of any length, to anyone, also oneself and the same rank again.
    fn job(random: &mut fastrand::Rng, ranks: u32) -> Vec<Vec<Message>> {
        let mut message = || Message { target: Rank(random.u32(..ranks)), bytes: random.u64(..50) };
        let counts: Vec<_> = (0..ranks).map(|rank| (rank as usize * 5) % 9).collect();
        counts.into_iter().map(|count| (0..count).map(|_| message()).collect()).collect()
    }

    #[test]
    fn a_round_waits_for_just_those_who_write_in_it() {
        let mut random = fastrand::Rng::with_seed(5);
        for ranks in 1..=9 {
            for cut in [whole, segmented, balanced] {
                let messages = job(&mut random, ranks);
                let mut schedules: Vec<_> = messages.iter().map(|messages| cut(messages, 3)).collect();
                for origin in 0..schedules.len() {
                    for (target, rounds) in schedules[origin].announcements() {
                        schedules[target.index()].hear(Rank(origin as u32), &rounds);
                        // Twice is once.
                        schedules[target.index()].hear(Rank(origin as u32), &rounds);
                    }
                }
                for (rank, schedule) in (0..).map(Rank).zip(&schedules) {
                    for (number, round) in schedule.rounds.iter().enumerate() {
                        let writes = |origin: &Schedule| {
                            let round = origin.rounds.get(number);
                            round.is_some_and(|round| round.puts.iter().any(|put| put.target == rank))
                        };
                        let origins: Vec<_> = (0..)
                            .map(Rank)
                            .zip(&schedules)
                            .filter(|(_, origin)| writes(origin))
                            .map(|(origin, _)| origin)
                            .collect();
                        assert_eq!(round.origins, origins, "round {number} of {rank} of {ranks}: {schedules:?}");
                    }
                }
                // Nobody writes in a round that the target does not have.
                for schedule in &schedules {
                    for (target, rounds) in schedule.announcements() {
                        assert!(rounds.is_sorted_by(|a, b| a < b), "{rounds:?}");
                        assert!(rounds.iter().all(|&round| round < schedules[target.index()].rounds.len()));
                    }
                }
            }
        }
    }

    #[test]
    fn an_origin_with_more_rounds_has_empty_ones_follow() {
        let mut schedule = whole(&[Message { target: Rank(1), bytes: 8 }], 1);
        schedule.hear(Rank(4), &[2]);
        schedule.hear(Rank(3), &[0, 2]);
        let origins: Vec<_> = schedule.rounds.iter().map(|round| round.origins.clone()).collect();
        assert_eq!(origins, [vec![Rank(3)], vec![], vec![Rank(3), Rank(4)]]);
        schedule.extend_to(2);
        assert_eq!(schedule.rounds.len(), 3);
    }
}
