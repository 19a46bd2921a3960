//! Page tables: every rank puts a few bytes into every other's window, then the tables of all ranks are added up. A table covers
//! 2 MiB, so a share anywhere in a window needs the table as much as the whole window does. Threads have one set of tables,
//! complete once the owners have their memory; there each rank only puts to the next one.

use super::measure::gather;
use super::{Options, PageTablesOptions};
use anyhow::{Context, Result};
use rma::{Comm, Rank};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The stack of a thread rank here: small, so that many share a page of tables.
pub(super) const STACK_BYTES: usize = 16 << 10;

/// Becomes this command again with one heap for all threads: the system's allocator would otherwise spread small allocations over
/// many address ranges, whose tables have nothing to do with windows.
pub(super) fn with_one_heap() -> Result<()> {
    const ONE_HEAP: (&str, &str) = ("MALLOC_ARENA_MAX", "1");
    if std::env::var_os(ONE_HEAP.0).is_some() {
        return Ok(());
    }
    let failed = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).env(ONE_HEAP.0, ONE_HEAP.1).exec();
    Err(failed).context("starting over with one heap")
}

pub(super) fn run(comm: &Comm, options: &PageTablesOptions) -> Result<()> {
    let PageTablesOptions { common: options, bytes } = options;
    let speaks = comm.rank() == Rank(0);
    if speaks && options.csv {
        say!("bench,backend,mode,ranks,bytes,page_tables_kb,formula_kb");
    }
    for &bytes in bytes {
        let total_kb = touch_all(comm, options, bytes)?;
        if !speaks {
            continue;
        }
        let (backend, mode, ranks) = (comm.caps().name, options.mode.name(), comm.size());
        // A table of 4 KiB covers 2 MiB: one set for one address space, a set a rank for each of its own.
        let sets = if options.mode == super::Mode::Threads { 1 } else { u64::from(ranks) };
        let formula_kb = sets * (u64::from(ranks) * bytes as u64).div_ceil(2 << 20) * 4;
        if options.csv {
            say!("page-tables,{backend},{mode},{ranks},{bytes},{total_kb},{formula_kb}");
        } else {
            say!(
                "{ranks} ranks as {mode}, each with a window of {bytes} bytes that all others can write: {total_kb} kB of page \
                 tables (the windows alone by formula: {formula_kb} kB)"
            );
        }
    }
    Ok(())
}

fn touch_all(comm: &Comm, options: &Options, bytes: usize) -> Result<u64> {
    let (me, size) = (comm.rank(), comm.size());
    let share = (bytes / size as usize).min(64);
    let (window, source) = (comm.window_alloc(bytes)?, comm.window_alloc(share)?);
    let mut queue = comm.queue_alloc(&window)?;
    let reach = if options.mode == super::Mode::Threads { 1.min(size - 1) } else { size - 1 };
    for distance in 1..=reach {
        let target = Rank((me.0 + distance) % size);
        queue.push(&comm.declare_write(&window, me.index() * share, &source, 0, share, target)?)?;
        queue.add_origin((me.0 + size - distance) % size)?;
    }
    let mut queue = queue.commit()?;
    queue.start()?.wait()?;
    comm.barrier()?;
    let all = gather(comm.bootstrap(), comm.config().setup_timeout, own_page_tables_kb()?)?;
    drop(queue);
    window.free()?;
    source.free()?;
    Ok(match options.mode {
        super::Mode::Threads => all[0],
        super::Mode::Processes => all.iter().sum(),
    })
}

/// `VmPTE` of this process, in kB.
fn own_page_tables_kb() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")).context("/proc/self/status has no VmPTE")?;
    line.trim().trim_end_matches("kB").trim().parse().with_context(|| format!("VmPTE is {line:?}"))
}
