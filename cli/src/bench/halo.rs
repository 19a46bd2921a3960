//! Six messages to the neighbors of a 3-D torus.

use super::measure::{Times, measure};
use super::report::Report;
use super::{HaloOptions, Options};
use anyhow::{Result, ensure};
use rma::{Comm, Rail, Rank};

const NEIGHBORS: usize = 6;

pub(super) fn run(comm: &Comm, options: &HaloOptions) -> Result<()> {
    let &HaloOptions { common: ref options, ref bytes, torus } = options;
    let neighbors =
        if comm.size() == 2 && !torus { [1 - comm.rank().0; NEIGHBORS] } else { torus_neighbors(comm.rank().0, comm.size()) };
    let report = Report::begin("halo", "time of an exchange of six messages", comm, options, NEIGHBORS as u32);
    for &bytes in bytes {
        report.row(bytes, &exchange(comm, options, bytes, &neighbors.map(Rank))?);
    }
    Ok(())
}

fn exchange(comm: &Comm, options: &Options, bytes: usize, neighbors: &[Rank; NEIGHBORS]) -> Result<Times> {
    let rails = options.rails_of(comm);
    let (inbox, outbox) = (comm.window_alloc(NEIGHBORS * bytes)?, comm.window_alloc(NEIGHBORS * bytes)?);
    outbox.write::<u8>(..)?.fill(comm.rank().0 as u8 + 1);
    let mut queue = comm.queue_alloc(&inbox)?;
    for (direction, &neighbor) in neighbors.iter().enumerate() {
        // What goes out in a direction comes in from the opposite one: 0 and 1, 2 and 3, 4 and 5 are opposite.
        let slot = direction ^ 1;
        let put = comm.declare_write(&inbox, slot * bytes, &outbox, direction * bytes, bytes, neighbor)?;
        queue.push(&put.rail(Rail(direction as u16 % rails))?)?;
        queue.add_origin(neighbor)?;
    }
    if options.expose_at_start {
        queue.expose_at_start();
    }
    let mut queue = queue.commit()?;
    let times = measure(comm, options.repeats, options.batch(), |iterations| {
        for _ in 0..iterations {
            queue.start()?.wait()?;
        }
        Ok(())
    })?;
    drop(queue);
    for (direction, neighbor) in neighbors.iter().enumerate() {
        let received = inbox.read::<u8>(direction * bytes..(direction + 1) * bytes)?;
        let wrong = received.iter().filter(|&&byte| byte != neighbor.0 as u8 + 1).count();
        ensure!(wrong == 0, "{wrong} of {bytes} bytes from {neighbor} are wrong");
    }
    inbox.free()?;
    outbox.free()?;
    Ok(times)
}

/// The neighbors of a rank below and above in each dimension of the most cubic torus, ranks in row-major order.
fn torus_neighbors(rank: u32, size: u32) -> [u32; NEIGHBORS] {
    let [x, y, z] = balanced_dimensions(size);
    let place = [rank / (y * z), rank / z % y, rank % z];
    std::array::from_fn(|direction| {
        let (dimension, extent) = (direction / 2, [x, y, z][direction / 2]);
        let mut to = place;
        to[dimension] = if direction % 2 == 0 { (to[dimension] + extent - 1) % extent } else { (to[dimension] + 1) % extent };
        (to[0] * y + to[1]) * z + to[2]
    })
}

/// Three factors of `size`, descending, as near to each other as can be: the least largest one, then the least second.
pub(super) fn balanced_dimensions(size: u32) -> [u32; 3] {
    let divisors = |n: u32| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let candidates = divisors(size).flat_map(|x| divisors(size / x).map(move |y| [x, y, size / x / y]));
    candidates.filter(|[x, y, z]| x >= y && y >= z).min().unwrap_or([size, 1, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_as_near_to_a_cube_as_the_ranks_allow() {
        for (size, dimensions) in [(1, [1, 1, 1]), (2, [2, 1, 1]), (8, [2, 2, 2]), (12, [3, 2, 2]), (7, [7, 1, 1]), (64, [4, 4, 4])]
        {
            assert_eq!(balanced_dimensions(size), dimensions);
        }
    }

    #[test]
    fn whoever_is_above_me_has_me_below() {
        for size in 1..30 {
            for rank in 0..size {
                for (direction, neighbor) in torus_neighbors(rank, size).into_iter().enumerate() {
                    assert_eq!(torus_neighbors(neighbor, size)[direction ^ 1], rank);
                }
            }
        }
    }
}
