//! Quotas hold where tasks are claimed, tenants are served in turn, and usage is what ran.

use cofferdam_contracts::id::{ExecutorId, RunId};
use cofferdam_contracts::proof::Verdict;
use cofferdam_contracts::usage::{UsageGroup, UsageRow};
use cofferdam_ledger::usage::UsageQuery;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::begin::{OneRun, one_run};

const WORKER: &str = "ex-0000000000000001";
const RUN: &str = "rn_00000000000000000000000000000001";

async fn world() -> OneRun {
    let one = one_run().await;
    let workers = "INSERT INTO app.executors (id, host_id, pid, app_version) VALUES
        ('ex-0000000000000001', 'h', 1, 'v'), ('ex-0000000000000002', 'h', 2, 'v')";
    sqlx::raw_sql(workers).execute(&one.sql).await.unwrap();
    one
}

async fn set(sql: &PgPool, text: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned())).execute(sql).await.expect(text);
}

/// Queues tasks with these limits; their keys begin with the tenant's name.
async fn queue(sql: &PgPool, tenant: &str, count: i32, limits: Value, priority: i32) {
    for text in [
        "INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
         SELECT $5, 'ExecuteST:' || $1 || n, encode(sha256(convert_to($1 || n, 'UTF8')), 'hex'), 1, $1, 'container',
                jsonb_build_object('sandbox', jsonb_build_object('limits', $3::jsonb)), 'manual'
           FROM generate_series(1, $2) n WHERE $4::int > 0",
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, queue_name, queue_partition_key, priority)
         SELECT encode(sha256(convert_to($1 || n, 'UTF8')), 'hex'), 'ENQUEUED', 'task', n, n, 'sbxQ', $1, $4::int
           FROM generate_series(1, $2) n WHERE $3::jsonb IS NOT NULL AND $5::text IS NOT NULL",
    ] {
        sqlx::query(text)
            .bind(tenant)
            .bind(count)
            .bind(&limits)
            .bind(priority)
            .bind(RUN)
            .execute(sql)
            .await
            .unwrap();
    }
}

/// What a worker that runs so many is given, by tenant, in the order in which it is given.
async fn claim(one: &OneRun, worker: &str, running: i32) -> Vec<String> {
    let worker = ExecutorId::parse(worker).unwrap();
    let (claimed, _) = one.ledger.queues().claim("sbxQ", &worker, running).await.unwrap();
    let ids: Vec<String> = claimed.into_iter().map(|one| one.workflow_id).collect();
    let tenants = "SELECT queue_partition_key FROM dbos.workflow_status WHERE workflow_uuid = ANY($1) ORDER BY 1";
    sqlx::query_scalar(tenants).bind(ids).fetch_all(&one.sql).await.unwrap()
}

async fn said(one: &OneRun, key: &str, value: Value) {
    let row = "INSERT INTO app.dynamic_config (tenant_id, key, version, value, actor)
               SELECT '*', $1, 1 + count(*), $2, 'k' FROM app.dynamic_config WHERE key = $1";
    sqlx::query(row).bind(key).bind(value).execute(&one.sql).await.unwrap();
}

async fn waits(one: &OneRun) -> Vec<String> {
    let run: RunId = RUN.parse().unwrap();
    let steps = one.ledger.steps().list(&run).await.unwrap();
    let mut waits: Vec<String> = steps.into_iter().filter_map(|step| step.waits_for).collect();
    waits.sort();
    waits
}

