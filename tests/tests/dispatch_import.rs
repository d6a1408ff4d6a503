//! Another program's dispatch database is taken over, whatever version of the table it has.

use crate::support;

use std::path::Path;
use std::process::Command;

use cofferdam_tests::{Home, row_counts};
use serde_json::{Value, json};
use support::{assert_proven, said};

/// The first version of the table, and one with every column.
const OLDEST: &str = "CREATE TABLE dispatches (id TEXT PRIMARY KEY, agent_type TEXT NOT NULL DEFAULT 'codex',
  status TEXT NOT NULL DEFAULT 'spawned', project_dir TEXT NOT NULL, prompt_file TEXT, created_at INTEGER NOT NULL);
INSERT INTO dispatches VALUES ('old00001', 'codex', 'completed', '/p', '/p/prompt', 1700000000),
  ('old00002', 'claude', 'failed', '/p', NULL, 1700000001), ('old00003', 'codex', 'running', '/p', NULL, 1700000002),
  ('TOO-LONG-AN-ID', 'codex', 'completed', '/p', NULL, 1700000003);";
const NEWEST: &str = "CREATE TABLE dispatches (id TEXT PRIMARY KEY, agent_type TEXT, status TEXT, project_dir TEXT,
  prompt_file TEXT, prompt_hash TEXT, output_file TEXT, verdict_file TEXT, pid INTEGER, exit_code INTEGER, name TEXT,
  model TEXT, sandbox TEXT DEFAULT 'workspace-write', timeout_sec INTEGER, turns INTEGER DEFAULT 0,
  commands INTEGER DEFAULT 0, messages INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
  output_tokens INTEGER DEFAULT 0, cache_hits INTEGER, created_at INTEGER, started_at INTEGER, completed_at INTEGER,
  verdict_status TEXT, verdict_summary TEXT, error_message TEXT, scope_id TEXT, parent_id TEXT,
  base_repo_commit TEXT, retry_count INTEGER DEFAULT 0, conflict_type TEXT, quarantine_reason TEXT,
  spawn_depth INTEGER DEFAULT 0, parent_dispatch_id TEXT, sandbox_spec TEXT, sandbox_effective TEXT);
INSERT INTO dispatches (id, agent_type, status, project_dir, turns, input_tokens, created_at, spawn_depth, scope_id,
  sandbox_spec, sandbox_effective)
  VALUES ('new00001', 'opencode', 'completed', '/q', 4, 100, 1700000100, 7, 's', '{\"tools_allowed\":[\"ls\"],\"x\":1}', '{\"a\":1}'),
         ('new00002', 'codex', 'timeout', '/q', 0, 0, 1700000101, 0, NULL, NULL, NULL),
         ('new00003', 'codex', 'completed', '/q', 0, 0, 1700000102, 0, NULL, '{broken', NULL);";

