//! Merges the output of many ranks line by line. Pure: bytes in, bytes out; knows no pipe and no terminal.

/// A line longer than this is passed on in pieces, so that a rank that never ends its line costs no more memory.
pub(crate) const MAX_HELD_BYTES: usize = 64 * 1024;

/// The lines of several sources on their way to one sink.
#[derive(Debug)]
pub(crate) struct Merge {
    sources: Vec<Source>,
    /// What goes to the sink next.
    out: Vec<u8>,
    /// A line that begins with this is a report, and goes to whoever asks for reports.
    mark: Option<Vec<u8>>,
    reports: Vec<(usize, Vec<u8>)>,
    /// The source whose unfinished line the sink shows last.
    midline: Option<usize>,
    /// Whether a source that ends in the middle of a line gets the newline it lacks, also when nothing follows.
    finish_lines: bool,
}

#[derive(Debug)]
struct Source {
    prefix: Vec<u8>,
    held: Vec<u8>,
}

impl Merge {
    /// One source for each prefix. With `finish_lines` the sink never ends in the middle of a source's last line.
    pub(crate) fn new(prefixes: impl IntoIterator<Item = Vec<u8>>, finish_lines: bool) -> Self {
        let sources = prefixes.into_iter().map(|prefix| Source { prefix, held: Vec::new() }).collect();
        Self { sources, out: Vec::new(), mark: None, reports: Vec::new(), midline: None, finish_lines }
    }

    /// The same, for sources among whose lines are reports: what follows this mark at the beginning of a line.
    pub(crate) fn with_reports(self, mark: Option<Vec<u8>>) -> Self {
        Self { mark, ..self }
    }

    pub(crate) fn has_reports(&self) -> bool {
        self.mark.is_some()
    }

    /// The reports that have come, each with its source.
    pub(crate) fn reports(&mut self) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
        self.reports.drain(..)
    }

    /// Takes bytes of a source; its complete lines are now in [`Self::out`].
    pub(crate) fn feed(&mut self, source: usize, bytes: &[u8]) {
        let complete = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
        let mut held = std::mem::take(&mut self.sources[source].held);
        if complete > 0 {
            held.extend_from_slice(&bytes[..complete]);
            self.emit(source, &held);
            held.clear();
        }
        held.extend_from_slice(&bytes[complete..]);
        if held.len() > MAX_HELD_BYTES {
            self.emit(source, &held);
            held = Vec::new();
        }
        self.sources[source].held = held;
    }

    /// The source has no more: its last line goes out, finished or not.
    pub(crate) fn end(&mut self, source: usize) {
        let held = std::mem::take(&mut self.sources[source].held);
        self.emit(source, &held);
        if self.finish_lines && self.midline == Some(source) {
            self.out.push(b'\n');
            self.midline = None;
        }
    }

    /// What is ready for the sink; the caller clears it once written.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn emit(&mut self, source: usize, bytes: &[u8]) {
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            if let Some(report) = self.mark.as_ref().and_then(|mark| line.strip_prefix(mark.as_slice())) {
                self.reports.push((source, report.trim_ascii().to_vec()));
                continue;
            }
            if self.midline.is_some_and(|other| other != source) {
                self.out.push(b'\n');
                self.midline = None;
            }
            if self.midline.is_none() {
                self.out.extend_from_slice(&self.sources[source].prefix);
            }
            self.out.extend_from_slice(line);
            self.midline = (!line.ends_with(b"\n")).then_some(source);
        }
    }
}

/// What stands before each line of a rank; as wide for rank 0 as for the last.
pub(crate) fn prefix(rank: u32, ranks: u32) -> Vec<u8> {
    let width = ranks.saturating_sub(1).to_string().len();
    format!("[{rank:>width$}] ").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(finish_lines: bool) -> Merge {
        Merge::new([b"[0] ".to_vec(), b"[1] ".to_vec()], finish_lines)
    }

    #[test]
    fn lines_that_arrive_in_parts_come_out_whole() {
        let mut merge = two(true);
        merge.feed(0, b"al");
        merge.feed(1, b"beta\n\nga");
        merge.feed(0, b"pha\n");
        merge.feed(1, b"mma");
        assert_eq!(merge.out(), b"[1] beta\n[1] \n[0] alpha\n");
        merge.end(1);
        assert_eq!(merge.out(), b"[1] beta\n[1] \n[0] alpha\n[1] gamma\n");
    }

    #[test]
    fn reports_are_no_lines_of_the_output_however_they_are_cut() {
        let mut merge = two(true).with_reports(Some(b"#7#".to_vec()));
        merge.feed(0, b"a\n#7");
        merge.feed(1, b"#7# two\nb #7# c\n");
        merge.feed(0, b"# one\n#8# d\n");
        assert_eq!(merge.reports().collect::<Vec<_>>(), [(1, b"two".to_vec()), (0, b"one".to_vec())]);
        assert_eq!(merge.out(), b"[0] a\n[1] b #7# c\n[0] #8# d\n");
        let mut plain = two(true);
        plain.feed(0, b"#7# e\n");
        assert_eq!(plain.out(), b"[0] #7# e\n");
    }

    #[test]
    fn a_source_that_ends_after_a_newline_adds_nothing() {
        let mut merge = two(true);
        merge.feed(0, b"x\n");
        merge.end(0);
        merge.end(1);
        assert_eq!(merge.out(), b"[0] x\n");
    }

    #[test]
    fn without_finished_lines_a_newline_is_added_only_before_another_source() {
        let mut merge = Merge::new([Vec::new(), Vec::new()], false);
        merge.feed(0, b"a\0\xff");
        merge.end(0);
        assert_eq!(merge.out(), b"a\0\xff");
        merge.feed(1, b"b\n");
        assert_eq!(merge.out(), b"a\0\xff\nb\n");
    }

    #[test]
    fn a_long_line_is_bounded_in_memory_and_not_lost() {
        let mut merge = two(true);
        let piece = vec![b'x'; 1000];
        let mut most = 0;
        for _ in 0..500 {
            merge.feed(0, &piece);
            most = most.max(merge.sources[0].held.len());
        }
        assert!(most <= MAX_HELD_BYTES, "{most} bytes held");
        merge.feed(0, b"end\n");
        let expected = [b"[0] ".to_vec(), vec![b'x'; 500_000], b"end\n".to_vec()].concat();
        assert!(*merge.out() == expected, "{} bytes", merge.out().len());
    }

    #[test]
    fn a_line_between_two_pieces_of_a_long_one_stands_on_its_own() {
        let mut merge = two(true);
        let long = vec![b'x'; MAX_HELD_BYTES + 1];
        merge.feed(0, &long);
        merge.feed(1, b"short\n");
        merge.feed(0, b"rest\n");
        let expected = [b"[0] ".to_vec(), long, b"\n[1] short\n[0] rest\n".to_vec()].concat();
        assert!(*merge.out() == expected);
    }

    #[test]
    fn prefixes_of_a_job_have_one_width() {
        assert_eq!(prefix(3, 10), b"[3] ");
        assert_eq!(prefix(3, 11), b"[ 3] ");
        assert_eq!(prefix(10, 11), b"[10] ");
        assert_eq!(prefix(0, 1), b"[0] ");
    }
}
