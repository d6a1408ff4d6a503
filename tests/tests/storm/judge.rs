//! What must hold afterwards, whatever happened: of the rows, of the host's file, of the answers.

use std::collections::BTreeMap;

use serde_json::json;
use sqlx::{PgPool, Row};

use crate::storm::front::Front;
use crate::storm::work::{Done, Job, described, ends_well};
use crate::support::{count, texts, until};

/// Every run ended as its recipe and its gate say, in the client's eyes and on record; no workflow is left.
pub async fn runs(sql: &PgPool, done: &[Done]) {
    until("every workflow and session has ended", std::time::Duration::from_secs(240), async || {
        count(
            sql,
            "SELECT (SELECT count(*) FROM app.runs WHERE finished_at IS NULL)
                  + (SELECT count(*) FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED') AND name <> 'notify')
                  + (SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL)",
        )
        .await
            == 0
    })
    .await;
    assert_eq!(
        count(sql, "SELECT count(*) FROM app.runs").await,
        i64::try_from(done.len()).unwrap(),
        "a run for each submission, however often it was sent"
    );
    let recorded: BTreeMap<String, (String, Option<String>)> =
        rows(sql, "SELECT r.id, r.status, coalesce(r.error, '') FROM app.runs r").await;
    let chosen = choices(sql).await;
    let wrong: Vec<_> = done
        .iter()
        .filter_map(|one| {
            let well = ends_well(one.job)
                && (one.job != Job::Gated || chosen.get(&one.run).is_some_and(|c| c == "yes"));
            let expected = if well { "succeeded" } else { "failed" };
            let (status, error) = &recorded[&one.run];
            (one.status != expected || status != expected)
                .then(|| json!({"expected": expected, "seen": described(one), "recorded": status, "error": error}))
        })
        .collect();
    assert!(wrong.is_empty(), "runs that ended otherwise: {wrong:#?}");
    let slowest = done.iter().map(|one| one.took).max().unwrap_or_default();
    println!("{}", json!({"slowest_run_s": slowest.as_secs_f64()}));
}

async fn rows(sql: &PgPool, query: &'static str) -> BTreeMap<String, (String, Option<String>)> {
    let all = sqlx::query(query).fetch_all(sql).await.unwrap();
    all.into_iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// What each gate's accepted answer said.
async fn choices(sql: &PgPool) -> BTreeMap<String, String> {
    let query =
        "SELECT run_id, payload->>'choice' FROM app.human_interactions WHERE outcome = 'accepted'";
    let all = sqlx::query(query).fetch_all(sql).await.unwrap();
    all.into_iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// An acknowledged answer is on record, and each gate has one decision.
pub async fn replies(sql: &PgPool, done: &[Done]) {
    let accepted = texts(
        sql,
        "SELECT run_id || ' ' || dedupe_key || ' ' || (payload->>'choice') FROM app.human_interactions
          WHERE outcome = 'accepted'",
    )
    .await;
    let gated: Vec<&Done> = done.iter().filter(|one| one.job == Job::Gated).collect();
    for one in &gated {
        let yes: Vec<String> = one
            .replies
            .iter()
            .filter(|reply| reply.status == 200)
            .map(|reply| format!("{} {} {}", one.run, reply.dedupe, reply.choice))
            .collect();
        assert!(!yes.is_empty(), "{}: nobody was told that it was decided", one.run);
        assert!(yes.iter().all(|reply| accepted.contains(reply)), "acknowledged and lost: {yes:?}");
    }
    assert_eq!(accepted.len(), gated.len(), "one accepted answer a gate");
    let inexact = count(
        sql,
        "SELECT count(*) FROM app.human_gates g WHERE
           (SELECT count(*) FROM app.human_interactions i WHERE i.run_id = g.run_id AND i.outcome = 'accepted') <> 1
           OR (SELECT count(*) FROM app.gate_votes v WHERE v.run_id = g.run_id) <> 1
           OR (SELECT count(*) FROM dbos.workflow_events_history h WHERE h.workflow_uuid = g.workflow_id
                AND h.key LIKE 'decision:%') <> 1",
    )
    .await;
    assert_eq!(inexact, 0, "gates whose decision is not one");
    println!("{}", json!({"gates": gated.len()}));
}

/// What tasks did to the host, against what the ledger says that they did.
pub async fn effects(sql: &PgPool, lines: &[String]) {
    let mut seen: BTreeMap<&str, i64> = BTreeMap::new();
    for line in lines {
        *seen.entry(line).or_default() += 1;
    }
    let recorded = sqlx::query(
        "SELECT (i.inputs->>'n') || ' ' || s.task_name,
                count(*) FILTER (WHERE s.err_code = 'NONE'),
                sum((SELECT count(*) FROM app.sbx_executions e WHERE e.task_key = s.task_key))::bigint,
                sum((SELECT count(*) FROM app.artifacts a WHERE a.task_key = s.task_key AND a.kind = 'file'
                    AND a.sha256 = encode(sha256(convert_to(
                        (i.inputs->>'n') || '-' || replace(s.task_name, 'part-', '') || chr(10), 'UTF8')), 'hex')))::bigint
           FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id JOIN app.intents i ON i.id = r.intent_id
          WHERE s.task_name LIKE 'part-%' GROUP BY 1",
    )
    .fetch_all(sql)
    .await
    .unwrap();
    let (mut executions, mut tasks) = (0, 0);
    let mut wrong = Vec::new();
    for row in recorded {
        let (task, results, times, files): (String, i64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let effects = seen.remove(task.as_str()).unwrap_or(0);
        if effects > times || results > 1 || (results == 1 && (effects == 0 || files != 1)) {
            wrong.push(json!({"task": task, "results": results, "executions": times, "effects": effects, "files": files}));
        }
        executions += times;
        tasks += 1;
    }
    assert!(wrong.is_empty(), "tasks whose effects the ledger does not explain: {wrong:#?}");
    assert!(seen.is_empty(), "effects of no task: {seen:?}");
    println!("{}", json!({"tasks": tasks, "executions": executions, "effects": lines.len()}));
}

/// 503 is a storm's; nothing else is.
pub fn answers(front: &Front) {
    let (statuses, wrong) = front.answers();
    println!("{}", json!({"answers": statuses}));
    assert!(wrong.is_empty(), "{} answers that no storm excuses: {wrong:#?}", wrong.len());
}
