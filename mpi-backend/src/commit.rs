//! What a queue becomes: calls of MPI, and the words of every partner.
//! Owns the cards that partners exchange, and the checks on them; the hot path is in `progress`.

use crate::board::{FarWord, Lines, OwnWord, Place};
use crate::device::Shared;
use crate::ffi::{Bytes, Window};
use crate::plan;
use crate::progress::{Expected, Lane, MpiCommitted, Partner, PutCall, Way};
use crate::window::key_of;
use crate::{failed, malformed};
use rma::backend::{Chain, Committed, Put};
use rma::bootstrap::{all_or_none, conversation};
use rma::{Bootstrap, Deadline, Error, QueueId, Rail, Rank, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a rank tells a partner: where the partner's words are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    queue: QueueId,
    place: Place,
}

/// What a partner writes here, in the order of its words: the arrivals of its rails, and its credit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words {
    rails: Vec<Rail>,
    credits: bool,
}

impl Words {
    /// What this rank writes to a partner, or a partner to it, seen from the other end.
    fn arriving(chain: &Chain, peer: Rank, targets: &[Rank]) -> Self {
        let incoming = chain.incoming.iter().find(|incoming| incoming.origin == peer);
        Self { rails: incoming.map(|incoming| incoming.rails.clone()).unwrap_or_default(), credits: targets.contains(&peer) }
    }

    fn leaving(chain: &Chain, peer: Rank) -> Self {
        let mut rails: Vec<_> = chain.puts.iter().filter(|put| put.target == peer).map(|put| put.rail).collect();
        rails.sort_unstable();
        rails.dedup();
        Self { rails, credits: chain.incoming.iter().any(|incoming| incoming.origin == peer) }
    }

    fn count(&self) -> usize {
        self.rails.len() + usize::from(self.credits)
    }

    fn arrival(&self, rail: Rail) -> Option<usize> {
        self.rails.iter().position(|&other| other == rail)
    }

    fn credit(&self) -> Option<usize> {
        self.credits.then_some(self.rails.len())
    }
}

pub(crate) fn commit(
    shared: &Rc<Shared>,
    chain: &Rc<Chain>,
    boot: &dyn Bootstrap,
    deadline: Deadline,
) -> Result<Box<dyn Committed>> {
    let (partners, targets) = (chain.partners(), chain.targets());
    let arriving: Vec<_> = partners.iter().map(|&peer| Words::arriving(chain, peer, &targets)).collect();
    make_room(shared, arriving.iter().map(Words::count), boot, deadline)?;

    let mut taken = Taken { shared: shared.clone(), lines: BTreeMap::new() };
    let mut cards = BTreeMap::new();
    for (&peer, words) in partners.iter().zip(&arriving) {
        let (lines, place) =
            shared.boards.borrow_mut().take(words.count()).ok_or_else(|| Error::Launch("bug: a board without room".into()))?;
        taken.lines.insert(peer, lines);
        cards.insert(peer, Card { queue: chain.queue, place });
    }
    let cards = conversation(boot, "card", &partners, Ok(cards), deadline);
    let built = cards.and_then(|cards| build(shared, chain, &taken, &cards));
    // Nobody writes a word unless all do.
    let mut built = all_or_none(boot, "commit", built, deadline)?;
    for partner in &mut built.partners {
        partner.lines = taken.lines.remove(&partner.rank);
    }
    shared.reserve(built.lanes.len());
    Ok(Box::new(MpiCommitted::new(shared.clone(), chain.clone(), built)))
}

/// Collective: a further board on every rank if any lacks room for its words.
fn make_room(shared: &Shared, words: impl Iterator<Item = usize>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<()> {
    let lacks = shared.boards.borrow_mut().lacks(words);
    let len_bytes = shared.free_what_nobody_uses(lacks)?;
    if len_bytes == 0 {
        return Ok(());
    }
    let added = add_board(shared, len_bytes);
    // What follows takes all ranks, too.
    all_or_none(boot, "commit", added, deadline)
}

fn add_board(shared: &Shared, len_bytes: usize) -> Result<()> {
    let board = shared.allocate(len_bytes)?;
    let displacement = board.displacement().map_err(|refused| failed("asking where a board begins", refused))?;
    shared.boards.borrow_mut().add(board, displacement);
    Ok(())
}

/// Lines that are given back unless the queue takes them over.
struct Taken {
    shared: Rc<Shared>,
    lines: BTreeMap<Rank, Lines>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut boards = self.shared.boards.borrow_mut();
        std::mem::take(&mut self.lines).into_values().for_each(|lines| boards.give_back(lines));
    }
}

