//! A table as text, from which a page is made.
//!
//! ```text
//! # Section
//!
//! > What its readers should know.
//!
//! What it is about
//!   what is said of it, which may go on
//!   = a constant or a file
//!   - a test, a proof or a bench
//! ```

/// A part of a page.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Section {
    pub title: String,
    pub about: String,
    pub entries: Vec<Entry>,
}

/// A row of the table.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Entry {
    pub what: String,
    pub says: String,
    /// Where it stands.
    pub at: Vec<String>,
    /// What holds it.
    pub held: Vec<String>,
}

impl Entry {
    fn take(&mut self, line: &str) {
        let rest = line.trim_start();
        match rest.split_once(' ') {
            Some(("=", place)) => self.at.push(place.trim().to_owned()),
            Some(("-", holder)) => self.held.push(holder.trim().to_owned()),
            _ if line.starts_with(' ') => join(&mut self.says, rest),
            _ => join(&mut self.what, rest),
        }
    }
}

fn join(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(more.trim());
}

/// The sections of a table.
///
/// # Panics
/// A row before the first section.
pub(super) fn sections(text: &str) -> Vec<Section> {
    let mut found: Vec<Section> = Vec::new();
    let mut is_open = false;
    for line in text.lines().map(str::trim_end) {
        if let Some(title) = line.strip_prefix("# ") {
            found.push(Section { title: title.to_owned(), ..Section::default() });
            is_open = false;
            continue;
        }
        if line.is_empty() {
            is_open = false;
            continue;
        }
        let section = found.last_mut().expect("a section before the first row");
        if let Some(about) = line.strip_prefix("> ") {
            join(&mut section.about, about);
            continue;
        }
        if !is_open {
            section.entries.push(Entry::default());
            is_open = true;
        }
        section.entries.last_mut().unwrap().take(line);
    }
    found
}

#[test]
fn a_table_is_read_by_its_indentation() {
    let text =
        "# One\n\n> About\n> it.\n\nA\n  says\n  more\n  = a::B\n  - t::u\n\nB\n  - v\n\n# Two\n";
    let found = sections(text);
    assert_eq!((found.len(), found[0].about.as_str()), (2, "About it."));
    let first = &found[0].entries[0];
    assert_eq!((first.what.as_str(), first.says.as_str()), ("A", "says more"));
    assert_eq!((first.at.len(), first.held.as_slice()), (1, &["t::u".to_owned()][..]));
    assert_eq!(found[0].entries[1].held, ["v"]);
}
