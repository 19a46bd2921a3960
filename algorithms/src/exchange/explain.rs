//! What was built at commit and why, in words.

use super::times::{TIMED_EPOCHS, Times};
use crate::cut::{Cut, Stepping};
use crate::model::Machine;
use crate::schedule::{Put, Schedule};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What all ranks have chosen.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rails: u16,
    /// Never [`Cut::Auto`].
    pub(super) cut: Cut,
    pub(super) stepping: Stepping,
    pub(super) why: Why,
    pub(super) forecast: Option<Forecast>,
}

/// Why this cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Asked,
    Fastest,
    OneRail,
    /// On the backend of this name.
    RailsInTurn(&'static str),
}

/// What the model says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    pub(super) machine: Machine,
    /// Measured at commit, or else given.
    pub(super) measured: bool,
    /// The time of each of [`Cut::FIXED`] on the rank that takes longest.
    pub(super) slowest_us: [f64; Cut::FIXED.len()],
}

/// More than these are counted and not listed.
const LISTED_ROUNDS: usize = 8;
const LISTED_PUTS: usize = 8;

pub(super) fn explain(plan: &Plan, schedule: &Schedule, times: &Times) -> String {
    let messages: BTreeSet<_> = schedule.puts().map(|put| put.message).collect();
    let bytes = schedule.puts().fold(0u64, |sum, put| sum.saturating_add(put.bytes.end - put.bytes.start));
    let mut text = format!(
        "{} of {bytes} bytes in all, {} on {}, {}\n",
        counted(messages.len(), "message"),
        plan.cut.name(),
        counted(plan.rails.into(), "rail"),
        plan.stepping.name()
    );
    let why = match plan.why {
        Why::Asked => "as asked for".into(),
        Why::Fastest => "predicted to take least on the slowest rank; simpler cuts win ties".into(),
        Why::OneRail => "there is one rail, which carries whole messages best".into(),
        Why::RailsInTurn(backend) => {
            format!("rails of the {backend} backend do not work in parallel, and one of them saves notifications")
        }
    };
    text.push_str(&format!("{}: {why}\n", plan.cut.name()));
    if let Some(Forecast { machine: Machine { step_us, rail_bytes_per_us }, measured, slowest_us }) = &plan.forecast {
        let source = if *measured { "measured at commit" } else { "given" };
        text.push_str(&format!("a step takes {step_us:.3} us, a rail carries {rail_bytes_per_us:.1} bytes a us ({source})\n"));
        let each: Vec<_> = Cut::FIXED.iter().zip(slowest_us).map(|(cut, us)| format!("{} {us:.3} us", cut.name())).collect();
        text.push_str(&format!("predicted: {}\n", each.join(", ")));
    }
    if let Some((epochs, median_us, least_us)) = times.summary() {
        let epochs = counted(epochs, "epoch");
        text.push_str(&format!(
            "measured: {} {median_us:.3} us, at least {least_us:.3} us, in {epochs}; only the first {TIMED_EPOCHS} are timed\n",
            plan.cut.name()
        ));
    }
    list(&mut text, schedule);
    text
}

fn list(text: &mut String, schedule: &Schedule) {
    for (number, round) in schedule.rounds.iter().enumerate().take(LISTED_ROUNDS) {
        let mut puts: Vec<_> = round.puts.iter().take(LISTED_PUTS).map(put).collect();
        if round.puts.len() > LISTED_PUTS {
            puts.push(format!("and {}", counted(round.puts.len() - LISTED_PUTS, "more put")));
        }
        let puts = if puts.is_empty() { "nothing".into() } else { puts.join("; ") };
        let from = match &round.origins[..] {
            [] => String::new(),
            origins => {
                let ranks: Vec<_> = origins.iter().take(LISTED_PUTS).map(|origin| origin.0.to_string()).collect();
                let more = if origins.len() > LISTED_PUTS { ", .." } else { "" };
                format!(" <- origins {}{more}", ranks.join(", "))
            }
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "round {number}: {puts}{from}");
    }
    if schedule.rounds.len() > LISTED_ROUNDS {
        let _ = writeln!(text, "and {}", counted(schedule.rounds.len() - LISTED_ROUNDS, "more round"));
    }
}

fn put(put: &Put) -> String {
    let Put { message, target, bytes, rail, .. } = put;
    format!("{rail}: bytes {}..{} of message {message} to {target}", bytes.start, bytes.end)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
