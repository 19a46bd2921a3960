//! What puts become: descriptors. Pure; where they will lie, and so how they are linked, is decided later.

use crate::address::Address;
use crate::descriptor::{FlagPlace, Placement, Request, Shape};
use rma::layout::Blocks;

/// A put by its addresses: of the windows it reads and writes, and which bytes of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move<'a> {
    pub(crate) source: Address,
    pub(crate) source_blocks: &'a Blocks,
    pub(crate) target: Address,
    pub(crate) target_blocks: &'a Blocks,
}

/// Where the end of a chain is told: the target's flag, and the own slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    pub(crate) at: FlagPlace,
    pub(crate) own_slot: u16,
}

/// The descriptors of puts to one target on one channel, the last of which announces them all. `None` when an address is in no node,
/// which no range of a window is.
pub(crate) fn chain(puts: &[Move<'_>], announcement: Announcement, pipeline: bool) -> Option<Vec<Request>> {
    let mut requests = Vec::with_capacity(puts.len());
    for put in puts.iter().filter(|put| !put.target_blocks.is_empty()) {
        pieces(put, pipeline, &mut requests)?;
    }
    if requests.is_empty() {
        // Puts of no bytes are announced all the same.
        let put = puts.first()?;
        requests.push(request(put.source, put.target, Shape::copy(0), false));
    }
    let last = requests.last_mut()?;
    last.pipeline = false;
    last.notify = Some(announcement.at);
    last.notify_self = Some(announcement.own_slot);
    Some(requests)
}

/// One put: a copy, or as few block-stride copies as can count its blocks.
fn pieces(put: &Move<'_>, pipeline: bool, requests: &mut Vec<Request>) -> Option<()> {
    let (from, to) = (put.source_blocks, put.target_blocks);
    let (source, target) = (put.source.checked_add(from.offset)?, put.target.checked_add(to.offset)?);
    if from.is_contiguous() && to.is_contiguous() {
        let bytes = to.block_bytes.checked_mul(to.count)?;
        requests.push(request(source, target, Shape::copy(bytes), pipeline));
        return Some(());
    }
    let mut done = 0;
    while done < to.count {
        let count = u32::try_from(to.count - done).unwrap_or(u32::MAX);
        let shape = match count {
            1 => Shape::copy(to.block_bytes),
            _ => Shape { block_bytes: to.block_bytes, count, source_pitch: from.stride, target_pitch: to.stride },
        };
        let source = source.checked_add(done.checked_mul(from.stride)?)?;
        let target = target.checked_add(done.checked_mul(to.stride)?)?;
        done += u64::from(count);
        // The pieces of one put need not wait for each other.
        requests.push(request(source, target, shape, pipeline || done < to.count));
    }
    Some(())
}

fn request(source: Address, target: Address, shape: Shape, pipeline: bool) -> Request {
    Request { next: None, placement: Placement::Host, source, target, shape, notify: None, notify_self: None, pipeline }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{HOST, Node};

    const ANNOUNCED: Announcement = Announcement { at: FlagPlace { slot: 5, tag: 2 }, own_slot: 9 };

    fn bases() -> [Address; 2] {
        [Address::new(Node(1), HOST), Address::new(Node(4), HOST + 4096)]
    }

    fn of(blocks: &[(Blocks, Blocks)]) -> Vec<Request> {
        let [source, target] = bases();
        let puts: Vec<_> =
            blocks.iter().map(|(from, to)| Move { source, source_blocks: from, target, target_blocks: to }).collect();
        chain(&puts, ANNOUNCED, false).unwrap()
    }

    #[test]
    fn each_put_is_a_descriptor_and_the_last_announces_them() {
        let copy = (Blocks::contiguous(8, 100), Blocks::contiguous(16, 100));
        let tiles = Blocks { offset: 0, block_bytes: 4, count: 3, stride: 10 };
        let column = (tiles, Blocks { offset: 3, ..tiles });
        let requests = of(&[copy, column, copy]);
        assert_eq!(requests.len(), 3);
        let [source, target] = bases();
        assert_eq!((requests[0].source, requests[0].target), (source.checked_add(8).unwrap(), target.checked_add(16).unwrap()));
        assert_eq!(requests[0].shape, Shape::copy(100));
        assert_eq!(requests[1].shape, Shape { block_bytes: 4, count: 3, source_pitch: 10, target_pitch: 10 });
        assert!(requests[..2].iter().all(|request| request.notify.is_none() && request.notify_self.is_none()));
        assert_eq!((requests[2].notify, requests[2].notify_self), (Some(ANNOUNCED.at), Some(9)));
        assert!(requests.iter().all(|request| !request.pipeline));
    }

    #[test]
    fn blocks_without_gaps_on_both_sides_are_one_copy() {
        let blocks = Blocks { offset: 0, block_bytes: 4, count: 3, stride: 4 };
        assert_eq!(of(&[(blocks, blocks)])[0].shape, Shape::copy(12));
        let gaps = Blocks { stride: 5, ..blocks };
        assert_eq!(of(&[(blocks, gaps)])[0].shape, Shape { block_bytes: 4, count: 3, source_pitch: 4, target_pitch: 5 });
    }

    #[test]
    fn puts_of_no_bytes_are_left_out_but_for_one_that_announces() {
        let none = (Blocks::contiguous(8, 0), Blocks::contiguous(0, 0));
        let some = (Blocks::contiguous(0, 1), Blocks::contiguous(0, 1));
        assert_eq!(of(&[none, some, none]).len(), 1);
        let requests = of(&[none, none]);
        assert_eq!((requests.len(), requests[0].shape, requests[0].notify), (1, Shape::copy(0), Some(ANNOUNCED.at)));
    }

    #[test]
    fn more_blocks_than_a_descriptor_counts_are_several_that_follow_at_once() {
        let most = u64::from(u32::MAX);
        let from = Blocks { offset: 0, block_bytes: 1, count: 2 * most + 1, stride: 2 };
        let to = Blocks { stride: 3, ..from };
        let requests = of(&[(from, to)]);
        let counts: Vec<_> = requests.iter().map(|request| request.shape.count).collect();
        assert_eq!(counts, [u32::MAX, u32::MAX, 1]);
        assert_eq!(requests.iter().map(|request| request.pipeline).collect::<Vec<_>>(), [true, true, false]);
        let [source, target] = bases();
        assert_eq!(requests[2].source, source.checked_add(4 * most).unwrap());
        assert_eq!(requests[2].target, target.checked_add(6 * most).unwrap());
    }
}
