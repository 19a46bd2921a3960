//! `rma-network-rank`: takes its place in a job and then does over its bootstrap what each line of its input says, with a line of
//! output for each. Has no backend: its ranks may be on hosts that no memory and no device connects.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "its output is what the tests read")]

use anyhow::{Context, bail};
use rma::bootstrap::{Bootstrap, Departure, join};
use rma::{Config, Deadline, Rank};
use std::io::BufRead;
use std::time::Duration;

/// How often it looks for departed ranks, as a wait would.
const LOOK: Duration = Duration::from_millis(5);

fn main() -> anyhow::Result<()> {
    let (config, place) = Config::from_env()?;
    let boot = join(&place.context("RMA_RANK and the others are not set")?, &config)?;
    println!("joined");
    for line in std::io::stdin().lock().lines() {
        println!("{}", carry_out(&*boot, &line?)?);
    }
    Ok(())
}

fn carry_out(boot: &dyn Bootstrap, line: &str) -> anyhow::Result<String> {
    let words: Vec<_> = line.split(' ').collect();
    let after = |seconds: &str| anyhow::Ok(Deadline::after(Duration::from_secs(seconds.parse()?)));
    let answer = |result: rma::Result<()>| result.map_or_else(|error| error.full_text(), |()| "ok".into());
    Ok(match words.as_slice() {
        ["barrier", seconds] => answer(boot.barrier(after(seconds)?)),
        ["exchange", seconds] => answer(boot.exchange(Vec::new(), after(seconds)?).map(|_| ())),
        ["exchange", seconds, to, bytes] => {
            let message = vec![7; bytes.parse()?];
            answer(boot.exchange(vec![(Rank(to.parse()?), message)], after(seconds)?).map(|_| ()))
        }
        ["departed", seconds, rank] => departed(boot, Rank(rank.parse()?), after(seconds)?),
        _ => bail!("what is {line:?}?"),
    })
}

/// Looks until a rank has gone.
fn departed(boot: &dyn Bootstrap, rank: Rank, deadline: Deadline) -> String {
    loop {
        let departed = boot.departed();
        match departed.iter().find(|(gone, _)| *gone == rank) {
            Some((_, Departure::Died)) => return "died".into(),
            Some((_, Departure::Left)) => return "left".into(),
            None if deadline.is_over() => return format!("departed are only {departed:?}"),
            None => std::thread::park_timeout(deadline.left(LOOK)),
        }
    }
}
