//! The table of `docs/conformance.md`: what each class was seen to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cofferdam_ambient::env;
use cofferdam_sandbox::Class;

use super::{BEHAVIOURS, OK};

/// No run was seen yet.
const UNSEEN: &str = "unseen";
const BEGIN: &str =
    "<!-- conformance: written by sandbox/tests/conformance.rs, UPDATE_GOLDENS=1 -->\n";
const END: &str = "<!-- /conformance -->\n";

/// Each behaviour with what each class was seen to do.
type Table = Vec<(String, BTreeMap<&'static str, String>)>;

fn page() -> (PathBuf, String, String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let text = fs::read_to_string(&path).unwrap();
    let (head, tail) = text.split_once(BEGIN).expect("the begin mark");
    let (table, tail) = tail.split_once(END).expect("the end mark");
    (path, head.to_owned(), table.to_owned(), tail.to_owned())
}

fn parsed(text: &str) -> Table {
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let name = cells.next().unwrap();
        (name, Class::LOCAL.map(Class::as_str).into_iter().zip(cells).collect())
    };
    text.lines().skip(2).map(row).collect()
}

fn printed(table: &Table) -> String {
    let names = Class::LOCAL.map(Class::as_str);
    let mut text =
        format!("| Behaviour | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for (name, cells) in table {
        let cells = names.map(|class| cells.get(class).map_or(UNSEEN, String::as_str));
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    text
}

/// One at a time, whichever classes are being held against it.
static WRITING: Mutex<()> = Mutex::new(());

/// Compares a class' column with what was seen of it just now, or writes what was seen.
pub fn compare(class: Class, seen: &[(&str, &str)]) {
    let _one = WRITING.lock();
    let (path, head, text, tail) = page();
    let old = parsed(&text);
    if env::var("UPDATE_GOLDENS").is_some() {
        let row = |(name, cell): &(&str, &str)| {
            let was = old.iter().find(|(old, _)| old == name);
            let mut cells = was.map(|(_, cells)| cells.clone()).unwrap_or_default();
            cells.insert(class.as_str(), (*cell).to_owned());
            ((*name).to_owned(), cells)
        };
        let table = printed(&seen.iter().map(row).collect());
        fs::write(&path, format!("{head}{BEGIN}{table}{END}{tail}")).unwrap();
        return;
    }
    let column: Vec<(&str, &str)> =
        old.iter().map(|(name, cells)| (name.as_str(), cells[class.as_str()].as_str())).collect();
    assert_eq!(column, seen, "{}: write it anew with UPDATE_GOLDENS=1", class.as_str());
}

/// Its cells are what each class was seen to do when it was written (`behaves_as_listed`, which compares); of a class
/// that this host lacks, only the rows are known.
#[test]
fn b3_the_page_has_a_row_for_every_behaviour_and_no_cell_that_nobody_saw() {
    // Of limits and files of this host, which are most of the list, `remote` has none: see `remote.rs`.
    let (_, _, text, _) = page();
    let table = parsed(&text);
    let names: Vec<&str> = table.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, BEHAVIOURS.map(|(name, _)| name));
    assert_eq!(printed(&table), text, "in the form that it is written in");
    for (name, cells) in &table {
        assert!(cells.values().all(|cell| cell == OK), "{name}: {cells:?}");
    }
}
