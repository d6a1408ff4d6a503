//! One live line: as much of it as the terminal is wide.

use cofferdam_contracts::printable;

use super::super::cells::{cells_of, cut};

/// Columns between the parts of a line.
const GAP: &str = "  ";

/// How urgent a line is: what failed comes before what runs, and that before what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    Failed,
    Running,
    Queued,
}

/// A task, or a group of equal ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskLine {
    /// The task's name, or the group's with `*`.
    pub name: String,
    /// What it does and since when, such as `exec 12.1 s`.
    pub words: String,
    /// The last line of its output, or what it waits for.
    pub last: String,
    pub urgency: Urgency,
    /// How long the oldest of it runs.
    pub elapsed_ms: u64,
    /// Tasks of it that run.
    pub running: usize,
    /// Tasks of it that wait.
    pub queued: usize,
}

impl TaskLine {
    /// The line in so many columns, its name in at least `names` of them. Nothing in it acts on a terminal.
    pub(crate) fn text(&self, width: usize, names: usize) -> String {
        let name = cut(&printable::line(&self.name), width.div_ceil(3).max(names));
        let mut text = format!("{name}{}", " ".repeat(names.saturating_sub(cells_of(&name))));
        let words = printable::line(&self.words);
        let last = uncolored(&self.last);
        for part in [words, printable::line(&last)] {
            if !part.is_empty() {
                text.push_str(GAP);
                text.push_str(&part);
            }
        }
        cut(&text, width)
    }
}

/// The lines that fit: so many, and at the end how many tasks are on no line.
pub(crate) fn fitted(lines: &[TaskLine], width: usize, height: usize) -> Vec<String> {
    let shown = match lines.len() > height {
        true => height.saturating_sub(1),
        false => lines.len(),
    };
    let (above, below) = lines.split_at_checked(shown).unwrap_or((lines, &[]));
    let widest = above.iter().map(|line| cells_of(&printable::line(&line.name))).max().unwrap_or(0);
    // A long name of one task does not take the columns of all.
    let names = widest.min(width / 3);
    let mut texts: Vec<String> = above.iter().map(|line| line.text(width, names)).collect();
    if !below.is_empty() {
        let sum = |of: fn(&TaskLine) -> usize| below.iter().map(of).sum::<usize>();
        let counts = [
            Count { tasks: sum(|line| line.running), what: "running" },
            Count { tasks: sum(|line| line.queued), what: "queued" },
        ];
        texts.push(cut(&format!("and {}", counted(&counts)), width));
    }
    texts
}

/// How many tasks there are of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count {
    pub tasks: usize,
    pub what: &'static str,
}

/// `12 running, 3 queued`, without states that no task has.
pub(crate) fn counted(counts: &[Count]) -> String {
    let some = counts.iter().filter(|count| count.tasks > 0);
    some.map(|Count { tasks, what }| format!("{tasks} {what}")).collect::<Vec<_>>().join(", ")
}

/// A line without the sequences that color it: what is left of other escapes is shown as text.
fn uncolored(line: &str) -> String {
    let mut left = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        left.push_str(before);
        let parameters = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match parameters.strip_prefix(['m', 'K']) {
            Some(next) => rest = next,
            None => {
                left.push_str("\u{1b}[");
                rest = after;
            }
        }
    }
    left.push_str(rest);
    left
}

#[cfg(test)]
mod tests {
    use super::super::super::cells::CUT;
    use super::*;

    fn line(name: &str, last: &str) -> TaskLine {
        TaskLine {
            name: name.to_owned(),
            words: "exec 12.1 s".to_owned(),
            last: last.to_owned(),
            urgency: Urgency::Running,
            elapsed_ms: 12_100,
            running: 1,
            queued: 0,
        }
    }

    #[test]
    fn a_line_has_the_width_of_the_terminal_at_80_and_40_columns() {
        let long = line("test", &"x".repeat(200));
        for width in [80, 40, 20, 3, 1] {
            let text = long.text(width, 0);
            // In few columns spaces before what was cut off are left out.
            assert!(cells_of(&text) <= width && (cells_of(&text) == width || width < 40), "{text}");
            assert!(text.ends_with(CUT), "{text}");
        }
        assert_eq!(long.text(0, 0), "");
        assert_eq!(line("test", "ok").text(40, 8), "test      exec 12.1 s  ok");
        let name = line("a-very-long-name-of-a-task-of-a-matrix", "ok").text(40, 13);
        assert_eq!(name, "a-very-long-n…  exec 12.1 s  ok");
        let wide = line("test", &"日".repeat(60)).text(40, 0);
        assert!((39..=40).contains(&cells_of(&wide)), "two columns a character: {wide}");
    }

    #[test]
    fn colors_go_and_other_escapes_are_shown() {
        let shown = |last: &str| line("a", last).text(120, 0);
        assert_eq!(shown("\u{1b}[1;32mok\u{1b}[0m done\u{1b}[K"), "a  exec 12.1 s  ok done");
        assert_eq!(shown("\u{1b}[2J\u{1b}]0;x\u{7}"), "a  exec 12.1 s  \\x1b[2J\\x1b]0;x\\x07");
        assert_eq!(shown("\u{202e}cod\u{9b}31m"), "a  exec 12.1 s  \\u{202e}cod\\x9b31m");
        assert_eq!(shown("\u{1b}["), "a  exec 12.1 s  \\x1b[");
        let name = line("n\u{1b}[2K", "").text(120, 0);
        assert_eq!(name, "n\\x1b[2K  exec 12.1 s");
    }

    #[test]
    fn what_has_no_line_is_counted_in_the_last() {
        let lines: Vec<TaskLine> = (0..5).map(|n| line(&format!("t{n}"), "")).collect();
        assert_eq!(fitted(&lines, 80, 5).len(), 5);
        let few = fitted(&lines, 80, 3);
        assert_eq!(few, ["t0  exec 12.1 s", "t1  exec 12.1 s", "and 3 running"]);
        assert_eq!(fitted(&lines, 80, 1), ["and 5 running"]);
        assert_eq!(fitted(&[], 80, 1), [""; 0]);
    }
}
