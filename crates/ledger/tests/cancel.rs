//! A cancel beside what else is written of its run: neither waits for the other in a circle, and nothing begins after it.

use std::time::Duration;

use cofferdam_contracts::egress::Phase;
use cofferdam_contracts::id::{ExecutorId, RunId, StepId, TaskKey, TenantId, WorkflowId};
use cofferdam_contracts::work::Work;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::grants::NewAsk;
use cofferdam_ledger::ops::Cancels;
use cofferdam_ledger::tasks::{NewTask, TaskBatch};
use sqlx::{PgPool, Postgres, Transaction};

use crate::begin::{OneRun, one_run, waiting};

const RUN: &str = "rn_00000000000000000000000000000001";
const WORKFLOW: &str = "it_00000000000000000000000000000001";

/// A run whose workflow goes on.
async fn run_that_goes_on() -> OneRun {
    let one = one_run().await;
    one.workflow_add(WORKFLOW).await;
    one
}

async fn cancel(one: &OneRun) {
    let audit = Audit {
        tenant: &TenantId::parse("acme").unwrap(),
        key_id: "k0",
        actor: "ada",
        op: "cancel",
        target: WORKFLOW,
        reason: "",
        detail: None,
    };
    let workflow = WorkflowId::parse(WORKFLOW).unwrap();
    one.ledger.ops().cancel(&workflow, Cancels::All, &audit).await.unwrap();
}

/// Does this, which waits for `twin`, and then cancels the run; the twin comes to nothing once both wait.
async fn beside_cancel<T>(
    one: &OneRun,
    twin: Transaction<'_, Postgres>,
    act: impl Future<Output = T>,
) -> T {
    let after = async {
        waiting(&one.sql, 1).await;
        cancel(one).await;
    };
    let release = async {
        waiting(&one.sql, 2).await;
        twin.rollback().await.unwrap();
    };
    let all = async { tokio::join!(act, after, release) };
    tokio::time::timeout(Duration::from_secs(30), all).await.unwrap().0
}

async fn text(sql: &PgPool, query: &'static str) -> String {
    sqlx::query_scalar(query).fetch_one(sql).await.unwrap()
}

/// What a task leaves refers to its run, and waits for nobody who waits for the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_ends_beside_the_cancel_of_its_run() {
    let one = run_that_goes_on().await;
    let mut end = one.sql.begin().await.unwrap();
    // As its end does before it writes what the task leaves.
    sqlx::query("SELECT 1 FROM app.sbx_runs FOR NO KEY UPDATE").execute(&mut *end).await.unwrap();
    let artifact = async {
        waiting(&one.sql, 1).await;
        sqlx::query(
            "INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
             SELECT run_id, step_id, task_key, 1, 0, 'stdout', 'stdout', 'a', '', repeat('0', 64), 0, 'engine-dbos' FROM app.sbx_runs",
        )
        .execute(&mut *end)
        .await
        .unwrap();
        end.commit().await.unwrap();
    };
    tokio::join!(cancel(&one), artifact);
    assert_eq!(text(&one.sql, "SELECT status FROM dbos.workflow_status").await, "CANCELLED");
    one.stop().await;
}

/// A round that is being queued when the cancel comes is canceled with its run: the cancel waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_is_queued_beside_a_cancel_is_canceled() {
    let one = run_that_goes_on().await;
    let key = TaskKey::parse(&"b".repeat(64)).unwrap();
    let tasks = [NewTask {
        key: key.clone(),
        step_id: StepId::parse("ExecuteST:001").unwrap(),
        attempt: 1,
        name: "late".into(),
        work: Work::Value("x".into()),
    }];
    // The task is written, and its workflow waits for one of the same name that comes to nothing.
    let mut twin = one.sql.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, created_at, updated_at) VALUES ($1, 'PENDING', 1, 1)",
    )
    .bind(key.as_str())
    .execute(&mut *twin)
    .await
    .unwrap();
    let run = RunId::parse(RUN).unwrap();
    let executor = ExecutorId::parse("ex-0000000000000001").unwrap();
    let round = TaskBatch {
        run: &run,
        parent: WORKFLOW,
        partition: "acme",
        priority: 1,
        tasks: &tasks,
        snapshots: &[],
        values: &[],
        executor: &executor,
    };
    beside_cancel(&one, twin, one.ledger.tasks().enqueue(&round)).await.unwrap();
    let query = "SELECT w.status || ' ' || (s.response IS NOT NULL) FROM app.sbx_runs s
                   JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key WHERE s.task_name = 'late'";
    assert_eq!(text(&one.sql, query).await, "CANCELLED true");
    one.stop().await;
}

/// A question that a task asks when the cancel comes is over with its run: the cancel waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_asked_beside_a_cancel_is_canceled() {
    let one = run_that_goes_on().await;
    // The gate is written, and its prompt waits for one of the same name that comes to nothing.
    let mut twin = one.sql.begin().await.unwrap();
    sqlx::query("INSERT INTO dbos.workflow_events (workflow_uuid, key, value) VALUES ($1, 'ui:egress-1', '')")
        .bind(WORKFLOW)
        .execute(&mut *twin)
        .await
        .unwrap();
    let run = RunId::parse(RUN).unwrap();
    let (tenant, task) =
        (TenantId::parse("acme").unwrap(), TaskKey::parse(&"a".repeat(64)).unwrap());
    let new = NewAsk {
        run: &run,
        tenant: &tenant,
        task: &task,
        phase: Phase::Exec,
        name: "a.example",
        ttl_s: 60,
    };
    let asked = beside_cancel(&one, twin, one.ledger.egress().ask(&new)).await.unwrap();
    assert!(asked.is_some(), "it was asked before the run was over");
    assert_eq!(text(&one.sql, "SELECT state FROM app.human_gates").await, "canceled");
    one.stop().await;
}
