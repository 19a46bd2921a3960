//! What a walk yields and each way in which it ends, one by one.

use super::oracle::Mock;
use super::*;
use crate::address::HOST;
use crate::descriptor::{DESCRIPTOR_BYTES, Shape};
use crate::placement::Memories;
use bytemuck::Zeroable;

const OWN: Node = Node(2);
const PEER: Node = Node(7);
const WINDOW_BYTES: u64 = 4096;

/// Where descriptors lie.
fn at(index: u64) -> Address {
    Address::new(OWN, HOST + index * DESCRIPTOR_BYTES)
}

/// The one window of a node, so far from its beginning.
fn window(node: Node, offset: u64) -> Address {
    Address::new(node, (HOST << 4) + offset)
}

fn windows() -> Windows<Node> {
    let mut windows = Windows::new();
    for node in [OWN, PEER] {
        windows.add(window(node, 0), WINDOW_BYTES, || node);
    }
    windows
}

fn put(next: Option<Address>) -> Request {
    Request {
        next,
        placement: Placement::Host,
        source: window(OWN, 8),
        target: window(PEER, 16),
        shape: Shape::copy(32),
        notify: None,
        notify_self: None,
        pipeline: false,
    }
}

/// Descriptors one behind the other, all in the memory of the host.
fn memory(requests: impl IntoIterator<Item = Request>) -> Mock {
    let place = |(index, request): (u64, Request)| (at(index).offset(), (request.encode(), Placement::Host));
    Mock((0..).zip(requests).map(place).collect())
}

/// Puts whose next ones have these numbers; the last has none.
fn linked(next: &[u64]) -> Mock {
    memory(next.iter().map(|&next| put(Some(at(next)))).chain([put(None)]))
}

/// What a walk from the first descriptor on yields: its requests, and the error that ended it.
fn walk(memory: &impl DescriptorMemory) -> (Vec<Request>, Option<ChainError>) {
    walk_from(at(0), memory)
}

fn walk_from(head: Address, memory: &impl DescriptorMemory) -> (Vec<Request>, Option<ChainError>) {
    let (mut requests, mut error) = (Vec::new(), None);
    for step in Walk::new(OWN, memory, &windows(), head) {
        assert_eq!(error, None, "something came after an error");
        match step {
            Ok(step) => requests.push(step.request),
            Err(cause) => error = Some(cause),
        }
    }
    (requests, error)
}

/// The error of a chain of one put.
fn error_of(request: Request) -> Option<ChainError> {
    walk(&memory([request])).1
}

fn past_the_end(side: &'static str, at: Address, asked: u128) -> Option<ChainError> {
    let left = WINDOW_BYTES - (at.bits() - window(at.node(), 0).bits());
    Some(ChainError::OutOfReach { step: 0, side, cause: OutOfReach::PastTheEnd { at, asked, left } })
}

/// As many descriptors as one likes, without the memory for them: each leads to the one behind it, and the last to `last`.
struct Row {
    count: u64,
    last: Option<Address>,
}

impl DescriptorMemory for Row {
    fn fetch(&self, offset: u64) -> Option<(Descriptor, Placement)> {
        let index = (offset - HOST) / DESCRIPTOR_BYTES;
        let next = if index + 1 == self.count { self.last } else { Some(at(index + 1)) };
        (index < self.count).then(|| (put(next).encode(), Placement::Host))
    }
}

/// How many steps a walk over it makes, and what ends it.
fn steps_of(limit: u64, row: &Row) -> (u64, Option<ChainError>) {
    let (windows, mut steps) = (windows(), 0);
    for step in Walk::of_at_most(limit, OWN, row, &windows, at(0)) {
        match step {
            Ok(_) => steps += 1,
            Err(error) => return (steps, Some(error)),
        }
    }
    (steps, None)
}

/// A tail, and behind it a loop around so many descriptors: where it is found.
fn loop_of(tail: u64, around: u64) -> (u64, Address) {
    let memory = linked(&(1..tail + around).chain([tail]).collect::<Vec<_>>());
    match walk(&memory) {
        (requests, Some(ChainError::Loop { step, at })) => {
            assert_eq!(requests.len() as u64, step);
            (step, at)
        }
        (requests, error) => panic!("{} steps, then {error:?}", requests.len()),
    }
}

