//! How the product speaks: the habits that `docs/style.md` lists are counted, and may only become fewer: in pages,
//! `--help` (the doc comments of the command line), string literals and doc comments. What pages show exists.

mod links;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_ambient::env;
use cofferdam_tests::binary;

use crate::architecture::source::product as without_tests;

/// Habits that usually hide a missing noun. "is no longer" is none of them.
const MARKS: [&str; 8] =
    ["is no ", "are none", "that is none", "is told", "are told", "nobody", "whoever", "somebody"];
/// Pages that may have some: the one that quotes the habits, and the list of messages, which is made from string
/// literals.
const QUOTES: [&str; 2] = ["docs/style.md", "docs/reference/messages.md"];
const DECISIONS: &str = "docs/decisions/";
/// Words of a decision, and of the changelog of a product that is not released.
const MAX_WORDS: usize = 300;
/// Marks in string literals: errors, SQL, words of the host.
const IN_STRINGS: usize = 15;
/// Marks in `--help`.
const IN_HELP: usize = 36;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Files below a directory of the repository with this ending, by their path from its root.
fn files(dir: &str, ending: &str) -> Vec<(String, String)> {
    let (mut found, mut dirs) = (Vec::new(), vec![root().join(dir)]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                dirs.push(path);
            } else if name.ends_with(ending) {
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Every page of the repository.
fn pages() -> Vec<(String, String)> {
    let mut pages = files("docs", ".md");
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "SPECIFICATION.md",
    ] {
        pages.push((name.to_owned(), fs::read_to_string(root().join(name)).unwrap()));
    }
    pages
}

/// A page's prose: neither blocks of code nor code within a line, such as a test's name.
fn prose(page: &str) -> String {
    let outside: String = page.split("```").step_by(2).collect();
    outside.split('`').step_by(2).collect::<Vec<_>>().join("CODE")
}

/// The marks of a text, each with some words around it.
fn marks(text: &str) -> Vec<String> {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
    let lower = flat.to_ascii_lowercase();
    let mut found = Vec::new();
    for mark in MARKS {
        for (at, _) in lower.match_indices(mark) {
            let (before, after) = (&lower[..at], &lower[at + mark.len()..]);
            let begins = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let is_word = mark.ends_with(' ')
                || !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            if begins && is_word && !(mark == "is no " && after.starts_with("longer")) {
                found.push(lower[at..].chars().take(40).collect());
            }
        }
    }
    let same = flat.match_indices("The same").map(|(at, _)| flat[at..].chars().take(40).collect());
    found.extend(same);
    found
}

/// The marks of these texts, by file.
fn counted<'a>(texts: impl Iterator<Item = (&'a String, String)>) -> Vec<String> {
    texts
        .flat_map(|(name, text)| {
            marks(&text).into_iter().map(move |mark| format!("{name}: {mark}"))
        })
        .collect()
}

#[test]
fn pages_have_no_mark_of_the_dialect() {
    let pages = pages();
    let ours = pages.iter().filter(|(name, _)| !QUOTES.contains(&name.as_str()));
    let found = counted(ours.map(|(name, text)| (name, prose(text))));
    assert!(found.is_empty(), "see docs/style.md:\n{}", found.join("\n"));
}

#[test]
fn a_decision_and_the_changelog_have_at_most_300_words() {
    let is_short = |name: &str| name == "CHANGELOG.md" || name.starts_with("docs/decisions/0");
    let mut seen = 0;
    for (name, text) in pages().into_iter().filter(|(name, _)| is_short(name)) {
        let words = text.split_whitespace().count();
        assert!(words <= MAX_WORDS, "{name} has {words} words");
        seen += 1;
    }
    assert!(seen > 100, "only {seen} pages were found");
}

/// Source files of the product without their tests.
fn product() -> Vec<(String, String)> {
    const OTHERS: [&str; 4] = ["/tests.rs", "/tests/", "/fuzz.rs", "/forged.rs"];
    let mut sources = files("crates", ".rs");
    sources.retain(|(name, _)| {
        name.contains("/src/") && !OTHERS.iter().any(|part| name.contains(part))
    });
    for (_, text) in &mut sources {
        *text = without_tests(text);
    }
    sources
}

