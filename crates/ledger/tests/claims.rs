//! A claim takes what the limits allow, and says whether it left anything.

use cofferdam_contracts::id::{ExecutorId, RunId};
use cofferdam_contracts::step::StepStatus;
use cofferdam_ledger::APP_VERSION;

use crate::begin::one_run;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_says_whether_anything_is_left_in_the_queue() {
    let one = one_run().await;
    let (ledger, sql) = (&one.ledger, &one.sql);
    sqlx::raw_sql(
        "INSERT INTO app.executors (id, host_id, pid, app_version) VALUES ('ex-0000000000000001', 'h', 1, 'v')",
    )
    .execute(sql)
    .await
    .unwrap();
    let queued = async |count: i32, of: &str| {
        sqlx::query(
            "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, application_version, queue_name)
             SELECT $2 || n, 'ENQUEUED', 'task', n, n, $3, 'q' FROM generate_series(1, $1) n",
        )
        .bind(count)
        .bind(of)
        .bind(APP_VERSION)
        .execute(sql)
        .await
        .unwrap();
    };
    let executor = ExecutorId::parse("ex-0000000000000001").unwrap();
    let claim = async || {
        let (claimed, is_any_left) = ledger.queues().claim("q", &executor, 0).await.unwrap();
        (claimed.len(), is_any_left)
    };
    assert_eq!(claim().await, (0, false), "nothing is queued");
    queued(65, "a").await;
    assert_eq!(claim().await, (64, true));
    assert_eq!(claim().await, (1, false));
    queued(1, "b").await;
    sqlx::query("UPDATE app.executors SET state = 'left', ended_at = now()")
        .execute(sql)
        .await
        .unwrap();
    assert_eq!(
        claim().await,
        (0, true),
        "one that is not alive is given nothing, and told that there is something"
    );
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_takes_a_task_of_its_own_only_where_a_claim_would_give_it_that() {
    let one = one_run().await;
    let sql = &one.sql;
    let executors = "INSERT INTO app.executors (id, host_id, pid, app_version, state) VALUES
        ('ex-0000000000000001', 'h', 1, 'v', 'live'), ('ex-0000000000000002', 'h', 2, 'v', 'left')";
    sqlx::raw_sql(executors).execute(sql).await.unwrap();
    let limits = "UPDATE dbos.queues SET worker_concurrency = 4, partition_concurrency = 2 WHERE name = 'sbxQ'";
    assert_eq!(sqlx::query(limits).execute(sql).await.unwrap().rows_affected(), 1);
    let takes = async |tenant: &str, executor: Option<&str>| {
        let query = sqlx::query_scalar::<_, bool>("SELECT app.may_take_own($1, $2)");
        query.bind(tenant).bind(executor).fetch_one(sql).await.unwrap()
    };
    let set = async |text: &str| {
        let text = sqlx::AssertSqlSafe(text.to_owned());
        sqlx::raw_sql(text).execute(sql).await.map(|_| ()).unwrap()
    };
    let task = |id: &str, status: &str, of: &str| {
        format!(
            "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, queue_name, queue_partition_key,
                                               executor_id)
             VALUES ('{id}', '{status}', 'task', 1, 1, 'sbxQ', '{of}', 'ex-0000000000000001')"
        )
    };
    let live = Some("ex-0000000000000001");
    assert!(takes("acme", live).await);
    for dead in [Some("ex-0000000000000002"), Some("ex-0000000000000003"), None] {
        assert!(!takes("acme", dead).await, "{dead:?}");
    }
    set(&task("a", "PENDING", "acme")).await;
    assert!(takes("acme", live).await);
    set(&task("b", "PENDING", "acme/ci")).await;
    assert!(!takes("acme", live).await, "its tenant has as many as it may");
    assert!(takes("other", live).await);
    set(&task("c", "ENQUEUED", "acme")).await;
    assert!(!takes("other", live).await, "whoever waits comes first");
    set("UPDATE dbos.workflow_status SET status = 'PENDING', queue_partition_key = 'third' WHERE workflow_uuid = 'c'").await;
    assert!(takes("other", live).await);
    set(&task("d", "PENDING", "third")).await;
    assert!(!takes("other", live).await, "it has no place");
    set("DELETE FROM dbos.workflow_status WHERE workflow_uuid = 'd'").await;
    // Another claim is being made.
    let mut beside = sql.begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('cofferdam.claim.sbxQ', 0))";
    sqlx::query(lock).execute(&mut *beside).await.unwrap();
    assert!(!takes("other", live).await);
    beside.rollback().await.unwrap();
    assert!(takes("other", live).await);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_task_says_how_many_of_its_tenant_are_before_it() {
    let one = one_run().await;
    let run: RunId = "rn_00000000000000000000000000000001".parse().unwrap();
    let task = "a".repeat(64);
    let queued = async |prefix: &str, count: i32, tenant: &str, at: i32| {
        sqlx::query(
            "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, queue_name, queue_partition_key)
             SELECT CASE $2 WHEN 1 THEN $1 ELSE $1 || n END, 'ENQUEUED', 'task', $4, $4, 'sbxQ', $3 FROM generate_series(1, $2) n",
        )
        .bind(prefix)
        .bind(count)
        .bind(tenant)
        .bind(at)
        .execute(&one.sql)
        .await
        .unwrap();
    };
    let says = async || {
        let steps = one.ledger.steps().list(&run).await.unwrap();
        let [step] = steps.as_slice() else { panic!("{steps:?}") };
        (step.status, step.waits_for.clone().unwrap_or_default())
    };
    let is_queued = |why: &str| (StepStatus::Queued, why.to_owned());
    queued(&task, 1, "acme", 100).await;
    assert_eq!(says().await, is_queued("a worker: none is live"));
    let executor = "INSERT INTO app.executors (id, host_id, pid, app_version) VALUES ('ex-0000000000000001', 'h', 1, 'v')";
    sqlx::raw_sql(executor).execute(&one.sql).await.unwrap();
    assert_eq!(says().await, is_queued("a place"));
    queued("later-", 2, "acme", 101).await;
    queued("other-", 3, "other", 1).await;
    assert_eq!(says().await, is_queued("a place"), "only its own tenant's that come before it");
    queued("earlier-", 2, "acme/ci", 99).await;
    assert_eq!(says().await, is_queued("a place: 2 before you"));
    queued("flood-", 250, "acme", 1).await;
    assert_eq!(says().await, is_queued("a place: many before you"));
    let started = "UPDATE dbos.workflow_status SET status = 'PENDING' WHERE workflow_uuid = $1";
    sqlx::query(started).bind(&task).execute(&one.sql).await.unwrap();
    assert_eq!(says().await, (StepStatus::Running, String::new()));
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_worker_that_lives_is_claimed_by_no_other() {
    let one = one_run().await;
    let (ledger, sql) = (&one.ledger, &one.sql);
    let set = async |text: &str| {
        let text = sqlx::AssertSqlSafe(text.to_owned());
        sqlx::raw_sql(text).execute(sql).await.map(|_| ()).unwrap()
    };
    set("INSERT INTO app.executors (id, host_id, pid, app_version) VALUES
         ('ex-0000000000000001', 'h', 1, 'v'), ('ex-0000000000000002', 'h', 2, 'v')")
    .await;
    let executor = |n: u32| ExecutorId::parse(&format!("ex-{n:016}")).unwrap();
    let (asked, other) = (executor(1), executor(2));
    // In a queue with tenants, and in one without.
    let queue = async |queue: &str, id: &str, of: Option<&ExecutorId>| {
        sqlx::query("SELECT app.enqueue_quietly($2, 'task', 'null', $1, 'acme', 1, NULL, $3, NULL, 0, $4, false)")
            .bind(queue)
            .bind(id)
            .bind(APP_VERSION)
            .bind(of.map(ExecutorId::as_str))
            .execute(sql)
            .await
            .unwrap();
    };
    let claim = async |queue: &str, of: &ExecutorId| {
        let (claimed, is_any_left) = ledger.queues().claim(queue, of, 0).await.unwrap();
        let mut ids: Vec<String> = claimed.into_iter().map(|one| one.workflow_id).collect();
        ids.sort();
        (ids.join(" "), is_any_left)
    };
    let told = |ids: &str, left: bool| (ids.to_owned(), left);
    for of in ["sbxQ", "q"] {
        let id = |name: &str| format!("{of}-{name}");
        queue(of, &id("asked"), Some(&asked)).await;
        assert_eq!(claim(of, &other).await, told("", false), "and nothing is left for it");
        queue(of, &id("any"), None).await;
        assert_eq!(claim(of, &other).await, told(&id("any"), false));
        assert_eq!(claim(of, &asked).await, told(&id("asked"), false));
        // What was claimed and is queued again waits for nobody in particular.
        ledger.queues().unclaim(&id("asked"), &asked).await.unwrap();
        assert_eq!(claim(of, &other).await, told(&id("asked"), false));
    }
    // The beginning of a life stays with who was asked, until it is up.
    let task = "a".repeat(64);
    set("INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, origin)
         VALUES ('aaaaaaaaaaaaaaaaaaaa', 'acme', 'rn_00000000000000000000000000000001', 'k', 'base', '{}', '\"none\"', 1, 'manual')")
    .await;
    let run = "it_00000000000000000000000000000001";
    let both = format!("{task} {run}");
    for id in [task.as_str(), run] {
        queue("sbxQ", id, Some(&asked)).await;
    }
    assert_eq!(claim("sbxQ", &asked).await, told(&both, false));
    for id in [task.as_str(), run] {
        ledger.queues().unclaim(id, &asked).await.unwrap();
    }
    assert_eq!(claim("sbxQ", &other).await, told("", false));
    // Nor does it wait before what another worker takes of its own.
    let takes = "SELECT app.may_take_own('acme', $1)";
    for (of, may) in [(&other, true), (&asked, false)] {
        let took = sqlx::query_scalar::<_, bool>(takes).bind(of.as_str()).fetch_one(sql).await;
        assert_eq!(took.unwrap(), may, "{of}");
    }
    // Who is dead has nothing: others end what it was asked for.
    set("UPDATE app.executors SET state = 'dead', ended_at = now() WHERE id = 'ex-0000000000000001'").await;
    assert_eq!(claim("sbxQ", &other).await, told(&both, false));
    one.stop().await;
}
