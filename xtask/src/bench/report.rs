//! What the rounds amount to: times, paired ratios, and the targets. As text with every spread, or as Markdown for the
//! README. Pure: gets figures, gives strings.

use super::contenders::Group;
use super::rounds::{Label, Measured, Series};
use super::stats::{Summary, paired_ratios};
use super::targets::{Target, targets};
use std::fmt::Write as _;

/// One of ours against one target.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) ours: Label,
    pub(super) bytes: u64,
    pub(super) peer: Label,
    pub(super) ratio: Summary,
    pub(super) target: f64,
}

/// How many targets of a group were reached. A target that nothing was measured for is neither met nor missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) met: usize,
    pub(super) missed: usize,
    pub(super) unmeasured: usize,
}

impl Verdict {
    pub(super) fn is_met(&self) -> bool {
        self.ratio.median <= self.target
    }

    fn word(&self) -> &'static str {
        if self.is_met() { "pass" } else { "FAIL" }
    }
}

/// Ours, in each mode, against the peer that the target names, at one size.
pub(super) fn verdicts(measured: &Measured, bytes: u64, target: Target) -> Vec<Verdict> {
    let Some(peer) = best(measured, bytes, |label| target.peer.fits(label)) else { return Vec::new() };
    measured.at(bytes).filter(|series| series.label.is_ours()).filter_map(|ours| verdict(ours, peer, target)).collect()
}

fn verdict(ours: &Series, peer: &Series, target: Target) -> Option<Verdict> {
    let ratio = Summary::of(paired_ratios(&ours.by_round, &peer.by_round))?;
    Some(Verdict { ours: ours.label.clone(), bytes: ours.bytes, peer: peer.label.clone(), ratio, target: target.ratio })
}

pub(super) fn tally(group: &Group, measured: &Measured) -> Tally {
    let mut tally = Tally::default();
    for (bytes, target) in targets_of(group) {
        let verdicts = verdicts(measured, bytes, target);
        tally.unmeasured += usize::from(verdicts.is_empty());
        tally.met += verdicts.iter().filter(|verdict| verdict.is_met()).count();
        tally.missed += verdicts.iter().filter(|verdict| !verdict.is_met()).count();
    }
    tally
}

/// Every size, and what is asked there.
fn targets_of(group: &Group) -> impl Iterator<Item = (u64, Target)> {
    group.sizes.iter().flat_map(|&bytes| targets(group, bytes).into_iter().map(move |target| (bytes, target)))
}

/// The series with the lowest median over all rounds. It is chosen once, not anew in every round: the least of many noisy
/// times in each round would be a peer that does not exist.
fn best(measured: &Measured, bytes: u64, fits: impl Fn(&Label) -> bool) -> Option<&Series> {
    let candidates = measured.at(bytes).filter(|series| fits(&series.label));
    let timed = candidates.filter_map(|series| Some((series, summary(series)?.median)));
    timed.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(series, _)| series)
}

