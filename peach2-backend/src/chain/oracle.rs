//! A second walk, written to be plainly right and for nothing else: it reads numbers as they lie in the bytes, remembers every place
//! where it was, tries all windows, and names all that is wrong with a step. What the real walk does must be what this one allows.

use crate::address::{Address, Node};
use crate::chain::{ChainError, DescriptorMemory, Walk};
use crate::descriptor::{Descriptor, FlagPlace, Malformed, Placement, Request, Shape};
use crate::windows::{OutOfReach, Windows};
use std::collections::BTreeMap;

/// Descriptors anywhere, by their offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mock(pub(crate) BTreeMap<u64, (Descriptor, Placement)>);

impl DescriptorMemory for Mock {
    fn fetch(&self, offset: u64) -> Option<(Descriptor, Placement)> {
        self.0.get(&offset).copied()
    }
}

/// All that a walk depends on but its head.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) limit: u64,
    pub(crate) memory: Mock,
    /// By their beginning, which is also what is behind them.
    pub(crate) windows: Windows<u64>,
    /// The same windows: where each begins, and how long it is.
    pub(crate) table: Vec<(u64, u64)>,
}

/// A step: where its descriptor lies, what it asks for, and the window and the offset there of its source and its target.
type Put = (Placement, Request, Option<[(u64, u64); 2]>);

/// What a chain is.
#[derive(Debug)]
struct Outcome {
    /// Where each of the first puts lies, and what it is; a loop is passed once.
    puts: Vec<(Address, Put)>,
    end: End,
}

#[derive(Debug)]
enum End {
    Last,
    /// The put behind the last is the one of this number again.
    Again(usize),
    /// Any of these is true of the descriptor behind the last put.
    Fails(Vec<ChainError>),
}

/// A descriptor, taken apart by the offsets of its layout: its request, if nothing is wrong with it.
fn read(descriptor: &Descriptor) -> (Request, Vec<Malformed>) {
    let bytes: [u8; 64] = bytemuck::cast(*descriptor);
    let number = |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let (next, block_bytes) = (Address::from_bits(number(0, 8)), number(24, 8));
    let (source_pitch, target_pitch, count) = (number(32, 8), number(40, 8), number(48, 4) as u32);
    let (flags, slot, own_slot) = (number(52, 2) as u16, number(54, 2) as u16, number(56, 2) as u16);
    let (tag, kind, reserved) = (bytes[58], bytes[59], number(60, 4) as u32);
    let [notify, notify_self, pipeline, last, internal, register] = std::array::from_fn(|bit| flags >> bit & 1 == 1);
    let wrong = [
        (flags > 0b11_1111, Malformed::Flags(flags)),
        (reserved != 0, Malformed::Reserved(reserved)),
        (kind != 1 && kind != 2, Malformed::Kind(kind)),
        (
            kind == 1 && (count != 1 || source_pitch != 0 || target_pitch != 0),
            Malformed::CopyOfBlocks { count, source_pitch, target_pitch },
        ),
        (kind == 2 && count <= 1, Malformed::TooFewBlocks(count)),
        (register && internal, Malformed::TwoPlaces),
        (!notify && (slot != 0 || tag != 0), Malformed::NoFlag { slot, own_slot, tag }),
        (!notify_self && own_slot != 0, Malformed::NoFlag { slot, own_slot, tag }),
        (notify_self && !notify, Malformed::NoFlag { slot, own_slot, tag }),
        (last && next.bits() != 0, Malformed::NextOfLast(next)),
        (!last && next.bits() == 0, Malformed::NullNext),
    ];
    let request = Request {
        next: (!last).then_some(next),
        placement: match (register, internal) {
            (true, _) => Placement::Registers,
            (_, true) => Placement::Internal,
            _ => Placement::Host,
        },
        source: Address::from_bits(number(8, 8)),
        target: Address::from_bits(number(16, 8)),
        shape: Shape { block_bytes, count, source_pitch, target_pitch },
        notify: notify.then_some(FlagPlace { slot, tag }),
        notify_self: notify_self.then_some(own_slot),
        pipeline,
    };
    (request, wrong.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what).collect())
}

impl World {
    /// The window that blocks are in, and where in it they begin.
    fn find(&self, at: Address, pitch: u64, shape: &Shape) -> Result<(u64, u64), OutOfReach> {
        let begin = u128::from(at.bits());
        let end = begin + u128::from(shape.count - 1) * u128::from(pitch) + u128::from(shape.block_bytes);
        let bounds = |&(begin, len): &(u64, u64)| (u128::from(begin), u128::from(begin) + u128::from(len));
        let touched = self.table.iter().map(bounds).filter(|&(from, to)| from <= begin && begin <= to);
        // Where one window ends another may begin.
        match touched.max_by_key(|&(from, to)| (to, from)) {
            None => Err(OutOfReach::Nothing(at)),
            Some((_, to)) if end > to => Err(OutOfReach::PastTheEnd { at, asked: end - begin, left: (to - begin) as u64 }),
            Some((from, _)) => Ok((from as u64, (begin - from) as u64)),
        }
    }

