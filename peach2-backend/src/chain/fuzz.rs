//! Walks over chains that are right, nearly right, and not at all, against `oracle`.

use super::oracle::{Mock, World};
use super::*;
use crate::address::{HOST, INTERNAL, REGISTERS};
use crate::descriptor::tests::any_request;
use crate::descriptor::{DESCRIPTOR_BYTES, FlagPlace, Shape};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How many worlds there are if nothing else is said: they take a second or so without optimization.
const WORLDS: u64 = 4000;

/// `RMA_FUZZ_SECONDS=600` tries worlds for so long, from a seed that differs each time; `RMA_FUZZ_SEED=7` begins with that one, which
/// is how a world that failed is looked at again.
#[test]
fn every_walk_ends_as_a_naive_one_says_whatever_the_bytes_are() {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().unwrap_or_else(|cause| panic!("{name}: {cause}")));
    let limit = number("RMA_FUZZ_SECONDS").map(Duration::from_secs);
    let first = number("RMA_FUZZ_SEED").unwrap_or_else(|| limit.map_or(1, |_| fastrand::u64(..)));
    let (begun, mut worlds, mut endings) = (Instant::now(), 0, BTreeMap::new());
    while limit.map_or(worlds < WORLDS, |limit| begun.elapsed() < limit) {
        let seed = first.wrapping_add(worlds);
        let mut random = Rng::with_seed(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| explore(&mut random, &mut endings))) {
            #[expect(clippy::print_stderr, reason = "whoever sees the test fail needs the seed")]
            {
                eprintln!("this was with RMA_FUZZ_SEED={seed}");
            }
            resume_unwind(panic);
        }
        worlds += 1;
    }
    for ending in ENDINGS {
        let times = endings.get(ending).copied().unwrap_or(0);
        assert!(times >= worlds / 200, "{times} times {ending:?} in {worlds} worlds: the test has lost its teeth: {endings:#?}");
    }
    assert_eq!(endings.len(), ENDINGS.len(), "{endings:#?}");
    #[expect(clippy::print_stderr, reason = "a long run says what it has done")]
    if limit.is_some() {
        eprintln!("{worlds} worlds from seed {first} on, their walks: {endings:#?}");
    }
}

/// All that can come of a walk.
const ENDINGS: [&str; 21] = [
    "no put at all: foreign",
    "no put at all: nothing there",
    "one put",
    "a chain of puts",
    "foreign",
    "nothing there",
    "loop",
    "too long",
    "kind",
    "flags",
    "reserved",
    "two places",
    "copy of blocks",
    "too few blocks",
    "no flag",
    "null next",
    "next of last",
    "misplaced",
    "get",
    "no window",
    "past the end",
];

fn name(ending: &Result<usize, ChainError>) -> &'static str {
    match ending {
        Ok(1) => "one put",
        Ok(_) => "a chain of puts",
        Err(error) => match error {
            ChainError::Foreign { step: 0, .. } => "no put at all: foreign",
            ChainError::NoDescriptor { step: 0, .. } => "no put at all: nothing there",
            ChainError::Foreign { .. } => "foreign",
            ChainError::NoDescriptor { .. } => "nothing there",
            ChainError::Loop { .. } => "loop",
            ChainError::TooLong { .. } => "too long",
            ChainError::Misplaced { .. } => "misplaced",
            ChainError::Get { .. } => "get",
            ChainError::OutOfReach { cause: OutOfReach::Nothing(_), .. } => "no window",
            ChainError::OutOfReach { cause: OutOfReach::PastTheEnd { .. }, .. } => "past the end",
            ChainError::Malformed { cause, .. } => match cause {
                Malformed::Kind(_) => "kind",
                Malformed::Flags(_) => "flags",
                Malformed::Reserved(_) => "reserved",
                Malformed::TwoPlaces => "two places",
                Malformed::CopyOfBlocks { .. } => "copy of blocks",
                Malformed::TooFewBlocks(_) => "too few blocks",
                Malformed::NoFlag { .. } => "no flag",
                Malformed::NullNext => "null next",
                Malformed::NextOfLast(_) => "next of last",
            },
        },
    }
}

