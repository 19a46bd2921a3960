//! `rma timeline`: the traces of `RMA_TRACE` as text: when epochs were under way, and when the program waited for them.
//! Owns the reading of those files and the drawing; knows no backend.

use crate::results;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Signs: s a start, = on its way while the program did something else, w waited for, . none under way.

Examples:
  RMA_TRACE=/tmp/heat target/debug/heat --ranks 2 --steps 20; rma timeline /tmp/heat.*.json
  rma timeline --epochs 8 --width 150 /tmp/heat.0.json";

/// Draw the traces that RMA_TRACE wrote: what was under way while a program computed, and what it waited for.
/// Queues are numbered as they were committed; a gather makes one, too.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TimelineArgs {
    /// Trace files, PATH.RANK.json
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How many of the last epochs of each queue are drawn
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
    /// How many columns the time takes
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(10..=1000))]
    width: u16,
}

/// What a file holds.
struct Trace {
    /// How many ranks the run had, if the file says so.
    ranks: Option<u32>,
    events: Vec<Event>,
}

/// An event of a trace, in microseconds.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    name: String,
    rank: u32,
    queue: u32,
    epoch: u64,
    at_us: f64,
    took_us: f64,
}

impl Event {
    fn until_us(&self) -> f64 {
        self.at_us + self.took_us
    }
}

/// `rma timeline`.
pub(crate) fn main(args: &TimelineArgs) -> Result<ExitCode> {
    let traces: Vec<_> = args.files.iter().map(|file| read(file)).collect::<Result<_>>()?;
    let sizes: Vec<_> = args.files.iter().zip(&traces).filter_map(|(file, trace)| Some((file, trace.ranks?))).collect();
    if let [(first, ranks), rest @ ..] = &sizes[..]
        && let Some((other, others)) = rest.iter().find(|(_, others)| others != ranks)
    {
        let (first, other) = (first.display(), other.display());
        bail!("{first} is of a run of {ranks} ranks and {other} of one of {others}; give the files of one run");
    }
    let events: Vec<_> = traces.into_iter().flat_map(|trace| trace.events).collect();
    results::write(format_args!("{}", draw(&events, args.epochs, args.width.into())?))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Trace> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(text.starts_with('['), "{} is no trace that RMA_TRACE wrote", path.display());
    // The first line names the rank, and how many there are.
    let ranks = text.lines().next().and_then(|line| line.rsplit_once(" of ")?.1.split('"').next()?.parse().ok());
    let lines = text.lines().enumerate().skip(1).filter(|(_, line)| line.starts_with('{'));
    let event = |(number, line): (usize, &str)| {
        event(line).with_context(|| {
            format!("{}, line {}: this is no event of a trace; give files that RMA_TRACE wrote", path.display(), number + 1)
        })
    };
    Ok(Trace { ranks, events: lines.map(event).collect::<Result<_>>()? })
}

/// What stands behind a key, up to the next comma or brace.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let begin = line.find(&format!("\"{key}\":"))? + key.len() + 3;
    Some(line[begin..].split([',', '}']).next()?.trim_matches('"'))
}

fn event(line: &str) -> Option<Event> {
    let number = |key| value(line, key)?.parse().ok().filter(|us: &f64| us.is_finite());
    Some(Event {
        name: value(line, "name")?.into(),
        rank: value(line, "pid")?.parse().ok()?,
        queue: value(line, "tid")?.parse().ok()?,
        epoch: value(line, "epoch")?.parse().ok()?,
        at_us: number("ts")?,
        took_us: number("dur").filter(|us| *us >= 0.0)?,
    })
}

