//! Migrations on a real database: once, twice, together, with rows that must survive, and from the baseline.
//!
//! `baseline/baseline.sql` is a dump of a database that the first migrations made, with the rows of
//! `baseline/rows.sql`. Before the first release, `UPDATE_BASELINE=1` writes it anew; from then on it stays as it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_ambient::env;
use cofferdam_contracts::id::{Digest, RunId};
use cofferdam_contracts::patch::{GitId, PatchCommit};
use cofferdam_contracts::proof::Verdict;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_ledger::migrate::MIGRATIONS;
use cofferdam_ledger::{Ledger, LedgerError};
use sqlx::{AssertSqlSafe, PgPool};

/// Every column, constraint, index, trigger and function of ours, as text.
async fn schema(sql: &PgPool) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '')
           FROM information_schema.columns WHERE table_schema = 'app'
         UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
           FROM pg_constraint WHERE connamespace = 'app'::regnamespace
         UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'app'
         UNION ALL SELECT 'trigger ' || tgrelid::regclass || ' ' || pg_get_triggerdef(t.oid)
           FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = 'app'::regnamespace AND NOT tgisinternal
         UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'app'::regnamespace
         UNION ALL SELECT 'view ' || viewname || ' ' || definition FROM pg_views WHERE schemaname = 'app'
         ORDER BY 1",
    )
    .fetch_all(sql)
    .await
    .unwrap()
}

#[tokio::test]
async fn migrating_twice_or_together_is_harmless_and_rows_survive() {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let url = cluster.url();
    let (a, b) = (Ledger::connect(&url).await.unwrap(), Ledger::connect(&url).await.unwrap());
    // Two processes that start at the same time on an empty database.
    let (first, second) = tokio::join!(a.migrate(), b.migrate());
    first.unwrap();
    second.unwrap();
    let sql = PgPool::connect(&url).await.unwrap();
    let fresh = schema(&sql).await;
    assert!(fresh.len() > 100, "{}", fresh.len());
    sqlx::query("INSERT INTO app.api_keys (key_id, key_hash, tenant_id, roles) VALUES ('k', repeat('0', 64), 't', '{admin}')")
        .execute(&sql)
        .await
        .unwrap();
    a.migrate().await.unwrap();
    assert_eq!(schema(&sql).await, fresh);
    let (keys, versions): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM app.api_keys), (SELECT count(*) FROM app.schema_migrations)",
    )
    .fetch_one(&sql)
    .await
    .unwrap();
    assert_eq!((keys, usize::try_from(versions).unwrap()), (1, MIGRATIONS.len()));
    sql.close().await;
    a.close().await;
    b.close().await;
    cluster.stop().await.unwrap();
}

/// What the database refuses, and the statement.
const REFUSED: [(&str, &str); 14] = [
    ("a terminal run goes on", "UPDATE app.runs SET status = 'running'"),
    ("a run changes its identity", "UPDATE app.runs SET recipe_hash = repeat('1', 64)"),
    ("an unknown status", "UPDATE app.runs SET status = 'paused'"),
    (
        "a run ends and leaves its dispatch behind",
        "UPDATE app.runs SET status = 'failed' WHERE recipe_id = 'dispatch'",
    ),
    ("an intent is rewritten", "UPDATE app.intents SET goal = 'x'"),
    ("an audit row is deleted", "DELETE FROM app.audit"),
    ("a long-lived sandbox is deleted", "DELETE FROM app.live_sandboxes"),
    ("a long-lived sandbox gets another owner", "UPDATE app.live_sandboxes SET tenant_id = 'u'"),
    (
        "a long-lived sandbox ends without a reason",
        "UPDATE app.live_sandboxes SET ended_at = clock_timestamp()",
    ),
    (
        "a session ends without evidence",
        "UPDATE app.remote_execution_sessions SET state = 'COMPLETED'",
    ),
    (
        "a session is settled although nothing failed",
        "INSERT INTO app.wipe_settlements (sandbox_id, run_id, tenant_id, terminal_state, evidence_look, evidence_digest, actor, key_id, reason, origin) SELECT sandbox_id, run_id, tenant_id, 'FAILED', 1, repeat('0', 64), 'a', 'k', 'r', 'manual' FROM app.remote_execution_sessions",
    ),
    (
        "an origin that is not on the list",
        "INSERT INTO app.run_steps (run_id, step_id, attempt, status, origin) SELECT id, 'S', 1, 'ok', 'somebody' FROM app.runs",
    ),
    (
        "a key whose role is not on the list",
        "INSERT INTO app.api_keys (key_id, key_hash, tenant_id, roles) VALUES ('k', repeat('0', 64), 't', '{root}')",
    ),
    (
        "fan-out work without a partition",
        "SELECT app.enqueue('w', 'task', 'null', 'sbxQ', '  ', 1, NULL, 'v', NULL, 0)",
    ),
];