/// A queue in calls of MPI.
#[derive(Debug, Default)]
pub(crate) struct Built {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) expected: Vec<Expected>,
    pub(crate) partners: Vec<Partner>,
}

fn build(shared: &Rc<Shared>, chain: &Rc<Chain>, taken: &Taken, cards: &BTreeMap<Rank, (Card, Card)>) -> Result<Built> {
    let targets = chain.targets();
    let mut built = Built::default();
    let mut lanes = chain.lanes();
    for (&peer, lines) in &taken.lines {
        let (_, card) = cards.get(&peer).ok_or_else(|| malformed("card", peer, "there is none"))?;
        if card.queue != chain.queue {
            return Err(malformed("card", peer, format!("it is of {}, not {}", card.queue, chain.queue)));
        }
        let board = shared.window(card.place.window).ok_or_else(|| malformed("card", peer, "a board that is gone"))?;
        let (arriving, leaving) = (Words::arriving(chain, peer, &targets), Words::leaving(chain, peer));
        let own = |index: Option<usize>| index.and_then(|index| lines.words.get(index)).cloned();
        let far = |index: Option<usize>| -> Result<FarWord> {
            let displacement = index.and_then(|index| card.place.word(index));
            let displacement = displacement.ok_or_else(|| malformed("card", peer, "a word is missing"))?;
            Ok(FarWord::new(board.clone(), peer.0 as i32, displacement))
        };
        for &rail in &arriving.rails {
            let word = own(arriving.arrival(rail)).ok_or_else(|| malformed("card", peer, "bug: no word for a rail"))?;
            built.expected.push(Expected { word, origin: peer, rail });
        }
        let granted = own(arriving.credit());
        for &rail in &leaving.rails {
            let puts = lanes.remove(&(peer, rail)).unwrap_or_default();
            built.lanes.push(lane(shared, chain, (peer, rail), &puts, granted.clone(), far(leaving.arrival(rail))?)?);
        }
        let credit = leaving.credits.then(|| far(leaving.credit())).transpose()?;
        built.partners.push(Partner { rank: peer, credit, lines: None });
    }
    Ok(built)
}

fn lane(
    shared: &Shared,
    chain: &Chain,
    (target, rail): (Rank, Rail),
    puts: &[&Put],
    granted: Option<OwnWord>,
    arrived: FarWord,
) -> Result<Lane> {
    let granted = granted.ok_or_else(|| malformed("card", target, "bug: no word for a credit"))?;
    let mut calls = Vec::new();
    // Without credits nothing says that the word of the epoch before has come, and no two puts are in order.
    let mut windows: Vec<Rc<Window>> = if chain.credits { Vec::new() } else { vec![arrived.board().clone()] };
    let told = |refused| failed(format!("describing the bytes of a put to {target}"), refused);
    for put in puts {
        let key = key_of(&put.key, target)?;
        let window = shared.window(key.number).ok_or_else(|| malformed("key", target, "a window that is gone"))?;
        for piece in plan::pieces(&put.source_blocks, &put.target_blocks) {
            let displacement = key.displacement.checked_add(piece.target_offset).and_then(|at| i64::try_from(at).ok());
            calls.push(PutCall {
                source: put.source.base().as_ptr().wrapping_add(piece.source_offset as usize),
                from: Bytes::new(piece.source).map_err(told)?,
                window: window.clone(),
                displacement: displacement.ok_or_else(|| malformed("key", target, "a place that no address counts"))?,
                to: Bytes::new(piece.target).map_err(told)?,
            });
            if !windows.iter().any(|other| Rc::ptr_eq(other, &window)) {
                windows.push(window.clone());
            }
        }
    }
    let way = Rc::new(Way::new(target, windows, arrived));
    Ok(Lane { target, rail, granted, calls: calls.into(), way, posted: false })
}