#[test]
fn a_chain_is_walked_in_the_order_of_its_links() {
    let memory = linked(&[3, 4, 1, 2]);
    let (requests, error) = walk(&memory);
    assert_eq!(error, None);
    let next: Vec<_> = requests.iter().map(|request| request.next).collect();
    assert_eq!(next, [Some(at(3)), Some(at(2)), Some(at(1)), Some(at(4)), None]);
}

#[test]
fn a_step_tells_where_its_descriptor_lies_and_which_bytes_it_moves() {
    let (memory, windows) = (memory([put(None)]), windows());
    let mut walk = Walk::new(OWN, &memory, &windows, at(0));
    let step = walk.next().and_then(Result::ok).unwrap();
    assert_eq!((step.placement, step.ends), (Placement::Host, Some([(&OWN, 8), (&PEER, 16)])));
    assert!(walk.next().is_none() && walk.next().is_none());
}

#[test]
fn nothing_comes_after_an_error() {
    let (memory, windows) = (linked(&[1, 9]), windows());
    let mut walk = Walk::new(OWN, &memory, &windows, at(0));
    assert!(walk.next().is_some_and(|step| step.is_ok()) && walk.next().is_some_and(|step| step.is_ok()));
    assert!(walk.next().is_some_and(|step| step.is_err()));
    assert!(walk.next().is_none() && walk.next().is_none());
}

#[test]
fn a_descriptor_that_leads_to_itself_is_a_loop() {
    let (step, place) = loop_of(0, 1);
    assert!((1..=3).contains(&step), "found after {step} steps");
    assert_eq!(place, at(0));
}

#[test]
fn loops_of_every_length_are_found_within_three_rounds() {
    for around in 1..=130 {
        let (step, _) = loop_of(0, around);
        assert!((around..=3 * around).contains(&step), "around {around}: found after {step} steps");
    }
}

#[test]
fn loops_behind_a_tail_are_found_and_named_by_a_place_in_the_loop() {
    for tail in 1..=40 {
        for around in 1..=40 {
            let (step, place) = loop_of(tail, around);
            assert!((tail + around..=3 * tail.max(around)).contains(&step), "{tail}, then {around}: found after {step} steps");
            assert_eq!(place, at(tail + (step - tail) % around));
        }
    }
}

#[test]
fn a_loop_too_long_to_be_found_ends_at_the_limit() {
    let row = Row { count: 1000, last: Some(at(0)) };
    assert_eq!(steps_of(1500, &row), (1500, Some(ChainError::TooLong { limit: 1500 })));
}

#[test]
fn the_longest_chain_is_walked_to_its_end() {
    assert_eq!(steps_of(MAX_CHAIN, &Row { count: MAX_CHAIN, last: None }), (MAX_CHAIN, None));
}

#[test]
fn one_descriptor_more_than_the_longest_chain_has_is_too_long() {
    let row = Row { count: MAX_CHAIN + 1, last: None };
    assert_eq!(steps_of(MAX_CHAIN, &row), (MAX_CHAIN, Some(ChainError::TooLong { limit: MAX_CHAIN })));
}

#[test]
fn a_null_next_without_the_mark_of_the_last_is_malformed() {
    let unmarked = put(Some(Address::NULL)).encode();
    let memory = Mock([(at(0).offset(), (unmarked, Placement::Host))].into());
    let expected = ChainError::Malformed { step: 0, at: at(0), cause: Malformed::NullNext };
    assert_eq!(walk(&memory), (vec![], Some(expected)));
}

#[test]
fn what_was_read_before_a_malformed_descriptor_is_yielded() {
    let mut memory = linked(&[1, 2]);
    memory.0.insert(at(2).offset(), (Descriptor::zeroed(), Placement::Host));
    let expected = ChainError::Malformed { step: 2, at: at(2), cause: Malformed::Kind(0) };
    assert_eq!(walk(&memory), (vec![put(Some(at(1))), put(Some(at(2)))], Some(expected)));
}

