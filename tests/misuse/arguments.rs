//! Arguments of declarations and queues that name what is not there.

use crate::{alone, refused};
use rma::{Comm, Error, Rank};

#[test]
fn a_rank_that_the_job_does_not_have() {
    let comm = alone();
    let window = comm.window_alloc(8).expect("a window");
    for rank in [1, 7, u32::MAX] {
        let (named, words) = (format!("rank {rank}"), "the job has 1");
        let error = refused(comm.declare_write(&window, 0, &window, 0, 0, rank), &[&named, words]);
        assert!(matches!(error, Error::NoSuchRank { .. }), "{error:?}");
        let mut queue = comm.queue_alloc(&window).expect("a queue");
        refused(queue.add_origin(rank).map(drop), &[&named, words, "add_origin"]);
        refused(window.len_bytes_of(Rank(rank)), &[&named, words]);
    }
}

#[test]
fn a_rail_that_the_backend_does_not_have() {
    let comm = alone();
    let window = comm.window_alloc(8).expect("a window");
    for rail in [comm.rails(), 99, u16::MAX] {
        let put = comm.declare_write(&window, 0, &window, 0, 0, 0).expect("a put");
        let has = format!("has {}", comm.rails());
        let error = refused(put.rail(rail), &[&format!("rail {rail}"), &has, "RMA_RAILS"]);
        assert!(matches!(error, Error::NoSuchRail { .. }), "{error:?}");
    }
}

#[test]
fn ranges_that_are_not_inside_their_window() {
    let comm = alone();
    let (to, from) = (comm.window_alloc(100).expect("a window"), comm.window_alloc(50).expect("a window"));
    let huge = usize::MAX;
    for (to_offset, from_offset, len, words) in [
        (93, 0, 8, ["destination", "bytes 93..101", "has 100 bytes"]),
        (0, 43, 8, ["source", "bytes 43..51", "has 50 bytes"]),
        (101, 0, 0, ["destination", "bytes 101..101", "has 100 bytes"]),
        (huge, 0, 1, ["destination", "18446744073709551616", "has 100 bytes"]),
        (1, 0, huge, ["destination", "18446744073709551616", "has 100 bytes"]),
        (huge, huge, huge, ["destination", "36893488147419103230", "has 100 bytes"]),
        (0, huge, 8, ["source", "18446744073709551623", "has 50 bytes"]),
    ] {
        let error = refused(comm.declare_write(&to, to_offset, &from, from_offset, len, 0), &words);
        assert!(matches!(error, Error::OutOfRange { .. }), "{error:?}");
    }
    comm.declare_write(&to, 100, &from, 50, 0, 0).expect("nothing, at the end");
    comm.declare_write(&to, 92, &from, 42, 8, 0).expect("the last bytes");
}

#[test]
fn blocks_that_leave_their_window_or_overlap() {
    let comm = alone();
    let (to, from) = (comm.window_alloc(100).expect("a window"), comm.window_alloc(50).expect("a window"));
    let put = |count, from_stride, to_stride| {
        comm.declare_write(&to, 0, &from, 0, 8, 0).expect("a put").blocks(count, from_stride, to_stride)
    };
    refused(put(2, 8, 7), &["target_stride", "7", "8 bytes"]);
    refused(put(2, 8, 0), &["target_stride", "0", "8 bytes"]);
    refused(put(11, 0, 10), &["destination", "bytes 0..108", "100 bytes"]);
    refused(put(4, 15, 10), &["source", "bytes 0..53", "50 bytes"]);
    for (count, from_stride, to_stride) in [(usize::MAX, 8, 8), (2, 8, usize::MAX), (usize::MAX, usize::MAX, usize::MAX)] {
        refused(put(count, from_stride, to_stride), &["destination", "100 bytes"]);
    }
    refused(put(2, usize::MAX, 8), &["source", "50 bytes"]);
    // Sources may repeat themselves, and a put may have no blocks.
    assert_eq!(put(10, 0, 10).expect("the same block ten times").len_bytes(), 80);
    assert_eq!(put(0, usize::MAX, usize::MAX).expect("no blocks").len_bytes(), 0);
}

#[test]
fn absurdly_many_blocks_without_bytes_cost_nothing() {
    let comm = alone();
    let window = comm.window_alloc(8).expect("a window");
    for (count, stride) in [(usize::MAX, 0), (usize::MAX, 1), (1 << 40, usize::MAX)] {
        let put = comm.declare_write(&window, 8, &window, 8, 0, 0).expect("a put").blocks(count, stride, stride).expect("blocks");
        assert_eq!(put.len_bytes(), 0);
        let mut queue = comm.queue_alloc(&window).expect("a queue");
        queue.push(&put).expect("pushed").push(&put).expect("pushed twice").add_origin(0).expect("added");
        let mut queue = queue.commit().expect("committed");
        queue.start().and_then(|flight| flight.wait()).map(drop).expect("moves nothing");
    }
}

#[test]
fn windows_and_puts_of_another_comm() {
    let (comm, other) = (alone(), alone());
    let (own, foreign) = (comm.window_alloc(8).expect("a window"), other.window_alloc(8).expect("a window"));
    let words = ["window 0", "another Comm"];
    refused(comm.declare_write(&foreign, 0, &own, 0, 8, 0), &["destination", words[0], words[1]]);
    refused(comm.declare_write(&own, 0, &foreign, 0, 8, 0), &["source", words[0], words[1]]);
    refused(comm.queue_alloc(&foreign), &words);
    let mut queue = comm.queue_alloc(&own).expect("a queue");
    refused(queue.expose(&foreign).map(drop), &words);
    let foreign_put = other.declare_write(&foreign, 0, &foreign, 0, 8, 0).expect("a put");
    refused(queue.push(&foreign_put).map(drop), &["another Comm"]);
    let mut queue = queue.commit().expect("what was refused is not in the queue");
    let arrived = queue.start().and_then(|flight| flight.wait()).expect("an empty queue completes");
    refused(arrived.read::<u8>(&foreign, ..), &["another Comm"]);
    refused(arrived.write::<u8>(&foreign, ..), &["another Comm"]);
}

#[test]
fn windows_and_puts_of_another_comm_on_the_same_rank_numbers() {
    // The ids are alike on both, so nothing but the Comm tells them apart.
    let words = Comm::threads(2, |comm| {
        let window = comm.window_alloc(64).expect("a window");
        let other = alone();
        let foreign = other.window_alloc(64).expect("a window");
        assert_eq!(window.id(), foreign.id());
        refused(comm.declare_write(&foreign, 0, &window, 0, 8, 1), &["another Comm"]).to_string()
    });
    assert_eq!(words.expect("two ranks").len(), 2);
}
