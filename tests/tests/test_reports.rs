//! Test reports that a task declares: read where it ran, and shown by `run`, `show`, their JSON and the API.

use crate::objects::stored;
use crate::support;

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use cofferdam_tests::{Home, repository, text};
use serde_json::{Value, json};
use support::{assert_proven, code, count, recipe, said, stdout, until};

/// What pytest wrote, with one failure and one error; `contracts::test_report` holds its totals.
const PYTEST: &str = "crates/contracts/corpus/test_report/pytest.xml";

/// A recipe whose task finds files of this directory at `/in`, and keeps what stands after them.
fn yaml(id: &str, dir: &Path, run: &str, rest: &str) -> String {
    let dir = dir.display();
    let run = json!(run);
    format!(
        "id: {id}\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      files: [{{from: {dir}, to: /in, access: read-only}}]\n      exec: {{run: {run}, timeout: 60s}}\n      {rest}\n"
    )
}

/// The reports in a run's JSON.
fn reports(home: &Home, run: &str) -> Value {
    home.run_json(&["show", run, "--json"])["reports"].clone()
}

/// The run that a command's first line on stderr names.
fn run_of(output: &Output) -> String {
    let words = String::from_utf8(output.stderr.clone()).unwrap();
    let found = words.split_whitespace().find(|word| word.starts_with("rn_"));
    found.unwrap_or_else(|| panic!("{}", said(output))).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_task_says_its_totals_and_its_failed_cases() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    fs::copy(repository().join(PYTEST), dir.path().join("pytest.xml")).unwrap();
    // The report is an artifact by another glob, too.
    let text = yaml(
        "units",
        dir.path(),
        "mkdir out; cp /in/pytest.xml out/junit.xml; exit 1",
        "artifacts: [\"out/**\"]\n      reports: [\"out/*.xml\"]",
    );
    let file = recipe(dir.path(), "units.yaml", &text);
    let output = home.run(&["run", &file, "--run-key", "once"]);
    assert_eq!(code(&output), 1, "{}", said(&output));
    let said_by_run = stdout(&output);
    let line = "tests: 4 passed, 1 failed, 1 error, 2 skipped in ";
    assert!(said_by_run.contains(line), "{said_by_run}");
    assert!(said_by_run.contains("FAILED test_sign_fails (test_money): "), "{said_by_run}");
    assert!(!said_by_run.contains("  slow "), "nothing took a tenth of a second: {said_by_run}");
    let run = run_of(&output);
    let shown = stdout(&home.run(&["show", &run]));
    assert!(shown.contains(line), "{shown}");

    let reports = reports(&home, &run);
    let [task] = reports["tasks"].as_array().unwrap().as_slice() else { panic!("{reports}") };
    assert_eq!((&task["name"], &task["attempt"]), (&json!("t"), &json!(1)));
    let [report] = task["reports"].as_array().unwrap().as_slice() else { panic!("{reports}") };
    assert_eq!((&report["path"], &report["kind"]), (&json!("out/junit.xml"), &json!("junit")));
    assert_eq!(reports["total"]["totals"]["cases"], 8);
    let artifacts = home.run_json(&["show", &run, "--json"])["artifacts"].clone();
    let files: Vec<&Value> =
        artifacts.as_array().unwrap().iter().filter(|row| row["kind"] == "file").collect();
    assert_eq!(files.len(), 1, "a report that `artifacts` matches is one artifact: {files:?}");
    assert_eq!(files[0]["sha256"], report["sha256"]);

    // The task that ran says it, however often the same run is asked for.
    let again = home.run(&["run", &file, "--run-key", "once"]);
    assert_eq!(run_of(&again), run);
    assert!(stdout(&again).contains(line), "{}", said(&again));
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_one_sum_and_each_has_its_own_report() {
    let home = Home::new();
    let up = home.up();
    let shards = "id: shards\nv: \"1\"\nplan:\n  tasks:\n    - name: s-${item}\n      each: [0, 1, 2]\n      exec: {run: 'printf \"TAP version 14\\n1..2\\nok 1 - a\\n%s 2 - b\\n\" \"$WORD\" > r.tap; printf \"SF:a\\nDA:$N,1\\nend_of_record\\n\" > r.info', env: {WORD: '${item}', N: '1${index}'}, timeout: 60s}\n      reports: [r.tap, {path: r.info, kind: lcov}]\n";
    // Each says by its own word how its second test ended.
    let shards =
        shards.replace("[0, 1, 2]", "['ok', 'not ok', 'ok']").replace("s-${item}", "s-${index}");
    let header = up.run_recipe(&shards, json!({}), json!({})).await;
    let run = text(&header, "runId");
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let (status, reports) = up.get(&format!("/api/runs/{run}/reports")).await;
    assert_eq!(status, 200, "{reports}");
    let tasks = reports["tasks"].as_array().unwrap();
    let mut failed: Vec<(String, u64)> = tasks
        .iter()
        .map(|task| {
            let totals = &task["reports"][0]["report"]["totals"];
            (text(task, "name"), totals["failed"].as_u64().unwrap())
        })
        .collect();
    failed.sort();
    assert_eq!(failed, [("s-0".into(), 0), ("s-1".into(), 1), ("s-2".into(), 0)]);
    let total = &reports["total"];
    assert_eq!((&total["totals"]["cases"], &total["totals"]["failed"]), (&json!(6), &json!(1)));
    assert_eq!(total["failures"].as_array().unwrap().len(), 1);
    assert!(total["coverage"].is_null(), "lines of several reports are not added: {total}");
    let lines = &tasks[0]["reports"][1]["report"]["coverage"]["lines"];
    assert_eq!(lines, &json!({"total": 1, "covered": 1}));
    // Another tenant's key does not read it.
    let (_, other) = up.new_key(&json!({"tenant": "other", "roles": ["auditor"]})).await;
    assert_eq!(up.get_as(&other, &format!("/api/runs/{run}/reports")).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_cut_or_too_large_is_a_fault_and_not_a_failure() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let dir = tempfile::tempdir().unwrap();
    fs::copy(repository().join(PYTEST), dir.path().join("pytest.xml")).unwrap();
    let text = yaml(
        "faults",
        dir.path(),
        "head -c 900 /in/pytest.xml > cut.xml; truncate -s 100M large.xml; echo hello > other.txt; cp /in/pytest.xml good.xml",
        "artifacts: [other.txt]\n      reports: [cut.xml, large.xml, good.xml, other.txt, \"none/*.xml\"]",
    );
    let header = up.run_recipe(&text, json!({}), json!({})).await;
    let run = cofferdam_tests::text(&header, "runId");
    let end = up.wait_terminal(&run).await;
    assert_eq!((&end["status"], &end["error"]), (&json!("succeeded"), &Value::Null), "{end}");
    let (_, reports) = up.get(&format!("/api/runs/{run}/reports")).await;
    let task = &reports["tasks"][0];
    let faults: Vec<(&str, &str)> = task["reports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let fault = row["report"]["fault"]["kind"].as_str().unwrap_or("");
            (row["path"].as_str().unwrap(), fault)
        })
        .collect();
    let want = [
        ("cut.xml", "truncated"),
        ("large.xml", "too_large"),
        ("good.xml", ""),
        ("other.txt", "unknown"),
    ];
    assert_eq!(faults, want, "{reports}");
    assert_eq!(task["unmatched"], json!(["none/*.xml"]));
    assert!(reports["total"]["totals"].is_null(), "a part is not the whole: {reports}");
    // What was too large is no artifact; every other one is.
    let rows =
        "SELECT count(*) FROM app.test_reports WHERE (sha256 IS NULL) = (path = 'large.xml')";
    assert_eq!(count(&sql, rows).await, 4);
    let files = "SELECT count(*) FROM app.artifacts WHERE kind = 'file'";
    assert_eq!(count(&sql, files).await, 3);
    let shown = stdout(&home.run(&["show", &run]));
    for line in [
        "tests: no totals, since a report could not be read to its end",
        "report cut.xml of t: the report is incomplete",
        "report large.xml of t: the report, with those of its task before it, is larger than 64 MiB",
        "reports of t: none/*.xml matched no file",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_reports_lie_in_the_store_as_other_large_files_do() {
    let home = Home::new();
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let make = "{ echo 1..40000; seq -f 'ok %.0f - a name of a test that is as long as those of a large suite: more of it, and more yet' 1 40000; } > large.tap; \
                cp large.tap also.tap; echo 'not ok 1 - x' >> also.tap; cp large.tap twin; printf '1..1\nok 1\n' > small.tap";
    let rest = "artifacts: [also.tap, twin]\n      reports: [\"*.tap\"]";
    let header = up.run_recipe(&yaml("large", dir.path(), make, rest), json!({}), json!({})).await;
    let run = text(&header, "runId");
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let (_, reports) = up.get(&format!("/api/runs/{run}/reports")).await;
    let read: Vec<(String, u64)> = reports["tasks"][0]["reports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let cases = row["report"]["totals"]["cases"].as_u64().unwrap_or(0);
            (text(row, "path"), cases)
        })
        .collect();
    let paths: Vec<&str> = read.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["also.tap", "large.tap", "small.tap"], "{reports}");
    assert_eq!((read[1].1, read[2].1), (40_000, 1), "{reports}");
    let sql = up.sql().await;
    let large = "SELECT count(*) FROM app.blobs WHERE octet_length(bytes) > 65536";
    assert_eq!(count(&sql, large).await, 0, "the database has none of them");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.stored_objects").await, 2, "two contents");
    let objects =
        "SELECT count(*) FROM app.artifacts WHERE object_id IS NOT NULL AND size > 3000000";
    assert_eq!(count(&sql, objects).await, 3);
    until("nothing else is left of them", Duration::from_secs(60), async || {
        stored(&home, "parts").is_empty()
    })
    .await;
    assert_eq!(stored(&home, "kept").len(), 2);
    let out = dir.path().join("out");
    let got = home.run(&["artifacts", "get", &run, "-o", out.to_str().unwrap()]);
    assert_eq!(code(&got), 0, "{}", said(&got));
    let read = |name: &str| fs::read(out.join(name)).unwrap();
    assert_eq!(read("large.tap"), read("twin"));
    assert!(read("also.tap").starts_with(&read("large.tap")));
    let shown = home.run_json(&["show", &run, "--json"])["artifacts"].clone();
    let names = ["files/also.tap", "files/large.tap", "files/small.tap", "files/twin"];
    for name in names {
        let rows = shown.as_array().unwrap().iter().filter(|row| row["name"] == name);
        assert_eq!(rows.count(), 1, "{name}: {shown}");
    }
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_tests_act_on_no_terminal_and_rows_do_not_change() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let dir = tempfile::tempdir().unwrap();
    // In TAP a name may have any byte; a second line would look like one of ours.
    fs::write(
        dir.path().join("r.tap"),
        "1..1\nnot ok 1 - a\u{1b}]0;owned\u{7}b\u{1b}[2K\rtests: 1 passed\n",
    )
    .unwrap();
    let text = yaml("hostile", dir.path(), "cp /in/r.tap r.tap", "reports: [r.tap]");
    let file = recipe(dir.path(), "hostile.yaml", &text);
    let output = home.run(&["run", &file]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(!output.stdout.contains(&0x1b) && !output.stdout.contains(&7), "{}", said(&output));
    assert!(
        stdout(&output).contains("FAILED a\\x1b]0;owned\\x07b\\x1b[2K\\rtests: 1 passed"),
        "{}",
        said(&output)
    );
    let change = sqlx::query("UPDATE app.test_reports SET path = 'x'").execute(&sql).await;
    assert!(change.unwrap_err().to_string().contains("append-only"));
    // Its texts use the tenant's quota.
    let sum = "SELECT count(*) FROM app.blob_usage WHERE bytes = (
        SELECT coalesce(sum(size), 0) FROM app.artifacts WHERE inline IS NULL) + (
        SELECT sum(octet_length(inputs::text) + octet_length(goal)) FROM app.intents) + (
        SELECT sum(octet_length(json::text)) FROM app.recipe_versions) + (
        SELECT sum(octet_length(report::text)) FROM app.test_reports)";
    assert_eq!(count(&sql, sum).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_refused_where_they_cannot_be() {
    let home = Home::new();
    let up = home.up();
    let import = async |task: &str| {
        let yaml = format!("id: bad\nv: \"1\"\nplan:\n  tasks:\n    - {task}\n");
        up.post("/api/recipes/import", &json!({"yaml": yaml})).await
    };
    for (task, word) in [
        ("{name: t, value: v, reports: [a]}", "plan.tasks[0].reports: a task with `value`"),
        ("{name: t, exec: {run: x}, reports: [{path: a, kind: html}]}", "html"),
        ("{name: t, exec: {run: x}, reports: ['']}", "plan.tasks[0].reports[0]: an empty path"),
    ] {
        let (status, body) = import(task).await;
        assert_eq!(status, 400, "{body}");
        assert!(body["error"].as_str().unwrap().contains(word), "{word}: {body}");
    }
    let (status, body) =
        import("{name: t, exec: {run: 'true'}, reports: [a, {path: b, kind: tap}]}").await;
    assert_eq!(status, 201, "{body}");
}