#[tokio::test]
async fn history_cannot_be_rewritten_and_states_are_closed_lists() {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    let zeros = "0".repeat(64);
    let setup = format!(
        "INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
           VALUES ('it_{i}', 't', 'g', '{{}}', '{{}}', 'k', 'manual');
         INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
           partition_key, priority, app_version, origin, key_id)
           VALUES ('rn_{i}', 'it_{i}', 'it_{i}', 't', 'succeeded', 'LOCAL_NATIVE', 'r', '1', '{zeros}', 't', 1, 'v', 'manual', 'k');
         INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
           VALUES ('rn_{i}', 'S', '{zeros}', 1, 'n', 'container', '{{}}', 'manual');
         INSERT INTO app.remote_execution_sessions (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir, executor_id, state)
           VALUES ('sb{s}', '{zeros}', 1, 'rn_{i}', 't', 'container', 'h', '/', 'e', 'EXECUTING');
         INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
           VALUES ('it_{d}', 't', 'g', '{{}}', '{{}}', 'k', 'manual');
         INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
           partition_key, priority, app_version, origin, key_id)
           VALUES ('rn_{d}', 'it_{d}', 'it_{d}', 't', 'running', 'LOCAL_NATIVE', 'dispatch', '1', '{zeros}', 't', 1, 'v', 'manual', 'k');
         INSERT INTO app.dispatches (id, project_dir) VALUES ('disp0001', '/');
         INSERT INTO app.dispatch_runs (dispatch_id, tenant_id, run_id, key_id, origin)
           VALUES ('disp0001', 't', 'rn_{d}', 'k', 'manual');
         INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, origin)
           VALUES (repeat('a', 20), 't', 'rn_{d}', 'k', 'base', '{{}}', '\"none\"', 1000, 'manual');
         INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason) VALUES ('t', 'k', 'a', 'o', 'x', 'r')",
        d = "1".repeat(32),
        i = "0".repeat(32),
        s = "0".repeat(20),
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(setup)).execute(&sql).await.unwrap();
    for (what, statement) in REFUSED {
        let error = sqlx::query(statement).execute(&sql).await.expect_err(what);
        let code =
            error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
        assert!(code.starts_with("23"), "{what}: {error}");
    }
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}

fn baseline(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/baseline").join(file)
}

/// The rows of every table of ours, but for the list of migrations.
async fn rows(sql: &PgPool) -> Vec<(String, i64)> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT tablename::text FROM pg_tables WHERE schemaname = 'app' AND tablename <> 'schema_migrations' ORDER BY 1",
    )
    .fetch_all(sql)
    .await
    .unwrap();
    let mut counts = Vec::new();
    for table in tables {
        let count = format!("SELECT count(*) FROM app.{table}");
        let rows = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(sql).await.unwrap();
        counts.push((table, rows));
    }
    counts
}

/// A dump that any connection can run: without the lines that only psql reads.
fn dumped(url: &str) -> String {
    let said = Command::new("pg_dump")
        .args(["--no-owner", "--no-privileges", "--inserts", "--dbname", url])
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let text = String::from_utf8(said.stdout).unwrap();
    let is_kept =
        |line: &&str| !line.starts_with('\\') && !line.starts_with("SET transaction_timeout");
    text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect()
}

