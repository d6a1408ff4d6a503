//! The floors of `crates/sandbox/src`: a folder imports only from the floors below it.

use super::arrows::{TESTS, arrows, flat, without_tests};
use super::sources;

const CRATE: &str = "crates/sandbox/src/";
/// The lowest first.
const FLOORS: [&str; 13] = [
    "host", "agent", "oci", "egress", "images", "spec", "cache", "class", "plan", "life", "build",
    "template", "doctor",
];
/// Where a class has its name, besides its folder and the registry: files, how often, and why.
const NAMED: &[(&str, usize, &str)] = &[
    ("doctor/escape/mod.rs", 5, "what another kernel answers in other words, by class"),
    ("doctor/escape/again.rs", 7, "in which class the files of a second life are made"),
    ("life/host/mod.rs", 1, "`doctor` looks for an engine that no worker asked for"),
    ("life/reached.rs", 1, "which limits the words of a record's class stand for"),
];

fn floor(file: &str) -> usize {
    let folder = file.split('/').next().unwrap();
    let found = FLOORS.iter().position(|floor| *floor == folder);
    found.unwrap_or_else(|| {
        panic!("{file} lies on no floor: a file has a folder, and a folder its floor")
    })
}

#[test]
fn floors_of_the_sandbox_only_look_down() {
    let arrows = arrows(CRATE);
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
    let arrows = arrows(CRATE);
    let has = |from: &str, to: &str| arrows[from].contains(to);
    // A `use`, a re-export, a parent's child, and a path in the code.
    assert!(has("life/boot.rs", "life/wipe.rs") && has("life/boot.rs", "egress/mod.rs"));
    assert!(has("build/mod.rs", "life/boot.rs") && has("build/mod.rs", "build/steps.rs"));
    assert!(has("host/idrange/mod.rs", "host/guest.rs"));
}