/// One world, walked from some of its descriptors and from where there is none.
fn explore(random: &mut Rng, endings: &mut BTreeMap<&'static str, u64>) {
    let (world, places) = any_world(random);
    for _ in 0..4 {
        let head = match random.u32(..16) {
            0 => Address::NULL,
            1 => Address::from_bits(random.u64(..)),
            2 => Address::new(Node(random.u8(..)), *pick(random, &places)),
            _ => Address::new(world.node, *pick(random, &places)),
        };
        *endings.entry(name(&world.check(head))).or_default() += 1;
    }
}

fn pick<'a, T>(random: &mut Rng, from: &'a [T]) -> &'a T {
    &from[random.usize(..from.len())]
}

/// With the places of its descriptors.
fn any_world(random: &mut Rng) -> (World, Vec<u64>) {
    let node = Node(*pick(random, &[0, 1, 2, 254, 255]));
    let (windows, table) = any_windows(random, node);
    let mut places = BTreeMap::new();
    for _ in 0..random.usize(1..24) {
        let (placement, begin) =
            *pick(random, &[(Placement::Registers, REGISTERS), (Placement::Internal, INTERNAL), (Placement::Host, HOST)]);
        places.insert(begin + random.u64(..64) * DESCRIPTOR_BYTES, placement);
    }
    let mut offsets: Vec<u64> = places.keys().copied().collect();
    random.shuffle(&mut offsets);
    let next = any_links(random, &offsets);
    // Worlds in which nothing but the links is wrong have the long walks.
    let mutations = *pick(random, &[0, 0, 1, 2, 8]);
    let mut memory = Mock::default();
    for (&offset, next) in offsets.iter().zip(next) {
        let next = next.map(|next| Address::new(node, next));
        let request = Request { next, placement: places[&offset], ..any_put(random, node, &table) };
        memory.0.insert(offset, (request.encode(), places[&offset]));
    }
    for _ in 0..mutations {
        let offset = pick(random, &offsets);
        if let Some((descriptor, placement)) = memory.0.get_mut(offset) {
            *descriptor = mutated(random, *descriptor, *placement);
        }
    }
    if random.u32(..8) == 0 {
        memory.0.remove(pick(random, &offsets));
    }
    let limit = if random.u32(..4) == 0 { random.u64(..=offsets.len() as u64 + 4) } else { MAX_CHAIN };
    (World { node, limit, memory, windows, table }, offsets)
}

/// Some in the own node and some in others, near to each other, at the end of all addresses, and some without a byte.
fn any_windows(random: &mut Rng, own: Node) -> (Windows<u64>, Vec<(u64, u64)>) {
    let mut table = Vec::new();
    for node in [own, Node(random.u8(..)), Node(255)] {
        let mut begin = Address::new(node, HOST).bits();
        for _ in 0..random.usize(1..4) {
            let len = *pick(random, &[0, 1, 64, 4096]);
            begin += *pick(random, &[0, 1, 4096]);
            if !table.iter().any(|&(other, _)| other == begin) {
                table.push((begin, len));
            }
            begin += len.max(1);
        }
    }
    table.push((0u64.wrapping_sub(4096), 4096));
    // Nodes may have come twice, and what lies on each other is none.
    table.sort_unstable();
    table.dedup_by(|later, earlier| later.0 - earlier.0 < earlier.1);
    random.shuffle(&mut table);
    let mut windows = Windows::new();
    for &(begin, len) in &table {
        windows.add(Address::from_bits(begin), len, || begin);
    }
    if random.u32(..4) == 0 {
        let (begin, _) = table.swap_remove(random.usize(..table.len()));
        windows.remove(Address::from_bits(begin));
    }
    (windows, table)
}

