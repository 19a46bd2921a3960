//! The rounds: every contender of a group once, then all again, so that a change of the machine meets them alike.
//! Keeps what each measured in each round; who fails twice without a result is left out.

use super::contenders::{Contender, FLOOR, Group, OURS, Run};
use super::csv::Row;
use super::report::size;
use std::fmt::Write as _;
use std::time::Duration;

/// One run of one contender; a run takes a few seconds.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Whose time: a library and its way, as "openmpi" and "fence".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) backend: String,
    pub(super) mode: String,
}

/// The times of one label at one size, by round, in us.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) label: Label,
    pub(super) bytes: u64,
    pub(super) by_round: Vec<Option<f64>>,
}

/// All that was measured in one group.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) series: Vec<Series>,
    /// What is to be known besides, each once.
    pub(super) remarks: Vec<String>,
}

/// A group while it is being measured.
pub(super) struct InTurn<'a> {
    pub(super) group: &'a Group,
    pub(super) measured: Measured,
    contenders: Vec<Entry>,
}

struct Entry {
    contender: Contender,
    succeeded: bool,
    failures: u32,
}

impl Label {
    pub(super) fn is_ours(&self) -> bool {
        self.backend == OURS
    }

    pub(super) fn is_floor(&self) -> bool {
        self.backend == FLOOR
    }

    pub(super) fn is_peer(&self) -> bool {
        !self.is_ours() && !self.is_floor()
    }

    pub(super) fn text(&self) -> String {
        format!("{} {}", self.backend, self.mode)
    }
}

impl Measured {
    pub(super) fn at(&self, bytes: u64) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |series| series.bytes == bytes)
    }

    fn add(&mut self, round: usize, row: Row) {
        let label = Label { backend: row.backend, mode: row.mode };
        let known = self.series.iter().position(|series| series.label == label && series.bytes == row.bytes);
        let at = known.unwrap_or_else(|| {
            self.series.push(Series { label, bytes: row.bytes, by_round: Vec::new() });
            self.series.len() - 1
        });
        let by_round = &mut self.series[at].by_round;
        by_round.resize(round + 1, None);
        by_round[round] = Some(row.median_us);
    }

    fn remark(&mut self, text: String) {
        if !self.remarks.contains(&text) {
            eprintln!("  {text}");
            self.remarks.push(text);
        }
    }

    /// Every figure, for those who want to look closer.
    pub(super) fn raw_csv(&self, group: &Group) -> String {
        let mut text = String::new();
        for series in &self.series {
            for (round, time) in series.by_round.iter().enumerate() {
                if let Some(us) = time {
                    let Label { backend, mode } = &series.label;
                    let _ = writeln!(text, "{round},{},{backend},{mode},{},{},{us}", group.bench, group.ranks, series.bytes);
                }
            }
        }
        text
    }
}

impl<'a> InTurn<'a> {
    pub(super) fn new(group: &'a Group, contenders: Vec<Contender>) -> Self {
        let contenders = contenders.into_iter().map(|contender| Entry { contender, succeeded: false, failures: 0 }).collect();
        Self { group, measured: Measured::default(), contenders }
    }

    /// Every contender once. Another begins each time, so that none is always right after the same one.
    pub(super) fn round(&mut self, round: usize) {
        let count = self.contenders.len();
        for at in (0..count).map(|i| (i + round) % count) {
            let entry = &mut self.contenders[at];
            if entry.failures >= 2 && !entry.succeeded {
                continue;
            }
            let name = entry.contender.name.clone();
            match entry.contender.run(self.group, RUN_LIMIT) {
                Ok(run) => {
                    entry.succeeded = true;
                    progress(&name, &run);
                    if let Some(remark) = run.remark {
                        self.measured.remark(format!("{name}: {remark}"));
                    }
                    run.rows.into_iter().for_each(|row| self.measured.add(round, row));
                }
                Err(error) => {
                    entry.failures += 1;
                    self.measured.remark(format!("{name}: left out: {error:#}"));
                }
            }
        }
    }
}

/// The floor is shown in full: it tells in which state the machine is.
fn progress(name: &str, run: &Run) {
    let times = run.rows.iter().map(|row| format!("{} {:.3}", size(row.bytes), row.median_us));
    let shown: Vec<_> = if name == FLOOR { times.collect() } else { times.take(1).collect() };
    eprintln!("  {name}: {} us", shown.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: &str, bytes: u64, median_us: f64) -> Row {
        Row { bench: "put".into(), backend: "x".into(), mode: mode.into(), ranks: 2, bytes, median_us }
    }

    #[test]
    fn a_round_without_a_result_stays_empty() {
        let mut measured = Measured::default();
        measured.add(0, row("a", 8, 1.0));
        measured.add(2, row("a", 8, 3.0));
        measured.add(2, row("b", 8, 4.0));
        measured.add(2, row("a", 16, 5.0));
        let times: Vec<_> = measured.at(8).map(|series| series.by_round.clone()).collect();
        assert_eq!(times, [vec![Some(1.0), None, Some(3.0)], vec![None, None, Some(4.0)]]);
    }

    #[test]
    fn who_cannot_take_part_is_reported_once_and_left_out() {
        let group = &super::super::contenders::GROUPS[0];
        let absent = Contender::absent("nobody", "is not installed");
        let mut turn = InTurn::new(group, vec![absent]);
        (0..5).for_each(|round| turn.round(round));
        assert_eq!(turn.measured.remarks, ["nobody: left out: is not installed"]);
        assert_eq!(turn.contenders[0].failures, 2);
    }
}
