//! Pages of `docs/reference`: Markdown that reads as well in a terminal as in a browser.

use std::fmt::Write as _;

/// Columns of a line of text. A row of a table is one line, however long.
const WIDTH: usize = 118;
/// Words that make a list, a heading or a quote where a line begins with them.
const MARKS: [&str; 7] = ["-", "*", "+", "#", "##", ">", "|"];

/// The first lines of a page: its title, and what writes it. `command` is that of `hold_text`.
pub fn begun(title: &str, command: &str) -> String {
    format!("# {title}\n\n<!-- Generated. {command} writes it anew. -->\n\n")
}

/// Code that stays on one line, and what stands for its spaces until the lines are made.
const CODE: usize = 80;
const SPACE: &str = "\u{1}";

/// A paragraph or an item of a list: `first` begins its first line and `rest` the others. Short code is not broken.
pub fn wrapped(text: &str, first: &str, rest: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        1 if part.chars().count() <= CODE => part.replace(' ', SPACE),
        _ => part.to_owned(),
    });
    let held = parts.collect::<Vec<_>>().join("`");
    let mut lines = vec![first.to_owned()];
    let mut is_empty = true;
    for word in held.split_whitespace() {
        let line = lines.last().unwrap();
        let fits = line.chars().count() + 1 + word.chars().count() <= WIDTH;
        if !is_empty && !fits && !MARKS.contains(&word) {
            lines.push(rest.to_owned());
            is_empty = true;
        }
        let line = lines.last_mut().unwrap();
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.join("\n").replace(SPACE, " ") + "\n"
}

/// A table. Empty columns are left out.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let kept: Vec<usize> =
        (0..N).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
    let line = |cells: &[String; N]| {
        let cells: Vec<String> = kept.iter().map(|at| cell(&cells[*at])).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&head.map(str::to_owned));
    writeln!(text, "|{}", "---|".repeat(kept.len())).unwrap();
    text.extend(rows.iter().map(line));
    text
}

/// What one cell of a table may hold.
fn cell(text: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    flat.replace("\\|", "|").replace('|', "\\|")
}

/// Text as a page shows it: what Markdown would read as markup stands for itself. Code stays as it is.
pub fn plain(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.replace('<', "\\<").replace('*', "\\*"),
        _ => format!("`{part}`"),
    });
    parts.collect()
}

/// Code within a line.
pub fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A heading's name in links.
pub fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// A link to a heading of the same page, with this text.
pub fn link(text: &str, title: &str) -> String {
    format!("[{text}](#{})", anchor(title))
}

/// A text that is a sentence, with its full stop.
pub fn sentence(text: &str) -> String {
    let text = text.trim();
    let ends = text.is_empty() || text.ends_with(['.', '!', '?', ':']);
    if ends { text.to_owned() } else { format!("{text}.") }
}
