//! Failures are told apart by their types, never by what a message says.

use super::source::product;
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
        let code = product(&text);
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