#[test]
fn a_chain_does_not_go_on_in_another_node() {
    let foreign = Address::new(PEER, at(1).offset());
    let memory = memory([put(Some(foreign)), put(None)]);
    assert_eq!(walk(&memory).1, Some(ChainError::Foreign { step: 1, at: foreign, own: OWN }));
}

#[test]
fn a_chain_does_not_begin_in_another_node() {
    let foreign = Address::new(PEER, at(0).offset());
    let expected = ChainError::Foreign { step: 0, at: foreign, own: OWN };
    assert_eq!(walk_from(foreign, &memory([put(None)])), (vec![], Some(expected)));
}

#[test]
fn a_link_to_where_no_descriptor_is_leads_nowhere() {
    assert_eq!(walk(&linked(&[7])).1, Some(ChainError::NoDescriptor { step: 1, at: at(7) }));
}

#[test]
fn a_link_into_the_middle_of_a_descriptor_leads_nowhere() {
    let middle = Address::from_bits(at(1).bits() + 32);
    let memory = memory([put(Some(middle)), put(None)]);
    assert_eq!(walk(&memory).1, Some(ChainError::NoDescriptor { step: 1, at: middle }));
}

#[test]
fn a_null_head_leads_nowhere_also_on_the_node_whose_number_is_0() {
    let (memory, windows) = (Memories::new(Node(0)), Windows::<()>::new());
    let mut walk = Walk::new(Node(0), &memory, &windows, Address::NULL);
    let expected = ChainError::NoDescriptor { step: 0, at: Address::NULL };
    assert_eq!(walk.next().map(Result::err), Some(Some(expected)));
}

#[test]
fn a_put_may_reach_to_the_end_of_both_windows() {
    let shape = Shape::copy(WINDOW_BYTES);
    assert_eq!(error_of(Request { source: window(OWN, 0), target: window(PEER, 0), shape, ..put(None) }), None);
}

#[test]
fn a_byte_behind_the_window_of_the_source_is_out_of_reach() {
    let source = window(OWN, WINDOW_BYTES - 31);
    assert_eq!(error_of(Request { source, ..put(None) }), past_the_end("source", source, 32));
}

#[test]
fn a_byte_behind_the_window_of_the_target_is_out_of_reach() {
    let target = window(PEER, WINDOW_BYTES - 31);
    assert_eq!(error_of(Request { target, ..put(None) }), past_the_end("target", target, 32));
}

#[test]
fn a_byte_before_a_window_is_out_of_reach() {
    let before = Address::from_bits(window(PEER, 0).bits() - 1);
    let expected = ChainError::OutOfReach { step: 0, side: "target", cause: OutOfReach::Nothing(before) };
    assert_eq!(error_of(Request { target: before, ..put(None) }), Some(expected));
}

#[test]
fn blocks_reach_as_far_as_the_last_of_them() {
    let shape = Shape { block_bytes: 96, count: 5, source_pitch: 1000, target_pitch: 0 };
    let blocks = Request { source: window(OWN, 0), target: window(PEER, WINDOW_BYTES - 96), shape, ..put(None) };
    assert_eq!(error_of(blocks), None);
    let source = window(OWN, 1);
    assert_eq!(error_of(Request { source, ..blocks }), past_the_end("source", source, 4096));
    let shape = Shape { target_pitch: 1, ..shape };
    assert_eq!(error_of(Request { shape, ..blocks }), past_the_end("target", blocks.target, 100));
}

