//! A run that somebody has retried is not ended by the end of its life before; one that has ended is not canceled.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{RunId, TenantId, WorkflowId};
use cofferdam_contracts::run::RunStatus;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::error::OpError;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::ops::Cancels;
use cofferdam_ledger::retries::RetryOutcome;

use crate::begin::one_run;

const RUN: &str = "rn_00000000000000000000000000000001";
const WORKFLOW: &str = "it_00000000000000000000000000000001";

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_workflow_that_comes_late_does_not_end_the_run_that_was_retried_meanwhile() {
    let one = one_run().await;
    let (ledger, sql) = (&one.ledger, &one.sql);
    one.workflow_add(WORKFLOW).await;
    let engine = async |status: &str| {
        let update = "UPDATE dbos.workflow_status SET status = $1, executor_id = 'ex-0' WHERE workflow_uuid = $2";
        sqlx::query(update).bind(status).bind(WORKFLOW).execute(sql).await.unwrap();
    };
    let run = RunId::parse(RUN).unwrap();
    let late = async || {
        let late = ledger.runs().finish_left_open(&run, RunStatus::Failed, "late", false);
        late.await.unwrap()
    };
    let status = async || -> String {
        let read = sqlx::query_scalar("SELECT status FROM app.runs WHERE id = $1").bind(RUN);
        read.fetch_one(sql).await.unwrap()
    };
    assert!(!late().await, "its workflow goes on");
    engine("ERROR").await;
    assert!(late().await, "its workflow is over and has left it open");
    assert_eq!(status().await, "failed");
    let who = who();
    let audit = Audit { reason: "retry", ..Audit::by(&who, "retry", WORKFLOW) };
    let retried = ledger.runs().retry(&run, &audit).await.unwrap();
    assert!(matches!(retried, RetryOutcome::From(_)), "{retried:?}");
    let waits_for = "SELECT executor_id FROM dbos.workflow_status WHERE workflow_uuid = $1";
    let waits_for: Option<String> =
        sqlx::query_scalar(waits_for).bind(WORKFLOW).fetch_one(sql).await.unwrap();
    assert_eq!(waits_for, None, "any worker goes on with it");
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
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_ended_is_not_canceled_while_its_workflow_still_goes_on() {
    let one = one_run().await;
    let (ledger, sql) = (&one.ledger, &one.sql);
    one.workflow_add(WORKFLOW).await;
    let run = RunId::parse(RUN).unwrap();
    let output = serde_json::json!({});
    let end = ledger.runs().finish(&run, RunStatus::Succeeded, None, "ExecuteST", &output, false);
    assert!(end.await.unwrap());
    let (who, workflow) = (who(), WorkflowId::parse(WORKFLOW).unwrap());
    let audit = Audit { reason: "late", ..Audit::by(&who, "cancel", WORKFLOW) };
    let answer = ledger.ops().cancel(&workflow, Cancels::All, &audit).await;
    let Err(OpError::Refused(refusal)) = answer else { panic!("it was canceled: {answer:?}") };
    assert_eq!(refusal.code, ErrorCode::StateConflict);
    let left: (String, String, i64) = sqlx::query_as(
        "SELECT r.status, w.status, (SELECT count(*) FROM app.audit WHERE op = 'cancel')
           FROM app.runs r JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id",
    )
    .fetch_one(sql)
    .await
    .unwrap();
    assert_eq!(left, ("succeeded".to_owned(), "PENDING".to_owned(), 0));
    one.stop().await;
}

fn who() -> Principal {
    let tenant = TenantId::parse("acme").unwrap();
    Principal { key_id: "k0".to_owned(), tenant, roles: Vec::new() }
}