#[tokio::test(flavor = "multi_thread")]
async fn cores_are_an_exact_quota_over_all_workers_and_what_waits_says_so() {
    let one = world().await;
    said(&one, "quota.cpu", json!(4)).await;
    queue(&one.sql, "acme", 6, json!({"cpu": 1.5}), 1).await;
    queue(&one.sql, "other", 2, json!({}), 1).await;
    assert_eq!(claim(&one, WORKER, 0).await, ["acme", "acme", "other", "other"]);
    // Another worker has room, the tenant has none.
    assert!(claim(&one, "ex-0000000000000002", 0).await.is_empty());
    assert_eq!(
        waits(&one).await,
        ["cpu", "cpu: 1 before you", "cpu: 2 before you", "cpu: 3 before you"]
    );
    // A long-lived sandbox beside the queues counts on.
    set(&one.sql, "UPDATE dbos.workflow_status SET queue_name = 'liveQ' WHERE status = 'PENDING' AND queue_partition_key = 'acme'").await;
    assert!(claim(&one, WORKER, 0).await.is_empty());
    // Nor does one that was canceled free its core before it is gone.
    let canceled = "INSERT INTO app.remote_execution_sessions
        (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir, executor_id, state)
        SELECT 'sb00000000000000000001', s.task_key, 1, s.run_id, 'acme', 'container', 'h', '/s', 'e', 'EXECUTING'
          FROM app.sbx_runs s JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key AND w.status = 'PENDING'
         WHERE s.task_name = 'acme' LIMIT 1;
        UPDATE dbos.workflow_status SET status = 'CANCELLED' WHERE workflow_uuid IN (SELECT task_key FROM app.remote_execution_sessions)";
    set(&one.sql, canceled).await;
    assert!(claim(&one, WORKER, 0).await.is_empty());
    // What keeps one tenant back keeps no other from its fast start.
    for (tenant, may) in [("acme", false), ("third", true)] {
        let takes = sqlx::query_scalar::<_, bool>("SELECT app.may_take_own($1, $2)");
        assert_eq!(
            takes.bind(tenant).bind(WORKER).fetch_one(&one.sql).await.unwrap(),
            may,
            "{tenant}"
        );
    }
    // One tenant by name has more than every other.
    said(&one, "quota.tenants", json!({"acme": {"cpu": 6}})).await;
    assert_eq!(claim(&one, WORKER, 0).await, ["acme", "acme"]);
    let over = "UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE status = 'PENDING';
        UPDATE app.remote_execution_sessions SET ended_at = clock_timestamp()";
    set(&one.sql, over).await;
    // The tenant's own value lowers it.
    set(&one.sql, "INSERT INTO app.dynamic_config (tenant_id, key, version, value, actor) VALUES ('acme', 'quota.cpu', 1, '2', 'k')").await;
    assert_eq!(claim(&one, WORKER, 0).await, ["acme"]);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_large_is_not_overtaken_and_what_never_fits_is_not_kept() {
    let one = world().await;
    said(&one, "quota.disk_mb", json!(1_000)).await;
    queue(&one.sql, "acme", 1, json!({"diskMB": 600}), 1).await;
    queue(&one.sql, "large", 1, json!({"diskMB": 4_000}), 1).await;
    assert_eq!(claim(&one, WORKER, 0).await, ["acme", "large"], "it is not kept in the queue");
    let never =
        "SELECT app.quota_never('large', cpu, disk_mb) FROM app.sbx_runs WHERE task_name = 'large'";
    let never: Option<Vec<String>> = sqlx::query_scalar(never).fetch_one(&one.sql).await.unwrap();
    assert_eq!(never.unwrap(), ["disk_mb", "1000", "4000"]);
    // The next one of the tenant does not fit; the small one behind it waits, too.
    for (n, mb) in [(1, 500), (2, 100)] {
        let id = format!("{n}").repeat(64);
        let row = format!(
            "INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
             VALUES ('{RUN}', 'ExecuteST:n{n}', '{id}', 1, 'n', 'container', '{{\"live\": {{\"request\": {{\"limits\": {{\"diskMB\": {mb}}}}}}}}}', 'manual');
             INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, queue_name, queue_partition_key)
             VALUES ('{id}', 'ENQUEUED', 'task', 10 + {n}, 1, 'sbxQ', 'acme')"
        );
        set(&one.sql, &row).await;
    }
    assert!(claim(&one, WORKER, 0).await.is_empty());
    assert_eq!(waits(&one).await, ["disk", "disk: 1 before you"]);
    let ended = "UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE status = 'PENDING'";
    set(&one.sql, ended).await;
    assert_eq!(claim(&one, WORKER, 0).await, ["acme", "acme"]);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_a_minute_come_back_one_by_one_whoever_claims() {
    let one = world().await;
    said(&one, "quota.starts_per_minute", json!(6)).await;
    queue(&one.sql, "acme", 20, json!({}), 1).await;
    let first = async |worker: &'static str| claim(&one, worker, 0).await.len();
    let (a, b) = tokio::join!(first(WORKER), first("ex-0000000000000002"));
    assert_eq!(a + b, 6, "{a} and {b}");
    assert_eq!(first(WORKER).await, 0, "the end of a sandbox gives no start back");
    assert_eq!(waits(&one).await.first().unwrap(), "starts");
    let later = async |seconds: i32| {
        let text =
            format!("UPDATE app.start_meters SET at_us = at_us - {seconds} * 1000000::bigint");
        set(&one.sql, &text).await;
    };
    later(5).await;
    assert_eq!(first(WORKER).await, 0, "one in ten seconds");
    later(6).await;
    assert_eq!(first(WORKER).await, 1);
    // However long nothing starts, no more than a minute's come at once.
    later(3_600).await;
    assert_eq!(first(WORKER).await, 6);
    // A raised quota is had at once, and a clock that was set back keeps no start.
    said(&one, "quota.starts_per_minute", json!(8)).await;
    assert!((2..=3).contains(&first(WORKER).await));
    later(-86_400).await;
    assert_eq!(first(WORKER).await, 5);
    // Seven a minute are seven.
    said(&one, "quota.tenants", json!({"seven": {"startsPerMinute": 7}})).await;
    queue(&one.sql, "seven", 20, json!({}), 1).await;
    assert_eq!(first(WORKER).await, 7);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_tenant_leaves_the_next_place_to_another_whatever_its_lane() {
    let one = world().await;
    let limits = "UPDATE dbos.queues SET worker_concurrency = 4, partition_concurrency = 8 WHERE name = 'sbxQ'";
    set(&one.sql, limits).await;
    queue(&one.sql, "flood", 300, json!({}), 1).await;
    assert_eq!(claim(&one, WORKER, 0).await, ["flood"; 4]);
    queue(&one.sql, "quiet", 2, json!({}), 1_000).await;
    queue(&one.sql, "equal", 3, json!({}), 1).await;
    // A place is free: it is another's, who has none; of those the lane that comes first.
    assert_eq!(claim(&one, WORKER, 3).await, ["equal"]);
    assert_eq!(claim(&one, WORKER, 3).await, ["quiet"], "before the second of any other");
    // Then the lane, and in it who has least.
    assert_eq!(claim(&one, WORKER, 2).await, ["equal", "equal"]);
    assert_eq!(claim(&one, WORKER, 2).await, ["flood", "flood"]);
    one.stop().await;
}

/// Sandboxes of 100 MiB: one over two midnights that waited for memory, one that was never made, one whose clock was set back.
const RAN: &str = "
  INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
    VALUES ('rn_00000000000000000000000000000001', 'ExecuteST:001', repeat('b', 64), 1, 't', 'container',
            '{\"live\": {\"request\": {\"limits\": {\"memMB\": 100}}}}', 'manual');
  INSERT INTO app.remote_execution_sessions
    (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir, executor_id, state, waits_for, created_at)
    SELECT 'sb0000000000000000000' || n, repeat('b', 64), n, 'rn_00000000000000000000000000000001', 'acme', 'container', 'h', '/s', 'e',
           'EXECUTING', CASE WHEN n < 3 THEN 'memory' END, '2026-01-18 10:00Z' FROM generate_series(1, 3) n;
  UPDATE app.remote_execution_sessions SET attestation = '{}' WHERE sandbox_id <> 'sb00000000000000000002';
  UPDATE app.remote_execution_sessions SET admitted_at = '2026-01-18 23:59:50Z' WHERE admitted_at > now() - interval '1 minute';
  UPDATE app.remote_execution_sessions
     SET ended_at = CASE sandbox_id WHEN 'sb00000000000000000003' THEN timestamptz '2026-01-18 09:00Z' ELSE '2026-01-20 00:00:05.5Z' END;
  UPDATE app.sbx_runs SET response = '{}', err_code = 'NONE', metrics = '{\"cpuMs\": 1500}', finished_at = '2026-01-20 00:00:05Z'
   WHERE task_key = repeat('b', 64);
  INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin, created_at)
    SELECT 'rn_00000000000000000000000000000001', 'ExecuteST:001', repeat('b', 64), 1, n, 'file', 'f', 'artifact://' || n, '{}',
           repeat('0', 64), 7, 'manual', '2026-01-20 00:00:05Z' FROM generate_series(1, 3) n;";

async fn page(one: &OneRun, by: UsageGroup, after: Option<&UsageRow>) -> (Vec<UsageRow>, bool) {
    let query = UsageQuery {
        tenant: None,
        since: None,
        until: None,
        by,
        after: after.map(|row| (row.day, row.tenant.clone())),
        limit: 2,
    };
    let page = one.ledger.usage().page(&query).await.unwrap();
    (page.rows, page.has_more)
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_split_by_days_in_utc_without_what_waited_and_is_proven() {
    let one = world().await;
    set(&one.sql, RAN).await;
    let (rows, has_more) = page(&one, UsageGroup::Day, None).await;
    let told = |row: &UsageRow| {
        let day = row.day.map(|day| day.to_string()).unwrap_or_default();
        (day, row.starts, row.sandbox_ms, row.core_ms, row.memory_mb_s, row.stored_bytes)
    };
    assert_eq!(told(&rows[0]), ("2026-01-20".to_owned(), 0, 5_500, 1_500, 550, 21));
    assert_eq!(told(&rows[1]), ("2026-01-19".to_owned(), 0, 86_400_000, 0, 8_640_000, 0));
    assert!(has_more);
    let (rows, has_more) = page(&one, UsageGroup::Day, rows.last()).await;
    assert_eq!(told(&rows[0]), ("2026-01-18".to_owned(), 2, 10_000, 0, 1_000, 0));
    assert!(rows.len() == 1 && !has_more);
    let (rows, has_more) = page(&one, UsageGroup::Tenant, None).await;
    assert_eq!(told(&rows[0]), (String::new(), 2, 86_415_500, 1_500, 8_641_550, 21));
    assert!(rows.len() == 1 && !has_more);
    assert!(page(&one, UsageGroup::Tenant, rows.last()).await.0.is_empty());
    let proven = async || {
        let report = one.ledger.prove(None, None).await.unwrap();
        let found = report.proofs.into_iter().find(|proof| proof.name == "usage_is_what_ran");
        let rows = found.unwrap().rows;
        (if rows.is_empty() { Verdict::Go } else { Verdict::NoGo }, rows)
    };
    assert_eq!(proven().await, (Verdict::Go, Vec::new()));
    // Days that are over have one row in the end.
    let folded: i64 =
        sqlx::query_scalar("SELECT app.usage_fold(100)").fetch_one(&one.sql).await.unwrap();
    assert!(folded >= 3, "{folded}");
    assert_eq!(page(&one, UsageGroup::Tenant, None).await.0, rows);
    assert_eq!(proven().await, (Verdict::Go, Vec::new()));
    set(
        &one.sql,
        "UPDATE app.usage_parts SET sandbox_ms = sandbox_ms - 1 WHERE day = '2026-01-19'",
    )
    .await;
    let (verdict, rows) = proven().await;
    assert_eq!((verdict, rows.len()), (Verdict::NoGo, 1), "{rows:?}");
    assert_eq!(rows[0]["ran"]["sandbox_ms"], 86_400_000);
    // A sandbox that is up is in what is shown, and not yet in what is settled.
    let up = "INSERT INTO app.remote_execution_sessions
        (sandbox_id, task_key, execution_no, run_id, tenant_id, class, host_id, state_dir, executor_id, state, attestation, created_at)
        SELECT 'sb00000000000000000004', task_key, 4, run_id, 'third', class, host_id, state_dir, executor_id, state, '{}',
               clock_timestamp() - interval '1 hour' FROM app.remote_execution_sessions LIMIT 1";
    set(&one.sql, up).await;
    let (rows, _) = page(&one, UsageGroup::Tenant, None).await;
    let third = rows.iter().find(|row| row.tenant.as_str() == "third").unwrap();
    assert!((3_600_000..3_700_000).contains(&third.sandbox_ms) && third.starts == 1, "{third:?}");
    assert_eq!(proven().await.1.len(), 1, "it is settled when it ends");
    one.stop().await;
}