async fn baseline_write() {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    let text = std::fs::read_to_string(baseline("rows.sql")).unwrap();
    sqlx::raw_sql(AssertSqlSafe(text)).execute(&sql).await.unwrap();
    std::fs::write(baseline("baseline.sql"), dumped(&cluster.url())).unwrap();
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn the_baseline_is_migrated_by_every_later_version_and_keeps_its_rows() {
    if env::var("UPDATE_BASELINE").is_some() {
        baseline_write().await;
    }
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    let dump = std::fs::read_to_string(baseline("baseline.sql")).unwrap();
    sqlx::raw_sql(AssertSqlSafe(dump)).execute(&sql).await.unwrap();
    // The dump's own settings end with its connections.
    sql.close().await;
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    let before = rows(&sql).await;
    let empty: Vec<&str> =
        before.iter().filter(|(_, n)| *n == 0).map(|(t, _)| t.as_str()).collect();
    assert!(before.len() > 40 && empty.is_empty(), "every table has a row: {empty:?}");
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let after = rows(&sql).await;
    let lost: Vec<_> = before.iter().filter(|row| !after.contains(row)).collect();
    assert!(lost.is_empty(), "{lost:?} of {after:?}");
    let report = ledger.prove(None, None).await.unwrap();
    assert_eq!(report.verdict, Verdict::Go, "{report:?}");
    let migrated = schema(&sql).await;
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    let fresh = schema(&sql).await;
    let differs: Vec<_> = migrated.iter().filter(|line| !fresh.contains(line)).collect();
    assert!(
        differs.is_empty() && migrated.len() == fresh.len(),
        "the fresh schema lacks {differs:#?}"
    );
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_files_number_is_its_version() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let listed: Vec<String> = MIGRATIONS.iter().map(|(name, _)| format!("{name}.sql")).collect();
    assert_eq!(files, listed, "every file is a migration");
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    let applied: Vec<(i64, String)> =
        sqlx::query_as("SELECT version, description FROM app.schema_migrations ORDER BY version")
            .fetch_all(&sql)
            .await
            .unwrap();
    for ((version, description), (n, file)) in applied.iter().zip((1_i64..).zip(&files)) {
        assert_eq!(format!("{description}.sql"), *file);
        assert_eq!((*version, file.starts_with(&format!("{version:04}_"))), (n, true), "{file}");
    }
    assert_eq!(applied.len(), files.len());
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}

/// A proof computes the ids of commits in SQL; git and the server compute them elsewhere.
#[tokio::test]
async fn commits_have_the_ids_that_git_gives_them() {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    for (text, sha1) in [
        ("", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
        ),
    ] {
        let found: String = sqlx::query_scalar("SELECT app.sha1(convert_to($1, 'UTF8'))")
            .bind(text)
            .fetch_one(&sql)
            .await
            .unwrap();
        assert_eq!(found, sha1, "{text}");
    }
    let run: RunId = format!("rn_{}", "1".repeat(32)).parse().unwrap();
    let approved: RunId = format!("rn_{}", "2".repeat(32)).parse().unwrap();
    let patch: Digest = "3".repeat(64).parse().unwrap();
    for digits in [40, 64] {
        let [base, tree] = ["a", "b"].map(|one| GitId::parse(&one.repeat(digits)).unwrap());
        let said = Some("Größer\n\nmessage:\n    and more");
        for (task, message) in
            [("t", None), ("ExecuteST:größer", said), (&"long ".repeat(30), None)]
        {
            let commit = PatchCommit {
                message,
                run: &run,
                task,
                patch: &patch,
                approved: &approved,
                base: &base,
                at_s: 1_767_225_600,
            };
            let query = "SELECT app.patch_commit_id($1, $2, $3, $4, $5, $6, $7, $8)";
            let found: String = sqlx::query_scalar(query)
                .bind(run.as_str())
                .bind(task)
                .bind(patch.as_str())
                .bind(approved.as_str())
                .bind(base.as_str())
                .bind(commit.at_s)
                .bind(tree.as_str())
                .bind(message)
                .fetch_one(&sql)
                .await
                .unwrap();
            assert_eq!(found, commit.id(&tree).as_str(), "{digits} {task}");
            let shown = message.map_or_else(String::new, |said| {
                format!("message:\n    {}\n", said.replace('\n', "\n    "))
            });
            let receipt = format!("1\n2\n3\n4\n5\n{shown}tasks:\n  a: ok\n    +x\n");
            let found: Option<String> = sqlx::query_scalar("SELECT app.receipt_message($1)")
                .bind(receipt)
                .fetch_one(&sql)
                .await
                .unwrap();
            assert_eq!(found.as_deref(), message, "as contracts::patch::message_of reads it");
        }
    }
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_database_of_another_baseline_is_refused_before_anything_is_changed() {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    // As a version of another series leaves it: the same table, another text of the first migration.
    let other = "CREATE SCHEMA app;
      CREATE TABLE app.schema_migrations (version bigint PRIMARY KEY, description text NOT NULL,
        installed_on timestamptz NOT NULL DEFAULT now(), success boolean NOT NULL, checksum bytea NOT NULL,
        execution_time bigint NOT NULL);
      INSERT INTO app.schema_migrations VALUES (1, '0001_law', now(), true, '\\x00', 1)";
    sqlx::raw_sql(other).execute(&sql).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    let error = ledger.migrate().await.unwrap_err();
    assert!(matches!(error, LedgerError::OtherBaseline { version: 1 }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("another baseline") && said.contains("give an empty database"), "{said}");
    let made: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace NOT IN (
           'pg_catalog'::regnamespace, 'information_schema'::regnamespace)",
    )
    .fetch_one(&sql)
    .await
    .unwrap();
    assert_eq!(made, 1, "no table of ours or of the engine was made");
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}
