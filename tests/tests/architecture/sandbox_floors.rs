//! The floors of `crates/sandbox/src`: a folder imports only from the floors below it, and files that import each
//! other in a circle are few.
//!
//! An arrow leads from a file to the file that has what it imports (`use`, or a path in the code), through
//! re-exports. A file's own tests are not looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::sources;

const CRATE: &str = "crates/sandbox/src/";
/// The lowest first.
const FLOORS: [&str; 13] = [
    "host", "agent", "oci", "egress", "images", "spec", "cache", "class", "plan", "life", "build",
    "template", "doctor",
];
/// Files that may import each other in a circle: such as two halves of one thing and what both are made of.
const MAX_CIRCLE: usize = 3;
/// Where a class has its name, besides its folder and the registry: files, how often, and why.
const NAMED: &[(&str, usize, &str)] = &[
    ("doctor/escape/mod.rs", 5, "what another kernel answers in other words, by class"),
    ("doctor/escape/again.rs", 7, "in which class the files of a second life are made"),
    ("life/host/mod.rs", 1, "`doctor` looks for an engine that no worker asked for"),
    ("life/reached.rs", 1, "which limits the words of a record's class stand for"),
];
/// Files that only tests have.
const TESTS: [&str; 5] = ["tests.rs", "fuzz.rs", "forged.rs", "fake.rs", "lib.rs"];
/// Re-exports that lead to each other.
const MAX_HOPS: usize = 6;

/// A path of modules, from the crate's root.
type Path = Vec<String>;

/// A source file as others see it.
struct Source {
    /// The module that it is.
    module: Path,
    /// Its code, without comments and tests.
    code: String,
    /// What it gives on: the name, and where that really is.
    given_on: BTreeMap<String, Path>,
}

fn without_tests(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| line.split(" // ").next().unwrap_or(line))
        .collect();
    let is_tests = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].contains("mod tests") && pair[1].ends_with('{')
    };
    let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// The paths of one `use`: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn flat(tree: &str, before: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        if !path.is_empty() {
            found.push(format!("{before}{path}"));
        }
        return;
    };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start) = (0, 0);
    for (at, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                flat(&inner[start..at], &format!("{before}{head}"), found);
                start = at + 1;
            }
            _ => {}
        }
    }
    flat(&inner[start..], &format!("{before}{head}"), found);
}

/// Every `use` of some code: whether it gives on, and its paths.
fn uses(code: &str) -> Vec<(bool, Vec<String>)> {
    let statements = code.split(';').filter_map(|statement| {
        let line_begin = statement.rfind("use ")?;
        let (before, tree) = statement.split_at(line_begin);
        let visible = before.rsplit('\n').next().unwrap_or_default().trim();
        let is_use = visible.is_empty() || visible == "pub" || visible.starts_with("pub(");
        let mut paths = Vec::new();
        flat(tree.trim_start_matches("use "), "", &mut paths);
        is_use.then_some((!visible.is_empty(), paths))
    });
    statements.collect()
}

/// Paths in the code itself that begin at the crate, a parent or a child.
fn paths(code: &str, children: &BTreeSet<String>) -> Vec<String> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
    let words = code.split(|character: char| !is_part(character));
    let begins = |word: &&str| {
        let first = word.split("::").next().unwrap_or_default();
        word.contains("::") && (["crate", "super"].contains(&first) || children.contains(first))
    };
    words.filter(begins).map(str::to_owned).collect()
}

/// A path as a file writes it, from the crate's root; `None` where it leads out of the crate.
fn absolute(path: &str, module: &Path, children: &BTreeSet<String>) -> Option<Path> {
    let parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    let up = parts.iter().take_while(|part| **part == "super").count();
    let (base, rest) = match *parts.first()? {
        "crate" => (&[][..], &parts[1..]),
        "self" => (&module[..], &parts[1..]),
        "super" => (module.get(..module.len().checked_sub(up)?)?, &parts[up..]),
        first if children.contains(first) => (&module[..], &parts[..]),
        _ => return None,
    };
    let rest = rest.iter().filter(|part| **part != "self").map(|part| (*part).to_owned());
    Some(base.iter().cloned().chain(rest).collect())
}

/// The file that has what a path names.
fn file_of<'a>(
    path: &[String],
    modules: &'a BTreeMap<Path, String>,
    all: &BTreeMap<String, Source>,
    hops: usize,
) -> Option<&'a String> {
    let longest = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let file = &modules[&path[..longest]];
    let given_on = path.get(longest).and_then(|name| all[file].given_on.get(name));
    match given_on {
        Some(place) if hops > 0 => {
            let place = [place, &path[longest + 1..]].concat();
            file_of(&place, modules, all, hops - 1).or(Some(file))
        }
        _ => Some(file),
    }
}

