//! What boards do not have is refused on every rank, with the number, the limit and the mend.

mod boards;

use boards::config;
use rma::{Comm, Config, Error};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// The error of opening so many boards; every rank has one.
fn refused(boards: u32, config: Config) -> String {
    Comm::threads_with(boards, config, |_| ()).unwrap_err().full_text()
}

#[test]
fn more_boards_than_two_rings_have() {
    let error = refused(33, config(&[]));
    assert!(error.contains("33") && error.contains("limit of 32") && error.contains("fewer ranks"), "{error}");
    let mut short = config(&[]);
    short.variables.insert("RMA_PEACH2_RING".into(), "8".into());
    let error = refused(17, short);
    assert!(error.contains("17") && error.contains("limit of 16") && error.contains("RMA_PEACH2_RING"), "{error}");
}

#[test]
fn more_rails_than_channels() {
    let mut config = config(&[]);
    config.rails = Some(5);
    let error = refused(2, config);
    assert!(error.contains('5') && error.contains("limit of 4") && error.contains("RMA_RAILS"), "{error}");
}

#[test]
fn an_option_that_cannot_be() {
    let mut config = config(&[]);
    config.variables.insert("RMA_PEACH2_MEMORY".into(), "disk".into());
    let error = refused(2, config);
    assert!(error.contains("RMA_PEACH2_MEMORY=\"disk\": use cpu or gpu"), "{error}");
}

/// A board has 4,095 slots of flags, one a partner and queue. Whoever clears a queue can have another, and is told of no lack that only
/// lasts until its partners come to the same commit: they have cleared what they had to by then.
#[test]
fn more_partners_than_slots() {
    const BOARDS: u32 = 16;
    const QUEUES: usize = 4095 / BOARDS as usize;
    let in_commit = AtomicBool::new(false);
    let ranks = Comm::threads_with(BOARDS, config(&[]), |comm| {
        let me = comm.rank().0 as usize;
        let window = comm.window_alloc((QUEUES + 2) * BOARDS as usize)?;
        let source = comm.window_alloc(1)?;
        // Every board writes a byte to every one.
        let commit = |number: usize| {
            let mut queue = comm.queue_alloc(&window)?;
            for target in 0..BOARDS {
                queue.push(&comm.declare_write(&window, number * BOARDS as usize + me, &source, 0, 1, target)?)?;
                queue.add_origin(target)?;
            }
            queue.commit()
        };
        let mut queues = (0..QUEUES).map(commit).collect::<Result<Vec<_>, Error>>()?;
        let error = commit(QUEUES).map(drop).unwrap_err().full_text();
        assert!(error.contains("4096") && error.contains("4095") && error.contains("clear queues"), "{error}");
        source.write::<u8>(..)?[0] = 7;
        if me == 0 {
            queues.pop();
            in_commit.store(true, Release);
        } else {
            let begun = Instant::now();
            while !in_commit.load(Acquire) {
                assert!(begun.elapsed() < Duration::from_secs(30), "rank 0 does not come");
                std::thread::yield_now();
            }
            // Most likely rank 0 is inside by then.
            (0..1000).for_each(|_| std::thread::yield_now());
            queues.pop();
        }
        let mut queue = commit(QUEUES + 1)?;
        let arrived = queue.start()?.wait()?;
        let received = arrived.read::<u8>(&window, (QUEUES + 1) * BOARDS as usize..)?;
        assert_eq!(*received, [7; BOARDS as usize]);
        Ok::<_, Error>(())
    });
    ranks.unwrap().into_iter().for_each(|rank| rank.unwrap());
}
