//! The floors that each crate draws on its first page: what stands there imports only from the floors below.
//!
//! A line of the drawing is a floor, the lowest one last; an indented line goes on with it. It names modules, or parts of one
//! whose floors differ (`patch::path`). What imports each other in a circle stands on one line; how many files that may be is a
//! law of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::arrows::{ROOT, arrows, arrows_between, circles};
use super::{ARROWS, root};

/// A crate's first page, and the directory below `src/` whose files it draws.
fn first_page(name: &str) -> (&'static str, &'static str) {
    match name {
        // A program: its main only calls this.
        "cli" => ("command/mod.rs", "command/"),
        _ => (ROOT, ""),
    }
}

/// The floors of a drawing, the highest first.
fn drawn(page: &str) -> Vec<Vec<String>> {
    let lines = page
        .lines()
        .skip_while(|line| *line != "//! # Floors")
        .map_while(|line| line.strip_prefix("//!"));
    let drawing = lines
        .skip_while(|line| !line.contains("```"))
        .skip(1)
        .take_while(|line| !line.contains("```"));
    let mut floors: Vec<Vec<String>> = Vec::new();
    for line in drawing {
        let entries = line.split_whitespace().map(str::to_owned);
        match floors.last_mut() {
            Some(floor) if line.starts_with("  ") => floor.extend(entries),
            _ => floors.push(entries.collect()),
        }
    }
    floors
}

/// The entry of a drawing that a file belongs to: the longest that it lies in.
fn entry<'a>(file: &str, floors: &'a [Vec<String>]) -> Option<&'a String> {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    let is_in = |entry: &&String| {
        module
            .strip_prefix(entry.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    floors.iter().flatten().filter(is_in).max_by_key(|entry| entry.len())
}

/// What is wrong with a drawing, beside the arrows between a crate's files.
fn faults(floors: &[Vec<String>], arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut between: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // What the first page itself defines is the crate's own: it is drawn where it is a part of the picture.
    let is_drawn = |file: &String| ![ROOT, "mod.rs"].contains(&file.as_str());
    for (file, others) in arrows.iter().filter(|(file, _)| is_drawn(file)) {
        let Some(from) = entry(file, floors) else {
            wrong.push(format!("{file} is not drawn"));
            continue;
        };
        let to =
            others.iter().filter(|other| is_drawn(other)).filter_map(|other| entry(other, floors));
        between.entry(from.clone()).or_default().extend(to.filter(|to| *to != from).cloned());
    }
    let floor = |entry: &String| floors.iter().position(|floor| floor.contains(entry));
    let circles = circles(&between);
    for (from, to) in between.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
        let is_circle = circles.iter().any(|circle| circle.contains(from) && circle.contains(to));
        if floor(from) > floor(to) || (floor(from) == floor(to) && !is_circle) {
            wrong.push(format!("{from} imports from {to}, which is not below it"));
        }
    }
    let drawn = floors.iter().flatten();
    wrong.extend(
        drawn
            .filter(|entry| !between.contains_key(*entry))
            .map(|entry| format!("{entry} has no file")),
    );
    let (all, each) =
        (floors.iter().flatten().count(), floors.iter().flatten().collect::<BTreeSet<_>>().len());
    if all != each {
        wrong.push("something is drawn twice".to_owned());
    }
    wrong
}

