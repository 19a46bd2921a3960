//! Collective calls compare what every rank means before any memory or message moves. Knows no arrays.

use rma::bootstrap::{all_alike, all_or_none};
use rma::{Comm, Deadline, Result};

/// Collective: `mine`, unless a rank has an error, or wants something else. `items` say what this one wants, to be compared one by one.
pub(crate) fn agree<T>(comm: &Comm, call: &'static str, mine: Result<T>, items: impl FnOnce(&T) -> Vec<String>) -> Result<T> {
    let (boot, deadline) = (comm.bootstrap(), Deadline::after(comm.config().setup_timeout));
    let mine = all_or_none(boot, call, mine, deadline)?;
    all_alike(boot, call, &items(&mine), deadline)?;
    Ok(mine)
}
