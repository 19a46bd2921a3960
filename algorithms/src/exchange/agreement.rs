//! What the ranks of an exchange tell each other at commit: what all must have alike, and who writes whom in which round.
//! Owns the messages; what comes of them is in `commit`.

use super::Open;
use super::commit::CALL;
use crate::schedule::Schedule;
use rma::bootstrap::{Messages, all_alike, all_or_none};
use rma::{Bootstrap, Deadline, Error, Rank, Result};

/// More rounds than this are no exchange but a mistake, of whichever rank.
const MOST_ROUNDS: u64 = 1 << 16;

/// Collective: an error on every rank if any two differ in what must be the same.
pub(super) fn agree_on_terms(open: &Open<'_>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<()> {
    let rails = open.rails.unwrap_or_else(|| open.comm.rails());
    let machine = if open.machine.is_some() { "a machine given" } else { "no machine given" };
    let terms = [
        format!("cut {}", open.cut.name()),
        format!("stepping {}", open.stepping.name()),
        format!("{rails} rails"),
        machine.to_owned(),
    ];
    all_alike(boot, CALL, &terms, deadline)
}

/// Collective: the largest of all ranks' values, place by place.
pub(super) fn largest<const N: usize>(mine: [f64; N], boot: &dyn Bootstrap, deadline: Deadline) -> Result<[f64; N]> {
    let all = gather(mine.map(f64::to_bits), boot, deadline)?;
    let larger = |a: [f64; N], b: &[u64; N]| std::array::from_fn(|place| a[place].max(f64::from_bits(b[place])));
    Ok(all.iter().fold(mine, larger))
}

/// Collective: every rank's words, in rank order.
fn gather<const N: usize>(mine: [u64; N], boot: &dyn Bootstrap, deadline: Deadline) -> Result<Vec<[u64; N]>> {
    let all = boot.allgather(&encode(&mine), deadline)?;
    let words = |(rank, bytes): (Rank, &Vec<u8>)| {
        let words = decode(rank, bytes)?;
        <[u64; N]>::try_from(words).map_err(|words| malformed(rank, format!("{} words instead of {N}", words.len())))
    };
    (0..).map(Rank).zip(&all).map(words).collect()
}

/// Collective: `schedule` of every rank gets as many rounds as the longest has, and each of its rounds the ranks that write here in it.
pub(super) fn hear_origins(schedule: &mut Schedule, open: &Open<'_>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<()> {
    let counts = gather([schedule.rounds.len() as u64], boot, deadline)?;
    let asked = counts.iter().map(|[count]| *count).max().unwrap_or(0);
    if asked > MOST_ROUNDS {
        let mend = "each is a queue of its own: use fewer messages, or a streamed exchange".into();
        return Err(Error::Limit { what: "number of rounds of a fenced exchange", asked, limit: MOST_ROUNDS, mend });
    }
    let rounds = asked as usize;
    // An exchange in which nobody has a message takes a round all the same, or an epoch would have no end.
    schedule.extend_to(rounds.max(1));
    let words = |rounds: Vec<usize>| encode(&rounds.iter().map(|&round| round as u64).collect::<Vec<_>>());
    let outgoing: Messages = schedule.announcements().into_iter().map(|(target, rounds)| (target, words(rounds))).collect();
    let incoming = boot.exchange(outgoing, deadline)?;
    let heard = incoming.iter().try_for_each(|(origin, bytes)| {
        let numbers: Vec<_> = decode(*origin, bytes)?.into_iter().map(|number| number as usize).collect();
        if let Some(number) = numbers.iter().find(|&&number| number >= rounds) {
            return Err(malformed(*origin, format!("round {number} of {rounds}")));
        }
        schedule.hear(*origin, &numbers);
        Ok(())
    });
    let expected = heard.and_then(|()| check_origins(open, boot.rank(), &incoming));
    all_or_none(boot, CALL, expected, deadline)
}

/// That just those write here who were added as origins.
fn check_origins(open: &Open<'_>, me: Rank, incoming: &Messages) -> Result<()> {
    let writes = |origin: Rank| incoming.iter().any(|(other, _)| *other == origin);
    let unexpected = incoming.iter().map(|(origin, _)| *origin).find(|origin| !open.origins.contains(origin));
    let silent = open.origins.iter().copied().find(|&origin| !writes(origin));
    let reason = match (unexpected, silent) {
        (Some(origin), _) => {
            format!(
                "{origin} has a message for {me}, which did not add it; add origin {} there, or leave the message out",
                origin.0
            )
        }
        (None, Some(origin)) => {
            format!("{me} added origin {}, which has no message for it; leave the origin out, or add a message there", origin.0)
        }
        (None, None) => return Ok(()),
    };
    Err(Error::Invalid { what: "origins of an exchange", reason })
}

fn encode(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(from: Rank, bytes: &[u8]) -> Result<Vec<u64>> {
    let (words, rest) = bytes.as_chunks::<8>();
    if rest.is_empty() {
        return Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect());
    }
    Err(malformed(from, format!("{} bytes are no words of 8", bytes.len())))
}

fn malformed(from: Rank, reason: String) -> Error {
    Error::Malformed { what: "message of an exchange's commit", from: from.to_string(), reason }
}
