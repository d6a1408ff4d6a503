//! The last line that each task wrote, of whatever came so far.

use std::collections::BTreeMap;

/// Bytes of a line that are kept: no terminal shows more of it.
const MAX_LINE: usize = 1024;
/// Tasks whose lines are kept: more are not on one screen.
const MAX_TASKS: usize = 20_000;

/// By the attempt's key.
#[derive(Debug, Default)]
pub(crate) struct LastLines(BTreeMap<String, OpenLines>);

#[derive(Debug, Default)]
struct OpenLines {
    stdout: String,
    stderr: String,
    last: String,
}

impl LastLines {
    /// Takes the next text of a task's stream.
    pub(crate) fn push(&mut self, task: &str, stream: &str, text: &str) {
        if self.0.len() >= MAX_TASKS && !self.0.contains_key(task) {
            return;
        }
        let OpenLines { stdout, stderr, last } = self.0.entry(task.to_owned()).or_default();
        let pending = if stream == "stderr" { stderr } else { stdout };
        for piece in text.split_inclusive(['\n', '\r']) {
            let part = piece.trim_end_matches(['\n', '\r']);
            append(pending, part);
            if !pending.trim().is_empty() {
                last.clone_from(pending);
            }
            if part.len() < piece.len() {
                pending.clear();
            }
        }
    }

    /// The last line with text in it; empty where there is none.
    pub(crate) fn of(&self, task: &str) -> &str {
        self.0.get(task).map_or("", |text| text.last.trim())
    }
}

/// As much of it as a line has space for, whole characters.
fn append(line: &mut String, part: &str) {
    let space = MAX_LINE.saturating_sub(line.len());
    let fits = |(at, c): &(usize, char)| at.saturating_add(c.len_utf8()) <= space;
    line.extend(part.char_indices().take_while(fits).map(|(_, c)| c));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(chunks: &[&str]) -> String {
        let mut lines = LastLines::default();
        chunks.iter().for_each(|chunk| lines.push("a", "stdout", chunk));
        lines.of("a").to_owned()
    }

    #[test]
    fn the_last_line_is_the_newest_with_text_in_it() {
        assert_eq!(last(&["one\ntw", "o"]), "two");
        assert_eq!(last(&["one\n\n  \n"]), "one", "an empty line says nothing");
        assert_eq!(last(&["10 %\r20 %\r", "30 %"]), "30 %", "a bar that is drawn again and again");
        assert_eq!(last(&[]), "");
        let mut both = LastLines::default();
        both.push("a", "stdout", "half");
        both.push("a", "stderr", "warned\n");
        both.push("a", "stdout", " and half\n");
        assert_eq!(both.of("a"), "half and half");
    }

    #[test]
    fn a_line_without_an_end_has_a_bound() {
        let long = "ö".repeat(MAX_LINE);
        assert_eq!(last(&[&long, "more"]).len(), MAX_LINE);
    }
}