/// A database as the other program would have made it: by the interpreter's own library.
fn database(dir: &Path, name: &str, sql: &str) -> String {
    let path = dir.join(name).to_str().unwrap().to_owned();
    let program = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.executescript(sys.argv[2]); d.commit(); d.close()";
    let done = Command::new("python3").args(["-c", program, &path, sql]).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_and_the_newest_tables_are_imported_once_and_only_read() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let dir = tempfile::tempdir().unwrap();
    let old = database(dir.path(), "old.db", OLDEST);
    let new = database(dir.path(), "new.db", NEWEST);
    let before = [std::fs::read(&old).unwrap(), std::fs::read(&new).unwrap()];
    let first = home.run_json(&["dispatch", "import", &old, "--json"]);
    assert_eq!(first["imported"], json!(["old00001", "old00002"]), "{first:#}");
    let reasons: Vec<&str> = first["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["reason"].as_str().unwrap())
        .collect();
    assert!(
        reasons[0].contains("still running") && reasons[1].contains("dispatch id"),
        "{reasons:?}"
    );
    let second = home.run_json(&["dispatch", "import", &new, "--json"]);
    assert_eq!(second["imported"], json!(["new00001", "new00002"]), "{second:#}");
    assert!(
        second["skipped"][0]["reason"].as_str().unwrap().contains("sandbox_spec"),
        "{second:#}"
    );
    let oldest = home.run_json(&["dispatch", "status", "old00001", "--json"]);
    assert_eq!(
        (&oldest["sandbox_spec"], &oldest["sandbox"]),
        (&Value::Null, &json!("workspace-write"))
    );
    let newest = home.run_json(&["dispatch", "status", "new00001", "--json"]);
    assert_eq!(
        newest["sandbox_spec"],
        json!({"tools_allowed": ["ls"], "x": 1}),
        "nested, never text"
    );
    assert_eq!(newest["sandbox_effective"], json!({"a": 1}));
    assert_eq!(
        (&newest["spawn_depth"], &newest["turns"], &newest["in_tokens"]),
        (&json!(7), &json!(4), &json!(100))
    );
    let rows = row_counts(&sql).await;
    let again = home.run_json(&["dispatch", "import", &new, "--json"]);
    assert_eq!((&again["imported"], &again["unchanged"]), (&json!([]), &json!(2)), "{again:#}");
    assert_eq!(row_counts(&sql).await, rows);
    assert_eq!([std::fs::read(&old).unwrap(), std::fs::read(&new).unwrap()], before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no journal beside them");
    let output = home.run(&["dispatch", "retry", "old00002"]);
    assert_eq!(output.status.code(), Some(1), "its prompt is not here: {}", said(&output));
    assert_proven(&home);
}

/// The other program writes ahead; its closed database has no log, and none appears by reading it.
#[tokio::test(flavor = "multi_thread")]
async fn i4_a_database_that_is_written_ahead_is_read_without_a_trace() {
    let home = Home::new();
    let _up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let ahead = format!("PRAGMA journal_mode = WAL; {OLDEST}");
    let file = database(dir.path(), "a 100%? b#.db", &ahead);
    let before = std::fs::read(&file).unwrap();
    let done = home.run_json(&["dispatch", "import", &file, "--json"]);
    assert_eq!(done["imported"], json!(["old00001", "old00002"]), "{done:#}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a file was left beside it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_dispatch_database_is_an_error_and_another_tenants_id_stays_theirs() {
    let home = Home::new();
    let up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let other = database(dir.path(), "other.db", "CREATE TABLE things (id TEXT);");
    std::fs::write(dir.path().join("text.db"), "not a database at all, but long enough").unwrap();
    let text = dir.path().join("text.db").to_str().unwrap().to_owned();
    let missing = dir.path().join("missing.db").to_str().unwrap().to_owned();
    for file in [&other, &text, &missing] {
        let output = home.run(&["dispatch", "import", file]);
        assert_eq!(output.status.code(), Some(2), "{file}: {}", said(&output));
    }
    assert!(!Path::new(&missing).exists(), "reading makes nothing");
    let new = database(dir.path(), "new.db", NEWEST);
    let _ = home.run_json(&["dispatch", "import", &new, "--json"]);
    let roles = json!({"tenant": "acme", "roles": ["operator", "auditor"]});
    let (_, acme) = up.new_key(&roles).await;
    let rows = json!({"rows": [{"id": "new00001", "status": "completed", "project_dir": "/z"}]});
    let (status, answer) = up.post_as(&acme, "/api/dispatches/import", &rows).await;
    assert_eq!((status, &answer["imported"]), (200, &json!([])), "{answer}");
    assert_eq!(up.get_as(&acme, "/api/dispatches/new00001").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_two_columns_arrive_harmlessly_twice_and_leave_old_rows_null() {
    let home = Home::new();
    let mut up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let old = database(dir.path(), "old.db", OLDEST);
    let _ = home.run_json(&["dispatch", "import", &old, "--json"]);
    // Each start migrates again.
    assert!(up.stop().success());
    let up = home.up();
    let sql = up.sql().await;
    let rows: Vec<(String, Option<Value>, Option<Value>)> = sqlx::query_as(
        "SELECT id, sandbox_spec, sandbox_effective FROM app.dispatches ORDER BY id",
    )
    .fetch_all(&sql)
    .await
    .unwrap();
    assert_eq!(
        rows,
        [("old00001".to_owned(), None, None), ("old00002".to_owned(), None, None)],
        "rows that were there keep what they had and have neither"
    );
}