/// The string literals of a source file, one after another.
fn strings(code: &str) -> String {
    let (mut rest, mut found) = (code, String::new());
    while let Some(at) = rest.find(['"', '/', '\'', 'r']) {
        let here = &rest[at..];
        let past = if here.starts_with("//") {
            here.find('\n').unwrap_or(here.len())
        } else if here.starts_with("'\"'") || here.starts_with("'\\'") {
            3
        } else if here.starts_with("r\"") || here.starts_with("r#") {
            let hashes = here[1..].len() - here[1..].trim_start_matches('#').len();
            let end = format!("\"{}", "#".repeat(hashes));
            match here[1 + hashes..].strip_prefix('"') {
                Some(inside) => {
                    let length = inside.find(&end).unwrap_or(inside.len());
                    found += &inside[..length];
                    found.push('\n');
                    2 + hashes + length + end.len()
                }
                None => 1,
            }
        } else if let Some(inside) = here.strip_prefix('"') {
            let mut is_escaped = false;
            let end = inside.find(|c| {
                let ends = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            let length = end.unwrap_or(inside.len());
            found += &inside[..length].replace("\\\n", " ");
            found.push('\n');
            length + 2
        } else {
            1
        };
        rest = rest.get(at + past..).unwrap_or_default();
    }
    found
}

#[test]
fn messages_have_fewer_marks_of_the_dialect() {
    let sources = product();
    let found = counted(sources.iter().map(|(name, text)| (name, strings(text))));
    assert!(found.len() <= IN_STRINGS, "{} of {IN_STRINGS}:\n{}", found.len(), found.join("\n"));
}

/// The blocks of doc comments of a source file, each as its lines without the slashes.
fn docs(code: &str) -> Vec<Vec<&str>> {
    let mut blocks = vec![Vec::new()];
    for line in code.lines() {
        match line.trim_start().strip_prefix("///") {
            Some(text) => blocks.last_mut().unwrap().push(text.trim()),
            None if blocks.last().unwrap().is_empty() => {}
            None => blocks.push(Vec::new()),
        }
    }
    blocks.pop();
    blocks
}

#[test]
fn help_has_fewer_marks_of_the_dialect() {
    let sources = product();
    let ours = sources.iter().filter(|(name, _)| name.starts_with("crates/cli/"));
    let text = |code: &String| docs(code).concat().join("\n");
    let found = counted(ours.map(|(name, code)| (name, text(code))));
    assert!(found.len() <= IN_HELP, "{} of {IN_HELP}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_doc_comment_is_two_words() {
    let mut found = Vec::new();
    for (name, code) in product() {
        for block in docs(&code) {
            if let [line] = block.as_slice()
                && line.split_whitespace().count() <= 2
            {
                found.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// `UPDATE_GOLDENS=1` writes the lines anew.
#[test]
fn the_index_of_decisions_has_a_line_for_each() {
    let page = root().join(DECISIONS).join("README.md");
    let index = fs::read_to_string(&page).unwrap();
    let (head, _) = index.split_once("* [").unwrap();
    let mut wanted = head.to_owned();
    for (name, text) in files("docs/decisions", ".md") {
        let file = name.trim_start_matches(DECISIONS);
        let Some((number, _)) = file.split_once('-') else { continue };
        let title = text.lines().next().and_then(|line| line.strip_prefix(&format!("# {number} ")));
        let title = title.unwrap_or_else(|| panic!("{name} begins with its number and title"));
        wanted.push_str(&format!("* [{number}]({file}) {title}\n"));
    }
    if env::var("UPDATE_GOLDENS").is_some() {
        fs::write(&page, &wanted).unwrap();
    } else {
        assert!(index == wanted, "docs/decisions/README.md: UPDATE_GOLDENS=1 writes it anew");
    }
}

/// The commands that a page shows: spans and lines of blocks that begin with the program's name, as words up to a
/// comment, a second command or the command of a sandbox.
fn shown(page: &str) -> Vec<Vec<String>> {
    let spans = page.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2));
    let lines = page.split("```").skip(1).step_by(2).flat_map(str::lines);
    let commands = spans.chain(lines).filter_map(|text| text.trim().strip_prefix("cofferdam "));
    commands
        .map(|text| {
            let until = |word: &&str| !["#", "|", "&&", "--"].contains(word);
            let words = text.split([';', '<']).next().unwrap_or(text).split_whitespace();
            words.take_while(until).map(|word| word.trim_matches(['[', ']']).to_owned()).collect()
        })
        .collect()
}

/// What the binary says of a subcommand; `None` where there is none of that name.
fn help(words: &[String]) -> Option<String> {
    let output = Command::new(binary()).args(words).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_command_that_a_page_shows_exists() {
    let mut known: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    let mut seen = 0;
    for (page, text) in pages().into_iter().filter(|(name, _)| !name.starts_with(DECISIONS)) {
        for command in shown(&text) {
            let is_plain = |word: &&String| word.chars().all(|c| c.is_ascii_lowercase());
            let plain = command.iter().take_while(is_plain).take(3).count();
            let of = (0..=plain).rev().find_map(|length| {
                let words = command[..length].to_vec();
                known.entry(words).or_insert_with_key(|words| help(words)).clone()
            });
            let of = of.unwrap_or_default();
            assert!(plain == 0 || !of.contains("Commands:\n  run "), "{page}: {command:?}");
            for flag in command.iter().filter(|word| word.starts_with("--")) {
                let flag = flag.split('=').next().unwrap_or(flag);
                assert!(of.contains(flag), "{page}: {command:?} has no {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} commands are shown");
}

#[test]
fn marks_and_strings_are_found_where_they_are() {
    assert_eq!(marks("It is told. A hobody is no longer there; ThIs no x").len(), 1);
    assert_eq!(marks("Nobody, whoever.\nThe same: there is\nno way").len(), 4);
    assert_eq!(prose("a `nobody` b\n```\nwhoever\n```\nc").matches("CODE").count(), 1);
    let code = "let a = \"x \\\" y\"; // \"not\"\nlet b = r#\"raw \" z\"#; let c = '\"'; f(\"w\")";
    assert_eq!(strings(code), "x \\\" y\nraw \" z\nw\n");
    assert_eq!(docs("/// Which.\npub a: u8,\n/// Two\n/// lines.\nfn f() {}\n").len(), 2);
}
