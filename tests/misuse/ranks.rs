//! Jobs of impossible sizes, options that cannot be, and ranks with different options.

use crate::refused;
use rma::bootstrap::threads::group;
use rma::shm::{ShmBackend, ThreadSpace};
use rma::{Comm, Config, Error};
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
        config.rails = rails;
        let words = [&*format!("RMA_RAILS={rails}"), "1 to 64"];
        refused(Comm::alone(config.clone()), &words);
        refused(Comm::threads_with(2, config, |_| ()), &words);
    }
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
                    config.rails = rails;
                    config.setup_timeout = Duration::from_secs(20);
                    let backend = ShmBackend::threads(space, boot.rank(), &config);
                    // SAFETY: the library's own backend and bootstrap, used through this Comm alone.
                    #[expect(unsafe_code, reason = "ranks that differ in their options have to be put together by hand")]
                    let comm = unsafe { Comm::new(Arc::new(backend), boot, config) }.expect("a place");
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