#[test]
fn lengths_that_no_64_bits_hold_do_not_wrap_into_a_window() {
    let (source, target) = (window(OWN, 0), window(PEER, 0));
    let shape = Shape { block_bytes: 0, count: 2, source_pitch: 0, target_pitch: 0 };
    for (shape, side, asked) in [
        (Shape::copy(u64::MAX), "source", u128::from(u64::MAX)),
        // In 64 bits this is 64, then 32 on the other side.
        (Shape { block_bytes: 64, count: 1 << 31, source_pitch: 1 << 33, ..shape }, "source", 64 + ((1 << 31) - 1) * (1 << 33)),
        (Shape { block_bytes: 32, count: 5, target_pitch: 1 << 62, ..shape }, "target", (1 << 64) + 32),
        (Shape { block_bytes: 32, count: 3, source_pitch: 1 << 63, ..shape }, "source", (1 << 64) + 32),
        (Shape { block_bytes: u64::MAX, target_pitch: 17, source_pitch: 17, ..shape }, "source", (1 << 64) + 16),
        // All bytes are 2^64, which is none in 64 bits.
        (Shape { block_bytes: 1 << 40, count: 1 << 24, ..shape }, "source", 1 << 40),
        (
            Shape { block_bytes: u64::MAX, count: u32::MAX, source_pitch: u64::MAX, target_pitch: u64::MAX },
            "source",
            u128::from(u32::MAX) * u128::from(u64::MAX),
        ),
    ] {
        let at = if side == "source" { source } else { target };
        assert_eq!(error_of(Request { source, target, shape, ..put(None) }), past_the_end(side, at, asked), "{shape:?}");
    }
}

#[test]
fn a_put_without_bytes_needs_no_window() {
    let (memory, windows) = (memory([Request { target: Address::NULL, shape: Shape::copy(0), ..put(None) }]), windows());
    let step = Walk::new(OWN, &memory, &windows, at(0)).next().and_then(Result::ok);
    assert_eq!(step.map(|step| step.ends), Some(None));
}

#[test]
fn a_put_from_another_node_is_a_get() {
    for shape in [Shape::copy(0), Shape::copy(8)] {
        let from = window(PEER, 0);
        let get = Request { source: from, target: window(OWN, 0), shape, ..put(None) };
        assert_eq!(error_of(get), Some(ChainError::Get { step: 0, from }));
    }
}

#[test]
fn a_descriptor_lies_where_it_says() {
    let all = [Placement::Registers, Placement::Internal, Placement::Host];
    for (said, real) in all.into_iter().flat_map(|said| all.map(|real| (said, real))) {
        let placed = Request { placement: said, ..put(None) };
        let memory = Mock([(at(0).offset(), (placed.encode(), real))].into());
        let expected = (said != real).then_some(ChainError::Misplaced { step: 0, said, real });
        assert_eq!(walk(&memory).1, expected, "{said:?} {real:?}");
    }
}

#[test]
fn the_texts_of_errors_carry_their_numbers() {
    let place = Address::new(Node(12), 0xabc0);
    for (error, numbers) in [
        (ChainError::Foreign { step: 41, at: place, own: OWN }, &["descriptor 41", "12:0xabc0", "node 2"][..]),
        (ChainError::NoDescriptor { step: 41, at: place }, &["descriptor 41", "12:0xabc0"]),
        (ChainError::Loop { step: 41, at: place }, &["41 steps", "12:0xabc0"]),
        (ChainError::TooLong { limit: MAX_CHAIN }, &["2097152 descriptors"]),
        (
            ChainError::Malformed { step: 41, at: place, cause: Malformed::TooFewBlocks(1) },
            &["descriptor 41", "12:0xabc0", "1 block(s)"],
        ),
        (
            ChainError::Misplaced { step: 41, said: Placement::Internal, real: Placement::Host },
            &["descriptor 41", "Internal", "from Host"],
        ),
        (ChainError::Get { step: 41, from: place }, &["descriptor 41", "12:0xabc0", "node 12 put instead"]),
        (
            ChainError::OutOfReach {
                step: 41,
                side: "target",
                cause: OutOfReach::PastTheEnd { at: place, asked: 1 << 70, left: 99 },
            },
            &["target of descriptor 41", "12:0xabc0", "1180591620717411303424 bytes", "has 99"],
        ),
        (
            ChainError::OutOfReach { step: 41, side: "source", cause: OutOfReach::Nothing(place) },
            &["source of descriptor 41", "12:0xabc0"],
        ),
    ] {
        let text = error.to_string();
        assert!(numbers.iter().all(|number| text.contains(number)), "{text}: not all of {numbers:?}");
    }
}
