//! How an exchange goes over the rails: how its messages are cut, and what its rounds wait for. Pure.

use crate::model::Machine;
use crate::{Message, Schedule, balanced, segmented, whole};

/// How the messages of an exchange are cut over the rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// The cut with the least predicted time, chosen when the exchange is committed.
    #[default]
    Auto,
    /// Not at all: [`whole`].
    Whole,
    /// Into equal segments: [`segmented`].
    Segmented,
    /// Only where the equal share of a rail ends: [`balanced`].
    Balanced,
}

impl Cut {
    /// All that say by themselves what goes where: the simplest first.
    pub const FIXED: [Self; 3] = [Self::Whole, Self::Segmented, Self::Balanced];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Whole => "whole",
            Self::Segmented => "segmented",
            Self::Balanced => "balanced",
        }
    }

    /// What becomes of a rank's messages; `None` of [`Auto`](Self::Auto), which takes a choice first.
    pub fn schedule(self, messages: &[Message], rails: u16) -> Option<Schedule> {
        match self {
            Self::Auto => None,
            Self::Whole => Some(whole(messages, rails)),
            Self::Segmented => Some(segmented(messages, rails)),
            Self::Balanced => Some(balanced(messages, rails)),
        }
    }
}

/// How the rounds of an exchange follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stepping {
    /// The puts of every rail are queued at once, in the order of the rounds, and the rails go on at their own pace.
    #[default]
    Streamed,
    /// A round is started when all puts of the round before are complete and have arrived (as P0 does).
    Fenced,
}

impl Stepping {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Streamed => "streamed",
            Self::Fenced => "fenced",
        }
    }

    /// What a schedule takes by the model.
    pub fn predicted_us(self, machine: &Machine, schedule: &Schedule) -> f64 {
        match self {
            Self::Streamed => machine.streamed_us(schedule),
            Self::Fenced => machine.fenced_us(schedule),
        }
    }
}
