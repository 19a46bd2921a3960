//! The commit of an exchange: what is wrong is found on one rank and told to all, the cut is chosen, and the queues are committed.
//! Owns the order of these steps. Every rank takes part in each of them, with its error if it has one.

use super::agreement::{agree_on_terms, hear_origins, largest};
use super::explain::{Forecast, Plan, Why};
use super::probe::probe;
use super::rounds::Rounds;
use super::times::Times;
use super::{Open, Queues, Ready};
use crate::cut::{Cut, Stepping};
use crate::model::Machine;
use crate::schedule::{Message, Put, Round, Schedule};
use rma::bootstrap::all_or_none;
use rma::{Comm, Deadline, Error, MsgHandle, Rail, Result, RmaQueue};
use std::ops::Range;

/// What a failure on another rank is said to have come from.
pub(super) const CALL: &str = "commit of an exchange";

pub(super) fn commit(open: &Open<'_>) -> Result<Ready> {
    let (boot, patience) = (open.comm.bootstrap(), open.comm.config().setup_timeout);
    let deadline = Deadline::after(patience);
    let messages = all_or_none(boot, CALL, check(open), deadline)?;
    agree_on_terms(open, boot, deadline)?;
    let plan = choose(open, &messages)?;
    let schedule = plan.cut.schedule(&messages, plan.rails);
    let Some(mut schedule) = schedule else { unreachable!("bug: a choice that is none") };

    let deadline = Deadline::after(patience);
    if plan.stepping == Stepping::Fenced {
        hear_origins(&mut schedule, open, boot, deadline)?;
    }
    let queues = all_or_none(boot, CALL, fill_queues(open, plan.stepping, &schedule), deadline)?;
    let mut committed = queues.into_iter().map(RmaQueue::commit).collect::<Result<Vec<_>>>()?;
    let queues = match plan.stepping {
        Stepping::Streamed => Queues::Streamed(committed.remove(0)),
        Stepping::Fenced => Queues::Fenced(Rounds::new(committed)),
    };
    Ok(Ready { queues, schedule, plan, times: Times::new() })
}

/// What this rank alone can find wrong; its messages as the schedules know them.
fn check(open: &Open<'_>) -> Result<Vec<Message>> {
    check_rails(open.comm, open.rails)?;
    if let Some(Machine { step_us, rail_bytes_per_us }) = open.machine
        && !(step_us.is_finite() && rail_bytes_per_us.is_finite() && step_us >= 0.0 && rail_bytes_per_us > 0.0)
    {
        let reason = format!(
            "a step of {step_us} us and a rail of {rail_bytes_per_us} bytes a us predict nothing; a step takes 0 us or more, and a \
             rail carries more than nothing"
        );
        return Err(Error::Invalid { what: "machine of an exchange", reason });
    }
    if let Some(&rank) = open.origins.iter().find(|origin| origin.0 >= open.comm.size()) {
        return Err(Error::NoSuchRank { what: "origin of an exchange", rank, size: open.comm.size() });
    }
    open.messages.iter().enumerate().map(|(number, puts)| message(number, puts)).collect()
}

/// That there are so many rails.
pub(super) fn check_rails(comm: &Comm, rails: Option<u16>) -> Result<()> {
    let caps = comm.caps();
    match rails {
        Some(0) => {
            let reason = format!("0 rails carry nothing; use 1 to {}, or leave it out", caps.rails);
            Err(Error::Invalid { what: "rails of an exchange", reason })
        }
        Some(rails) if rails > caps.rails => {
            let (rail, backend) = (Rail(rails - 1), caps.name);
            Err(Error::NoSuchRail { what: "rails of an exchange", rail, backend, rails: caps.rails })
        }
        _ => Ok(()),
    }
}

fn message(number: usize, puts: &[MsgHandle]) -> Result<Message> {
    let reason = match puts.first().map(MsgHandle::target) {
        None => format!("message {number} has no put; give it one of 0 bytes if it is to be empty"),
        Some(target) => match puts.iter().find(|put| put.target() != target) {
            None => {
                let bytes = puts.iter().fold(0u64, |sum, put| sum.saturating_add(put.len_bytes()));
                return Ok(Message { target, bytes });
            }
            Some(other) => {
                let other = other.target();
                format!("message {number} has a put to {target} and one to {other}; a message has one target, make it two")
            }
        },
    };
    Err(Error::Invalid { what: "message of an exchange", reason })
}

