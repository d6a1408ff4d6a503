//! What auditors and operators run by themselves: the design's SQL, every proof by psql alone, the walkthroughs.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, Server, binary, repository, tamper, text};
use serde_json::json;
use sqlx::{AssertSqlSafe, Row};

use crate::support::count;

const VALUE: &str = "id: kept\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, value: kept}\n";
/// The third query of the design as it is written.
const LITERAL: &str =
    "SELECT queue_name, COUNT(*) FROM dbos.workflow_status WHERE status='QUEUED' GROUP BY 1";

/// Whether psql is here; where it is not, that is reported.
fn has_psql() -> bool {
    let found = Command::new("psql").arg("--version").output().is_ok();
    if !found {
        not_run("psql", "apt-get install postgresql-client");
    }
    found
}

/// The statements of the page that auditors read.
fn page() -> Vec<String> {
    let page = fs::read_to_string(repository().join("docs/operations.md")).unwrap();
    let block = page.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let plain: String =
        block.lines().filter(|line| !line.starts_with("--")).map(|l| format!("{l}\n")).collect();
    plain.split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_designs_queries_answer_rightly_and_the_one_that_cannot_stands_beside_the_one_that_does()
 {
    let home = Home::new();
    // Nobody executes: what is submitted waits.
    let api = Server::start(&home, &["api", "--listen", "127.0.0.1:0"], &[]);
    api.run_recipe(VALUE, json!({}), json!({})).await;
    let sql = api.sql().await;
    let page = page();
    let [once, integrity, waiting] = page.as_slice() else { panic!("{page:?}") };
    let rows = |query: &str| sqlx::query(AssertSqlSafe(query.to_owned())).fetch_all(&sql);
    assert!(rows(once).await.unwrap().is_empty());
    assert_eq!(count(&sql, integrity).await, 0);
    let found = rows(waiting).await.unwrap();
    let found: Vec<(String, i64)> = found.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(found, [("intentQ".to_owned(), 1)]);
    assert!(rows(LITERAL).await.unwrap().is_empty(), "the page says that it finds nothing");
    let engine = "SELECT count(*) FROM app.queue_status WHERE engine_status = 'ENQUEUED' AND status = 'QUEUED'";
    assert_eq!(count(&sql, engine).await, 1);
}

/// psql, which reads this script.
fn psql(url: &str, script: &[u8]) -> Output {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--file", "-", url]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(script).unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_proof_is_one_script_for_psql_that_says_go_and_fails_where_a_row_was_changed() {
    if !has_psql() {
        return;
    }
    let home = Home::new();
    let up = home.up();
    let run = up.run_recipe(VALUE, json!({}), json!({})).await;
    up.wait_terminal(&text(&run, "runId")).await;
    let script = home.run(&["prove", "--sql"]);
    assert!(script.status.success());
    let url = home.database_url();
    let output = psql(&url, &script.stdout);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.trim_end().ends_with("\nGO"), "{said}");
    let report = home.run_json(&["prove", "--json"]);
    let proofs = report["proofs"].as_array().unwrap();
    assert!(proofs.len() > 50, "{report}");
    for proof in proofs {
        let name = proof["name"].as_str().unwrap();
        assert!(
            said.lines().any(|line| line.starts_with(&format!("0  {name}: "))),
            "{name}: {said}"
        );
    }
    let sql = up.sql().await;
    tamper(&sql, "UPDATE app.recipe_versions SET hash = repeat('0', 64)").await;
    let output = psql(&url, &script.stdout);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("1  recipes_are_their_hashes: ") && said.contains("\nNO_GO"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walkthroughs_hold_against_an_installation() {
    if !has_psql() {
        return;
    }
    let home = Home::new();
    let up = home.up();
    let mut command = Command::new(repository().join("scripts/walkthrough"));
    command.arg("all").env("COFFERDAM_STATE", home.path()).env("COFFERDAM_BINARY", binary());
    for name in ["COFFERDAM_SERVER", "COFFERDAM_KEY", "DATABASE_URL", "COFFERDAM_SERVERS"] {
        command.env_remove(name);
    }
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for words in [
        "SQL: one accepted reply, one decision, one task, one verified wipe",
        "SQL: no row of the tenant was written by any of them",
        "SQL: one answer was accepted",
        "malformed JSON: 400",
        "walkthrough all: done",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // A key goes by files alone: it is in no output.
    assert!(!said.contains(&up.key), "{said}");
}

/// A walkthrough that cannot fail shows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_walkthrough_fails_where_an_answer_is_not_as_it_says() {
    if !has_psql() {
        return;
    }
    let home = Home::new();
    // Without a worker no run comes to its gate: the lane's own patience would end it after two minutes.
    let api = Server::start(&home, &["api", "--listen", "127.0.0.1:0"], &[]);
    let mut command = Command::new(repository().join("scripts/walkthrough"));
    command.arg("qa").env("COFFERDAM_STATE", home.path()).env("COFFERDAM_BINARY", binary());
    let auditor = api.new_key(&json!({"tenant": "default", "roles": ["auditor"]})).await.1;
    command.env("COFFERDAM_SERVER", api.url.as_str()).env("COFFERDAM_KEY", auditor);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("answered 403, 201 was expected"), "{said}");
}
