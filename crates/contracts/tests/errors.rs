//! Every public error code has its page in `docs/errors`, and no page is left over.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use cofferdam_contracts::error::{ErrorBody, ErrorCode};

/// Pages that are not about a code.
const OTHERS: [&str; 3] = ["README.md", "exit-codes.md", "messages.md"];

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
fn no_page_is_left_over_and_the_index_lists_every_code() {
    let codes: BTreeSet<String> =
        ErrorCode::ALL.iter().map(|code| format!("{}.md", code.as_str())).collect();
    let index = fs::read_to_string(pages().join("README.md")).unwrap();
    for entry in fs::read_dir(pages()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = codes.contains(&name) || OTHERS.contains(&name.as_str());
        assert!(known, "docs/errors/{name} is the page of no code");
    }
    for code in ErrorCode::ALL {
        let row = format!("| [`{0}`]({0}.md) | {1} |", code.as_str(), code.status());
        assert!(index.contains(&row), "docs/errors/README.md lacks {row:?}");
    }
}
