//! `seen.json`: what each class was seen to do. `docs/reference/conformance.md` is made from it (`reference::conformance`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cofferdam_ambient::env;
use cofferdam_sandbox::Class;
use serde_json::{Value, json};

use super::{BEHAVIOURS, OK};

/// Each behaviour with what each class was seen to do.
type Table = Vec<(String, BTreeMap<String, String>)>;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/seen.json")
}

fn parsed(text: &str) -> Table {
    let rows: Vec<Value> = serde_json::from_str(text).unwrap();
    let row = |row: &Value| {
        let cells = serde_json::from_value(row["seen"].clone()).unwrap();
        (row["behaviour"].as_str().unwrap().to_owned(), cells)
    };
    rows.iter().map(row).collect()
}

fn printed(table: &Table) -> String {
    let row = |(name, cells): &(String, BTreeMap<String, String>)| json!({"behaviour": name, "seen": cells});
    let rows: Vec<Value> = table.iter().map(row).collect();
    format!("{:#}\n", Value::from(rows))
}

/// One at a time, whichever classes are being held against it.
static WRITING: Mutex<()> = Mutex::new(());

/// Compares a class' column with what was seen of it just now, or writes what was seen.
pub fn compare(class: Class, seen: &[(&str, &str)]) {
    let _one = WRITING.lock();
    let old = parsed(&fs::read_to_string(path()).unwrap());
    if env::var("UPDATE_GOLDENS").is_some() {
        let row = |(name, cell): &(&str, &str)| {
            let was = old.iter().find(|(old, _)| old == name);
            let mut cells = was.map(|(_, cells)| cells.clone()).unwrap_or_default();
            cells.insert(class.as_str().to_owned(), (*cell).to_owned());
            ((*name).to_owned(), cells)
        };
        fs::write(path(), printed(&seen.iter().map(row).collect())).unwrap();
        return;
    }
    let column: Vec<(&str, &str)> =
        old.iter().map(|(name, cells)| (name.as_str(), cells[class.as_str()].as_str())).collect();
    assert_eq!(column, seen, "{}: write it anew with UPDATE_GOLDENS=1", class.as_str());
}

/// Its cells are what each class was seen to do when it was written (`behaves_as_listed`, which compares); of a class
/// that this host lacks, only the rows are known.
#[test]
fn b3_the_table_has_a_row_for_every_behaviour_and_no_cell_that_nobody_saw() {
    // Of limits and files of this host, which are most of the list, `remote` has none: see `remote.rs`.
    let text = fs::read_to_string(path()).unwrap();
    let table = parsed(&text);
    let names: Vec<&str> = table.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, BEHAVIOURS.map(|(name, _)| name));
    assert_eq!(printed(&table), text, "in the form that it is written in");
    for (name, cells) in &table {
        assert!(cells.values().all(|cell| cell == OK), "{name}: {cells:?}");
        assert_eq!(cells.len(), Class::LOCAL.len(), "{name}: {cells:?}");
    }
}
