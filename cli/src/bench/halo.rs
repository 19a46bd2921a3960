//! Six messages to the neighbors of a 3-D torus.

use super::measure::{Times, measure};
use super::report::Report;
use super::{HaloOptions, Options};
use anyhow::{Result, ensure};
use rma::{Comm, Rail, Rank};
use rma_algorithms::grid::{Grid, balanced};

const NEIGHBORS: usize = 6;

pub(super) fn run(comm: &Comm, options: &HaloOptions) -> Result<()> {
    let &HaloOptions { common: ref options, ref bytes, torus } = options;
    let neighbors = if comm.size() == 2 && !torus {
        vec![Rank(1 - comm.rank().0); NEIGHBORS]
    } else {
        torus_neighbors(comm.rank(), comm.size())
    };
    let report = Report::begin("halo", "time of an exchange of six messages", comm, options, NEIGHBORS as u32);
    for &bytes in bytes {
        report.row(bytes, &exchange(comm, options, bytes, &neighbors)?);
    }
    Ok(())
}

fn exchange(comm: &Comm, options: &Options, bytes: usize, neighbors: &[Rank]) -> Result<Times> {
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

/// Who is below and above in each dimension of the most cubic torus.
fn torus_neighbors(rank: Rank, size: u32) -> Vec<Rank> {
    let torus = Grid::new(&balanced::<3>(size), &[true; 3]);
    torus.iter().flat_map(|torus| torus.neighbors(rank)).map(|neighbor| neighbor.rank).collect()
}
