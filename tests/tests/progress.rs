//! What a person sees of a run while it goes: live lines on a terminal, plain lines elsewhere, totals at its end.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, text};
use serde_json::{Value, json};
use support::pty::{CTRL_C, Interrupt, Terminal};
use support::{ended, recipe, said, tasks, until};

const LIMIT: Duration = Duration::from_secs(120);

/// A run of a recipe on a terminal of this size.
fn on_terminal(home: &Home, yaml: &str, columns: u16, env: &[(&str, &str)]) -> Terminal {
    let file = recipe(home.path(), "recipe.yaml", yaml);
    let mut command = home.command(&["run", &file, "--yes"]);
    command.env("TERM", "xterm").env_remove("CI").envs(env.iter().copied());
    Terminal::sized(&command, Interrupt::Usual, 24, columns)
}

/// What was drawn: pieces between the sequences that move a cursor, without them.
fn drawn(shown: &str) -> Vec<String> {
    let pieces = shown.split(['\r', '\n', '\u{1b}']);
    let bare = |piece: &str| {
        let piece = piece.strip_prefix('[').map_or(piece, |rest| {
            rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';' || c == '?')
                .get(1..)
                .unwrap_or("")
        });
        piece.trim_end().to_owned()
    };
    pieces.map(bare).filter(|piece| !piece.is_empty()).collect()
}

#[test]
fn a_task_that_runs_has_a_live_line_with_its_last_output_within_the_width() {
    for columns in [80, 40] {
        let home = Home::new();
        let long = "x".repeat(150);
        let script = format!("echo told-{long}; sleep 3; echo '\u{1b}[32mgreen\u{1b}[0m'; sleep 3");
        let mut terminal = on_terminal(&home, &tasks("live", &[("talks", &script)]), columns, &[]);
        terminal.wait_for("told-xx");
        terminal.wait_for("green");
        let (status, shown) = terminal.ended(LIMIT);
        assert_eq!(status.code(), Some(0), "{shown}");
        let lines = drawn(&shown);
        let live: Vec<&String> =
            lines.iter().filter(|line| line.starts_with("talks  exec ")).collect();
        assert!(live.iter().any(|line| line.ends_with('…')), "{columns}: {lines:?}");
        let width = usize::from(columns);
        assert!(live.iter().all(|line| line.chars().count() < width), "{columns}: {live:?}");
        assert!(live.iter().any(|line| line.ends_with("green")), "without its color: {live:?}");
        assert!(!shown.contains("\u{1b}[32m"), "{shown:?}");
        assert!(
            shown.contains("1 ok in ") && shown.contains("1 sandbox, wipe verified"),
            "{shown}"
        );
    }
}

#[test]
fn what_a_task_writes_never_acts_on_the_terminal() {
    let home = Home::new();
    let script = r"printf '\033]0;owned\007\033[2Jx\n'; sleep 3";
    let mut terminal = on_terminal(&home, &tasks("evil", &[("evil", script)]), 100, &[]);
    terminal.wait_for(r"\x1b]0;owned\x07\x1b[2Jx");
    let (_, shown) = terminal.ended(LIMIT);
    assert!(!shown.contains("\u{1b}]0;") && !shown.contains("\u{1b}[2J"), "{shown:?}");
}

#[test]
fn equal_shards_share_one_line_and_the_slowest_are_named_at_the_end() {
    let home = Home::new();
    let names: Vec<String> = (1..=6).map(|n| format!("shard-{n}")).collect();
    let scripts: Vec<String> = (1..=6).map(|n| format!("sleep {n}; exit {}", n / 6)).collect();
    let all: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(scripts.iter().map(String::as_str)).collect();
    let mut terminal = on_terminal(&home, &tasks("shards", &all), 80, &[]);
    terminal.wait_for("shard-*  ");
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(!shown.contains("ok shard-1"), "those that are fine are counted: {shown}");
    assert!(shown.contains("FAILED shard-6"), "{shown}");
    assert!(shown.contains("5 ok, 1 failed in ") && shown.contains("slowest shard-6 "), "{shown}");
    assert!(shown.contains("6 sandboxes, wipes verified"), "{shown}");
}

