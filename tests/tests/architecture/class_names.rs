//! The classes of a sandbox: the floors above them ask operations.

use super::arrows::TESTS;
use super::source::Source;
use super::sources;

const CRATE: &str = "crates/sandbox/src/";
/// Where a class has its name, besides its folder and the registry: files, how often, and why.
const NAMED: &[(&str, usize, &str)] = &[
    ("doctor/escape/mod.rs", 5, "what another kernel answers in other words, by class"),
    ("doctor/escape/second_life.rs", 7, "in which class the files of a second life are made"),
    ("life/host/mod.rs", 1, "`doctor` looks for an engine that no worker asked for"),
    ("life/limit_watch.rs", 1, "which limits the words of a record's class stand for"),
];

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
        let source = Source::read(&text, Vec::new());
        let is_class = |path: &[String]| {
            path.windows(2).any(|two| two[0] == "Class" && classes.contains(&two[1].as_str()))
        };
        // `use Class::*`, and another name for the type, would hide the classes' names.
        let hides = source.imports.iter().filter(|import| {
            let last = import.path.last().is_some_and(|last| last == "Class");
            last && import.name != "Class" || is_class(&import.path)
        });
        let found = source.paths.iter().filter(|(_, path)| is_class(path)).count() + hides.count();
        let may = NAMED.iter().find(|(file, ..)| *file == name).map_or(0, |(_, count, _)| *count);
        assert!(found <= may, "{name} names a class {found} times, {may} are listed with a reason");
    }
}