/// Collective: a cut for all ranks.
fn choose(open: &Open<'_>, messages: &[Message]) -> Result<Plan> {
    let (comm, stepping) = (open.comm, open.stepping);
    let rails = open.rails.unwrap_or_else(|| comm.rails());
    let plan = |cut, rails, why, forecast| Plan { rails, cut, stepping, why, forecast };
    if open.cut == Cut::Auto && rails == 1 {
        return Ok(plan(Cut::Whole, 1, Why::OneRail, None));
    }
    if open.cut == Cut::Auto && !comm.caps().rails_work_in_parallel {
        return Ok(plan(Cut::Whole, 1, Why::RailsInTurn(comm.caps().name), None));
    }
    let machine = match open.machine {
        Some(machine) => machine,
        None if open.cut == Cut::Auto => {
            let longest = messages.iter().map(|message| message.bytes).max().unwrap_or(0);
            probe(comm, rails, longest)?
        }
        None => return Ok(plan(open.cut, rails, Why::Asked, None)),
    };
    let predicted = |cut: Cut| {
        let schedule = cut.schedule(messages, rails);
        schedule.map_or(f64::INFINITY, |schedule| stepping.predicted_us(&machine, &schedule))
    };
    // An exchange takes as long as its slowest rank, and all ranks come to the same choice.
    let deadline = Deadline::after(comm.config().setup_timeout);
    let slowest_us = largest(Cut::FIXED.map(predicted), comm.bootstrap(), deadline)?;
    let (cut, why) = if open.cut == Cut::Auto { (fastest(slowest_us), Why::Fastest) } else { (open.cut, Why::Asked) };
    let forecast = Forecast { machine, measured: open.machine.is_none(), slowest_us };
    Ok(plan(cut, rails, why, Some(forecast)))
}

/// How much less a time must be to be worth a cut that is less simple.
const WORTH: f64 = 0.01;

/// The simplest cut of those whose predicted times hardly differ from the least.
fn fastest(predicted_us: [f64; Cut::FIXED.len()]) -> Cut {
    let least_us = predicted_us.into_iter().fold(f64::INFINITY, f64::min);
    let hardly_more = predicted_us.into_iter().position(|us| us * (1.0 - WORTH) <= least_us);
    hardly_more.map_or(Cut::Whole, |place| Cut::FIXED[place])
}

/// A queue for all, or one for each round.
fn fill_queues(open: &Open<'_>, stepping: Stepping, schedule: &Schedule) -> Result<Vec<RmaQueue<rma::Open>>> {
    match stepping {
        Stepping::Streamed => {
            let mut queue = empty_queue(open)?;
            for &origin in &open.origins {
                queue.add_origin(origin)?;
            }
            schedule.puts().try_for_each(|put| push(&mut queue, open, put))?;
            if open.exposed_at_start {
                queue.expose_at_start();
            }
            Ok(vec![queue])
        }
        Stepping::Fenced => {
            let of_round = |Round { puts, origins }: &Round| {
                let mut queue = empty_queue(open)?;
                for &origin in origins {
                    queue.add_origin(origin)?;
                }
                puts.iter().try_for_each(|put| push(&mut queue, open, put))?;
                queue.expose_at_start();
                Ok(queue)
            };
            schedule.rounds.iter().map(of_round).collect()
        }
    }
}

fn empty_queue(open: &Open<'_>) -> Result<RmaQueue<rma::Open>> {
    let mut queue = open.comm.queue_alloc(open.windows[0])?;
    for window in &open.windows[1..] {
        queue.expose(window)?;
    }
    for fill in &open.filled {
        fill(&mut queue)?;
    }
    if let Some(timeout) = open.timeout {
        queue.timeout(timeout);
    }
    Ok(queue)
}

fn push(queue: &mut RmaQueue<rma::Open>, open: &Open<'_>, put: &Put) -> Result<()> {
    for part in parts(&open.messages[put.message], put.bytes.clone())? {
        queue.push(&part.rail(put.rail)?)?;
    }
    Ok(())
}

/// The puts that move these bytes of a message.
fn parts(message: &[MsgHandle], bytes: Range<u64>) -> Result<Vec<MsgHandle>> {
    if bytes.is_empty() {
        // Only an empty message has a piece without bytes, and any of its puts announces it.
        return message.first().map_or_else(|| Ok(Vec::new()), |put| put.parts(0..0));
    }
    let (mut parts, mut begin) = (Vec::new(), 0);
    for put in message {
        let end = begin + put.len_bytes();
        let piece = bytes.start.max(begin)..bytes.end.min(end);
        if !piece.is_empty() {
            parts.extend(put.parts(piece.start - begin..piece.end - begin)?);
        }
        begin = end;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simplest_cut_is_taken_of_those_that_hardly_differ() {
        assert_eq!(fastest([1.0, 1.0, 1.0]), Cut::Whole);
        assert_eq!(fastest([1.009, 2.0, 1.0]), Cut::Whole);
        assert_eq!(fastest([1.5, 1.005, 1.0]), Cut::Segmented);
        assert_eq!(fastest([1.5, 1.1, 1.0]), Cut::Balanced);
        assert_eq!(fastest([0.0, 0.0, 0.0]), Cut::Whole);
    }
}
