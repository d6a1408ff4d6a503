//! A claim takes what the limits allow, and says whether it left anything.

use cofferdam_contracts::id::ExecutorId;
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
