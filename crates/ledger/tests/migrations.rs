//! Migrations on a real database: once, twice, together, and with rows that must survive.

use cofferdam_ledger::Ledger;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_ledger::migrate::MIGRATIONS;
use sqlx::PgPool;

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
         INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason) VALUES ('t', 'k', 'a', 'o', 'x', 'r')",
        i = "0".repeat(32),
        s = "0".repeat(20),
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(setup)).execute(&sql).await.unwrap();
    let refused = [
        ("a terminal run goes on", "UPDATE app.runs SET status = 'running'"),
        ("a run changes its identity", "UPDATE app.runs SET recipe_hash = repeat('1', 64)"),
        ("an unknown status", "UPDATE app.runs SET status = 'paused'"),
        ("an intent is rewritten", "UPDATE app.intents SET goal = 'x'"),
        ("an audit row is deleted", "DELETE FROM app.audit"),
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
    for (what, statement) in refused {
        let error = sqlx::query(statement).execute(&sql).await.expect_err(what);
        let code =
            error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
        assert!(code.starts_with("23"), "{what}: {error}");
    }
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}
