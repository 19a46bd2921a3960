//! Ranks on emulated boards, with options of the boards' own.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use rma::{Comm, Config, Error};
use std::time::Duration;

/// Options of boards, by the names of their variables.
pub(crate) fn config(options: &[(&str, &str)]) -> Config {
    rma_peach2::offer();
    let mut config = Config::default();
    config.backend = Some(rma_peach2::NAME.into());
    config.setup_timeout = Duration::from_secs(30);
    config.wait_timeout = Some(Duration::from_secs(30));
    config.variables = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    config
}

/// What every rank returns, on so many boards.
pub(crate) fn on_boards<T: Send>(boards: u32, options: &[(&str, &str)], rank: impl Fn(&Comm) -> Result<T, Error> + Sync) -> Vec<T> {
    let ranks = Comm::threads_with(boards, config(options), |comm| rank(&comm)).unwrap();
    ranks.into_iter().enumerate().map(|(rank, result)| result.unwrap_or_else(|error| panic!("rank {rank}: {error}"))).collect()
}

pub(crate) fn now(comm: &Comm) -> Duration {
    comm.virtual_now().expect("a virtual clock")
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
