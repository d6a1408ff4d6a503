//! Which file of a crate imports from which, and which of them import each other in a circle.
//!
//! An arrow leads from a file to the file that has what it imports (`use`, or a path in the code), through
//! re-exports. A file's own tests are not looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::sources;

/// Files that only tests have.
pub(super) const TESTS: [&str; 6] =
    ["tests.rs", "fuzz.rs", "forged.rs", "fake.rs", "lib.rs", "main.rs"];
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

pub(super) fn without_tests(text: &str) -> String {
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
pub(super) fn flat(tree: &str, before: &str, found: &mut Vec<String>) {
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

/// The files below a crate's `src/`, and from each the files that it imports from.
pub(super) fn arrows(dir: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    let mut modules: BTreeMap<Path, String> = BTreeMap::new();
    for (name, text) in sources(&[dir.trim_end_matches('/')]) {
        let name = name.strip_prefix(dir).unwrap().to_owned();
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

/// The circles of some files: each file that reaches itself again with all that lie on its way, the largest first.
pub(super) fn circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        arrows.keys().map(|file| (file, reached(arrows, file))).collect();
    let mut found: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for (file, others) in &reach {
        let back = others.iter().filter(|other| reach[*other].contains(file));
        let circle: BTreeSet<String> = back.map(|other| (*other).clone()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    let mut found: Vec<BTreeSet<String>> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}
