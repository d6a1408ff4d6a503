//! Every public error code has its page in `docs/errors`, no page is left over, and `docs/reference/errors.md` lists them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use cofferdam_contracts::error::{ErrorBody, ErrorCode};

use crate::golden;
use crate::golden::page::{begun, wrapped};

/// The page that is not about a code.
const OTHER: &str = "exit-codes.md";
const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test contracts errors_md";

fn pages() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "docs", "errors"].iter().collect()
}

fn page(code: ErrorCode) -> String {
    let name = format!("{}.md", code.as_str());
    fs::read_to_string(pages().join(&name)).unwrap_or_else(|e| panic!("docs/errors/{name}: {e}"))
}

#[test]
fn every_code_has_a_page_with_its_status_and_its_meaning() {
    for code in ErrorCode::ALL {
        let text = page(*code);
        let title = format!("# `{}`\n", code.as_str());
        assert!(text.starts_with(&title), "{}: begins with {title:?}", code.as_str());
        let status = format!("HTTP status: **{}**", code.status());
        assert!(text.contains(&status), "{}: says {status:?}", code.as_str());
        let meaning = code.meaning().trim();
        assert!(text.contains(meaning), "{}: says {meaning:?}", code.as_str());
        for part in ["## When", "## Example", "## What to do"] {
            assert!(text.contains(part), "{}: has a part {part:?}", code.as_str());
        }
    }
}

#[test]
fn every_example_is_a_body_of_its_code() {
    for code in ErrorCode::ALL {
        let text = page(*code);
        let examples: Vec<&str> =
            text.split("```json\n").skip(1).filter_map(|t| t.split("```").next()).collect();
        assert!(!examples.is_empty(), "{}: no example", code.as_str());
        for example in examples {
            let body: ErrorBody = serde_json::from_str(example)
                .unwrap_or_else(|e| panic!("{}: {e}: {example}", code.as_str()));
            assert_eq!(body.code, *code, "{example}");
        }
    }
}

#[test]
fn no_page_is_left_over() {
    let codes: BTreeSet<String> =
        ErrorCode::ALL.iter().map(|code| format!("{}.md", code.as_str())).collect();
    for entry in fs::read_dir(pages()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            codes.contains(&name) || name == OTHER,
            "docs/errors/{name} is the page of no code"
        );
    }
}

/// The first paragraph under `## What to do` of a code's page, whose links are those of another directory here.
fn remedy(code: ErrorCode) -> String {
    let page = page(code);
    let part = page.split("## What to do").nth(1).unwrap_or_default().trim();
    let first = part.split("\n\n").next().unwrap_or_default();
    let elsewhere = first.replace("](../", "\0");
    elsewhere.replace("](", "](../errors/").replace('\0', "](../")
}

fn list() -> String {
    let mut list = begun("Errors", WRITES);
    list.push_str(
        "Every error of the API has this body:\n\n```json\n\
         {\"error\": \"for a person\", \"code\": \"for a program\", \"details\": \"more, where there is more\"}\n```\n\n",
    );
    list.push_str(&wrapped(
        "`code` comes from this closed list and has one HTTP status. Branch on `code`, never on `error`, whose text may change. A 400 has \
         written nothing. The operator's log has more detail than the caller's answer.",
        "",
        "",
    ));
    list.push('\n');
    list.push_str(&wrapped(
        "A code's own page says when it is answered, and shows one. [Every message](messages.md), and the \
         [exit codes](commands.md#exit-codes) of the command line, have pages too.",
        "",
        "",
    ));
    let statuses: BTreeSet<u16> = ErrorCode::ALL.iter().map(|code| code.status()).collect();
    for status in statuses {
        write!(list, "\n## {status}\n\n").unwrap();
        for code in ErrorCode::ALL.iter().filter(|code| code.status() == status) {
            let name = code.as_str();
            let item = format!("[`{name}`](../errors/{name}.md): {}", code.meaning().trim());
            list.push_str(&wrapped(&item, "* ", "  "));
            let remedy = remedy(*code);
            match remedy.strip_prefix("* ") {
                Some(cases) => {
                    list.push_str("  *What to do*:\n");
                    list.extend(cases.split("\n* ").map(|case| wrapped(case, "  * ", "    ")));
                }
                None => list.push_str(&wrapped(&format!("*What to do*: {remedy}"), "  ", "  ")),
            }
        }
    }
    list
}

#[test]
fn errors_md_lists_every_code() {
    let path = "../../docs/reference/errors.md";
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), path, &list(), WRITES);
}
