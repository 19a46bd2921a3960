//! What the partners of a queue tell each other at commit, and what makes a target refuse.
//! Pure: judges messages, sends none, and knows no memory.

use crate::backend::Incoming;
use crate::layout::{Blocks, RangeSet, first_clash};
use crate::{QueueId, Rail, Rank, WindowId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an origin tells a target: everything it will write there in each epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) queue: QueueId,
    pub(crate) credits: bool,
    pub(crate) puts: Vec<OfferedPut>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedPut {
    pub(crate) window: WindowId,
    pub(crate) blocks: Blocks,
    pub(crate) rail: Rail,
}

/// What the target answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The keys of the windows that the origin writes.
    Accept(Vec<(WindowId, Vec<u8>)>),
    /// What disagrees.
    Refuse(String),
}

/// What a target is ready for.
#[derive(Debug)]
pub(crate) struct Expectation<'a> {
    pub(crate) rank: Rank,
    pub(crate) queue: QueueId,
    pub(crate) credits: bool,
    pub(crate) rails: u16,
    /// The ranks it added as origins, ascending.
    pub(crate) origins: &'a [Rank],
    /// The windows it exposes in this queue, and the length of its part of each.
    pub(crate) windows: &'a [(WindowId, u64)],
}

/// What a target agreed to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) ranges: BTreeMap<WindowId, RangeSet>,
}

/// Why a target refuses, and the ranks to which it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) concerned: Vec<Rank>,
    pub(crate) reason: String,
}

