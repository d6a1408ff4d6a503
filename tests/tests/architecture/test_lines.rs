//! A test is read in one look: what it checks in parts are functions beside it.

use super::sources;

/// Lines between the braces of a test.
const MOST: usize = 80;

fn is_test(line: &str) -> bool {
    let attribute = line.trim_start();
    attribute.starts_with("#[test]") || attribute.starts_with("#[tokio::test")
}

/// Each test of a file with the lines of its body.
fn tests(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let found = lines.iter().enumerate().filter(|(_, line)| is_test(line));
    let found = found.filter_map(|(at, attribute)| {
        let indent = attribute.len() - attribute.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let rest = lines.get(at..)?;
        let name = rest.iter().find_map(|line| {
            let signature = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
            signature.split_once('(').map(|(name, _)| name.to_owned())
        })?;
        let opens = rest.iter().position(|line| line.ends_with('{'))?;
        let closes = rest.iter().position(|line| *line == end)?;
        Some((name, closes.saturating_sub(opens + 1)))
    });
    found.collect()
}

#[test]
fn no_test_is_longer_than_a_reader_follows() {
    let mut count = 0;
    for (path, text) in sources(&["crates", "tests"]) {
        for (name, lines) in tests(&text) {
            assert!(lines <= MOST, "{path}: {name} has {lines} lines; its parts are functions");
            count += 1;
        }
    }
    assert!(count > 1_000, "only {count} tests were found");
}
