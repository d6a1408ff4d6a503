//! Tracefiles of lcov.
//!
//! ```text
//! SF:path                       begins a record; `end_of_record` ends it
//! DA:line,hits[,checksum]       a line with code
//! BRDA:line,block,branch,taken  a branch; `-` where its line did not run. Names of branches may have commas
//! ```
//! Sums (`LF`, `LH`) and functions are ignored.

use std::io::BufRead;

use super::line_input::LineInput;
use super::line_set::{FileLines, LineBranches, LineSet};
use super::{ReportBounds, ReportFaultKind};

/// The file whose record is open.
struct Record {
    path: String,
    lines: FileLines,
    /// The branches of lines; a line that is named again has another entry.
    branches: Vec<LineBranches>,
}

/// Reads to the end.
///
/// # Errors
/// The fault, with the bytes that were read.
pub(super) fn read(
    source: &mut dyn BufRead,
    bounds: &ReportBounds,
) -> Result<LineSet, super::ReportFault> {
    let mut input = LineInput::new(source, bounds);
    records(&mut input, bounds).map_err(|kind| super::ReportFault { kind, byte: input.read() })
}

fn records(input: &mut LineInput<'_>, bounds: &ReportBounds) -> Result<LineSet, ReportFaultKind> {
    let mut set = LineSet::default();
    let mut open: Option<Record> = None;
    while let Some(line) = input.next()? {
        let line = line.trim();
        if line == "end_of_record" {
            let Record { path, lines, branches } = open.take().ok_or(ReportFaultKind::Malformed)?;
            set.add(&path, whole(lines, branches), bounds)?;
            continue;
        }
        let Some((key, value)) = line.split_once(':') else { continue };
        match (key, &mut open) {
            ("SF", None) => open = Some(Record::new(value)),
            ("DA", Some(record)) => record.line(value)?,
            ("BRDA", Some(record)) => record.branch(value)?,
            ("SF", Some(_)) | ("DA" | "BRDA", None) => return Err(ReportFaultKind::Malformed),
            _ => {}
        }
    }
    if open.is_some() {
        return Err(ReportFaultKind::Truncated);
    }
    set.merge(bounds)?;
    Ok(set)
}

impl Record {
    fn new(path: &str) -> Self {
        Self { path: path.to_owned(), lines: FileLines::default(), branches: Vec::new() }
    }

    fn line(&mut self, value: &str) -> Result<(), ReportFaultKind> {
        let mut fields = value.split(',');
        let (number, hits) = (fields.next(), fields.next());
        let number = number.and_then(|number| number.trim().parse().ok());
        let (Some(number), Some(is_covered)) = (number, hits.and_then(is_hit)) else {
            return Err(ReportFaultKind::Malformed);
        };
        self.lines.line(number, is_covered)
    }

    fn branch(&mut self, value: &str) -> Result<(), ReportFaultKind> {
        let fields = value.split_once(',').and_then(|(line, rest)| {
            let (_, taken) = rest.rsplit_once(',')?;
            let taken = taken.trim();
            let is_taken = if taken == "-" { Some(false) } else { is_hit(taken) };
            Some((line.trim().parse().ok()?, is_taken?))
        });
        let Some((line, is_taken)) = fields else { return Err(ReportFaultKind::Malformed) };
        // Tools write the branches of a line together: one entry of a line then, however many it has.
        match self.branches.last_mut().filter(|last| last.line == line) {
            Some(last) => {
                last.total = last.total.saturating_add(1);
                last.covered = last.covered.saturating_add(u32::from(is_taken));
            }
            None => {
                self.branches.push(LineBranches { line, total: 1, covered: u32::from(is_taken) });
            }
        }
        Ok(())
    }
}

/// The lines of a record, with the branches of each line together.
fn whole(mut lines: FileLines, mut branches: Vec<LineBranches>) -> FileLines {
    branches.sort_unstable_by_key(|branch| branch.line);
    for of_line in branches.chunk_by(|a, b| a.line == b.line) {
        let Some(first) = of_line.first() else { continue };
        let sum = |number: fn(&LineBranches) -> u32| {
            of_line.iter().map(number).fold(0, u32::saturating_add)
        };
        let (total, covered) = (sum(|one| one.total), sum(|one| one.covered));
        lines.branches(LineBranches { line: first.line, total, covered });
    }
    lines
}

/// Whether a number of hits is more than 0; some tools write negative ones and `1e+06`. `None` for what is not a number.
pub(super) fn is_hit(text: &str) -> Option<bool> {
    text.trim().parse::<f64>().ok().filter(|hits| !hits.is_nan()).map(|hits| hits > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_report::{Coverage, Ratio};

    fn coverage(text: &str) -> Result<Coverage, ReportFaultKind> {
        let read = read(&mut text.as_bytes(), &ReportBounds::default());
        read.map(|set| set.coverage()).map_err(|fault| fault.kind)
    }

    #[test]
    fn lines_and_branches_of_records_are_counted_once() {
        let text = "TN:\nSF:a.c\nDA:1,4\nDA:2,0,abc\nDA:3,-1\nDA:4,1e+06\nBRDA:1,0,0,3\n\
                    BRDA:2,0,jump, or not,-\nBRDA:1,0,1,0\nLF:99\nLH:98\nend_of_record\n\
                    TN:other\r\nSF:a.c\r\nDA:2,1\r\nend_of_record\r\nSF:b.c\nend_of_record";
        let coverage = coverage(text).unwrap();
        assert_eq!(coverage.files, 2);
        assert_eq!(coverage.lines, Ratio { total: 4, covered: 3 });
        assert_eq!(coverage.branches, Some(Ratio { total: 3, covered: 1 }));
    }

    #[test]
    fn a_record_that_is_cut_or_malformed_is_a_fault() {
        use ReportFaultKind::{Malformed, Truncated};
        for (text, kind) in [
            ("SF:a\nDA:1,1\n", Truncated),
            ("SF:a\nDA:1,1\nend_of_rec", Truncated),
            ("SF:a\nSF:b\nend_of_record\n", Malformed),
            ("DA:1,1\n", Malformed),
            ("BRDA:1,0,0,1\n", Malformed),
            ("end_of_record\n", Malformed),
            ("SF:a\nDA:-1,1\nend_of_record\n", Malformed),
            ("SF:a\nDA:4294967295,1\nend_of_record\n", Malformed),
            ("SF:a\nDA:1\nend_of_record\n", Malformed),
            ("SF:a\nDA:1,x\nend_of_record\n", Malformed),
            ("SF:a\nDA:1,NaN\nend_of_record\n", Malformed),
            ("SF:a\nBRDA:1,0,0,x\nend_of_record\n", Malformed),
        ] {
            assert_eq!(coverage(text).unwrap_err(), kind, "{text:?}");
        }
    }
}