/// The files of the crate, and from each the files that it imports from.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    let mut modules: BTreeMap<Path, String> = BTreeMap::new();
    for (name, text) in sources(&[CRATE.trim_end_matches('/')]) {
        let name = name.strip_prefix(CRATE).unwrap().to_owned();
        if TESTS.contains(&name.rsplit('/').next().unwrap()) {
            continue;
        }
        let module = name.trim_end_matches(".rs").trim_end_matches("/mod");
        let module: Path = module.split('/').map(str::to_owned).collect();
        modules.insert(module.clone(), name.clone());
        let code = without_tests(&text);
        all.insert(name, Source { module, code, given_on: BTreeMap::new() });
    }
    let children_of = |module: &Path| -> BTreeSet<String> {
        let below = modules.keys().filter(|other| other.len() == module.len() + 1);
        below.filter(|other| other.starts_with(module)).map(|m| m.last().unwrap().clone()).collect()
    };
    for source in all.values_mut() {
        let children = children_of(&source.module);
        for path in uses(&source.code).into_iter().filter(|(visible, _)| *visible).flat_map(|u| u.1)
        {
            if let Some(place) = absolute(&path, &source.module, &children) {
                source.given_on.insert(place.last().unwrap().clone(), place);
            }
        }
    }
    let from = |(name, source): (&String, &Source)| {
        let children = children_of(&source.module);
        let imported = uses(&source.code).into_iter().filter(|(visible, _)| !visible);
        let mut said: Vec<String> = imported.flat_map(|(_, paths)| paths).collect();
        let code: String = source.code.split(';').filter(|s| !s.contains("use ")).collect();
        said.extend(paths(&code, &children));
        let places = said.iter().filter_map(|path| absolute(path, &source.module, &children));
        let files = places.filter_map(|place| file_of(&place, &modules, &all, MAX_HOPS).cloned());
        (name.clone(), files.filter(|file| file != name).collect())
    };
    all.iter().map(from).collect()
}

fn floor(file: &str) -> usize {
    let folder = file.split('/').next().unwrap();
    let found = FLOORS.iter().position(|floor| *floor == folder);
    found.unwrap_or_else(|| {
        panic!("{file} lies on no floor: a file has a folder, and a folder its floor")
    })
}

#[test]
fn floors_of_the_sandbox_only_look_down() {
    let arrows = arrows();
    let mut between = 0;
    let mut up = Vec::new();
    for (file, others) in &arrows {
        for other in others {
            between += usize::from(floor(file) != floor(other));
            if floor(other) > floor(file) {
                up.push(format!("{file} -> {other}"));
            }
        }
    }
    assert!(between > 200, "only {between} arrows were found: the test does not see them");
    assert!(up.is_empty(), "arrows up: {up:#?}");
}

/// Every file that can be reached from one, over any number of arrows.
fn reached<'a>(
    arrows: &'a BTreeMap<String, BTreeSet<String>>,
    from: &'a String,
) -> BTreeSet<&'a String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        for other in arrows.get(file).into_iter().flatten() {
            if seen.insert(other) {
                open.push(other);
            }
        }
    }
    seen
}

#[test]
fn no_circle_of_the_sandbox_has_more_than_three_files() {
    let arrows = arrows();
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        arrows.keys().map(|file| (file, reached(&arrows, file))).collect();
    for (file, others) in &reach {
        let back = others.iter().filter(|other| reach[*other].contains(file));
        let circle: BTreeSet<&&String> = back.collect();
        assert!(circle.len() <= MAX_CIRCLE, "a circle of {} files: {circle:#?}", circle.len());
    }
}

/// The floors above the classes ask operations: a class more is its folder and its line in the registry.
#[test]
fn a_class_has_its_name_in_its_folder_and_in_the_registry() {
    let classes = ["Container", "Gvisor", "Microvm", "Docker", "Remote", "Sixth"];
    for (name, text) in sources(&[CRATE.trim_end_matches('/')]) {
        let name = name.strip_prefix(CRATE).unwrap();
        let is_tests = TESTS.contains(&name.rsplit('/').next().unwrap());
        if is_tests || name.starts_with("class/") || name == "spec/class.rs" {
            continue;
        }
        let code = without_tests(&text);
        let count = |class: &&str| code.matches(&format!("Class::{class}")).count();
        let found: usize = classes.iter().map(count).sum();
        let may = NAMED.iter().find(|(file, ..)| *file == name).map_or(0, |(_, count, _)| *count);
        assert!(found <= may, "{name} names a class {found} times, {may} are listed with a reason");
    }
}

#[test]
fn the_arrows_are_seen() {
    let mut found = Vec::new();
    flat("crate::a::{self, b::{C, d}, e as f}", "", &mut found);
    assert_eq!(found, ["crate::a::self", "crate::a::b::C", "crate::a::b::d", "crate::a::e"]);
    let arrows = arrows();
    let has = |from: &str, to: &str| arrows[from].contains(to);
    // A `use`, a re-export, a parent's child, and a path in the code.
    assert!(has("life/boot.rs", "life/wipe.rs") && has("life/boot.rs", "egress/mod.rs"));
    assert!(has("build/mod.rs", "life/boot.rs") && has("build/mod.rs", "build/steps.rs"));
    assert!(has("host/idrange/mod.rs", "host/guest.rs"));
}
