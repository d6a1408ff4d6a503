//! The record of a graph: one event in one place, starts behind the ends of needs, and nothing after a cancel.

use cofferdam_contracts::id::{ExecutorId, GroupName, RunId, StepId, TaskKey};
use cofferdam_contracts::start_spec::GroupOutcome;
use cofferdam_contracts::work::Work;
use cofferdam_ledger::graphs::{
    AdvanceOutcome, GraphAdvance, NewGraphEvent, NewGroup, NewGroupEnd, NewMember, NewSkip,
};
use cofferdam_ledger::tasks::{NewTask, TaskBatch};
use serde_json::json;

use crate::begin::{OneRun, one_run};

const RUN: &str = "rn_00000000000000000000000000000001";
const WORKFLOW: &str = "it_00000000000000000000000000000001";

fn group(name: &str) -> GroupName {
    GroupName::parse(name).unwrap()
}

fn step(name: &str) -> StepId {
    StepId::parse(&format!("ExecuteST:{name}")).unwrap()
}

fn event(seq: u32, what: &str) -> NewGraphEvent {
    NewGraphEvent { seq, event: json!({"what": what}) }
}

async fn advance(one: &OneRun, advance: &GraphAdvance<'_>, tasks: &[NewTask]) -> AdvanceOutcome {
    let run = RunId::parse(RUN).unwrap();
    let executor = ExecutorId::parse("ex-0000000000000001").unwrap();
    let wave = TaskBatch {
        run: &run,
        parent: WORKFLOW,
        partition: "p",
        priority: 0,
        tasks,
        snapshots: &[],
        values: &[],
        executor: &executor,
    };
    one.ledger.tasks().graph_advance(advance, &wave).await.unwrap()
}

async fn count(one: &OneRun, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&one.sql).await.unwrap()
}

#[tokio::test]
async fn an_event_has_one_place_and_who_comes_too_late_writes_nothing() {
    let one = one_run().await;
    one.workflow_add(WORKFLOW).await;
    let (first, second) = (group("first"), group("second"));
    let needs = [first.clone()];
    let member = |name: &str| NewMember {
        step_id: step(name),
        group_name: group(name),
        name: name.to_owned(),
    };
    let begun = GraphAdvance {
        groups: vec![
            NewGroup { name: &first, needs: &[], is_late: false, is_gated: false },
            NewGroup { name: &second, needs: &needs, is_late: false, is_gated: false },
        ],
        members: vec![member("first"), member("second")],
        events: vec![event(0, "begin")],
        ..GraphAdvance::default()
    };
    assert_eq!(advance(&one, &begun, &[]).await, AdvanceOutcome::Down(Vec::new()));
    assert_eq!(advance(&one, &begun, &[]).await, AdvanceOutcome::Down(Vec::new()), "a replay");
    let task = NewTask {
        key: TaskKey::parse(&"b".repeat(64)).unwrap(),
        step_id: step("second"),
        attempt: 1,
        name: "second".into(),
        work: Work::Value("x".into()),
    };
    let skip = NewSkip { step_id: step("first"), reason: "condition", detail: None };
    let end = NewGroupEnd { name: first.clone(), outcome: GroupOutcome::Skipped, detail: None };
    let told =
        |what: &str| GraphAdvance { events: vec![event(1, what)], ..GraphAdvance::default() };
    let one_way = GraphAdvance { skips: vec![skip], ends: vec![end], ..told("one") };
    assert_eq!(advance(&one, &one_way, &[]).await, AdvanceOutcome::Down(Vec::new()));
    let tasks = "SELECT count(*) FROM app.sbx_runs WHERE step_id = 'ExecuteST:second'";
    let other = std::slice::from_ref(&task);
    assert_eq!(advance(&one, &told("other"), other).await, AdvanceOutcome::Lost);
    assert_eq!(count(&one, tasks).await, 0, "nothing of it is written");
    let run = RunId::parse(RUN).unwrap();
    let record = one.ledger.tasks().graph_record(&run, 0).await.unwrap();
    let seen: Vec<_> = record.events.iter().map(|row| row.event["what"].clone()).collect();
    assert_eq!(seen, ["begin", "one"]);
    // A group does not end before its task, and a task does not start before its needs.
    let early = "INSERT INTO app.graph_ends (run_id, life, name, outcome) VALUES ($1, 0, 'second', 'succeeded')";
    let refused = sqlx::query(early).bind(RUN).execute(&one.sql).await.unwrap_err().to_string();
    assert!(refused.contains("ends before its task ExecuteST:second"), "{refused}");
    sqlx::query("UPDATE app.runs SET status = 'canceled' WHERE id = $1")
        .bind(RUN)
        .execute(&one.sql)
        .await
        .unwrap();
    let late = GraphAdvance { events: vec![event(2, "late")], ..GraphAdvance::default() };
    assert_eq!(advance(&one, &late, other).await, AdvanceOutcome::Canceled);
    assert_eq!(count(&one, tasks).await, 0);
    assert_eq!(count(&one, "SELECT count(*) FROM app.graph_events").await, 2);
    one.stop().await;
}
