//! Lines and branches of source files that reports measured, so that several reports become one: a line is covered where any
//! report covers it.

use std::collections::BTreeMap;

use super::{Coverage, MAX_NAME_BYTES, Ratio, ReportBounds, ReportFaultKind};

/// Lines of a file have smaller numbers: one more bit says whether the line is covered.
const MAX_LINE: u32 = u32::MAX >> 1;
/// How many lines one line with branches counts as: it has three times the bytes.
const BRANCH_WEIGHT: usize = 3;

/// Branches of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineBranches {
    pub(super) line: u32,
    pub(super) total: u32,
    pub(super) covered: u32,
}

/// The measured lines of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileLines {
    /// Twice the number of each line, and one more where it is covered.
    lines: Vec<u32>,
    branches: Vec<LineBranches>,
}

impl FileLines {
    /// # Errors
    /// A number that no line of a file has.
    pub(super) fn line(&mut self, number: u32, is_covered: bool) -> Result<(), ReportFaultKind> {
        let number = Some(number).filter(|number| *number <= MAX_LINE);
        let number = number.ok_or(ReportFaultKind::Malformed)?;
        self.lines.push(number.saturating_mul(2).saturating_add(u32::from(is_covered)));
        Ok(())
    }

    /// Branches of one line: of two reports the larger numbers count.
    pub(super) fn branches(&mut self, branches: LineBranches) {
        self.branches.push(branches);
    }

    fn weight(&self) -> usize {
        self.lines.len().saturating_add(self.branches.len().saturating_mul(BRANCH_WEIGHT))
    }

    /// Each line once.
    fn merge(&mut self) {
        self.lines.sort_unstable();
        self.lines.dedup_by(|next, first| {
            let is_same = *next / 2 == *first / 2;
            if is_same {
                *first = *next;
            }
            is_same
        });
        self.branches.sort_unstable_by_key(|one| one.line);
        self.branches.dedup_by(|next, first| {
            let is_same = next.line == first.line;
            if is_same {
                first.total = first.total.max(next.total);
                first.covered = first.covered.max(next.covered);
            }
            is_same
        });
    }
}

/// Measured lines by file: in memory only, since a report's row has totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineSet {
    files: BTreeMap<String, FileLines>,
    /// Weight of all files; until the next merge, a line that was added twice counts twice.
    weight: usize,
}

impl LineSet {
    /// Adds what a report measured in a file.
    ///
    /// # Errors
    /// More files or lines than the bounds allow, or a path that is too long.
    pub(super) fn add(
        &mut self,
        path: &str,
        lines: FileLines,
        bounds: &ReportBounds,
    ) -> Result<(), ReportFaultKind> {
        if path.len() > MAX_NAME_BYTES {
            return Err(ReportFaultKind::TooLarge);
        }
        self.weight = self.weight.saturating_add(lines.weight());
        let is_full = self.files.len() >= bounds.files;
        match self.files.get_mut(path) {
            Some(known) => {
                known.lines.extend(lines.lines);
                known.branches.extend(lines.branches);
            }
            None if is_full => return Err(ReportFaultKind::TooMany),
            None => {
                self.files.insert(path.to_owned(), lines);
            }
        }
        // Twice the bound, so that a merge of everything follows as much that was added.
        if self.weight > bounds.lines.saturating_mul(2) { self.merge(bounds) } else { Ok(()) }
    }

    /// Counts each line once.
    ///
    /// # Errors
    /// More lines than the bounds allow.
    pub(super) fn merge(&mut self, bounds: &ReportBounds) -> Result<(), ReportFaultKind> {
        self.files.values_mut().for_each(FileLines::merge);
        let weights = self.files.values().map(FileLines::weight);
        self.weight = weights.fold(0, usize::saturating_add);
        if self.weight > bounds.lines { Err(ReportFaultKind::TooMany) } else { Ok(()) }
    }

    /// The union of several sets. Of branches it has at least what was taken: each says how many of a line, Cobertura not which.
    ///
    /// # Errors
    /// [`ReportFaultKind::TooMany`] where it has more files or lines than the bounds allow.
    pub fn union(sets: &[&Self], bounds: &ReportBounds) -> Result<Self, ReportFaultKind> {
        let mut union = Self::default();
        for (path, lines) in sets.iter().flat_map(|set| &set.files) {
            union.add(path, lines.clone(), bounds)?;
        }
        union.merge(bounds)?;
        Ok(union)
    }

