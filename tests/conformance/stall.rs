//! A wait that stalls says so through `tracing`, again and again but ever more rarely, and ends when what was missing comes.
//! Owns a subscriber that keeps the texts of events.

use crate::{config, run_with};
use anyhow::ensure;
use rma_tests::check::{Line, eventually};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span;

/// Keeps every event of the thread it is set on, fields and all.
#[derive(Clone, Debug, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    /// The events so far that have this in them.
    fn with(&self, words: &str) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|text| text.contains(words)).cloned().collect()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, "{}={value} ", field.name());
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// How the target of the stall gets to the end of its epoch.
#[derive(Clone, Copy, Debug)]
enum Patience {
    Waits,
    Tests,
}

#[test]
fn a_stalled_wait_reports_what_is_missing_and_then_ends() {
    reports_what_is_missing_and_ends(Patience::Waits);
}

#[test]
fn a_stall_is_reported_to_who_only_tests() {
    reports_what_is_missing_and_ends(Patience::Tests);
}

fn reports_what_is_missing_and_ends(patience: Patience) {
    const FIRST: Duration = Duration::from_millis(40);
    let events = Events::default();
    let mut config = config();
    config.stall_report = FIRST;
    run_with(config, "a_stall_is_reported", 3, 0, move |comm, _| {
        let (origin, target) = (2, 0);
        let line = Line::new(comm, origin, target)?;
        let mut queue = line.queue_on(comm, Some(1))?.commit()?;
        line.step(&mut queue, 1)?;
        comm.barrier()?;
        let begin = Instant::now();
        if comm.rank().0 == origin {
            // Late until the third report.
            eventually("three reports of a stall", || Ok(events.with("no arrival").len() >= 3))?;
            // 40, 80 and 160 ms after the beginning, never sooner.
            ensure!(begin.elapsed() >= 3 * FIRST, "three reports within {:?}", begin.elapsed());
        }
        if comm.rank().0 == target {
            tracing::subscriber::with_default(events.clone(), || match patience {
                Patience::Waits => line.step(&mut queue, 2),
                Patience::Tests => {
                    let mut flight = queue.start()?;
                    eventually("the late put", || Ok(flight.test()?))?;
                    let found = flight.wait()?.read::<u64>(&line.inbox, ..)?[0];
                    ensure!(found == 2, "{found} instead of 2");
                    Ok(())
                }
            })?;
            let (reports, elapsed) = (events.with("no arrival"), begin.elapsed());
            for report in &reports {
                let missing = format!("no arrival from origin {origin} on rail 1 (rank {origin} is alive, at epoch 1)");
                ensure!(report.contains(&missing), "{missing:?} is missing in: {report}");
                ensure!(report.contains("epoch 2") || report.contains("epoch=2"), "no epoch in: {report}");
            }
            // Each after twice the time: at most one report for each doubling.
            let most = (elapsed.as_secs_f64() / FIRST.as_secs_f64()).log2() as usize + 1;
            ensure!((3..=most).contains(&reports.len()), "{} reports within {elapsed:?}, at most {most} are due", reports.len());
        } else {
            line.step(&mut queue, 2)?;
        }
        Ok(())
    });
}
