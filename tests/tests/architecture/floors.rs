//! What holds inside a crate: modules import downwards, and failures are told apart by their types.

use std::collections::{BTreeMap, BTreeSet};

use super::arrows::circles;
use super::sources;

/// Code that decides by what a message says, with how often and why it may.
const READERS_OF_MESSAGES: &[(&str, usize, &str)] = &[(
    "crates/cli/src/command/exec.rs",
    2,
    "a hint to a person: the contract has no code for a program that was not found",
)];

/// What a message is called where one is at hand, and what asks it something.
const MESSAGES: [&str; 8] =
    ["message", "why", "cause", "reason", "error", "err", "e", "to_string()"];
const ASKS: [&str; 4] = [".contains(\"", ".starts_with(\"", ".ends_with(\"", ".contains(LATER"];

/// A failure is told apart by its type or its code. A text is for people: it is reworded, and a tenant may
/// have written a part of it.
#[test]
fn nothing_is_classified_by_the_text_of_a_message() {
    for (name, text) in sources(&["crates"]) {
        if !name.contains("/src/") || name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let asked = |line: &&str| {
            let head = |ask: &&str| line.split_once(*ask).map(|(head, _)| head);
            ASKS.iter().filter_map(head).any(|head| {
                let whole = |rest: &str| !rest.ends_with(|c: char| c.is_alphanumeric() || c == '_');
                MESSAGES.iter().filter_map(|name| head.strip_suffix(name)).any(whole)
            })
        };
        let found: Vec<&str> = code.lines().filter(asked).collect();
        let may = READERS_OF_MESSAGES
            .iter()
            .find(|(file, ..)| *file == name)
            .map_or(0, |(_, count, _)| *count);
        assert!(found.len() <= may, "{name} reads messages: {found:#?}");
    }
}

/// The modules of a crate that a module imports, its own and its tests' left out.
fn imports(code: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(list) = after.strip_prefix('{') else {
            found.insert(word(after));
            continue;
        };
        let mut depth = 0_i32;
        let mut names = vec![word(list)];
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => names.push(word(&list[at + 1..])),
                _ => {}
            }
        }
        found.extend(names);
    }
    found.retain(|name| modules.contains(name));
    found
}

/// The arrows between the modules at the top of a crate, comments and tests left out.
fn arrows_of(dir: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut code: BTreeMap<String, String> = BTreeMap::new();
    for (name, text) in sources(&[dir]) {
        let below = name.strip_prefix(dir).unwrap().trim_start_matches('/');
        let module = below.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        let text = text.split("#[cfg(test)]").next().unwrap();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let all = code.entry(module).or_default();
        lines.for_each(|line| {
            all.push_str(line);
            all.push('\n');
        });
    }
    code.remove("lib");
    let modules: BTreeSet<String> = code.keys().cloned().collect();
    let arrow = |(module, code): (&String, &String)| {
        let mut to = imports(code, &modules);
        to.remove(module);
        (module.clone(), to)
    };
    code.iter().map(arrow).collect()
}

/// So each module can be read after those below it. A name that two modules need lies below both.
#[test]
fn the_modules_of_flows_import_only_downwards() {
    let arrows = arrows_of("crates/flows/src");
    assert!(arrows.values().map(BTreeSet::len).sum::<usize>() > 50, "the arrows are found");
    let modules = |arrows| circles(arrows).into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(modules(&arrows), Vec::<String>::new(), "these reach themselves again");
    let of = |text: &str| imports(text, &["a", "b"].map(str::to_owned).into());
    assert_eq!(of("use crate::{Flows, a::{X, Y}, b};").len(), 2, "a list is read");
    let up: BTreeMap<String, BTreeSet<String>> =
        [("a", "b"), ("b", "a")].map(|(from, to)| (from.to_owned(), [to.to_owned()].into())).into();
    assert_eq!(modules(&up), ["a", "b"], "a circle is seen");
}