    /// How much of the lines and branches is covered.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut lines = Ratio::default();
        let mut branches = Ratio::default();
        for file in self.files.values() {
            lines.total = lines.total.saturating_add(count(file.lines.len()));
            let covered = file.lines.iter().filter(|line| **line % 2 == 1).count();
            lines.covered = lines.covered.saturating_add(count(covered));
            for one in &file.branches {
                branches.total = branches.total.saturating_add(one.total.into());
                branches.covered = branches.covered.saturating_add(one.covered.into());
            }
        }
        let branches = Some(branches).filter(|branches| branches.total > 0);
        Coverage { files: count(self.files.len()), lines, branches }
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: &[(u32, bool)], branches: &[(u32, u32, u32)]) -> FileLines {
        let mut file = FileLines::default();
        lines.iter().for_each(|(number, is_covered)| file.line(*number, *is_covered).unwrap());
        for (line, total, covered) in branches {
            file.branches(LineBranches { line: *line, total: *total, covered: *covered });
        }
        file
    }

    fn set(files: &[(&str, FileLines)], bounds: &ReportBounds) -> Result<LineSet, ReportFaultKind> {
        let mut set = LineSet::default();
        for (path, lines) in files {
            set.add(path, lines.clone(), bounds)?;
        }
        set.merge(bounds)?;
        Ok(set)
    }

    #[test]
    fn a_line_is_covered_where_any_report_covers_it() {
        let bounds = ReportBounds::default();
        let one = file(&[(9, false), (1, true), (2, false), (1, false)], &[(2, 2, 1), (1, 2, 0)]);
        let two = file(&[(2, true), (3, false)], &[(2, 2, 2)]);
        let one = set(&[("a", one.clone()), ("b", one)], &bounds).unwrap();
        let two = set(&[("a", two), ("c", FileLines::default())], &bounds).unwrap();
        let union = LineSet::union(&[&one, &two], &bounds).unwrap();
        assert_eq!(union, LineSet::union(&[&two, &one, &two], &bounds).unwrap());
        let coverage = union.coverage();
        assert_eq!(coverage.files, 3);
        assert_eq!(coverage.lines, Ratio { total: 4 + 3, covered: 2 + 1 });
        assert_eq!(coverage.branches, Some(Ratio { total: 8, covered: 3 }));
        assert_eq!(two.coverage().branches, Some(Ratio { total: 2, covered: 2 }));
        assert_eq!(LineSet::default().coverage().branches, None);
    }

    #[test]
    fn files_lines_and_paths_are_bounded() {
        let bounds = ReportBounds { files: 2, lines: 5, ..ReportBounds::default() };
        let lines = |numbers: std::ops::Range<u32>| {
            file(&numbers.map(|number| (number, true)).collect::<Vec<_>>(), &[])
        };
        let files = ["a", "b", "c"].map(|path| (path, FileLines::default()));
        assert!(set(&files[..2], &bounds).is_ok());
        assert_eq!(set(&files, &bounds), Err(ReportFaultKind::TooMany));
        let again = [("a", lines(1..6)), ("a", lines(1..6)), ("a", lines(1..6))];
        assert_eq!(set(&again, &bounds).unwrap().coverage().lines.total, 5, "each line once");
        let more = [("a", lines(1..6)), ("b", lines(1..2))];
        assert_eq!(set(&more, &bounds), Err(ReportFaultKind::TooMany));
        let branches = [("a", file(&[(1, true), (2, true)], &[(1, 2, 1)]))];
        assert!(set(&branches, &bounds).is_ok(), "a line with branches counts as four");
        let sets = [set(&again, &bounds).unwrap(), set(&branches, &bounds).unwrap()];
        let union = LineSet::union(&[&sets[0], &sets[1]], &bounds);
        assert_eq!(union, Err(ReportFaultKind::TooMany));
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(set(&[(&long, lines(1..2))], &bounds), Err(ReportFaultKind::TooLarge));
        assert_eq!(FileLines::default().line(MAX_LINE + 1, true), Err(ReportFaultKind::Malformed));
    }
}