/// Compares what the origins offer (by ascending rank) with what the target expects.
pub(crate) fn judge(expected: &Expectation<'_>, offers: &[(Rank, Offer)]) -> Result<Accepted, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let rank = expected.rank;
    for &origin in expected.origins {
        if !offers.iter().any(|(from, _)| *from == origin) {
            let reason = format!(
                "{rank} added {origin} as an origin, but {origin} pushes nothing to {rank}; push a put there (it may be empty), or \
                 do not add the origin"
            );
            refusals.push(Refusal { concerned: vec![origin], reason });
        }
    }
    for (origin, offer) in offers {
        if let Err(reason) = judge_offer(expected, *origin, offer) {
            refusals.push(Refusal { concerned: vec![*origin], reason });
        }
    }
    // Ranges are only compared once each is known to lie inside its window.
    if refusals.is_empty() {
        refusals.extend(find_clash(expected, offers));
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let mut accepted = Accepted::default();
    let mut ranges: BTreeMap<WindowId, Vec<_>> = BTreeMap::new();
    for (origin, offer) in offers {
        let mut rails: Vec<_> = offer.puts.iter().map(|put| put.rail).collect();
        rails.sort_unstable();
        rails.dedup();
        accepted.incoming.push(Incoming { origin: *origin, rails });
        for put in &offer.puts {
            ranges.entry(put.window).or_default().extend(put.blocks.ranges());
        }
    }
    accepted.ranges = ranges.into_iter().map(|(window, ranges)| (window, RangeSet::from_iter(ranges))).collect();
    Ok(accepted)
}

fn judge_offer(expected: &Expectation<'_>, origin: Rank, offer: &Offer) -> Result<(), String> {
    let rank = expected.rank;
    if offer.queue != expected.queue {
        return Err(format!(
            "{origin} commits {} while {rank} commits {}; commit the queues in the same order on every rank",
            offer.queue, expected.queue
        ));
    }
    if !expected.origins.contains(&origin) {
        return Err(format!(
            "{origin} pushes {} to {rank}, but {rank} did not add {origin} as an origin; call add_origin({}) there, or push nothing",
            if offer.puts.len() == 1 { "a put".to_owned() } else { format!("{} puts", offer.puts.len()) },
            origin.0
        ));
    }
    if offer.credits != expected.credits {
        let with = |credits| if credits { "with" } else { "without" };
        return Err(format!(
            "{origin} commits {} credits and {rank} {} them; do the same on both",
            with(offer.credits),
            with(expected.credits)
        ));
    }
    if offer.puts.is_empty() {
        return Err(format!("malformed offer from {origin}: no puts"));
    }
    for put in &offer.puts {
        let Some((_, len_bytes)) = expected.windows.iter().find(|(window, _)| *window == put.window) else {
            return Err(format!(
                "{origin} writes {} of {rank}, which {rank} does not expose in {}; add it there with expose",
                put.window, expected.queue
            ));
        };
        let span = put.blocks.span();
        if span.end > u128::from(*len_bytes) {
            return Err(format!(
                "{origin} writes bytes {}..{} of {} of {rank}, which has {len_bytes} bytes",
                span.start, span.end, put.window
            ));
        }
        if put.blocks.overlaps_itself() {
            return Err(format!("{origin} writes blocks of {} of {rank} that overlap each other", put.window));
        }
        if put.rail.0 >= expected.rails {
            return Err(format!(
                "{origin} writes on {} but {rank} has {} rails; set RMA_RAILS alike on every rank",
                put.rail, expected.rails
            ));
        }
    }
    Ok(())
}

fn find_clash(expected: &Expectation<'_>, offers: &[(Rank, Offer)]) -> Option<Refusal> {
    for (window, _) in expected.windows {
        let pieces: Vec<_> = offers
            .iter()
            .flat_map(|(origin, offer)| offer.puts.iter().map(move |put| (*origin, put)))
            .filter(|(_, put)| put.window == *window)
            .flat_map(|(origin, put)| put.blocks.ranges().map(move |range| (range, origin)))
            .collect();
        let Some((a, b, bytes)) = first_clash(&pieces) else { continue };
        let (first, second) = (pieces[a].1, pieces[b].1);
        let who = if first == second { format!("two puts of {first}") } else { format!("puts of {first} and of {second}") };
        return Some(Refusal {
            concerned: vec![first, second],
            reason: format!(
                "{who} both write bytes {}..{} of {window} of {}; give each its own range",
                bytes.start, bytes.end, expected.rank
            ),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: WindowId = WindowId(2);

    fn expectation(origins: &[Rank]) -> Expectation<'_> {
        Expectation { rank: Rank(0), queue: QueueId(5), credits: true, rails: 2, origins, windows: &[(WINDOW, 100)] }
    }

    fn put(offset: u64, len_bytes: u64) -> OfferedPut {
        OfferedPut { window: WINDOW, blocks: Blocks::contiguous(offset, len_bytes), rail: Rail(1) }
    }

    fn offer(puts: Vec<OfferedPut>) -> Offer {
        Offer { queue: QueueId(5), credits: true, puts }
    }

    #[test]
    fn matching_offers_give_one_notification_for_each_origin_and_rail() {
        let second = OfferedPut { rail: Rail(0), ..put(8, 8) };
        let offers = [(Rank(1), offer(vec![put(0, 8), second])), (Rank(3), offer(vec![put(50, 0), put(60, 40)]))];
        let accepted = judge(&expectation(&[Rank(1), Rank(3)]), &offers).unwrap();
        assert_eq!(accepted.incoming[0], Incoming { origin: Rank(1), rails: vec![Rail(0), Rail(1)] });
        assert_eq!(accepted.incoming[1], Incoming { origin: Rank(3), rails: vec![Rail(1)] });
        assert_eq!(accepted.ranges[&WINDOW].iter().cloned().collect::<Vec<_>>(), [0..16, 60..100]);
    }

    #[test]
    fn each_disagreement_is_refused_with_both_sides_in_the_text() {
        let strided = |stride| Blocks { offset: 0, block_bytes: 8, count: 3, stride };
        let with_blocks = |blocks| offer(vec![OfferedPut { blocks, ..put(0, 0) }]);
        type Case = (Vec<Rank>, Vec<(Rank, Offer)>, &'static str);
        let cases: Vec<Case> = vec![
            (vec![], vec![(Rank(1), offer(vec![put(0, 8)]))], "rank 0 did not add rank 1 as an origin; call add_origin(1)"),
            (vec![Rank(1)], vec![], "rank 0 added rank 1 as an origin, but rank 1 pushes nothing to rank 0"),
            (
                vec![Rank(1)],
                vec![(Rank(1), Offer { queue: QueueId(4), ..offer(vec![]) })],
                "commits queue 4 while rank 0 commits queue 5",
            ),
            (vec![Rank(1)], vec![(Rank(1), Offer { credits: false, ..offer(vec![put(0, 1)]) })], "rank 1 commits without credits"),
            (
                vec![Rank(1)],
                vec![(Rank(1), offer(vec![put(93, 8)]))],
                "rank 1 writes bytes 93..101 of window 2 of rank 0, which has 100",
            ),
            (vec![Rank(1)], vec![(Rank(1), with_blocks(strided(47)))], "bytes 0..102"),
            (vec![Rank(1)], vec![(Rank(1), with_blocks(strided(7)))], "overlap each other"),
            (
                vec![Rank(1)],
                vec![(Rank(1), offer(vec![OfferedPut { window: WindowId(3), ..put(0, 1) }]))],
                "writes window 3 of rank 0",
            ),
            (vec![Rank(1)], vec![(Rank(1), offer(vec![OfferedPut { rail: Rail(2), ..put(0, 1) }]))], "rank 0 has 2 rails"),
            (
                vec![Rank(1), Rank(2)],
                vec![(Rank(1), offer(vec![put(0, 9)])), (Rank(2), offer(vec![put(8, 8)]))],
                "puts of rank 1 and of rank 2 both write bytes 8..9 of window 2 of rank 0",
            ),
            (vec![Rank(1)], vec![(Rank(1), offer(vec![put(0, 9), put(8, 1)]))], "two puts of rank 1 both write bytes 8..9"),
        ];
        for (origins, offers, text) in cases {
            let refusals = judge(&expectation(&origins), &offers).unwrap_err();
            assert!(refusals[0].reason.contains(text), "{:?} does not say {text:?}", refusals[0].reason);
            assert!(refusals[0].concerned.contains(&Rank(1)));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic_or_accept_what_is_out_of_range() {
        let mut random = fastrand::Rng::with_seed(11);
        let good = postcard::to_stdvec(&offer(vec![put(0, 8), put(90, 10)])).unwrap();
        for _ in 0..200_000 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..5) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..=bytes.len()));
            if let Ok(offer) = postcard::from_bytes::<Offer>(&bytes)
                && let Ok(accepted) = judge(&expectation(&[Rank(1)]), &[(Rank(1), offer)])
            {
                assert!(accepted.ranges.values().flat_map(RangeSet::iter).all(|range| range.end <= 100));
            }
        }
    }
}
