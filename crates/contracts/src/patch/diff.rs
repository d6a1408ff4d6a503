//! A diff of lines, for people and for tools that read one: the shortest edit within a bound.

use std::fmt::Write as _;

/// Edits up to which the shortest way is looked for: its trace grows with their square, to 4 MiB at most. Beyond
/// it what lies between the common beginning and end is removed and written anew.
const MAX_EDITS: usize = 700;
/// Lines that are compared for all files of a patch: half a second. Files of equal lines would else cost minutes.
pub(super) const COMPARED: u64 = 50_000_000;
/// Lines shown around a change, as git shows them.
const CONTEXT: usize = 3;

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEdit {
    Keep,
    Remove,
    Add,
}

/// The hunks from one text to another, each line with its mark.
/// `left` is what may still be compared.
pub(super) fn hunks(before: &str, after: &str, left: &mut u64, out: &mut String) {
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    let edits = edits(&old, &new, left);
    let mut at = 0;
    let (mut old_at, mut new_at) = (0_usize, 0_usize);
    while let Some(first) = edits.iter().skip(at).position(|edit| *edit != LineEdit::Keep) {
        let skipped = first.saturating_sub(CONTEXT);
        (old_at, new_at) = (old_at + skipped, new_at + skipped);
        let start = at + skipped;
        let end = end_of(&edits, at + first);
        let hunk = edits.get(start..end).unwrap_or_default();
        let count = |other: LineEdit| hunk.iter().filter(|edit| **edit != other).count();
        let (old_count, new_count) = (count(LineEdit::Add), count(LineEdit::Remove));
        let _ = writeln!(out, "@@ -{} +{} @@", range(old_at, old_count), range(new_at, new_count));
        for edit in hunk {
            let (mark, line) = match edit {
                LineEdit::Add => ('+', new.get(new_at)),
                LineEdit::Remove => ('-', old.get(old_at)),
                LineEdit::Keep => (' ', old.get(old_at)),
            };
            old_at += usize::from(*edit != LineEdit::Add);
            new_at += usize::from(*edit != LineEdit::Remove);
            write_line(mark, line.copied().unwrap_or_default(), out);
        }
        at = end;
    }
}

fn write_line(mark: char, line: &str, out: &mut String) {
    out.push(mark);
    out.push_str(line);
    if !line.ends_with('\n') {
        out.push_str("\n\\ No newline at end of file\n");
    }
}

/// `START,COUNT`, as unified diffs count: an empty range stands behind its line.
fn range(at: usize, count: usize) -> String {
    match count {
        0 => format!("{at},0"),
        1 => format!("{}", at + 1),
        _ => format!("{},{count}", at + 1),
    }
}

/// Where the hunk of a change ends: behind its context, or that of changes so near that both share it.
fn end_of(edits: &[LineEdit], change: usize) -> usize {
    let mut last = change;
    for (at, edit) in edits.iter().enumerate().skip(change) {
        if *edit != LineEdit::Keep {
            last = at;
        } else if at - last > 2 * CONTEXT {
            break;
        }
    }
    edits.len().min(last + 1 + CONTEXT)
}

/// What becomes of each line, without the common beginning and end looked at twice.
fn edits(old: &[&str], new: &[&str], left: &mut u64) -> Vec<LineEdit> {
    let same = |a: &&&str, b: &&&str| a == b;
    let head = old.iter().zip(new).take_while(|(a, b)| same(a, b)).count();
    let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| same(a, b)).count();
    let old = old.get(..old.len() - tail).unwrap_or_default();
    let new = new.get(..new.len() - tail).unwrap_or_default();
    let mut edits = vec![LineEdit::Keep; head];
    match shortest(old, new, left) {
        Some(found) => edits.extend(found),
        None => {
            edits.extend(std::iter::repeat_n(LineEdit::Remove, old.len()));
            edits.extend(std::iter::repeat_n(LineEdit::Add, new.len()));
        }
    }
    edits.extend(std::iter::repeat_n(LineEdit::Keep, tail));
    edits
}

/// The furthest line of the old text that so many edits reach, on each diagonal.
struct Reach {
    edits: usize,
    old: Vec<usize>,
}

impl Reach {
    /// On diagonal `k` (old minus new), which has the parity of the edits.
    fn at(&self, k: isize) -> Option<usize> {
        let edits = isize::try_from(self.edits).ok()?;
        let index = usize::try_from((k + edits) / 2).ok()?;
        if k < -edits || k > edits { None } else { self.old.get(index).copied() }
    }
}

