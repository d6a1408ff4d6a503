//! `cofferdam check` as an editor, a hook and a pipeline use it: one line a finding, an exit code, and no server.

use crate::support;

use std::io::Write as _;
use std::process::Stdio;

use cofferdam_tests::Home;
use serde_json::json;
use support::{code, recipe, said, stdout};

const GOOD: &str =
    "id: good\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, exec: {run: make, timeout: 1m}}\n";
const WRONG: &str = "id: wrong\nv: \"1\"\ntitel: x\nplan:\n  tasks:\n    - name: t\n      exec: {run: make, timeout: soon}\n";
const FOUR: &str = "id: four\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {run: \"make ${item}\", timeout: 1m}\n    - name: u\n      artifacts: ['/x']\n      exec: {run: make}\n";

#[test]
fn findings_are_lines_with_file_line_and_column_and_the_exit_is_their_verdict() {
    let home = Home::empty();
    let good = recipe(home.path(), "good.yaml", GOOD);
    let wrong = recipe(home.path(), "wrong.yaml", WRONG);
    let four = recipe(home.path(), "four.yaml", FOUR);
    let output = home.run(&["check", &good]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, ""), "{}", said(&output));
    let output = home.run(&["check", &good, &wrong, &four]);
    assert_eq!(code(&output), 1, "{}", said(&output));
    let text = stdout(&output);
    for line in [
        format!("{wrong}:3:1: error: titel: unknown field"),
        format!("{four}:6:14: error: plan.tasks[0].exec.run: `${{item}}`"),
        format!("{four}:8:19: error: plan.tasks[1].artifacts[0]: \"/x\" is absolute"),
        format!("{four}:9:7: warning: plan.tasks[1].exec: no `timeout`"),
    ] {
        assert!(text.lines().any(|found| found.starts_with(&line)), "{line} in\n{text}");
    }
    assert!(text.contains("[timeout-missing]") && text.contains("[recipe_invalid]"), "{text}");
    let left = support::names(home.path());
    assert_eq!(left.len(), 3, "no server and no database: {left:?}");
}

#[test]
fn a_warning_is_no_error_unless_it_is_denied_and_an_unread_file_is_2() {
    let home = Home::empty();
    let warned = GOOD.replace(", timeout: 1m", "");
    let file = recipe(home.path(), "warned.yaml", &warned);
    assert_eq!(code(&home.run(&["check", &file])), 0);
    assert_eq!(code(&home.run(&["check", &file, "--deny-warnings"])), 1);
    let output = home.run(&["check", "no/such/file.yaml", &file]);
    assert_eq!(code(&output), 2, "{}", said(&output));
    assert!(
        stdout(&output).contains("timeout-missing"),
        "the others are checked: {}",
        said(&output)
    );
    assert_eq!(code(&home.run(&["check"])), 3, "a file has to be named");
}

#[test]
fn a_directory_standard_input_and_json() {
    let home = Home::empty();
    let examples = home.run(&["check", "examples", "--deny-warnings"]);
    assert_eq!(code(&examples), 0, "{}", said(&examples));
    let mut command = home.command(&["check", "-", "--json"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(WRONG.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 1, "{}", said(&output));
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["schemaVersion"], 1);
    let file = &value["files"][0];
    assert_eq!((&file["file"], &value["unread"]), (&json!("-"), &json!(0)), "{value}");
    let first = &file["findings"][0];
    assert_eq!(
        (&first["severity"], &first["code"], &first["line"], &first["column"]),
        (&json!("error"), &json!("recipe_invalid"), &json!(3), &json!(1)),
        "{value}"
    );
}

#[test]
fn what_a_recipe_has_of_a_terminal_is_escaped() {
    let home = Home::empty();
    let text = "id: x\nv: \"1\"\n\"a\\e[31m\": 1\nplan:\n  tasks: [{name: t, value: x}]\n";
    let file = recipe(home.path(), "hostile.yaml", text);
    let output = home.run(&["check", &file]);
    assert_eq!(code(&output), 1, "{}", said(&output));
    assert!(!output.stdout.contains(&0x1b), "{}", said(&output));
}

#[test]
fn the_schema_of_a_recipe_has_an_example_of_each_field() {
    let home = Home::empty();
    let output = home.run(&["schema", "recipe"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let schema: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(schema["properties"]["id"]["examples"].is_array(), "{schema}");
    let beside =
        std::fs::read_to_string(cofferdam_tests::repository().join("examples/recipe.schema.json"));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&beside.unwrap()).unwrap(), schema);
}