/// Everything, size by size.
pub(super) fn text(group: &Group, measured: &Measured) -> String {
    let mut text = String::new();
    for &bytes in group.sizes {
        let series: Vec<_> = measured.at(bytes).filter_map(|series| Some((series, summary(series)?))).collect();
        if series.is_empty() {
            continue;
        }
        let ours: Vec<_> = series.iter().map(|(series, _)| *series).filter(|series| series.label.is_ours()).collect();
        let mut header = format!("{:<28} {:>10} {:>21}", title(group, bytes), "median us", "quartiles");
        ours.iter().for_each(|ours| _ = write!(header, "  {:>26}", format!("{} / it", ours.label.text())));
        let _ = writeln!(text, "{header}");
        for (series, times) in &series {
            let quartiles = format!("{} .. {}", us(times.lower_quartile), us(times.upper_quartile));
            let _ = write!(text, "  {:<26} {:>10} {quartiles:>21}", series.label.text(), us(times.median));
            for ours in &ours {
                let ratio = Summary::of(paired_ratios(&ours.by_round, &series.by_round)).filter(|_| !series.label.is_ours());
                let _ = write!(text, "  {:>26}", ratio.map(with_quartiles).unwrap_or_default());
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        for verdict in targets(group, bytes).into_iter().flat_map(|target| verdicts(measured, bytes, target)) {
            let Verdict { ours, peer, ratio, target, .. } = &verdict;
            let (ours, peer, spread) = (ours.text(), peer.text(), with_quartiles(*ratio));
            let _ = write!(text, "  {}: {ours} / {peer} = {spread}, ", verdict.word());
            let _ = writeln!(text, "min .. max {:.2} .. {:.2} of {} rounds; target {target:.2}", ratio.min, ratio.max, ratio.count);
        }
        text.push('\n');
    }
    text
}

/// Two tables a group: the times, with the sizes as columns; and the ratios that the targets are about.
pub(super) fn markdown(group: &Group, measured: &Measured) -> String {
    let mut labels: Vec<&Label> = Vec::new();
    for series in &measured.series {
        if !labels.contains(&&series.label) {
            labels.push(&series.label);
        }
    }
    labels.sort_by_key(|label| (!label.is_ours(), !label.is_floor()));
    let ratios = ratios(group, measured, &labels);
    let times = aligned(&times(group, measured, &labels));
    if ratios.len() > 1 { format!("{times}\n{}", aligned(&ratios)) } else { times }
}

fn times(group: &Group, measured: &Measured, labels: &[&Label]) -> Vec<Vec<String>> {
    let sizes: Vec<_> = group.sizes.iter().copied().filter(|&bytes| measured.at(bytes).next().is_some()).collect();
    let what = format!("{}, median us", about(group));
    let mut table = vec![std::iter::once(what).chain(sizes.iter().map(|&bytes| size(bytes))).collect::<Vec<_>>()];
    for label in labels {
        let time = |bytes| measured.at(bytes).find(|series| series.label == **label).and_then(summary);
        let cells = sizes.iter().map(|&bytes| time(bytes).map(|times| us(times.median)).unwrap_or_default());
        table.push(std::iter::once(label.text()).chain(cells).collect());
    }
    table
}

fn ratios(group: &Group, measured: &Measured, labels: &[&Label]) -> Vec<Vec<String>> {
    let ours: Vec<_> = labels.iter().filter(|label| label.is_ours()).collect();
    let what = format!("{}, ratio (quartiles)", about(group));
    let columns = ours.iter().map(|label| format!("{} / it", label.text()));
    let mut table = vec![[what, "peer".into()].into_iter().chain(columns).chain(["target".into()]).collect::<Vec<_>>()];
    for (bytes, target) in targets_of(group) {
        let verdicts = verdicts(measured, bytes, target);
        let Some(first) = verdicts.first() else { continue };
        let of = |label: &Label| verdicts.iter().find(|verdict| verdict.ours == *label);
        let cell = |verdict: &Verdict| format!("{} {}", with_quartiles(verdict.ratio), verdict.word());
        let cells = ours.iter().map(|label| of(label).map(cell).unwrap_or_default());
        table.push([size(bytes), first.peer.text()].into_iter().chain(cells).chain([format!("{:.2}", first.target)]).collect());
    }
    table
}

/// A Markdown table, its columns padded so that it can be read as it is. The first row is the header.
fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.first().map_or(0, Vec::len);
    let width = |at: usize| table.iter().map(|row| row[at].len()).max().unwrap_or(0).max(3);
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(at, cell)| format!("{cell:<width$}", width = width(at)));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule = (0..columns).map(|at| "-".repeat(width(at))).collect();
    table.iter().take(1).chain([&rule]).chain(table.iter().skip(1)).map(line).collect()
}

fn title(group: &Group, bytes: u64) -> String {
    format!("{}, {}", about(group), size(bytes))
}