/// The shortest edit (Myers 1986), if it takes at most [`MAX_EDITS`] and no more than is left.
fn shortest(old: &[&str], new: &[&str], left: &mut u64) -> Option<Vec<LineEdit>> {
    let mut trace: Vec<Reach> = Vec::new();
    for edits in 0..=MAX_EDITS.min(old.len() + new.len()) {
        let mut reach = Reach { edits, old: Vec::with_capacity(edits + 1) };
        let most = isize::try_from(edits).ok()?;
        for k in (-most..=most).step_by(2) {
            let begin = trace.last().map_or(Some((0, LineEdit::Keep)), |last| step(last, k));
            let Some((mut x, _)) = begin else {
                reach.old.push(0);
                continue;
            };
            while let Some(y) = minus(x, k)
                && let (Some(a), Some(b)) = (old.get(x), new.get(y))
                && a == b
            {
                x += 1;
                *left = left.checked_sub(1)?;
            }
            reach.old.push(x);
            if x >= old.len() && minus(x, k).is_some_and(|y| y >= new.len()) {
                trace.push(reach);
                return back(&trace, old.len(), new.len());
            }
        }
        trace.push(reach);
    }
    None
}

/// How a diagonal is reached with one more edit, and by which.
fn step(last: &Reach, k: isize) -> Option<(usize, LineEdit)> {
    let added = last.at(k + 1).map(|x| (x, LineEdit::Add));
    let removed = last.at(k - 1).map(|x| (x + 1, LineEdit::Remove));
    match (added, removed) {
        (Some(a), Some(r)) => Some(if r.0 > a.0 { r } else { a }),
        (a, r) => a.or(r),
    }
}

fn minus(x: usize, k: isize) -> Option<usize> {
    isize::try_from(x).ok().and_then(|x| usize::try_from(x - k).ok())
}

/// From the end to the beginning along the trace.
fn back(trace: &[Reach], old: usize, new: usize) -> Option<Vec<LineEdit>> {
    let mut edits = Vec::with_capacity(old + new);
    let (mut x, mut y) = (old, new);
    for last in trace.iter().rev().skip(1) {
        let k = isize::try_from(x).ok()? - isize::try_from(y).ok()?;
        let (begin, edit) = step(last, k)?;
        while x > begin {
            edits.push(LineEdit::Keep);
            x -= 1;
            y = y.checked_sub(1)?;
        }
        edits.push(edit);
        match edit {
            LineEdit::Remove => x = x.checked_sub(1)?,
            _ => y = y.checked_sub(1)?,
        }
    }
    edits.extend(std::iter::repeat_n(LineEdit::Keep, x));
    edits.reverse();
    Some(edits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &str, after: &str) -> String {
        let mut out = String::new();
        hunks(before, after, &mut COMPARED.clone(), &mut out);
        out
    }

    #[test]
    fn a_diff_shows_what_changed_with_three_lines_around_it() {
        assert_eq!(shown("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(shown("a\n", ""), "@@ -1 +0,0 @@\n-a\n");
        assert_eq!(
            shown("a\nb", "a\nc"),
            "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
        );
        let old: String = (0..30).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n4\n", "\nx\n").replace("\n20\n", "\n");
        let diff = shown(&old, &new);
        assert!(diff.starts_with("@@ -2,7 +2,7 @@\n 1\n 2\n 3\n-4\n+x\n 5\n 6\n 7\n"), "{diff}");
        assert!(diff.ends_with("@@ -18,7 +18,6 @@\n 17\n 18\n 19\n-20\n 21\n 22\n 23\n"), "{diff}");
        assert_eq!(shown("a\n", "a\n"), "");
    }

    #[test]
    fn an_edit_beyond_the_bound_is_written_anew() {
        let old: String = (0..MAX_EDITS).map(|n| format!("{n}\n")).collect();
        let new: String = (0..MAX_EDITS).map(|n| format!("x{n}\n")).collect();
        let diff = shown(&format!("head\n{old}"), &format!("head\n{new}"));
        let count = |mark: char| diff.lines().filter(|line| line.starts_with(mark)).count();
        assert_eq!((count('-'), count('+'), count(' ')), (MAX_EDITS, MAX_EDITS, 1));
    }

    #[test]
    fn what_is_compared_is_bounded_for_all_files_together() {
        let old = "x\n".to_owned() + &"same\n".repeat(1_000) + "y\n";
        let new = "z\n".to_owned() + &"same\n".repeat(1_000) + "w\n";
        let removed = |left: &mut u64| {
            let mut out = String::new();
            hunks(&old, &new, left, &mut out);
            out.lines().filter(|line| line.starts_with('-')).count()
        };
        let mut left = COMPARED;
        assert_eq!(removed(&mut left), 2);
        assert!(left < COMPARED);
        let mut left = 500;
        assert_eq!((removed(&mut left), left), (1_002, 0), "written anew");
    }
}
