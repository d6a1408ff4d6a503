//! `docs/reference/bounds.md` from `bounds.txt`: the values are those of the constants in the sources.

use std::fmt::Write as _;

use super::constants::Constants;
use super::golden::page::{begun, code, link, sentence, wrapped};
use super::text::{Entry, sections};
use super::{WRITES, hold};

const TABLE: &str = include_str!("bounds.txt");
/// What no test reaches yet.
const PENDING: &str = "pending";

/// The tests of a bound, and what none reaches.
fn held(entry: &Entry) -> String {
    let is_pending = |one: &&String| one.starts_with(PENDING);
    let tests: Vec<String> =
        entry.held.iter().filter(|one| !is_pending(one)).map(|one| code(one)).collect();
    let open: Vec<&str> = entry
        .held
        .iter()
        .filter(is_pending)
        .map(|one| one[PENDING.len()..].trim_start_matches(':').trim())
        .collect();
    match (tests.is_empty(), open.as_slice()) {
        (true, []) => "*No test reaches it yet.*".to_owned(),
        (true, open) => format!("*No test reaches it yet*: {}.", open.join("; ")),
        (false, []) => format!("Test: {}.", tests.join(", ")),
        (false, open) => {
            format!("Test: {}. *No test yet*: {}.", tests.join(", "), open.join("; "))
        }
    }
}

fn page() -> Result<String, String> {
    let constants = Constants::read();
    let sections = sections(TABLE);
    let mut page = begun("Bounds", WRITES);
    page.push_str(&wrapped(
        "Every queue, loop, retry, body and payload has a bound. A value here is that of the constant in the code, which says there why it \
         has it; only what SQL, Python or a function decides is written by hand. A test is named by its file (or directory) and function: \
         it exceeds the bound, or comes near it.",
        "",
        "",
    ));
    page.push('\n');
    for section in &sections {
        writeln!(page, "* {}", link(&section.title, &section.title)).map_err(|e| e.to_string())?;
    }
    let mut faults = Vec::new();
    for section in &sections {
        write!(page, "\n## {}\n\n", section.title).map_err(|e| e.to_string())?;
        for entry in &section.entries {
            match constants.filled(&entry.says) {
                Ok(filled) => {
                    let places: Vec<String> =
                        filled.paths.iter().chain(&entry.at).map(|path| code(path)).collect();
                    if places.is_empty() {
                        faults.push(format!("{}: no constant", entry.what));
                    }
                    let item = format!("**{}**: {}", entry.what, sentence(&filled.text));
                    page.push_str(&wrapped(&item, "* ", "  "));
                    page.push_str(&wrapped(
                        &format!("{}. {}", places.join(", "), held(entry)),
                        "  ",
                        "  ",
                    ));
                }
                Err(why) => faults.push(format!("{}: {why}", entry.what)),
            }
        }
    }
    if faults.is_empty() { Ok(page) } else { Err(faults.join("\n")) }
}

#[test]
fn bounds_md_has_the_values_of_the_constants() {
    hold("bounds.md", &page().unwrap_or_else(|faults| panic!("bounds.txt:\n{faults}")));
}

/// A value that was written by hand would differ from its constant one day: where it can be read, it is.
#[test]
fn a_value_is_written_by_hand_only_where_it_cannot_be_read() {
    let constants = Constants::read();
    let mut wrong = Vec::new();
    let is_constant = |path: &&String| {
        let name = path.rsplit("::").next().unwrap_or_default();
        path.contains("::") && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    for entry in sections(TABLE).iter().flat_map(|section| &section.entries) {
        for path in entry.at.iter().filter(is_constant) {
            match constants.value(path) {
                Ok(_) => wrong.push(format!("{}: write {{{path}}} in its value", entry.what)),
                Err(why) if why.contains("no constant") => wrong.push(why),
                Err(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "bounds.txt: {wrong:#?}");
}
