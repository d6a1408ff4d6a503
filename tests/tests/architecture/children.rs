//! The ban of child sessions, over the source of the client of OpenCode's daemon.

use super::source::product;
use super::sources;

/// Words that make a child session or run one. (word, files that may say it, why)
const BANNED: &[(&str, &[&str], &str)] = &[
    ("parentID", &["lib.rs", "reply.rs"], "an answer names the message that it answers"),
    ("\"task\"", &["config.rs", "request.rs"], "where it is denied"),
    ("subtask", &[], "a kind of part"),
    ("subagent", &[], "an input of the task tool"),
    ("/fork", &[], "a call"),
    ("/command", &[], "a call"),
    ("/init", &[], "a call"),
    ("/summarize", &[], "a call"),
];
/// Files that may write JSON: (word, files).
const WRITERS: &[(&str, &[&str])] = &[
    ("Serialize", &["ids.rs", "request.rs"]),
    ("json!(", &["config.rs"]),
    ("to_vec(", &["client.rs", "request.rs"]),
];

/// What a source says without its tests and comments.
fn code(text: &str) -> String {
    let text = product(text);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n").replace("Deserialize", "")
}

/// The words of these sources that are banned there.
fn found(sources: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        let (code, file) = (code(text), path.rsplit('/').next().unwrap());
        let banned = BANNED.iter().map(|(word, may, _)| (word, may));
        for (word, may) in banned.chain(WRITERS.iter().map(|(word, may)| (word, may))) {
            if code.contains(word) && !may.contains(&file) {
                found.push(format!("{path}: {word}"));
            }
        }
    }
    found
}

#[test]
fn no_child_session_can_leave_the_client_of_opencode() {
    let sources = sources(&["crates/opencode/src"]);
    assert_eq!(found(&sources), Vec::<String>::new());
    let request = sources.iter().find(|(path, _)| path.ends_with("/request.rs")).unwrap();
    let denied = code(&request.1);
    assert!(denied.contains("deny(\"task\")") && denied.contains("parts: [Text<'a>; 1]"));
}

#[test]
fn a_word_of_a_child_is_found() {
    let source = |text: &str| vec![("crates/opencode/src/client.rs".to_owned(), text.to_owned())];
    assert_eq!(found(&source("let a = \"parentID\";")).len(), 1);
    assert_eq!(found(&source("#[derive(Serialize)]\nr#type: \"subtask\"")).len(), 2);
    assert!(found(&source("// parentID\n#[derive(Deserialize)]")).is_empty());
}