#[test]
fn every_crate_draws_its_floors_and_imports_only_downwards() {
    let (mut wrong, mut all) = (Vec::new(), 0);
    for (name, _) in ARROWS {
        let (page, room) = first_page(name);
        let page = fs::read_to_string(root().join(format!("crates/{name}/src/{page}"))).unwrap();
        let found = arrows(name);
        all += found.values().map(BTreeSet::len).sum::<usize>();
        let below = |file: &String| file.strip_prefix(room).map(str::to_owned);
        let drawn_ones = found.iter().filter_map(|(file, others)| {
            Some((below(file)?, others.iter().filter_map(below).collect()))
        });
        let found = faults(&drawn(&page), &drawn_ones.collect());
        wrong.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(all > 2_500, "only {all} arrows were found: the test does not see them");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_drawing_is_held_against_the_files() {
    let files = |texts: &[(&str, &str)]| -> Vec<(String, String)> {
        texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    let of =
        |page: &str, texts: &[(&str, &str)]| faults(&drawn(page), &arrows_between(&files(texts)));
    let two =
        [("a.rs", "use crate::b::B;"), ("b.rs", "pub struct B;"), ("lib.rs", "mod a;\nmod b;")];
    let page = "//! C.\n//!\n//! # Floors\n//! ```text\n//! a\n//! b\n//! ```\n";
    assert_eq!(of(page, &two), Vec::<String>::new());
    assert_eq!(
        of(&page.replace("a\n//! b", "b\n//! a"), &two),
        ["a imports from b, which is not below it"]
    );
    let one = page.replace("a\n//! b", "a\n//!   b");
    assert_eq!(of(&one, &two), ["a imports from b, which is not below it"], "one floor");
    assert_eq!(of(&page.replace("a\n", "a c\n"), &two), ["c has no file"]);
    assert_eq!(of(&page.replace("//! a\n", ""), &two), ["a.rs is not drawn"]);
    assert_eq!(of(&page.replace("a\n", "a b\n"), &two).len(), 2, "twice");
    let room = [
        ("a/mod.rs", "pub mod low;\nuse crate::b::B;"),
        ("a/low.rs", "pub struct L;"),
        ("b.rs", "use crate::a::low::L;"),
    ];
    assert!(!of(page, &room).is_empty(), "a circle of rooms is not drawn as two floors");
    assert_eq!(of(&page.replace("b\n", "b\n//! a::low\n"), &room), Vec::<String>::new());
}

/// Each way in which a file names another one is an arrow.
#[test]
fn the_arrows_are_seen() {
    let seen = |text: &str| -> Vec<String> {
        let texts = [
            ("lib.rs", "mod a;\nmod b;\npub use b::Given;\npub struct Root;"),
            ("a.rs", text),
            (
                "b/mod.rs",
                "mod c;\npub use c::{Inner, Other as Renamed};\npub use c::deep::*;\npub struct Given;",
            ),
            ("b/c/mod.rs", "pub mod deep;\npub struct Inner;\npub struct Other;"),
            ("b/c/deep.rs", "pub struct Deepest;"),
        ];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        arrows_between(&texts)["a.rs"].iter().cloned().collect()
    };
    assert_eq!(seen("use crate::b::{self, Given};"), ["b/mod.rs"]);
    assert_eq!(seen("fn f(_: crate::b::Inner) {}"), ["b/c/mod.rs"], "through what is given on");
    assert_eq!(seen("use super::b::Renamed as R;"), ["b/c/mod.rs"], "by another name");
    assert_eq!(seen("use crate::b::Deepest;"), ["b/c/deep.rs"], "of all that is given on");
    assert_eq!(seen("fn f() { g!(x, crate::b::c::Inner::new()) }"), ["b/c/mod.rs"], "in a macro");
    assert_eq!(
        seen("use crate::b;\nfn f() { b::c::deep::g() }"),
        ["b/c/deep.rs", "b/mod.rs"],
        "by an import"
    );
    assert_eq!(seen("use crate::{Given, Root};"), ["b/mod.rs", "lib.rs"]);
    assert_eq!(seen("#[serde(with = \"crate::b::c\")]\nstruct S;"), ["b/c/mod.rs"]);
    assert_eq!(
        seen("pub(in crate::b) fn f() {}\n#[cfg(test)]\nmod tests {\n use crate::b::Given;\n}"),
        [""; 0]
    );
    assert_eq!(seen("pub use crate::b::Given;"), ["b/mod.rs"], "given on, and no child's");
    assert_eq!(seen("use crate::b::*;\nfn f(_: Inner) {}"), ["b/c/mod.rs", "b/mod.rs"], "by all");
    assert_eq!(seen("#[arg(value_parser = crate::b::c::f)]\nstruct S;"), ["b/c/mod.rs"]);
    let parent = |text: &str| -> Vec<String> {
        let texts = [("lib.rs", "mod a;"), ("a/mod.rs", text), ("a/b.rs", "pub struct B;")];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        arrows_between(&texts)["a/mod.rs"].iter().cloned().collect()
    };
    assert_eq!(parent("mod b;\npub use b::B;"), [""; 0], "a child's, that is only given on");
    assert_eq!(parent("mod b;\npub use b::B;\nfn f(_: B) {}"), ["a/b.rs"], "and used");
}
