//! What a pattern of a schema costs, told by the engine that runs it: states of its automaton, and their bytes.
//!
//! A count by hand differs from the engine somewhere, and a tenant finds where: the pattern is translated and compiled as the validator does it.

use std::collections::HashMap;

use regex_automata::nfa::thompson::{Compiler, Config};

/// Bytes of a pattern.
pub const MAX_PATTERN_BYTES: usize = 1_024;
/// Bytes of one automaton, and of those of all patterns of a schema, each as often as a reference puts it in a place. The engine has some
/// four times as many beside it.
pub(super) const MAX_AUTOMATON_BYTES: usize = 2 * 1_024 * 1_024;
const MAX_AUTOMATA_BYTES: usize = 16 * 1_024 * 1_024;
/// Bytes of a text times states of its pattern that take about as long as one step.
const PATTERN_STEP: u64 = 8;

#[derive(Debug, Clone, Copy)]
struct Automaton {
    states: u64,
    bytes: usize,
}

/// The patterns of one schema.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    known: HashMap<String, Automaton>,
    bytes: usize,
}

impl Patterns {
    /// Takes one in. An error in words: what it may not have, and the remedy.
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        let own = match self.known.get(pattern) {
            Some(known) => *known,
            None => {
                let made = automaton(pattern)?;
                self.known.insert(pattern.to_owned(), made);
                made
            }
        };
        self.bytes = self.bytes.saturating_add(own.bytes);
        match self.bytes > MAX_AUTOMATA_BYTES {
            true => Err(TOO_LARGE.to_owned()),
            false => Ok(()),
        }
    }

    /// Steps that the engine takes of a text at most. A pattern that was not taken in is beyond every budget.
    pub(super) fn steps(&self, pattern: &str, text: &str) -> u64 {
        let states = self.known.get(pattern).map_or(u64::MAX, |known| known.states);
        // Finding it among the others reads its bytes.
        let looked = count(pattern.len()) / PATTERN_STEP;
        let ran = count(text.len()).saturating_mul(states) / PATTERN_STEP;
        ran.saturating_add(looked).saturating_add(1)
    }
}

const TOO_LARGE: &str = "its patterns repeat too much; use smaller numbers in braces, or maxLength";

fn automaton(pattern: &str) -> Result<Automaton, String> {
    let shown: String = pattern.chars().take(80).collect();
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a pattern has at most {MAX_PATTERN_BYTES} bytes"));
    }
    let looks = ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|look| pattern.contains(look));
    let mut escaped = false;
    let refers = pattern.chars().any(|c| {
        let is_reference = escaped && (c.is_ascii_digit() && c != '0' || c == 'k');
        escaped = !escaped && c == '\\';
        is_reference
    });
    if looks || refers {
        return Err(format!(
            "the pattern {shown:?} looks around or back; write it without (?=, (?!, (?<=, (?<! and \\1, or as two patterns in allOf"
        ));
    }
    let wrong = || format!("{shown:?} is not a regular expression");
    let translated = jsonschema_regex::to_rust_regex(pattern).map_err(|()| wrong())?;
    let mut compiler = Compiler::new();
    compiler.configure(Config::new().nfa_size_limit(Some(MAX_AUTOMATON_BYTES)));
    let built = compiler.build(&translated).map_err(|error| match error.size_limit() {
        Some(_) => TOO_LARGE.to_owned(),
        None => wrong(),
    })?;
    Ok(Automaton { states: count(built.states().len()), bytes: built.memory_usage() })
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3f3_a_bracket_in_a_class_hides_no_states() {
        let mut patterns = Patterns::default();
        for (hidden, plain) in
            [("[[]|(ab){500}c", "[x]|(ab){500}c"), ("[[][[](a|b){300}", "[x][x](a|b){300}")]
        {
            patterns.add(hidden).unwrap();
            patterns.add(plain).unwrap();
            assert_eq!(
                patterns.steps(hidden, "aaaaaaaa"),
                patterns.steps(plain, "aaaaaaaa"),
                "{hidden}"
            );
            assert!(patterns.steps(hidden, "aaaaaaaa") > 600, "{hidden}");
        }
        let refused = patterns.add("(a{1,1000}){1,1000}b").unwrap_err();
        assert!(refused.contains("smaller numbers in braces"), "{refused}");
        // Many that are large together, however they hide it.
        let many = (0..1_000).try_for_each(|n| patterns.add(&format!("[[]|(ab{n}){{400}}c")));
        assert!(many.unwrap_err().contains("repeat too much"));
    }

    #[test]
    fn a_pattern_that_was_not_taken_in_has_no_price() {
        assert!(Patterns::default().steps("a", "a") > 1 << 60);
        assert!(Patterns::default().add("a(").unwrap_err().contains("not a regular expression"));
    }
}
