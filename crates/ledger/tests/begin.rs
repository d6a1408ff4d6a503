//! The start of a task is on record once, however often its worker has to say it.

use cofferdam_contracts::id::{ExecutorId, RunId, SandboxId, TaskKey};
use cofferdam_ledger::cluster::Cluster;
use cofferdam_ledger::tasks::WorkerLocation;
use cofferdam_ledger::{APP_VERSION, Ledger};
use sqlx::PgPool;

const SETUP: &str = "
  INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
    VALUES ('it_00000000000000000000000000000001', 'acme', 'g', '{}', '{}', 'k0', 'manual');
  INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
                        partition_key, priority, app_version, origin, key_id)
    VALUES ('rn_00000000000000000000000000000001', 'it_00000000000000000000000000000001', 'it_00000000000000000000000000000001', 'acme', 'running', 'LOCAL_NATIVE', 'r', '1',
            repeat('0', 64), 'acme', 1, 'v', 'manual', 'k0');
  INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
    VALUES ('rn_00000000000000000000000000000001', 'ExecuteST:000', repeat('a', 64), 1, 't', 'container',
            '{\"value\": \"x\"}', 'manual')";

/// A ledger with one run that goes on, and a pool beside it.
pub struct OneRun {
    pub ledger: Ledger,
    pub sql: PgPool,
    cluster: Cluster,
    _state: tempfile::TempDir,
}

pub async fn one_run() -> OneRun {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    sqlx::raw_sql(SETUP).execute(&sql).await.unwrap();
    OneRun { ledger, sql, cluster, _state: state }
}

impl OneRun {
    /// A workflow, as the engine holds it while it goes on.
    pub async fn workflow_add(&self, id: &str) {
        sqlx::query(
            "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, application_version, queue_name)
             VALUES ($1, 'PENDING', 'run', 1, 1, $2, 'q')",
        )
        .bind(id)
        .bind(APP_VERSION)
        .execute(&self.sql)
        .await
        .unwrap();
    }

    pub async fn stop(self) {
        self.sql.close().await;
        self.ledger.close().await;
        self.cluster.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_was_lost_is_found_and_a_start_elsewhere_is_the_next() {
    let one = one_run().await;
    let (ledger, sql) = (&one.ledger, &one.sql);
    let key = TaskKey::parse(&"a".repeat(64)).unwrap();
    let executor = ExecutorId::parse("ex-0000000000000001").unwrap();
    let begin = async |sandbox: &str| {
        let sandbox = SandboxId::parse(sandbox).unwrap();
        let place = WorkerLocation {
            executor: &executor,
            host_id: "h",
            state_dir: "/s",
            sandbox: &sandbox,
        };
        ledger.tasks().begin(&key, &place).await.unwrap().unwrap().execution_no
    };
    // The commit reached the database, its answer did not reach the worker.
    for _ in 0..3 {
        assert_eq!(begin("sb00000000000000000001").await, 1);
    }
    assert_eq!(begin("sb00000000000000000002").await, 2, "another start is another execution");
    let rows: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM app.sbx_executions e JOIN app.remote_execution_sessions s USING (task_key, execution_no)",
    )
    .fetch_one(sql)
    .await
    .unwrap();
    assert_eq!(rows, 2);
    one.stop().await;
}

/// A connection is cut while the first copy of the statement runs on in its backend (storm 1): the second waits at the unique key and loses
/// to it, and asked once more it finds what the first wrote.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_repeated_while_its_first_copy_runs_finds_what_that_wrote() {
    let one = one_run().await;
    let key = TaskKey::parse(&"a".repeat(64)).unwrap();
    let executor = ExecutorId::parse("ex-0000000000000001").unwrap();
    let sandbox = SandboxId::parse("sb00000000000000000001").unwrap();
    let place =
        WorkerLocation { executor: &executor, host_id: "h", state_dir: "/s", sandbox: &sandbox };
    sqlx::raw_sql(
        "CREATE FUNCTION app.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE INSERT ON app.sbx_executions FOR EACH ROW EXECUTE FUNCTION app.slow()",
    )
    .execute(&one.sql)
    .await
    .unwrap();
    let begin = || one.ledger.tasks().begin(&key, &place);
    let (first, second) = tokio::join!(begin(), begin());
    for copy in [first, second] {
        assert_eq!(copy.unwrap().unwrap().execution_no, 1);
    }
    assert_eq!(begin().await.unwrap().unwrap().execution_no, 1);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM app.sbx_executions")
        .fetch_one(&one.sql)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    // A process that goes on with the task knows nothing of the copy that still runs: it is the next start.
    let next = SandboxId::parse("sb00000000000000000002").unwrap();
    let last = SandboxId::parse("sb00000000000000000003").unwrap();
    let (next, last) =
        (WorkerLocation { sandbox: &next, ..place }, WorkerLocation { sandbox: &last, ..place });
    let tasks = || one.ledger.tasks();
    let (next, last) = tokio::join!(tasks().begin(&key, &next), tasks().begin(&key, &last));
    let mut numbers = [next, last].map(|begun| begun.unwrap().unwrap().execution_no);
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
    one.stop().await;
}

/// A cancel comes while a worker is about to begin: whichever is first, an attempt that was answered as never begun has no sandbox,
/// which its run would not wait for.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_answered_as_never_begun_does_not_begin() {
    assert_eq!(begin_beside_cancel(true).await, (true, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_has_begun_is_not_answered_as_never_begun() {
    assert_eq!(begin_beside_cancel(false).await, (false, 1));
}

/// Both wait for the same row, neither having seen the other: whether the attempt is answered, and its open sessions.
async fn begin_beside_cancel(is_cancel_first: bool) -> (bool, i64) {
    let one = one_run().await;
    let (ledger, sql) = (&one.ledger, &one.sql);
    let key = TaskKey::parse(&"a".repeat(64)).unwrap();
    let run = RunId::parse("rn_00000000000000000000000000000001").unwrap();
    one.workflow_add(key.as_str()).await;
    let mut held = sql.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM app.sbx_runs FOR UPDATE").execute(&mut *held).await.unwrap();
    let cancel = async |after| {
        waiting(sql, after).await;
        ledger.ops().tasks_cancel(&run).await.unwrap();
    };
    let begin = async |after| {
        waiting(sql, after).await;
        let executor = ExecutorId::parse("ex-0000000000000001").unwrap();
        let sandbox = SandboxId::parse("sb00000000000000000001").unwrap();
        let place = WorkerLocation {
            executor: &executor,
            host_id: "h",
            state_dir: "/s",
            sandbox: &sandbox,
        };
        ledger.tasks().begin(&key, &place).await.unwrap();
    };
    let release = async {
        waiting(sql, 2).await;
        held.commit().await.unwrap();
    };
    let at = i64::from(is_cancel_first);
    tokio::join!(cancel(1 - at), begin(at), release);
    let left = sqlx::query_as(
        "SELECT response IS NOT NULL, (SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL)
           FROM app.sbx_runs",
    )
    .fetch_one(sql)
    .await
    .unwrap();
    one.stop().await;
    left
}

/// Until so many sessions of the database wait for a lock.
pub async fn waiting(sql: &PgPool, count: i64) {
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    for _ in 0..1000 {
        let now: i64 = sqlx::query_scalar(blocked).fetch_one(sql).await.unwrap();
        if now >= count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{count} do not wait");
}
