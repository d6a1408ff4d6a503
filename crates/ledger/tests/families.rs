//! The ledger stays a list of families that a reader can hold in mind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Public methods of one family: about a screen of names.
const MOST: usize = 25;

fn count(dir: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count(&path, found);
            continue;
        }
        let mut family = None;
        for line in fs::read_to_string(&path).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("impl ") {
                let name = rest.trim_end_matches(" {").trim_end_matches("<'_>");
                family = (rest.ends_with("<'_> {") || name == "Ledger").then(|| name.to_owned());
            } else if line == "}" {
                family = None;
            } else if let Some(family) = &family
                && ["    pub fn ", "    pub async fn "].iter().any(|start| line.starts_with(start))
            {
                *found.entry(family.clone()).or_default() += 1;
            }
        }
    }
}

#[test]
fn no_family_of_the_ledger_has_more_methods_than_a_reader_holds() {
    let mut found = BTreeMap::new();
    count(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(
        found.len() > 15 && found.contains_key("Gates") && found.contains_key("Ledger"),
        "{found:?}"
    );
    let large: Vec<_> = found.iter().filter(|(_, methods)| **methods > MOST).collect();
    assert!(large.is_empty(), "{large:?}");
}
