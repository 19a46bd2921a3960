//! One `main` for ranks as threads, as processes, and under the launchers of others.

use anyhow::Result;
use rma::{Comm, Config, config::Place};
use std::str::FromStr;

/// Which ranks, and over what. Under `rma run`, `mpirun` and the like the launcher says how many there are.
#[derive(Clone, Debug, clap::Args)]
pub struct Ranks {
    /// How many ranks, as threads of this process; without it as RMA_RANKS says, else 4. Under `rma run` or mpirun as many as were started
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Self::MOST)))]
    pub ranks: Option<u32>,
    /// The backend, one of those that this program was built with; without it as RMA_BACKEND says
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
}

impl Ranks {
    /// How many threads there may be.
    pub const MOST: u32 = 4096;

    /// The same, with as many ranks as a grid has where the command line has no other number.
    pub fn of_grid(&self, grid: Option<impl AsRef<[u32]>>) -> Self {
        let product = grid.and_then(|grid| grid.as_ref().iter().try_fold(1u32, |all, &extent| all.checked_mul(extent)));
        Self { ranks: self.ranks.or(product.filter(|ranks| (1..=Self::MOST).contains(ranks))), ..self.clone() }
    }

    /// Runs `body` on every rank.
    pub fn launch(&self, body: impl Fn(&Comm) -> Result<()> + Sync) -> Result<()> {
        let (mut config, place) = environment()?;
        config.backend = self.backend.clone().or(config.backend);
        match place {
            Some(place) => body(&Comm::join(&place, config)?),
            None => {
                let ranks = self.ranks.or(config.ranks).unwrap_or(4);
                Comm::threads_with(ranks, config, |comm| body(&comm))?.into_iter().collect()
            }
        }
    }
}

/// Whether a launcher started this process, and says how many ranks there are.
pub fn is_launched() -> Result<bool> {
    Ok(environment()?.1.is_some())
}

/// What the environment says, once the backends and launchers that this program was built with are known.
fn environment() -> Result<(Config, Option<Place>)> {
    rma_peach2::offer();
    #[cfg(feature = "verbs")]
    rma_verbs::offer();
    #[cfg(feature = "mpi")]
    rma_mpi::offer();
    Ok(Config::from_env()?)
}

/// Numbers with commas between them, one for each dimension: for options of the command line.
pub fn extents<T: FromStr, const N: usize>(text: &str) -> Result<[T; N], String> {
    let numbers: Option<Vec<T>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| format!("{N} whole numbers with commas between them are needed"))
}
