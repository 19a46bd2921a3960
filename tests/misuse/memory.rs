//! Leases and windows that cannot be: misaligned, outside, freed, or larger than any memory.

use crate::{alone, refused};
use rma::{Error, RmaWindow};
use std::ops::Bound;

#[test]
fn leases_that_are_not_whole_aligned_elements() {
    let comm = alone();
    let window = comm.window_alloc(100).expect("a window");
    for (bytes, shown) in [(4..12, "bytes 4..12"), (0..12, "bytes 0..12"), (1..1, "bytes 1..1"), (8..15, "bytes 8..15")] {
        let words = [shown, "f64", "multiple of 8"];
        refused(window.read::<f64>(bytes.clone()).map(drop), &words);
        refused(window.write::<f64>(bytes).map(drop), &words);
    }
    // The window's own length is no multiple of 8 either.
    refused(window.read::<f64>(..).map(drop), &["bytes 0..100", "multiple of 8"]);
    assert_eq!(window.read::<f64>(..96).expect("twelve numbers").len(), 12);
    assert_eq!(window.read::<f64>(96..96).expect("none").len(), 0);
}

/// Aligned more strictly than a page of memory is.
#[derive(Clone, Copy, Debug, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(16384))]
struct Coarse([u8; 16384]);

#[test]
fn leases_that_are_aligned_in_the_window_but_not_in_memory() {
    const ALIGN: usize = align_of::<Coarse>();
    let comm = alone();
    for pages in 0..4 {
        let window = comm.window_alloc(3 * ALIGN + 4096 * pages).expect("a window");
        let address = std::ptr::from_ref(&window.read::<u8>(..1).expect("a byte")[0]).addr();
        // Of four neighboring pages one is aligned, wherever the window lies.
        for begin in [0, 4096, 8192, 12288] {
            let bytes = begin..begin + ALIGN;
            if (address + begin).is_multiple_of(ALIGN) {
                let lease = window.read::<Coarse>(bytes.clone()).expect("aligned in memory");
                assert!(lease.as_ptr().is_aligned() && lease.len() == 1);
                drop(lease);
                window.write::<Coarse>(bytes).expect("aligned in memory")[0].0.fill(1);
            } else {
                let words = [&*format!("bytes {}..{}", bytes.start, bytes.end), "Coarse", "multiple of 16384"];
                for refusal in [window.read::<Coarse>(bytes.clone()).map(drop), window.write::<Coarse>(bytes.clone()).map(drop)] {
                    let error = refused(refusal, &words);
                    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
                }
            }
        }
    }
}

#[test]
fn leases_outside_the_window() {
    let comm = alone();
    let window = comm.window_alloc(100).expect("a window");
    type Bounds = (Bound<usize>, Bound<usize>);
    let outside: [(Bounds, &str); 5] = [
        ((Bound::Included(0), Bound::Excluded(101)), "bytes 0..101"),
        ((Bound::Included(101), Bound::Unbounded), "101"),
        ((Bound::Included(usize::MAX), Bound::Unbounded), "18446744073709551615"),
        ((Bound::Unbounded, Bound::Included(usize::MAX)), "100"),
        ((Bound::Excluded(usize::MAX), Bound::Unbounded), "100"),
    ];
    for (bounds, shown) in outside {
        refused(window.read::<u8>(bounds).map(drop), &[shown, "window 0", "100"]);
        refused(window.write::<u8>(bounds).map(drop), &[shown, "window 0", "100"]);
    }
    // From behind to before.
    let backwards = (Bound::Included(60), Bound::Excluded(40));
    refused(window.read::<u8>(backwards).map(drop), &["60", "40"]);
    refused(window.write::<u8>(backwards).map(drop), &["60", "40"]);
}

#[test]
fn windows_larger_than_any_memory() {
    let comm = alone();
    for bytes in [usize::MAX, usize::MAX - 1, usize::MAX - 4095, isize::MAX as usize, 1 << 60, 1 << 46] {
        let error = refused(comm.window_alloc(bytes), &["window", &bytes.to_string()]);
        assert!(matches!(error, Error::Limit { .. } | Error::CollectiveFailed { .. }), "{error:?}");
    }
    comm.window_alloc(1 << 20).expect("a window of usual size, afterwards");
}

#[test]
fn a_window_taken_back_on_another_thread() {
    let comm = alone();
    let window = comm.window_alloc(8).expect("a window");
    let mut queue = comm.queue_alloc(&window).expect("a queue");
    queue.push(&comm.declare_write(&window, 0, &window, 4, 4, 0).expect("a put")).expect("pushed").add_origin(0).expect("added");
    let queue = queue.commit().expect("committed");
    let Err(failed) = window.free() else { panic!("freed with {} on it", queue.id()) };
    let text = failed.to_string();
    assert!(text.contains("queue 0") && text.contains("clear"), "{text}");
    let came_back = std::thread::spawn(move || failed.into_window().map(|window: RmaWindow| window.len_bytes()));
    assert_eq!(came_back.join().expect("no panic"), None);
}

#[test]
fn a_window_that_was_freed() {
    let comm = alone();
    let (gone, window) = (comm.window_alloc(8).expect("a window"), comm.window_alloc(8).expect("a window"));
    let name = gone.id().to_string();
    let puts = [(&gone, &window), (&window, &gone)].map(|(to, from)| comm.declare_write(to, 0, from, 0, 8, 0).expect("a put"));
    gone.free().expect("nothing is on it");
    let mut queue = comm.queue_alloc(&window).expect("a queue");
    for put in &puts {
        refused(queue.push(put).map(drop), &[&name, "freed"]);
    }
}
