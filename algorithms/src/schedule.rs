//! What a rank sends, in which order: plain data. Knows neither ranks nor memory, only messages by their number.

use rma::Rail;
use std::ops::Range;

/// A piece of a message, on its way in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Which of the rank's messages.
    pub message: usize,
    /// Which of its segments.
    pub segment: u64,
    /// Which bytes of it.
    pub bytes: Range<u64>,
    /// Over which rail.
    pub rail: Rail,
}

/// What may be under way together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// By ascending rail, at most one on each; and no two of one message.
    pub puts: Vec<Put>,
}

/// All that a rank sends.
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
}
