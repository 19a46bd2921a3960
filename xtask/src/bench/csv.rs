//! The lines that `rma bench --csv` and the peers print: columns are found by their names, noise around is ignored.

use anyhow::{Context, Result, ensure};

/// One measurement: the time of one size by one contender.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) bench: String,
    pub(super) backend: String,
    pub(super) mode: String,
    pub(super) ranks: u32,
    pub(super) bytes: u64,
    pub(super) median_us: f64,
}

/// Where the columns are that we read. Others may stand between and behind them.
struct Columns {
    count: usize,
    bench: usize,
    backend: usize,
    mode: usize,
    ranks: usize,
    bytes: usize,
    median_us: usize,
}

/// The rows of one benchmark. A launcher may have printed lines of its own before, between and after.
pub(super) fn parse(text: &str, bench: &str) -> Result<Vec<Row>> {
    let mut columns = None;
    let mut rows = Vec::new();
    for line in text.lines().map(str::trim) {
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        if fields.contains(&"bench") && fields.contains(&"median_us") {
            columns = Some(Columns::find(&fields).with_context(|| format!("in the header {line:?}"))?);
        } else if let Some(columns) = columns.as_ref().filter(|columns| fields.get(columns.bench) == Some(&bench)) {
            rows.push(columns.read(&fields).with_context(|| format!("in the line {line:?}"))?);
        }
    }
    ensure!(columns.is_some(), "there is no CSV header");
    ensure!(!rows.is_empty(), "there is no line of {bench}");
    Ok(rows)
}

impl Columns {
    fn find(header: &[&str]) -> Result<Self> {
        let at = |name| header.iter().position(|field| *field == name).with_context(|| format!("there is no column {name}"));
        Ok(Self {
            count: header.len(),
            bench: at("bench")?,
            backend: at("backend")?,
            mode: at("mode")?,
            ranks: at("ranks")?,
            bytes: at("bytes")?,
            median_us: at("median_us")?,
        })
    }

    fn read(&self, fields: &[&str]) -> Result<Row> {
        ensure!(fields.len() == self.count, "{} fields under {} columns", fields.len(), self.count);
        let row = Row {
            bench: fields[self.bench].into(),
            backend: fields[self.backend].into(),
            mode: fields[self.mode].into(),
            ranks: fields[self.ranks].parse().context("ranks")?,
            bytes: fields[self.bytes].parse().context("bytes")?,
            median_us: fields[self.median_us].parse().context("median_us")?,
        };
        ensure!(row.median_us.is_finite() && row.median_us > 0.0, "the time is not positive");
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "bench,backend,mode,ranks,rails,bytes,iterations,median_us,min_us,max_us";

    #[test]
    fn columns_are_found_by_name_wherever_they_stand() {
        let text = "bytes,bench,new,median_us,backend,mode,ranks\n8,put,x,0.25,shm,threads,2\n";
        let row = Row { bench: "put".into(), backend: "shm".into(), mode: "threads".into(), ranks: 2, bytes: 8, median_us: 0.25 };
        assert_eq!(parse(text, "put").unwrap(), [row]);
    }

    #[test]
    fn the_noise_of_a_launcher_is_ignored() {
        let text = format!("a warning, of mpirun\n{HEADER}\nput,x,y,2,1,8,10,0.1,0.1,0.2\n----\n[vm:1] Caught signal 11\n");
        assert_eq!(parse(&text, "put").unwrap().len(), 1);
    }

    #[test]
    fn rows_of_other_benchmarks_are_left_out() {
        let text = format!("{HEADER}\nhalo,x,y,2,1,8,10,0.1,0.1,0.2\nput,x,y,2,1,8,10,0.3,0.1,0.2\n");
        assert_eq!(parse(&text, "put").unwrap()[0].median_us, 0.3);
    }

    #[test]
    fn a_broken_row_is_an_error_with_its_line() {
        for line in ["put,x,y,2,1,8,10,fast,0.1,0.2", "put,x,y,2,1,8,10,0.1", "put,x,y,2,1,8,10,0,0,0"] {
            let error = parse(&format!("{HEADER}\n{line}\n"), "put").unwrap_err();
            assert!(format!("{error:#}").contains(line), "{error:#}");
        }
    }

    #[test]
    fn nothing_printed_is_an_error() {
        assert!(parse("", "put").is_err());
        assert!(parse(HEADER, "put").is_err());
        assert!(parse("bench,median_us\n", "put").unwrap_err().to_string().contains("header"));
    }
}