/// A row for each queue of each rank, and below how much of its flights the program waited.
fn draw(events: &[Event], epochs: u32, width: usize) -> Result<String> {
    let mut queues: BTreeMap<(u32, u32), Vec<&Event>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.epoch > 0) {
        queues.entry((event.rank, event.queue)).or_default().push(event);
    }
    for events in queues.values_mut() {
        let last = events.iter().map(|event| event.epoch).max().unwrap_or(0);
        events.retain(|event| last - event.epoch < u64::from(epochs) && ["start", "flight", "wait"].contains(&event.name.as_str()));
    }
    queues.retain(|_, events| events.iter().any(|event| event.name == "flight"));
    ensure!(!queues.is_empty(), "there is no epoch in these traces; run the program until it has waited for one");
    let shown = || queues.values().flatten();
    let begin = shown().map(|event| event.at_us).fold(f64::INFINITY, f64::min);
    let end = shown().map(|event| event.until_us()).fold(begin, f64::max);
    let column_us = ((end - begin) / width as f64).max(f64::MIN_POSITIVE);
    let mut text = format!("{:.1} us, a column is {column_us:.2} us\n", end - begin);
    for ((rank, queue), events) in &queues {
        let mut row = vec!['.'; width];
        // In this order, so that what is shorter stays visible.
        for (name, sign) in [("flight", '='), ("wait", 'w'), ("start", 's')] {
            for event in events.iter().filter(|event| event.name == name) {
                let column = |us: f64| (((us - begin) / column_us) as usize).min(width - 1);
                row[column(event.at_us)..=column(event.until_us())].fill(sign);
            }
        }
        let sum = |name| events.iter().filter(|event| event.name == name).map(|event| event.took_us).sum::<f64>();
        let (flight_us, wait_us, start_us) = (sum("flight"), sum("wait"), sum("start"));
        let row: String = row.into_iter().collect();
        let hidden = 100.0 * (flight_us - wait_us - start_us).max(0.0) / flight_us.max(f64::MIN_POSITIVE);
        text += &format!(
            "rank {rank} queue {queue} |{row}|\n  under way {flight_us:.1} us: {start_us:.1} to start, {wait_us:.1} waited for, {hidden:.0} % while the program did something else\n"
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, queue: u32, epoch: u64, at: f64, took: f64) -> String {
        format!(
            "{{\"name\":\"{name}\",\"ph\":\"X\",\"ts\":{at:.3},\"dur\":{took:.3},\"pid\":1,\"tid\":{queue},\"args\":{{\"epoch\":{epoch}}}}}"
        )
    }

    #[test]
    fn flights_show_what_was_waited_for_and_what_was_hidden() {
        let lines = [
            line("start", 3, 1, 0.0, 5.0),
            line("flight", 3, 1, 0.0, 9.0),
            line("start", 3, 2, 100.0, 10.0),
            line("wait", 3, 2, 180.0, 20.0),
            line("flight", 3, 2, 100.0, 100.0),
            line("grant", 3, 2, 150.0, 1.0),
        ];
        let events: Vec<_> = lines.iter().map(|line| event(line).unwrap()).collect();
        assert_eq!(events[3], Event { name: "wait".into(), rank: 1, queue: 3, epoch: 2, at_us: 180.0, took_us: 20.0 });
        let text = draw(&events, 1, 20).unwrap();
        assert!(text.starts_with("100.0 us, a column is 5.00 us\n"), "{text}");
        assert!(text.contains("rank 1 queue 3 |sss=============wwww|"), "{text}");
        assert!(text.contains("under way 100.0 us: 10.0 to start, 20.0 waited for, 70 % while"), "{text}");
        assert!(draw(&events, 2, 20).unwrap().starts_with("200.0 us"));
        assert!(draw(&[], 1, 20).unwrap_err().to_string().contains("no epoch in these traces"));
    }

    #[test]
    fn what_is_no_event_is_not_taken_for_one() {
        for bad in ["{}", "{\"name\":\"start\"}"] {
            assert_eq!(event(bad), None);
        }
        for (begun, took) in [("x", "1"), ("1", "-2"), ("1", "NaN"), ("1", "inf"), ("-inf", "1")] {
            let bad = format!("{{\"name\":\"flight\",\"ts\":{begun},\"dur\":{took},\"pid\":0,\"tid\":0,\"epoch\":1}}");
            assert_eq!(event(&bad), None, "{bad}");
        }
    }

    #[test]
    fn the_last_of_all_epochs_is_drawn() {
        let event = event(&line("flight", 3, u64::MAX, 0.0, 9.0)).unwrap();
        assert!(draw(&[event], 1000, 10).unwrap().contains("queue 3 |==========|"));
    }
}
