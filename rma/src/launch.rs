//! Ranks as threads of this process, and the one call that runs a program either way.
//! Owns the threads; knows nothing of what they do.

use crate::bootstrap::threads::{self, ThreadsBootstrap};
use crate::provider;
use crate::shm::ThreadSpace;
use crate::{Bootstrap, Comm, Config, Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

impl Comm {
    /// Runs `f` on `size` ranks that are threads of this process and share its address space, with the options of the
    /// environment. Returns what the ranks returned, by rank; a panic of a rank is passed on after all have ended.
    pub fn threads<T: Send>(size: u32, f: impl Fn(Comm) -> T + Sync) -> Result<Vec<T>> {
        Self::threads_with(size, Config::options_from_env()?, f)
    }

    /// The same with options of the program's choice.
    pub fn threads_with<T: Send>(size: u32, config: Config, f: impl Fn(Comm) -> T + Sync) -> Result<Vec<T>> {
        const MOST: u32 = 4096;
        if size == 0 || size > MOST {
            return Err(Error::Limit {
                what: "number of thread ranks",
                asked: size.into(),
                limit: MOST.into(),
                mend: "use 1 to 4096 (RMA_RANKS, or the program's own number), and `rma run` for more".into(),
            });
        }
        config.check()?;
        let space = ThreadSpace::new(size);
        let boots: Vec<_> = threads::group(size).into_iter().map(Arc::new).collect();
        let (config, f, space) = (&config, &f, &space);
        let outcomes: Vec<Result<std::thread::Result<Result<T>>>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = boots
                .into_iter()
                .map(|boot| {
                    let rank = boot.rank();
                    let mut builder = std::thread::Builder::new().name(format!("rank {}", rank.0));
                    if let Some(bytes) = config.stack_bytes {
                        builder = builder.stack_size(bytes);
                    }
                    // A thread that cannot be made drops its bootstrap, so the ranks that run see it leave and end.
                    let run = move || {
                        let _leaves = Leaves(boot.clone());
                        let boot: Arc<dyn Bootstrap> = boot;
                        Comm::over(provider::open_for_threads(&boot, space, config)?, boot, config.clone()).map(f)
                    };
                    builder.spawn_scoped(scope, run).map_err(|cause| {
                        Error::os(format!("starting the thread of {rank} of {size}: use fewer ranks, or raise `ulimit -u`"), cause)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.map(|thread| thread.join())).collect()
        });
        let mut results = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            match outcome? {
                Ok(result) => results.push(result?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(results)
    }

    /// Runs `program` in the place that the environment gives (under `rma run`), or else on `ranks` ranks as threads
    /// (`RMA_RANKS` overrides the number; under a launcher it is the launcher's). Of several failures the one that came first is
    /// returned. The error type is the program's own: let `main` return it, or end the closure with `Ok::<(), rma::Error>(())`.
    ///
    /// ```
    /// rma::Comm::launch(2, |comm| {
    ///     println!("{} of {}", comm.rank(), comm.size());
    ///     Ok::<(), rma::Error>(())
    /// })?;
    /// # Ok::<(), rma::Error>(())
    /// ```
    pub fn launch<E: From<Error> + Send>(ranks: u32, program: impl Fn(Comm) -> Result<(), E> + Sync) -> Result<(), E> {
        let (config, place) = Config::from_env()?;
        if let Some(place) = place {
            return program(Comm::join(&place, config)?);
        }
        let failures = AtomicUsize::new(0);
        let first = Mutex::new(None);
        Comm::threads_with(config.ranks.unwrap_or(ranks), config, |comm| {
            if let Err(error) = program(comm)
                && failures.fetch_add(1, Ordering::Relaxed) == 0
            {
                *first.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(error);
            }
        })?;
        first.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
    }
}

/// Has a rank leave its group at the end of its thread, whatever the program has leaked.
struct Leaves(Arc<ThreadsBootstrap>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}
