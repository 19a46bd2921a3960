//! The lab from inside: links that lose packets or go down, and what the RDMA devices hold.
//! Knows what `/mnt/lab`, `ip` and `rdma` say; nothing of what is tested.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LAB: &str = "/mnt/lab";
/// How long the devices may take to give back what an ended process held.
const GIVEN_BACK: Duration = Duration::from_secs(20);

fn run(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).output().with_context(|| format!("running {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}: {said}", words.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An error unless this is the machine with the lab.
pub(crate) fn is_here() -> Result<()> {
    let mend = "run `cargo xtask test --only soft-roce`, or this program in `cargo xtask vm run`";
    ensure!(Path::new(LAB).is_file(), "there is no {LAB}: {mend}");
    Ok(())
}

/// Which share of their packets all devices lose from here on.
pub(crate) fn lose(percent: &str) -> Result<()> {
    run(LAB, &["loss", percent]).map(drop)
}

/// A device loses all it sends, until [`unmute`].
pub(crate) fn mute(rank: u32, rail: u16) -> Result<()> {
    run(LAB, &["loss", "100", &rank.to_string(), &rail.to_string()]).map(drop)
}

/// The end of [`mute`].
pub(crate) fn unmute(rank: u32, rail: u16) -> Result<()> {
    run(LAB, &["loss", "0", &rank.to_string(), &rail.to_string()]).map(drop)
}

/// A cable between a device and the bridge of its rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cable {
    pub(crate) rank: u32,
    pub(crate) rail: u16,
}

impl Cable {
    fn end(self) -> String {
        format!("p{}d{}", self.rank, self.rail)
    }

    pub(crate) fn pull(self) -> Result<()> {
        run("ip", &["link", "set", &self.end(), "down"]).map(drop)
    }

    pub(crate) fn plug_in(self) -> Result<()> {
        run("ip", &["link", "set", &self.end(), "up"]).map(drop)
    }

    /// Pulls it for so many seconds, which a thread of its own waits for.
    pub(crate) fn pull_for(self, seconds: &'static str) -> std::thread::JoinHandle<Result<()>> {
        std::thread::spawn(move || {
            self.pull()?;
            run("sleep", &[seconds])?;
            self.plug_in()
        })
    }
}

/// A device's own interface goes down; it comes back with [`interface_up`].
pub(crate) fn interface_down(rank: u32, rail: u16) -> Result<()> {
    run(LAB, &["down", &rank.to_string(), &rail.to_string()]).map(drop)
}

/// With its routes and neighbors.
pub(crate) fn interface_up(rank: u32, rail: u16) -> Result<()> {
    run(LAB, &["up", &rank.to_string(), &rail.to_string()]).map(drop)
}

/// A machine ends as if its power had failed.
pub(crate) fn kill_machine(machine: u32) -> Result<()> {
    run(LAB, &["kill-machine", &machine.to_string()]).map(drop)
}

/// What each device holds for processes: queue pairs, completion queues, protection domains, regions.
pub(crate) type Held = BTreeMap<String, BTreeMap<String, u64>>;

/// What is held now.
pub(crate) fn held() -> Result<Held> {
    parse(&run("rdma", &["resource", "show"])?)
}

/// Lines like `0: x0d0: qp 1 cq 0 pd 0 cm_id 0 mr 0 ctx 0 srq 0`.
fn parse(text: &str) -> Result<Held> {
    let mut held = Held::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().skip(1);
        let device = words.next().with_context(|| format!("no device in {line:?}"))?;
        let mut counts = BTreeMap::new();
        while let (Some(kind), Some(count)) = (words.next(), words.next()) {
            let count = count.parse().with_context(|| format!("{kind} is {count} in {line:?}"))?;
            counts.insert(kind.to_owned(), count);
        }
        for kind in ["qp", "cq", "pd", "mr"] {
            ensure!(counts.contains_key(kind), "no {kind} in {line:?}");
        }
        held.insert(device.trim_end_matches(':').into(), counts);
    }
    ensure!(!held.is_empty(), "`rdma resource show` names no device");
    Ok(held)
}

/// Looks until the devices hold just what they held before.
pub(crate) fn all_is_given_back(before: &Held) -> Result<()> {
    let begun = Instant::now();
    loop {
        let now = held()?;
        if now == *before {
            return Ok(());
        }
        ensure!(begun.elapsed() < GIVEN_BACK, "the devices hold {now:?}\nbefore it was {before:?}");
        std::thread::yield_now();
    }
}

/// All links as they were at the start, whatever a test has left.
pub(crate) fn mend() -> Result<()> {
    lose("0")?;
    for entry in std::fs::read_dir("/sys/class/net").context("listing the network devices")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_down = || run("ip", &["link", "show", "dev", &name]).map(|text| !text.contains(",UP"));
        let numbers = |kind| name.strip_prefix(kind).and_then(|rest: &str| rest.split_once('d'));
        if numbers('p').is_some() && is_down()? {
            run("ip", &["link", "set", &name, "up"])?;
        } else if let Some((rank, rail)) = numbers('r')
            && is_down()?
        {
            run(LAB, &["up", rank, rail])?;
        }
    }
    Ok(())
}
