//! Files that a reader can follow.

use super::sources;

/// Lines of a source file; beyond it a module is two modules.
const MAX_LINES: usize = 600;
/// Lines of a source file that says nothing of its length.
const MAX_PLAIN_LINES: usize = 500;
/// Where a longer one begins to say why it is one file.
const WHY_ONE: &str = "//! One file: ";
const MAX_MAIN_LINES: usize = 15;

#[test]
fn a_main_is_a_door_and_not_a_room() {
    for (name, text) in sources(&["crates"]) {
        let lines = text.lines().count();
        if name.ends_with("src/main.rs") {
            assert!(lines <= MAX_MAIN_LINES, "{name} has {lines} lines");
        }
    }
}

#[test]
fn no_file_is_longer_than_a_reader_follows() {
    for (name, text) in sources(&["crates", "tests"]) {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines");
        let why = text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .find_map(|line| line.strip_prefix(WHY_ONE));
        assert!(
            lines <= MAX_PLAIN_LINES || why.is_some(),
            "{name} has {lines} lines and no reason: `{WHY_ONE}..`"
        );
        assert!(
            lines > MAX_PLAIN_LINES || why.is_none(),
            "{name} has {lines} lines: its reason can go"
        );
    }
}
