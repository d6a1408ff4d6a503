//! Which file of a crate imports from which, and which of them import each other in a circle.
//!
//! An arrow leads from a file to the file that has what it names: by `use`, by a path in the code, a macro or an attribute, through
//! re-exports. What a file gives on of its children is an arrow only where the file uses it, too. A method of a value that
//! another file handed over is none. Tests are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::source::{Import, Path, Source};
use super::{ARROWS, sources};

/// Files that only tests have, and the door of a program.
pub(super) const TESTS: [&str; 5] = ["tests.rs", "fuzz.rs", "forged.rs", "fake.rs", "main.rs"];
/// Re-exports that lead to each other.
const MAX_HOPS: usize = 6;

/// The file that is the crate itself.
pub(super) const ROOT: &str = "lib.rs";

/// A crate's files as they are read.
struct Crate {
    files: BTreeMap<String, Source>,
    /// Every module, and the file that has it.
    modules: BTreeMap<Path, String>,
}

impl Crate {
    fn read(texts: &[(String, String)]) -> Self {
        let (mut files, mut modules) = (BTreeMap::new(), BTreeMap::new());
        for (name, text) in texts {
            let module = name.trim_end_matches(".rs").trim_end_matches("/mod");
            let module: Path = match name.as_str() {
                ROOT => Vec::new(),
                _ => module.split('/').map(str::to_owned).collect(),
            };
            let source = Source::read(text, module.clone());
            for inline in &source.inline {
                modules.insert(inline.clone(), name.clone());
            }
            modules.insert(module, name.clone());
            files.insert(name.clone(), source);
        }
        Self { files, modules }
    }

    /// A path as a module writes it, from the crate's root; `None` where it leads out of the crate.
    fn absolute(&self, file: &str, at: &[String], path: &[String], hops: usize) -> Option<Path> {
        let first = path.first()?;
        let ups = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match first.as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (at, &path[1..]),
            "super" => (at.get(..at.len().checked_sub(ups)?)?, &path[ups..]),
            // A name alone is a variable, whatever module is called so.
            _ if path.len() > 1 && self.modules.contains_key(&[at, &path[..1]].concat()) => {
                (at, path)
            }
            _ => return self.imported(file, at, path, hops),
        };
        Some([base, rest].concat())
    }

    /// A path that begins with a name which its file imports, by itself or with all of a module.
    fn imported(&self, file: &str, at: &[String], path: &[String], hops: usize) -> Option<Path> {
        let imports = self.files[file].imports.iter().filter(|i| i.at == at && hops > 0);
        let (all, named): (Vec<_>, Vec<_>) = imports.partition(|i| i.name == "*");
        if let Some(import) = named.iter().find(|i| i.name == path[0]) {
            // `use serde;`: the name would lead to itself.
            let is_itself = import.path.first() == path.first();
            let place =
                if is_itself { None } else { self.absolute(file, at, &import.path, hops - 1) };
            return Some([place?, path[1..].to_vec()].concat());
        }
        all.iter().find_map(|import| {
            let place = [self.absolute(file, at, &import.path, hops - 1)?, path.to_vec()].concat();
            let found = self.file_of(&place, hops - 1)?;
            self.files[found].defined.contains(&path[0]).then_some(place)
        })
    }

    /// The file that has what a path names: the one that defines it, where others give it on.
    fn file_of(&self, place: &[String], hops: usize) -> Option<&String> {
        let longest =
            (0..=place.len()).rev().find(|length| self.modules.contains_key(&place[..*length]))?;
        let (module, file) = (&place[..longest], &self.modules[&place[..longest]]);
        let Some(name) = place.get(longest) else { return Some(file) };
        let source = &self.files[file];
        if hops == 0 || source.defined.contains(name) {
            return Some(file);
        }
        let given =
            source.imports.iter().filter(|i| i.at == module && (i.name == *name || i.name == "*"));
        for import in given {
            let Some(mut to) = self.absolute(file, module, &import.path, hops) else { continue };
            let rest = if import.name == "*" { longest } else { longest + 1 };
            to.extend_from_slice(&place[rest..]);
            let Some(found) = self.file_of(&to, hops - 1) else { continue };
            if import.name != "*" || self.files[found].defined.contains(name) {
                return Some(found);
            }
        }
        Some(file)
    }

    fn arrows_of(&self, name: &str, source: &Source) -> BTreeSet<String> {
        let is_used = |name: &str| {
            source.paths.iter().any(|(_, path)| path.first().is_some_and(|first| first == name))
        };
        // A parent that gives a child's name on needs the child no more than its readers do.
        let is_of_child = |import: &Import| {
            let place = self.absolute(name, &import.at, &import.path, MAX_HOPS);
            place
                .is_some_and(|place| place.len() > import.at.len() && place.starts_with(&import.at))
        };
        let imports =
            source.imports.iter().filter(|i| !i.is_given_on || is_used(&i.name) || !is_of_child(i));
        let said = imports
            .map(|i| (&i.at, &i.path))
            .chain(source.paths.iter().map(|(at, path)| (at, path)));
        let places = said.filter_map(|(at, path)| self.absolute(name, at, path, MAX_HOPS));
        let files = places.filter_map(|place| self.file_of(&place, MAX_HOPS));
        files.filter(|file| *file != name).cloned().collect()
    }
}

/// From each of a crate's files, by their paths below `src/`, the files that it imports from.
pub(super) fn arrows_between(texts: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let read = Crate::read(texts);
    read.files.iter().map(|(name, source)| (name.clone(), read.arrows_of(name, source))).collect()
}

/// The files below a crate's `src/`, and from each the files that it imports from: read once for all laws.
pub(super) fn arrows(name: &str) -> &'static BTreeMap<String, BTreeSet<String>> {
    static ALL: LazyLock<BTreeMap<&str, BTreeMap<String, BTreeSet<String>>>> =
        LazyLock::new(|| ARROWS.iter().map(|(name, _)| (*name, read(name))).collect());
    &ALL[name]
}

fn read(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let dir = &format!("crates/{name}/src/");
    let texts = sources(&[dir.trim_end_matches('/')]).into_iter();
    let below = texts.map(|(name, text)| (name.strip_prefix(dir).unwrap().to_owned(), text));
    let is_looked_at = |name: &str| {
        let is_tests = |part: &str| TESTS.contains(&part) || part == "tests";
        !name.split('/').any(is_tests)
    };
    let looked_at: Vec<(String, String)> = below.filter(|(name, _)| is_looked_at(name)).collect();
    arrows_between(&looked_at)
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
