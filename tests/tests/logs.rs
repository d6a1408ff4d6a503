//! What failed tasks wrote is shown, and `logs` finds the rest by name.

use crate::support;

use std::io::Read;
use std::process::{Output, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::{ended, recipe, said, stdout, tasks, until};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a recipe to its end; what the command said, and the run's id.
fn ran(home: &Home, yaml: &str) -> (Output, String) {
    let file = recipe(home.path(), "recipe.yaml", yaml);
    let output = ended(home.command(&["run", &file, "--yes"]), LIMIT);
    let run = text(&home.run_json(&["ps", "--json"])["runs"][0], "runId");
    (output, run)
}

#[test]
fn failures_of_two_tasks_show_both_streams() {
    let home = Home::new();
    let yaml = tasks(
        "two",
        &[
            ("fine", "echo quiet; echo silent >&2"),
            ("pytest", "seq -f 'case %g' 30; echo warned >&2; exit 1"),
            ("lint", "echo linted; exit 2"),
        ],
    );
    let (output, run) = ran(&home, &yaml);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for output in [output, home.run(&["show", &run])] {
        let words = stdout(&output);
        let heads = [
            format!(
                "stdout of pytest, its last lines (cofferdam logs {run} --task pytest --stdout shows all):\ncase 21\n"
            ),
            "case 30\nstderr of pytest:\nwarned\n".to_owned(),
            "stdout of lint:\nlinted\n".to_owned(),
        ];
        for head in heads {
            assert!(words.contains(&head), "{head:?}: {words}");
        }
        for never in ["case 20\n", "quiet", "silent", "stderr of lint"] {
            assert!(!words.contains(never), "{never:?}: {words}");
        }
    }
}

#[test]
fn a_screen_has_eight_failed_tasks_and_says_how_the_others_are_shown() {
    let home = Home::new();
    let names: Vec<String> = (0..10).map(|n| format!("shard-{n}")).collect();
    let all: Vec<(&str, &str)> =
        names.iter().map(|name| (name.as_str(), "echo told; exit 1")).collect();
    let (output, run) = ran(&home, &tasks("many", &all));
    let words = stdout(&output);
    assert_eq!(words.matches("stdout of shard-").count(), 8, "{words}");
    let more = format!("2 more failed tasks: cofferdam logs {run} --failed\n");
    assert!(words.contains(&more), "{words}");
    let failed = stdout(&home.run(&["logs", &run, "--failed"]));
    assert_eq!(failed.lines().count(), 10, "{failed}");
}

#[test]
fn logs_of_a_task_by_name_and_tail() {
    let home = Home::new();
    let yaml = tasks(
        "named",
        &[
            ("build", "seq 5; printf 'half' >&2; exit 1"),
            ("shard-1", "echo one"),
            ("shard-10", "echo ten"),
        ],
    );
    let (_, run) = ran(&home, &yaml);
    let logs = |args: &[&str]| home.run(&[&["logs", run.as_str()][..], args].concat());
    let shown = |args: &[&str]| {
        let output = logs(args);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        stdout(&output)
    };
    assert_eq!(shown(&["--task", "build", "--stdout"]), "1\n2\n3\n4\n5\n");
    assert_eq!(shown(&["--task", "bu", "--tail", "2"]), "4\n5\nhalf", "a beginning is enough");
    assert_eq!(shown(&["--task", "shard-1"]), "one\n", "an exact name before a longer one");
    assert_eq!(shown(&["--failed", "--stderr"]), "half");
    assert_eq!(shown(&["--tail", "0"]), "");
    let both = shown(&["--task", "build", "--task", "shard-10", "--tail", "1"]);
    let mut lines: Vec<&str> = both.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["build | 5", "build | half", "shard-10 | ten"], "each line has its task");
    let objects: Vec<Value> = shown(&["--task", "build", "--tail", "1", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 2, "{objects:?}");
    assert_eq!(
        (
            &objects[0]["task"],
            &objects[0]["stream"],
            &objects[0]["line"],
            &objects[0]["schemaVersion"]
        ),
        (&json!("build"), &json!("stdout"), &json!("5"), &json!(1))
    );
    assert_eq!((&objects[1]["stream"], &objects[1]["line"]), (&json!("stderr"), &json!("half")));
    for (args, code, word) in [
        (
            &["--task", "test"][..],
            1,
            "no task is named \"test\"; the run's tasks: build, shard-1, shard-10",
        ),
        (&["--task", "shard"][..], 1, "several tasks begin with \"shard\": shard-1, shard-10"),
        (&["--stdout", "--stderr"][..], 3, "cannot be used with"),
        (&["--failed", "--follow"][..], 3, "cannot be used with"),
        (&["--tail", "many"][..], 3, "--tail"),
    ] {
        let output = logs(args);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        assert!(output.stdout.is_empty() && words.contains(word), "{args:?}: {words}");
    }
}

#[test]
fn logs_of_a_task_that_keeps_a_text_say_where_it_is() {
    let home = Home::new();
    let yaml = "id: kept\nv: \"1\"\nplan:\n  tasks:\n    - {name: kept, value: the text}\n    - {name: ran, exec: {run: echo ran, timeout: 30s}}\n";
    let (output, run) = ran(&home, yaml);
    assert!(output.status.success(), "{}", said(&output));
    let command = format!("cofferdam artifacts cat {run} value.txt --task kept");
    let modes: [&[&str]; 2] = [&[], &["--follow"]];
    for mode in modes {
        let logs = |args: &[&str]| {
            let args = [&["logs", run.as_str()][..], args, mode].concat();
            ended(home.command(&args), LIMIT)
        };
        let kept = logs(&["--task", "kept"]);
        let words = String::from_utf8_lossy(&kept.stderr).into_owned();
        assert!(kept.status.success() && words.contains(&command), "{}", said(&kept));
        assert!(kept.stdout.is_empty(), "{}", said(&kept));
        for silent in [logs(&["--task", "ran"]), logs(&[])] {
            assert!(!said(&silent).contains("value.txt"), "{}", said(&silent));
        }
    }
    let args: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(stdout(&home.run(&args)), "the text");
}

/// Live output has at most 1 MiB of a stream; what is kept of it is read once its task ended, and its end by ranges.
#[test]
fn a_long_log_is_whole_and_its_end_is_the_last_that_was_written() {
    let home = Home::new();
    let yaml = tasks("long", &[("t", "seq -f 'line %06.0f' 200000; printf '\\377end\\n'")]);
    let (_, run) = ran(&home, &yaml);
    let whole = home.run(&["logs", &run]);
    let lines: Vec<&[u8]> = whole.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!((lines.len(), lines[0]), (200_001, &b"line 000001\n"[..]));
    for count in [1, 3, 5_000] {
        let end = home.run(&["logs", &run, "--tail", &count.to_string()]);
        assert!(end.stdout == lines[lines.len() - count..].concat(), "{count}");
    }
}

/// The lines of a follower, each without the task that it is of.
async fn followed(home: &Home, run: &str, args: &[&str]) -> Vec<String> {
    let command = home.command(&[&["logs", "-f", run][..], args].concat());
    let output = tokio::task::spawn_blocking(move || ended(command, LIMIT)).await.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let mut lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

async fn detached(server: &Server, yaml: &str) -> String {
    text(&server.run_recipe(yaml, json!({}), json!({})).await, "runId")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_sees_whole_lines_however_they_were_written() {
    let home = Home::new();
    let server = home.up();
    let halves = "printf 'one '; sleep 0.3; printf 'line\\nand '; sleep 0.3; printf 'another'";
    let run = detached(&server, &tasks("halves", &[("a", halves), ("b", halves)])).await;
    let tasks = format!("/api/runs/{run}/steps");
    until("both have begun", LIMIT, async || {
        let steps = server.get(&tasks).await.1;
        steps.as_array().unwrap().iter().filter(|step| step["taskKey"].is_string()).count() == 2
    })
    .await;
    let lines = followed(&home, &run, &[]).await;
    assert_eq!(lines, ["a | and another", "a | one line", "b | and another", "b | one line"]);
    let only = followed(&home, &run, &["--task", "b", "--tail", "1"]).await;
    assert_eq!(only, ["and another"]);
    let gone = home.run(&["logs", "-f", &run, "--task", "c"]);
    assert_eq!(gone.status.code(), Some(1), "{}", said(&gone));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("the run's tasks: a, b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_an_end_of_line_is_shown_while_its_program_waits() {
    let home = Home::new();
    let server = home.up();
    let run = detached(&server, &tasks("asks", &[("t", "printf 'Proceed? '; sleep 600")])).await;
    let mut child = home.command(&["logs", "-f", &run]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let asked = tokio::task::spawn_blocking(move || {
        let mut bytes = [0; 9];
        out.read_exact(&mut bytes).map(|()| bytes)
    });
    let asked = tokio::time::timeout(LIMIT, asked).await.expect("it is shown").unwrap().unwrap();
    assert_eq!(&asked, b"Proceed? ");
    assert_eq!(home.run(&["cancel", &run]).status.code(), Some(0));
    server.wait_terminal(&run).await;
    child.wait().unwrap();
}