#[test]
fn off_a_terminal_that_can_draw_lines_stay() {
    for (args, env) in [
        (&[][..], &[("TERM", "dumb")][..]),
        (&[][..], &[("CI", "true")][..]),
        (&["--no-progress"][..], &[][..]),
    ] {
        let home = Home::new();
        let file = recipe(home.path(), "recipe.yaml", &tasks("plain", &[("waits", "sleep 3")]));
        let mut command = home.command(&[&["run", file.as_str(), "--yes"][..], args].concat());
        command.env("TERM", "xterm").env_remove("CI").envs(env.iter().copied());
        let terminal = Terminal::start(&command, Interrupt::Usual);
        let (status, shown) = terminal.ended(LIMIT);
        assert_eq!(status.code(), Some(0), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{args:?} {env:?}: {shown:?}");
        assert_eq!(shown.matches("waits: exec").count(), 1, "{args:?} {env:?}: {shown}");
        assert!(shown.contains("ok waits"), "{shown}");
    }
    let home = Home::new();
    let file = recipe(home.path(), "recipe.yaml", &tasks("plain", &[("quick", "true")]));
    let output = ended(home.command(&["run", &file, "--yes"]), LIMIT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("quick: "), "a phase that passes needs no line: {}", said(&output));
}

#[test]
fn ctrl_c_takes_the_live_lines_away_and_cancels() {
    let home = Home::new();
    let yaml = tasks("long", &[("sleeps", "echo up; sleep 600")]);
    let mut terminal = on_terminal(&home, &yaml, 80, &[]);
    terminal.wait_for("up");
    let modes = terminal.modes();
    terminal.types(CTRL_C);
    terminal.wait_for("canceling ");
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(130), "{shown}");
    assert!(modes.is_canonical_again());
    let hides = shown.matches("\u{1b}[?25l").count();
    assert_eq!(hides, shown.matches("\u{1b}[?25h").count(), "its cursor is there: {shown:?}");
}

#[test]
fn a_gates_question_stands_below_no_live_line() {
    let home = Home::new();
    let yaml = json!({"id": "asked", "v": "1", "plan": {"gate": "approve-plan",
        "tasks": [{"name": "a", "exec": {"run": "sleep 2", "timeout": "30s"}}]}});
    let file = recipe(home.path(), "recipe.yaml", &yaml.to_string());
    let mut command = home.command(&["run", &file]);
    command.env("TERM", "xterm").env_remove("CI");
    let mut terminal = Terminal::start(&command, Interrupt::Usual);
    terminal.wait_for("execute this plan? [yes/no]");
    assert!(!terminal.shown().contains('\u{1b}'), "nothing runs: {:?}", terminal.shown());
    terminal.types("yes\n");
    terminal.wait_for("a  exec ");
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(0), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_has_what_all_tasks_write_in_order_and_ends_with_the_run() {
    let home = Home::new();
    let up = home.up();
    let yaml = tasks(
        "streams",
        &[("one", "echo a1; sleep 1; echo a2; echo e1 >&2"), ("two", "echo b1; sleep 2; echo b2")],
    );
    let header = up.run_recipe(&yaml, json!({}), json!({})).await;
    let run = text(&header, "runId");
    let url = |query: &str| format!("{}/api/runs/{run}/stream/all{query}", up.url);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let read = async |query: &str| {
        let answer = http.get(url(query)).bearer_auth(&up.key).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        let text = answer.text().await.unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let lines = read("?follow=true").await;
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let (_, steps) = up.get(&format!("/api/runs/{run}/steps")).await;
    let of = |name: &str, stream: &str| {
        let step = steps.as_array().unwrap().iter().find(|step| step["name"] == name).unwrap();
        let its =
            lines.iter().filter(|line| line["task"] == step["taskKey"] && line["stream"] == stream);
        its.map(|line| line["chunk"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!((of("one", "stdout"), of("one", "stderr")), ("a1\na2\n".into(), "e1\n".into()));
    assert_eq!(of("two", "stdout"), "b1\nb2\n");
    assert_eq!(read("").await, lines, "what there was is there for who comes later");
    let last = lines.last().unwrap()["at"].as_i64().unwrap();
    let again = read(&format!("?from={last}")).await;
    assert!(!again.is_empty() && again.len() < lines.len(), "{again:?}");
    assert!(read(&format!("?from={}", last + 60_000)).await.is_empty());
    let (status, body) = up.get(&format!("/api/runs/{run}/stream/none")).await;
    assert_eq!(status, 404, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_attempt_has_its_phase_and_one_that_ended_has_none() {
    let home = Home::new();
    let up = home.up();
    let header = up.run_recipe(&tasks("phases", &[("t", "sleep 5")]), json!({}), json!({})).await;
    let run = text(&header, "runId");
    let path = format!("/api/runs/{run}/steps");
    let executes = async || {
        let (_, steps) = up.get(&path).await;
        steps.as_array().unwrap().iter().any(|step| step["phase"] == "exec")
    };
    until("it executes", LIMIT, executes).await;
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let (_, steps) = up.get(&path).await;
    assert!(steps.as_array().unwrap().iter().all(|step| step.get("phase").is_none()), "{steps}");
}
