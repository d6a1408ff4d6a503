//! One noun per concept: a type's name says one thing in a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::source::product;
use super::sources;

/// Names that a crate defines more than once: (crate, name, why). The list only shrinks.
const TWICE: &[(&str, &str, &str)] = &[
    ("contracts", "Violation", "of a schema, and of an egress list: both fields call it so"),
    ("guest", "Result", RESULT),
    ("guest", "Watch", "the request that names directories, and the guard of a jail"),
    ("sandbox", "Result", RESULT),
];

const RESULT: &str = "a module's result with its own error, as in the standard library";

/// The types that a source file defines at its own level, or in a macro there; tests aside.
fn defined(text: &str) -> Vec<String> {
    let code = product(text);
    let name = |line: &str| {
        let inner = line.strip_prefix("    ");
        let line = inner.unwrap_or(line);
        let public = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ").map(|(_, rest)| rest),
            Some(rest) => rest.strip_prefix(' '),
            None => None,
        };
        let rest = match (public, inner) {
            (Some(rest), _) => rest,
            (None, None) => line,
            (None, Some(_)) => return None,
        };
        let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
        let kind = kinds.iter().find(|kind| rest.starts_with(**kind))?;
        // An associated type is its trait's noun.
        if *kind == "type " && inner.is_some() {
            return None;
        }
        let rest = rest.strip_prefix(kind)?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest.get(..end).map(str::to_owned)
    };
    code.lines().filter_map(name).collect()
}

fn twice() -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources(&["crates"]) {
        let mut parts = path.split('/').skip(1);
        let (Some(krate), Some("src")) = (parts.next(), parts.next()) else { continue };
        let file = path.rsplit('/').next().unwrap_or_default();
        if ["tests.rs", "fuzz.rs"].contains(&file) {
            continue;
        }
        for name in defined(&text) {
            found.entry((krate.to_owned(), name)).or_default().insert(path.clone());
        }
    }
    found.retain(|_, files| files.len() > 1);
    found
}

#[test]
fn no_type_name_is_defined_twice_in_a_crate() {
    let found = twice();
    let known = |(krate, name): &(String, String)| {
        TWICE.iter().any(|(at, of, _)| (*at, *of) == (krate.as_str(), name.as_str()))
    };
    let new: Vec<_> = found.iter().filter(|(what, _)| !known(what)).collect();
    assert!(new.is_empty(), "a second type of the same name; name it by what it is: {new:#?}");
    let gone: Vec<_> = TWICE
        .iter()
        .filter(|(krate, name, _)| !found.contains_key(&((*krate).to_owned(), (*name).to_owned())))
        .collect();
    assert!(gone.is_empty(), "defined once by now; take these lines out of TWICE: {gone:#?}");
}

#[test]
fn definitions_are_found_where_they_are() {
    let text = "pub struct A(u8);\nenum B {\n}\npub(crate) trait C {\n    type D;\n}\nnamed! {\n    pub enum E {\n    }\n}\n\
                fn f() {\n    struct Local;\n}\n#[cfg(test)]\nmod tests {\n    pub struct T;\n}\n";
    assert_eq!(defined(text), ["A", "B", "C", "E"]);
}
