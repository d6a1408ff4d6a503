//! A run that somebody has retried is not ended by the end of its life before.

use cofferdam_contracts::id::{RunId, TenantId};
use cofferdam_contracts::run::RunStatus;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::cluster::Cluster;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::retries::Retried;
use cofferdam_ledger::{APP_VERSION, Ledger};
use sqlx::PgPool;

use crate::begin::SETUP;

const RUN: &str = "rn_00000000000000000000000000000001";
const WORKFLOW: &str = "it_00000000000000000000000000000001";

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_workflow_that_comes_late_does_not_end_the_run_that_was_retried_meanwhile() {
    let state = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let ledger = Ledger::connect(&cluster.url()).await.unwrap();
    ledger.migrate().await.unwrap();
    let sql = PgPool::connect(&cluster.url()).await.unwrap();
    sqlx::raw_sql(SETUP).execute(&sql).await.unwrap();
    sqlx::query(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, updated_at, application_version, queue_name)
         VALUES ($1, 'PENDING', 'run', 1, 1, $2, 'q')",
    )
    .bind(WORKFLOW)
    .bind(APP_VERSION)
    .execute(&sql)
    .await
    .unwrap();
    let engine = async |status: &str| {
        let update = "UPDATE dbos.workflow_status SET status = $1 WHERE workflow_uuid = $2";
        sqlx::query(update).bind(status).bind(WORKFLOW).execute(&sql).await.unwrap();
    };
    let run = RunId::parse(RUN).unwrap();
    let late = async || {
        let late = ledger.runs().finish_left_open(&run, RunStatus::Failed, "late", false);
        late.await.unwrap()
    };
    let status = async || -> String {
        let read = sqlx::query_scalar("SELECT status FROM app.runs WHERE id = $1").bind(RUN);
        read.fetch_one(&sql).await.unwrap()
    };
    assert!(!late().await, "its workflow goes on");
    engine("ERROR").await;
    assert!(late().await, "its workflow is over and has left it open");
    assert_eq!(status().await, "failed");
    let tenant = TenantId::parse("acme").unwrap();
    let who = Principal { key_id: "k0".to_owned(), tenant, roles: Vec::new() };
    let audit = Audit { reason: "retry", ..Audit::by(&who, "retry", WORKFLOW) };
    let retried = ledger.runs().retry(&run, &audit).await.unwrap();
    assert!(matches!(retried, Retried::From(_)), "{retried:?}");
    for goes_on in ["ENQUEUED", "PENDING"] {
        engine(goes_on).await;
        assert!(!late().await, "{goes_on}");
        assert_eq!(status().await, "repairing");
    }
    engine("SUCCESS").await;
    let output = serde_json::json!({});
    let end = ledger.runs().finish(&run, RunStatus::Succeeded, None, "ExecuteST", &output, false);
    assert!(end.await.unwrap() && !late().await);
    assert_eq!(status().await, "succeeded");
    sql.close().await;
    ledger.close().await;
    cluster.stop().await.unwrap();
}
