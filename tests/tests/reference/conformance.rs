//! `docs/reference/conformance.md` from `conformance.txt` and from what the classes were seen to do
//! (`crates/sandbox/tests/conformance/seen.json`, which the list itself compares and writes).

use std::fmt::Write as _;
use std::fs;

use cofferdam_sandbox::Class;
use serde_json::Value;

use super::golden::page::{begun, code, link, sentence, table, wrapped};
use super::text::{Section, sections};
use super::{WRITES, hold, root};

const TABLE: &str = include_str!("conformance.txt");
/// The section of what was seen.
const SEEN: &str = "Behaviours";
/// The section whose rows are cells.
const SUITES: &str = "Suites of other projects";
const UNSEEN: &str = "unseen";

fn seen() -> String {
    let path = root().join("crates/sandbox/tests/conformance/seen.json");
    let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let classes = Class::LOCAL.map(Class::as_str);
    let mut text = format!(
        "| Behaviour | {} |\n|---|{}\n",
        classes.map(code).join(" | "),
        "---|".repeat(classes.len())
    );
    for row in rows {
        let cells = classes.map(|class| row["seen"][class].as_str().unwrap_or(UNSEEN));
        let name = row["behaviour"].as_str().unwrap();
        writeln!(text, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    text
}

fn suites(section: &Section) -> String {
    let rows: Vec<[String; 4]> = section
        .entries
        .iter()
        .map(|entry| {
            let mut cells = entry.says.split(" | ").map(str::to_owned);
            let mut next = || cells.next().unwrap_or_default();
            [entry.what.clone(), next(), next(), next()]
        })
        .collect();
    table(["Suite", "Outside", "Inside", "What differs"], &rows)
}

fn page() -> String {
    let sections = sections(TABLE);
    let mut page = begun("Conformance of the isolation classes", WRITES);
    page.push_str(&wrapped(
        "One list of behaviours is held against every isolation class that a host has.",
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
        match section.title.as_str() {
            SEEN => page.push_str(&seen()),
            SUITES => page.push_str(&suites(section)),
            _ => page.extend(section.entries.iter().map(|entry| {
                let held: Vec<String> = entry.held.iter().map(|one| code(one)).collect();
                let held =
                    if held.is_empty() { String::new() } else { format!(" {}.", held.join(", ")) };
                wrapped(&format!("**{}**: {}{held}", entry.what, sentence(&entry.says)), "* ", "  ")
            })),
        }
    }
    page
}

#[test]
fn conformance_md_is_what_the_classes_were_seen_to_do() {
    hold("conformance.md", &page());
}
