//! `docs/reference/promises.md` from `promises.txt`. That the tests, proofs and benches exist is held here and by
//! `architecture::promises_name_tests_and_constants_that_exist`.

use std::fmt::Write as _;

use cofferdam_tests::measurement;

use super::golden::page::{begun, code, link, sentence, wrapped};
use super::text::{Entry, sections};
use super::{WRITES, hold, root};

const TABLE: &str = include_str!("promises.txt");
/// Promises that are too few to be all of them.
const FEWEST: usize = 150;

/// One holder as a page shows it: `proof NAME`, `bench NAME`, a test, or words.
fn holder(text: &str) -> String {
    let kinds = ["proof", "bench"];
    let of_kind = kinds.iter().find_map(|kind| {
        let name = text.strip_prefix(kind)?.strip_prefix(' ')?;
        Some(format!("{kind} {}", code(name)))
    });
    let is_name = !text.contains(' ');
    of_kind.unwrap_or_else(|| if is_name { code(text) } else { text.to_owned() })
}

fn item(entry: &Entry) -> String {
    let what = match entry.says.as_str() {
        "" => format!("**{}**", sentence(&entry.what)),
        says => format!("**{}**: {}", entry.what, sentence(says)),
    };
    let held: Vec<String> = entry.held.iter().map(|one| holder(one)).collect();
    wrapped(&what, "* ", "  ") + &wrapped(&format!("Held by {}.", held.join(", ")), "  ", "  ")
}

fn page() -> String {
    let sections = sections(TABLE);
    let mut page = begun("Promises", WRITES);
    page.push_str(&wrapped(
        "Behaviour that a test holds. Promises with numbers are in [SPECIFICATION.md](../../SPECIFICATION.md); constants are in \
         [bounds.md](bounds.md). A test is named by its file (or directory) and function; a proof is a query of `cofferdam prove`; a bench \
         has its figures in [measurements.md](measurements.md).",
        "",
        "",
    ));
    page.push('\n');
    for section in &sections {
        writeln!(page, "* {}", link(&section.title, &section.title)).unwrap();
    }
    for section in &sections {
        write!(page, "\n## {}\n\n", section.title).unwrap();
        if !section.about.is_empty() {
            page.push_str(&wrapped(&section.about, "", ""));
            page.push('\n');
        }
        page.extend(section.entries.iter().map(item));
    }
    page
}

#[test]
fn promises_md_is_its_table() {
    hold("promises.md", &page());
}

#[test]
fn every_promise_is_held_by_something_that_exists() {
    let benches = measurement::all(&measurement::directory());
    let mut wrong = Vec::new();
    let entries: Vec<Entry> = sections(TABLE).into_iter().flat_map(|one| one.entries).collect();
    for entry in &entries {
        if entry.held.is_empty() {
            wrong.push(format!("{}: held by nothing", entry.what));
        }
        for one in &entry.held {
            if let Some(name) = one.strip_prefix("proof ") {
                let file = root().join(format!("crates/ledger/proofs/{name}.sql"));
                if !file.exists() {
                    wrong.push(format!("{}: no proof {name}", entry.what));
                }
            } else if let Some(name) = one.strip_prefix("bench ")
                && !benches.contains_key(name)
            {
                wrong.push(format!("{}: no bench {name}", entry.what));
            }
        }
    }
    assert!(wrong.is_empty(), "promises.txt: {wrong:#?}");
    assert!(entries.len() >= FEWEST, "only {} promises", entries.len());
}