fn about(group: &Group) -> String {
    let over = group.mpi.map(|mpi| format!(" over {mpi}")).unwrap_or_default();
    format!("{}{over}, {} ranks", group.bench, group.ranks)
}

fn summary(series: &Series) -> Option<Summary> {
    Summary::of(series.by_round.iter().flatten().copied())
}

fn with_quartiles(ratio: Summary) -> String {
    format!("{:.2} ({:.2} .. {:.2})", ratio.median, ratio.lower_quartile, ratio.upper_quartile)
}

/// Three digits that count.
fn us(time: f64) -> String {
    match time {
        ..10.0 => format!("{time:.3}"),
        ..100.0 => format!("{time:.1}"),
        _ => format!("{time:.0}"),
    }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::contenders::GROUPS;
    use super::*;

    fn series(backend: &str, mode: &str, times: &[f64]) -> Series {
        let label = Label { backend: backend.into(), mode: mode.into() };
        Series { label, bytes: 8, by_round: times.iter().copied().map(Some).collect() }
    }

    fn measured() -> Measured {
        Measured {
            series: vec![
                series("rma", "threads", &[0.06, 0.30, 0.07]),
                series("rma", "processes", &[0.10, 0.45, 0.10]),
                series("openshmem", "put_fence_p", &[0.1, 0.5, 0.1]),
                series("openshmem", "put_signal", &[0.2, 0.1, 0.2]),
                series("openmpi", "pscw", &[0.01, 0.01, 0.01]),
                series("floor", "memcpy_flag", &[0.05, 0.25, 0.05]),
            ],
            remarks: Vec::new(),
        }
    }

    #[test]
    fn the_peer_of_a_target_is_its_library_s_best_over_all_rounds() {
        let verdicts = verdicts(&measured(), 8, targets(&GROUPS[0], 8)[0]);
        assert!(verdicts.iter().all(|verdict| verdict.peer.text() == "openshmem put_fence_p"));
        let met: Vec<_> = verdicts.iter().map(|verdict| (verdict.ours.mode.as_str(), verdict.is_met())).collect();
        assert_eq!(met, [("threads", true), ("processes", false)]);
        assert!((verdicts[0].ratio.median - 0.6).abs() < 1e-9, "{:?}", verdicts[0]);
    }

    #[test]
    fn a_target_without_figures_is_neither_met_nor_missed() {
        assert_eq!(tally(&GROUPS[0], &measured()), Tally { met: 1, missed: 1, unmeasured: 4 });
        assert_eq!(tally(&GROUPS[0], &Measured::default()), Tally { met: 0, missed: 0, unmeasured: 5 });
    }

    #[test]
    fn the_text_names_ratio_target_and_verdict() {
        let text = text(&GROUPS[0], &measured());
        let expected =
            "pass: rma threads / openshmem put_fence_p = 0.60 (0.60 .. 0.65), min .. max 0.60 .. 0.70 of 3 rounds; target 0.75";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("FAIL: rma processes"), "{text}");
    }

    #[test]
    fn markdown_has_as_many_cells_in_every_row_of_a_table() {
        let tables = markdown(&GROUPS[0], &measured());
        let bars: Vec<Vec<_>> =
            tables.split("\n\n").map(|table| table.lines().map(|line| line.matches('|').count()).collect()).collect();
        assert_eq!(bars, [vec![3; 8], vec![6; 3]], "{tables}");
        assert!(tables.contains("| 0.60 (0.60 .. 0.65) pass |"), "{tables}");
    }

    #[test]
    fn without_a_verdict_there_is_no_table_of_ratios() {
        let mut only_peers = measured();
        only_peers.series.retain(|series| series.label.is_peer());
        assert!(!markdown(&GROUPS[0], &only_peers).contains("ratio"));
    }

    #[test]
    fn sizes_are_in_binary_units() {
        assert_eq!([8, 1024, 65_536, 1 << 20, 1025].map(size), ["8 B", "1 KiB", "64 KiB", "1 MiB", "1025 B"]);
    }
}