/// Where each leads: all in a row, in a row that comes back, or anywhere, so that chains join each other.
fn any_links(random: &mut Rng, offsets: &[u64]) -> Vec<Option<u64>> {
    let mut next: Vec<_> = offsets.iter().skip(1).map(|&offset| Some(offset)).chain([None]).collect();
    match random.u32(..3) {
        0 => {}
        1 => next[offsets.len() - 1] = Some(*pick(random, offsets)),
        _ => next.fill_with(|| (random.u32(..8) > 0).then(|| *pick(random, offsets))),
    }
    next
}

/// A put inside windows, as far as there are any.
fn any_put(random: &mut Rng, own: Node, table: &[(u64, u64)]) -> Request {
    let of_own: Vec<_> = table.iter().copied().filter(|(begin, _)| begin >> 56 == u64::from(own.0)).collect();
    let nowhere = (Address::new(own, HOST).bits(), 0);
    let from = if of_own.is_empty() { nowhere } else { *pick(random, &of_own) };
    let to = if table.is_empty() { nowhere } else { *pick(random, table) };
    let room = from.1.min(to.1);
    let largest = *pick(random, &[room, room / 4]);
    let block_bytes = random.u64(..=largest);
    let pitch_for = |random: &mut Rng, count: u32, len: u64| random.u64(..=(len - block_bytes) / u64::from(count - 1));
    let shape = match random.u32(1..6) {
        1 => Shape::copy(block_bytes),
        count => Shape {
            block_bytes,
            count,
            source_pitch: pitch_for(random, count, from.1),
            target_pitch: pitch_for(random, count, to.1),
        },
    };
    let mut within =
        |(begin, len): (u64, u64), pitch| Address::from_bits(begin.wrapping_add(random.u64(..=len - shape.extent(pitch) as u64)));
    let (source, target) = (within(from, shape.source_pitch), within(to, shape.target_pitch));
    let notify = random.bool().then(|| FlagPlace { slot: random.u16(..), tag: random.u8(..) });
    let notify_self = notify.and_then(|_| random.bool().then(|| random.u16(..)));
    Request { next: None, placement: Placement::Host, source, target, shape, notify, notify_self, pipeline: random.bool() }
}

/// With a thing changed, which may or may not make it wrong.
fn mutated(random: &mut Rng, descriptor: Descriptor, placement: Placement) -> Descriptor {
    let odd = [0, 1, 2, 1 << 31, 1 << 32, 1 << 33, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX];
    let mut bytes: [u8; 64] = bytemuck::cast(descriptor);
    // Of a number, where it begins and ends.
    let fields =
        [(0, 8), (8, 16), (16, 24), (24, 32), (32, 40), (40, 48), (48, 52), (52, 54), (54, 56), (56, 58), (58, 59), (60, 64)];
    let (begin, end) = *pick(random, &fields);
    match random.u32(..10) {
        0 => random.fill(&mut bytes),
        1 => return Request { placement, ..any_request(random) }.encode(),
        2 => bytes[begin..end].copy_from_slice(&pick(random, &odd).to_le_bytes()[..end - begin]),
        3 => {
            let value = bytes[begin..end].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
            let moved = value.wrapping_add(*pick(random, &[1, u64::MAX, 32, 64, 4096]));
            bytes[begin..end].copy_from_slice(&moved.to_le_bytes()[..end - begin]);
        }
        // Another node: of the next one, the source or the target.
        4 => bytes[*pick(random, &[7, 15, 23])] = random.u8(..),
        // Flags and kind.
        5 => bytes[52] ^= 1 << random.u32(..6),
        6 => bytes[59] = random.u8(..4),
        7 => bytes[..8].fill(0),
        // Blocks of which all bytes are 2^64, which is none in 64 bits.
        8 => {
            let bits = random.u32(1..32);
            bytes[24..32].copy_from_slice(&(1u64 << (64 - bits)).to_le_bytes());
            bytes[48..52].copy_from_slice(&(1u32 << bits).to_le_bytes());
            bytes[59] = 2;
        }
        _ => (0..random.u32(1..4)).for_each(|_| bytes[random.usize(..64)] ^= 1 << random.u32(..8)),
    }
    bytemuck::cast(bytes)
}
