//! Every message that a person can see stands in one page, made from the sources: `docs/reference/messages.md`.
//! A message says what was wrong, where, and what to do; a reviewer reads its change as a line of that page.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use cofferdam_contracts::error::ErrorCode;

use super::source::product;
use super::{root, sources};

/// Where a message begins, and what it is.
const MARKS: &[(&str, &str)] = &[
    ("#[error(", "error"),
    ("Refusal::new(", "refusal"),
    ("Refusal::not_found(", "refusal"),
    ("PlanError::new(", "refusal"),
    ("Misuse(", "usage"),
    ("WrongDatabase::new(", "error"),
    ("Negative(", "no"),
    ("bail!(", "error"),
    ("ensure!(", "error"),
    ("Err(format!(", "reason"),
    ("Err(\"", "reason"),
    (".with_context(", "context"),
    (".context(", "context"),
];
/// Crates whose messages reach people: the agent's arrive through the sandbox's.
const CRATES: &[&str] =
    &["cli", "contracts", "e2b", "flows", "http", "ledger", "live", "planner", "sandbox", "server"];
/// Between a mark and its text stand at most a code and a closure.
const NEAR: usize = 160;
/// What no message says: the dialect of `docs/style.md` that was mended once.
const NEVER: &[&str] = &["that are none", "is no unit", "whoever", "is told", "nobody"];

/// The first string literal: where it begins, as it reads, and where it ends.
fn literal(text: &str) -> Option<(usize, String, usize)> {
    let start = text.find('"')?;
    let body = text.get(start + 1..)?;
    let mut chars = body.char_indices().peekable();
    let mut read = String::new();
    loop {
        match chars.next()? {
            (at, '"') => return Some((start, read, start + 1 + at + 1)),
            (_, '\\') => match chars.next()?.1 {
                // A line that goes on: what indents it is not of the text.
                '\n' => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                'n' => read.push(' '),
                other => read.push(other),
            },
            (_, other) => read.push(other),
        }
    }
}

/// The message after a mark: a first text of one word is the field that the second one is about.
fn message(text: &str) -> Option<String> {
    let (_, first, end) = literal(text).filter(|(gap, ..)| is_near(text, *gap))?;
    if first.contains([' ', '{']) {
        return first.contains(char::is_alphabetic).then_some(first);
    }
    let rest = text.get(end..)?;
    let (gap, second, _) = literal(rest)?;
    let is_message = is_near(rest, gap) && second.contains(' ');
    is_message.then(|| format!("{first}: {second}"))
}

fn is_near(text: &str, gap: usize) -> bool {
    gap <= NEAR && text.get(..gap).is_some_and(|between| !between.contains(';'))
}

/// `(crate, kind, message)` of every file.
fn messages() -> BTreeSet<(String, &'static str, String)> {
    let mut found = BTreeSet::new();
    for (path, text) in sources(&["crates"]) {
        let mut parts = path.split('/').skip(1);
        let (Some(krate), Some("src")) = (parts.next(), parts.next()) else { continue };
        let file = path.rsplit('/').next().unwrap_or_default();
        if !CRATES.contains(&krate) || ["tests.rs", "fuzz.rs"].contains(&file) {
            continue;
        }
        let text = product(&text);
        for (mark, kind) in MARKS {
            for (at, _) in text.match_indices(mark) {
                let line = text.get(..at).and_then(|before| before.rsplit('\n').next());
                if line.is_some_and(|line| line.trim_start().starts_with("//")) {
                    continue;
                }
                let begin = at + mark.trim_end_matches('"').len();
                if let Some(message) = text.get(begin..).and_then(message) {
                    found.insert((krate.to_owned(), *kind, message));
                }
            }
        }
    }
    found
}

/// The first paragraph under `## What to do` of a code's page.
fn remedy(code: ErrorCode) -> String {
    let page = root().join(format!("docs/errors/{}.md", code.as_str()));
    let page = fs::read_to_string(page).unwrap();
    let part = page.split("## What to do").nth(1).unwrap_or_default().trim();
    let first = part.split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test system -- messages";

fn page() -> String {
    let mut page = format!(
        "# Messages\n\n<!-- Generated. {WRITES} writes it anew. -->\n\n\
         Every message of the command line and the API, made from the sources. `{{..}}` is what the moment fills in. \
         [Errors](errors.md) has the codes of the API with their remedies.\n",
    );
    let messages = messages();
    for krate in CRATES {
        let of_crate: Vec<_> = messages.iter().filter(|(of, ..)| of == krate).collect();
        if of_crate.is_empty() {
            continue;
        }
        write!(page, "\n## `{krate}`\n\n| Kind | Message |\n|---|---|\n").unwrap();
        for (_, kind, message) in of_crate {
            writeln!(page, "| {kind} | {} |", message.replace('|', "\\|")).unwrap();
        }
    }
    page
}

#[test]
fn no_message_is_outside_the_page() {
    let file = root().join("docs/reference/messages.md");
    let made = page();
    if cofferdam_ambient::env::var("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        fs::write(&file, &made).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap_or_default();
    let at = golden.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
    assert!(
        golden == made,
        "docs/reference/messages.md differs from line {} on; read the change, then regenerate it:\n    \
         {WRITES}\nnow: {}",
        at + 1,
        made.lines().nth(at).unwrap_or("(the end)")
    );
}

#[test]
fn a_message_names_what_was_wrong_and_speaks_no_dialect() {
    for (krate, kind, message) in messages() {
        let lower = message.to_lowercase();
        let found = NEVER.iter().find(|word| lower.contains(**word));
        assert_eq!(found, None, "{krate}: {kind}: {message:?}");
    }
}

#[test]
fn every_code_says_what_to_do() {
    for code in ErrorCode::ALL {
        assert!(remedy(*code).len() > 20, "{}: {:?}", code.as_str(), remedy(*code));
    }
}
