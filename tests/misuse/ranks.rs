//! Jobs of impossible sizes, options that cannot be, and ranks with different options.

use crate::refused;
use rma::bootstrap::threads::group;
use rma::shm::{ShmBackend, ThreadSpace};
use rma::{Comm, Config, Error, Rank};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn jobs_of_no_ranks_or_too_many() {
    for (ranks, shown) in [(0, "0"), (5000, "5000"), (4097, "4097"), (u32::MAX, "4294967295")] {
        let error = refused(Comm::threads(ranks, |_| ()), &["ranks", shown, "4096", "rma run"]);
        assert!(matches!(error, Error::Limit { .. }), "{error:?}");
    }
}

#[test]
fn options_that_cannot_be() {
    for rails in [0, 65, u16::MAX] {
        let mut config = Config::default();
        config.rails = Some(rails);
        let words = [&*format!("RMA_RAILS={rails}"), "1 to 64"];
        refused(Comm::alone(config.clone()), &words);
        refused(Comm::threads_with(2, config, |_| ()), &words);
    }
}

#[test]
fn a_stall_report_without_end() {
    let mut config = Config::default();
    config.stall_report = Duration::ZERO;
    let words = ["stall_report", "0", "Duration::MAX"];
    refused(Comm::alone(config.clone()), &words);
    refused(Comm::threads_with(2, config.clone(), |_| ()), &words);
    config.stall_report = Duration::MAX;
    Comm::alone(config).expect("never is a time");
}

#[test]
fn two_groups_that_share_a_space_keep_their_memory_apart() {
    let space = ThreadSpace::new(1);
    let comms = [(); 2].map(|()| {
        let boot = group(1).pop().map(Arc::new).expect("a group of one");
        let backend = ShmBackend::threads(&space, Rank(0), &Config::default());
        // SAFETY: the library's own backend and bootstrap; the space is made to be shared.
        #[expect(unsafe_code, reason = "groups that share a space have to be put together by hand")]
        unsafe { Comm::new(Rc::new(backend), boot, Config::default()) }.expect("a place")
    });
    // In the same order on both, so that nothing but the space can tell their memory apart.
    let windows = comms.each_ref().map(|comm| [(); 2].map(|()| comm.window_alloc(8).expect("a window")));
    for (number, (comm, [outbox, inbox])) in (7..).zip(comms.iter().zip(&windows)) {
        let mut queue = comm.queue_alloc(inbox).expect("a queue");
        queue.push(&comm.declare_write(inbox, 0, outbox, 0, 8, 0).expect("a put")).expect("pushed").add_origin(0).expect("added");
        outbox.write::<u64>(..).expect("free")[0] = number;
        let mut queue = queue.commit().expect("committed");
        queue.start().and_then(|flight| flight.wait()).map(drop).expect("one put");
    }
    let found = windows.each_ref().map(|[_, inbox]| inbox.read::<u64>(..).expect("cleared")[0]);
    assert_eq!(found, [7, 8]);
}

#[test]
fn threads_that_the_system_cannot_make() {
    let mut config = Config::default();
    config.stack_bytes = Some(1 << 60);
    let error = refused(Comm::threads_with(2, config, |_| ()), &["rank 0 of 2", "fewer ranks"]);
    assert!(matches!(error, Error::Os { .. }), "{error:?}");
}

#[test]
fn ranks_with_different_numbers_of_rails() {
    let space = ThreadSpace::new(2);
    let texts = std::thread::scope(|scope| {
        let ranks: Vec<_> = group(2)
            .into_iter()
            .zip([4, 2])
            .map(|(boot, rails)| {
                let (boot, space) = (Arc::new(boot) as Arc<dyn rma::Bootstrap>, space.clone());
                scope.spawn(move || {
                    let mut config = Config::default();
                    config.rails = Some(rails);
                    config.setup_timeout = Duration::from_secs(20);
                    let backend = ShmBackend::threads(&space, boot.rank(), &config);
                    // SAFETY: the library's own backend and bootstrap, used through this Comm alone.
                    #[expect(unsafe_code, reason = "ranks that differ in their options have to be put together by hand")]
                    let comm = unsafe { Comm::new(Rc::new(backend), boot, config) }.expect("a place");
                    let window = comm.window_alloc(8).expect("a window");
                    let mut queue = comm.queue_alloc(&window).expect("a queue");
                    if rails == 4 {
                        // Rank 0 writes on a rail that rank 1 does not have.
                        let put = comm.declare_write(&window, 0, &window, 0, 0, 1).expect("a put");
                        queue.push(&put.rail(3).expect("rank 0 has it")).expect("pushed");
                    } else {
                        queue.add_origin(0).expect("added");
                    }
                    refused(queue.commit().map(drop), &["rank 0", "rank 1", "rail"]).to_string()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join()).collect::<Vec<_>>()
    });
    for text in texts {
        assert!(text.is_ok(), "a rank panicked");
    }
}