    /// The put at an address, or all that is wrong there.
    fn put(&self, step: u64, at: Address) -> Result<Put, Vec<ChainError>> {
        let (node, offset) = ((at.bits() >> 56) as u8, at.bits() << 8 >> 8);
        let too_long = (step >= self.limit).then_some(ChainError::TooLong { limit: self.limit });
        if node != self.node.0 {
            return Err([ChainError::Foreign { step, at, own: self.node }].into_iter().chain(too_long).collect());
        }
        if let Some(too_long) = too_long {
            return Err(vec![too_long]);
        }
        let Some((descriptor, real)) = self.memory.0.get(&offset) else {
            return Err(vec![ChainError::NoDescriptor { step, at }]);
        };
        let (request, wrong) = read(descriptor);
        if !wrong.is_empty() {
            return Err(wrong.into_iter().map(|cause| ChainError::Malformed { step, at, cause }).collect());
        }
        let mut wrong = Vec::new();
        if request.placement != *real {
            wrong.push(ChainError::Misplaced { step, said: request.placement, real: *real });
        }
        if (request.source.bits() >> 56) as u8 != self.node.0 {
            wrong.push(ChainError::Get { step, from: request.source });
        }
        let mut ends = None;
        if request.shape.block_bytes > 0 && request.shape.count > 0 {
            let source = self.find(request.source, request.shape.source_pitch, &request.shape);
            let target = self.find(request.target, request.shape.target_pitch, &request.shape);
            let failed = [("source", source), ("target", target)].into_iter().filter_map(|(side, end)| Some((side, end.err()?)));
            wrong.extend(failed.map(|(side, cause)| ChainError::OutOfReach { step, side, cause }));
            ends = source.ok().zip(target.ok()).map(|(source, target)| [source, target]);
        }
        if wrong.is_empty() { Ok((*real, request, ends)) } else { Err(wrong) }
    }

    fn outcome(&self, head: Address) -> Outcome {
        let (mut puts, mut visited, mut at) = (Vec::new(), BTreeMap::new(), head);
        loop {
            if let Some(&before) = visited.get(&at.bits()) {
                return Outcome { puts, end: End::Again(before) };
            }
            match self.put(puts.len() as u64, at) {
                Err(wrong) => return Outcome { puts, end: End::Fails(wrong) },
                Ok(put) => {
                    visited.insert(at.bits(), puts.len());
                    puts.push((at, put));
                    match put.1.next {
                        None => return Outcome { puts, end: End::Last },
                        Some(next) => at = next,
                    }
                }
            }
        }
    }

    /// Walks, and says how the walk ended; panics if it was not as it must be. A loop may be passed for a while before it is named, but
    /// not for longer than three times the way to it or around it.
    pub(crate) fn check(&self, head: Address) -> Result<usize, ChainError> {
        let Outcome { puts, end } = self.outcome(head);
        let mut walk = Walk::of_at_most(self.limit, self.node, &self.memory, &self.windows, head);
        let (mut found, mut result) = (0, None);
        for step in walk.by_ref() {
            assert_eq!(result, None, "something came after an error");
            match step {
                Err(error) => result = Some(error),
                Ok(step) => {
                    let number = match end {
                        End::Again(before) if found >= puts.len() => before + (found - before) % (puts.len() - before),
                        _ => found,
                    };
                    let put = (step.placement, step.request, step.ends.map(|ends| ends.map(|(&window, offset)| (window, offset))));
                    assert_eq!(Some(put), puts.get(number).map(|put| put.1), "put {found} of the chain from {head}");
                    found += 1;
                    assert!(found as u64 <= self.limit, "{found} puts of the chain from {head}, not {}", self.limit);
                }
            }
        }
        assert!(walk.next().is_none(), "something came after the end");
        match (&end, result) {
            (End::Last, None) => assert_eq!(found, puts.len()),
            (End::Fails(wrong), Some(error)) => {
                assert!(wrong.contains(&error), "{error:?} is none of {wrong:?}");
                assert_eq!(found, puts.len());
            }
            (&End::Again(before), Some(error)) => {
                let around = puts.len() - before;
                let latest = 3 * before.max(around);
                match error {
                    ChainError::Loop { step, at } => {
                        assert_eq!(step, found as u64);
                        assert!(
                            (puts.len()..=latest).contains(&found),
                            "named after {found} steps: {before}, then {around} around"
                        );
                        assert_eq!(at, puts[before + (found - before) % around].0);
                    }
                    ChainError::TooLong { limit } => {
                        assert_eq!((limit, limit), (self.limit, found as u64));
                        assert!(found < latest, "not named in {found} steps: {before}, then {around} around");
                    }
                    error => panic!("{error:?}, but the chain from {head} comes back to put {before} from put {}", puts.len()),
                }
            }
            (end, result) => panic!("the walk from {head} ended with {result:?}, but the chain with {end:?}"),
        }
        result.map_or(Ok(found), Err)
    }
}
