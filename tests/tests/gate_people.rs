//! Who may answer a gate, how many must, in whose place, and what time does meanwhile.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_tests::{Home, Server, row_counts, tamper, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use support::gates::{
    APPROVALS, DECISIONS, EXECUTIONS, INTERACTIONS, PROMPTS, TASKS, VOTES, key, number, proven,
    refused, say, value, waiting,
};
use support::{Dice, until};

fn recipe(id: &str, law: &str) -> String {
    format!(
        "id: {id}\nv: '1'\nplan:\n  gate: {{key: approve-plan, {law}}}\n  tasks: [{{name: t, value: kept}}]\n"
    )
}

async fn end(server: &Server, run: &Value, status: &str) -> Value {
    let end = server.wait_terminal(&text(run, "runId")).await;
    assert_eq!(end["status"], status, "{end}");
    end
}

/// Refused with this status, and no row of any table anywhere.
async fn nothing(sql: &PgPool, said: impl Future<Output = (u16, Value)>, status: u16, code: &str) {
    let before = row_counts(sql).await;
    refused(&said.await, status, code);
    assert_eq!(row_counts(sql).await, before);
}

#[tokio::test]
async fn two_of_a_group_must_agree_and_whoever_submitted_is_none_of_them() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let yaml = recipe("two", "group: sre, quorum: 2, self_approval: deny");
    let sub = key(&server, &["submitter", "approver"], &["sre"]).await;
    let (_, imported) = server.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    let body = json!({"recipeRef": imported["recipeRef"], "formData": {}});
    let (status, run) = server.post_as(&sub.1, "/api/run", &body).await;
    assert_eq!(status, 201, "{run}");
    support::gates::prompt(&server, &run, "approve-plan").await;
    let (a, b) =
        (key(&server, &["approver"], &["sre"]).await, key(&server, &["approver"], &["sre"]).await);
    let stranger = key(&server, &["approver"], &["qa"]).await;
    nothing(&sql, say(&server, &sub.1, &run, "s", "yes"), 403, "forbidden").await;
    nothing(&sql, say(&server, &stranger.1, &run, "x", "yes"), 403, "forbidden").await;
    nothing(&sql, say(&server, &server.key, &run, "x", "yes"), 403, "forbidden").await;
    let first = say(&server, &a.1, &run, "a", "yes").await;
    assert_eq!(first, (200, json!({"ok": true, "isReplay": false})));
    assert_eq!(say(&server, &a.1, &run, "a", "yes").await.1["isReplay"], true);
    nothing(&sql, say(&server, &b.1, &run, "a", "yes"), 409, "dedupe_conflict").await;
    nothing(&sql, say(&server, &a.1, &run, "a", "no"), 409, "dedupe_conflict").await;
    refused(&say(&server, &a.1, &run, "a2", "yes").await, 409, "state_conflict");
    assert_eq!(number(&sql, VOTES, &run).await, 1, "one key is one vote");
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 2, "and the second try is on record");
    // Each outcome that a row can have is read back as well.
    let listed = server.get(&format!("/api/runs/{}/interactions", text(&run, "runId"))).await;
    assert_eq!(listed.0, 200, "{}", listed.1);
    let outcomes: Vec<String> =
        listed.1.as_array().unwrap().iter().map(|row| text(row, "outcome")).collect();
    assert_eq!(outcomes, ["voted", "already_voted"]);
    let path = format!("/api/runs/{}/gates/approve-plan", text(&run, "runId"));
    let view = server.get(&path).await.1;
    assert_eq!(
        (&view["state"], &view["votes"][0]["voter"]),
        (&json!("PENDING"), &json!(a.0)),
        "{view}"
    );
    assert_eq!((number(&sql, APPROVALS, &run).await, number(&sql, TASKS, &run).await), (0, 0));
    assert_eq!(say(&server, &b.1, &run, "b", "yes").await.0, 200);
    end(&server, &run, "succeeded").await;
    assert_eq!(number(&sql, APPROVALS, &run).await, 1);
    proven(&server).await;
}

#[tokio::test]
async fn one_no_is_a_veto_and_without_a_veto_it_is_one_voice() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (a, b, c) = (
        key(&server, &["approver"], &[]).await,
        key(&server, &["approver"], &[]).await,
        key(&server, &["approver"], &[]).await,
    );
    let run = waiting(&server, &recipe("veto", "quorum: 3"), json!({}), json!({})).await;
    assert_eq!(say(&server, &a.1, &run, "a", "yes").await.0, 200);
    assert_eq!(say(&server, &b.1, &run, "b", "no").await.0, 200);
    end(&server, &run, "failed").await;
    refused(&say(&server, &c.1, &run, "c", "yes").await, 409, "state_conflict");
    assert_eq!((number(&sql, VOTES, &run).await, number(&sql, APPROVALS, &run).await), (2, 0));

    let law = recipe("voices", "quorum: 2, veto: false");
    let run = waiting(&server, &law, json!({}), json!({"runKey": "1"})).await;
    for (who, choice) in [(&a, "yes"), (&b, "no"), (&c, "yes")] {
        assert_eq!(say(&server, &who.1, &run, &who.0, choice).await.0, 200);
    }
    end(&server, &run, "succeeded").await;
    let run = waiting(&server, &law, json!({}), json!({"runKey": "2"})).await;
    for (who, choice) in [(&a, "no"), (&b, "yes"), (&c, "no")] {
        assert_eq!(say(&server, &who.1, &run, &who.0, choice).await.0, 200);
    }
    end(&server, &run, "failed").await;
    assert_eq!(number(&sql, TASKS, &run).await, 0);
    proven(&server).await;
}

async fn delegate(server: &Server, from: &str, body: Value) -> Value {
    let (status, made) = server.post_as(from, "/api/delegations", &body).await;
    assert_eq!(status, 201, "{made}");
    made
}

#[tokio::test]
async fn a_delegation_lends_one_voice_until_it_expires_or_is_ended() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let yaml = recipe("lent", "group: sre, quorum: 2");
    let boss = key(&server, &["approver"], &["sre"]).await;
    let (a, b) =
        (key(&server, &["approver"], &["sre"]).await, key(&server, &["approver"], &[]).await);
    let run = waiting(&server, &yaml, json!({}), json!({"runKey": "1"})).await;
    nothing(&sql, say(&server, &b.1, &run, "b", "yes"), 403, "forbidden").await;
    let made = delegate(
        &server,
        &boss.1,
        json!({"to": b.0, "ttlS": 3600, "group": "sre", "reason": "holiday"}),
    )
    .await;
    assert_eq!((&made["from"], &made["to"]), (&json!(boss.0), &json!(b.0)), "{made}");
    assert_eq!(say(&server, &b.1, &run, "b", "yes").await.0, 200);
    refused(&say(&server, &boss.1, &run, "boss", "yes").await, 409, "state_conflict");
    assert_eq!(number(&sql, VOTES, &run).await, 1, "who is answered for has no second voice");
    let vote =
        value(&sql, "SELECT to_jsonb(v) FROM app.gate_votes v WHERE run_id = $1", &run).await;
    assert_eq!(
        (&vote["voter"], &vote["authority"], &vote["delegation_id"]),
        (&json!(b.0), &json!(boss.0), &made["id"])
    );
    assert_eq!(say(&server, &a.1, &run, "a", "yes").await.0, 200);
    end(&server, &run, "succeeded").await;

    // Expired: as if the hour had passed.
    let run = waiting(&server, &yaml, json!({}), json!({"runKey": "2"})).await;
    tamper(&sql, "UPDATE app.gate_delegations SET created_at = created_at - interval '3 hours', expires_at = expires_at - interval '3 hours'").await;
    nothing(&sql, say(&server, &b.1, &run, "b", "yes"), 403, "forbidden").await;
    tamper(&sql, "UPDATE app.gate_delegations SET created_at = created_at + interval '3 hours', expires_at = expires_at + interval '3 hours'").await;
    let path = format!("/api/delegations/{}", made["id"]);
    let others = server.request("DELETE", &path, Some(&a.1), None).await;
    refused(&others, 404, "not_found");
    let (status, ended) = server.request("DELETE", &path, Some(&boss.1), None).await;
    assert_eq!((status, &ended["ended"]), (200, &json!(true)));
    refused(&server.request("DELETE", &path, Some(&boss.1), None).await, 409, "state_conflict");
    nothing(&sql, say(&server, &b.1, &run, "b", "yes"), 403, "forbidden").await;
    // A delegation that was ended lends nothing, and one of somebody who is not asked neither.
    let qa = key(&server, &["approver"], &["qa"]).await;
    delegate(&server, &qa.1, json!({"to": b.0, "ttlS": 60})).await;
    nothing(&sql, say(&server, &b.1, &run, "b", "yes"), 403, "forbidden").await;
    // What was lent is not lent on.
    delegate(&server, &boss.1, json!({"to": qa.0, "ttlS": 60})).await;
    nothing(&sql, say(&server, &b.1, &run, "b", "yes"), 403, "forbidden").await;
    assert_eq!(say(&server, &qa.1, &run, "q", "no").await.0, 200);
    end(&server, &run, "failed").await;
    proven(&server).await;
}

#[tokio::test]
async fn a_deadline_reminds_then_asks_more_people_once_and_more_urgently() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let lead = key(&server, &["approver"], &["leads"]).await;
    let calm = waiting(&server, &recipe("calm", "quorum: 1"), json!({}), json!({})).await;
    let yaml = recipe(
        "urgent",
        "group: sre, deadline: 3s, remind: 1s, on_timeout: {escalate: {group: leads, wait: 1h, priority: 7}}",
    );
    let run = waiting(&server, &yaml, json!({}), json!({})).await;
    // Reminders write rows meanwhile, so they are not counted here.
    assert_eq!(say(&server, &lead.1, &run, "l", "yes").await.0, 403);
    until("escalated", Duration::from_secs(30), async || {
        number(
            &sql,
            "SELECT count(*) FROM app.gate_journal WHERE run_id = $1 AND event = 'escalated'",
            &run,
        )
        .await
            == 1
    })
    .await;
    let reminded = number(
        &sql,
        "SELECT count(*) FROM app.gate_journal WHERE run_id = $1 AND event = 'reminded'",
        &run,
    )
    .await;
    assert_eq!(reminded, 2, "after one second and after two; at three it is escalated");
    let inbox = server.get("/api/hitl/inbox").await.1;
    assert_eq!((&inbox[0]["runId"], &inbox[0]["priority"]), (&run["runId"], &json!(7)), "{inbox}");
    assert_eq!(
        inbox[1]["runId"], calm["runId"],
        "although the calm one's deadline is the same or nearer"
    );
    assert!(text(&inbox[0], "escalationWorkflowID").starts_with("esc:"), "{inbox}");
    assert_eq!(say(&server, &lead.1, &run, "l", "yes").await.0, 200);
    end(&server, &run, "succeeded").await;
    let escalations = number(&sql, "SELECT count(*) FROM dbos.workflow_status w JOIN app.runs r ON w.workflow_uuid LIKE 'esc:' || r.workflow_id || ':%' WHERE r.id = $1", &run).await;
    assert_eq!((escalations, number(&sql, PROMPTS, &run).await), (1, 1));
    proven(&server).await;
}

#[tokio::test]
async fn silence_after_the_escalation_is_what_the_recipe_says() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let last = recipe("last", "deadline: 1s, on_timeout: {escalate: {wait: 1s}, then: deny}");
    let denied = waiting(&server, &last, json!({}), json!({})).await;
    let yes = recipe("yes", "deadline: 1s, on_timeout: {then: approve}");
    let approved = waiting(&server, &yes, json!({}), json!({})).await;
    let error = text(&end(&server, &denied, "failed").await, "error");
    assert!(error.contains("timeout"), "{error}");
    end(&server, &approved, "succeeded").await;
    assert_eq!(
        (number(&sql, APPROVALS, &denied).await, number(&sql, TASKS, &denied).await),
        (0, 0)
    );
    let row =
        value(&sql, "SELECT to_jsonb(p) FROM app.plan_approvals p WHERE run_id = $1", &approved)
            .await;
    assert_eq!((&row["approved_by"], &row["origin"]), (&json!("recipe"), &json!("engine-dbos")));
    for run in [&denied, &approved] {
        refused(&say(&server, &server.key, run, "late", "yes").await, 409, "state_conflict");
        assert_eq!(number(&sql, DECISIONS, run).await, 1);
        assert_eq!(number(&sql, VOTES, run).await, 0);
        let outcome = value(
            &sql,
            "SELECT to_jsonb(outcome) FROM app.human_interactions WHERE run_id = $1",
            run,
        )
        .await;
        assert_eq!(outcome, json!("late"));
    }
    until("both escalations ran", Duration::from_secs(20), async || {
        support::count(&sql, "SELECT count(*) FROM app.gate_journal WHERE event = 'escalated'")
            .await
            == 2
    })
    .await;
    proven(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_with_ten_dedupe_keys_make_one_decision_and_a_whole_ledger() {
    let home = Home::new();
    let server = Arc::new(home.up());
    let sql = server.sql().await;
    let run = Arc::new(waiting(&server, &recipe("many", "quorum: 1"), json!({}), json!({})).await);
    let clients: Vec<_> = (0..50)
        .map(|n: u32| {
            let (server, run) = (Arc::clone(&server), Arc::clone(&run));
            tokio::spawn(async move {
                let dedupe = n % 10;
                // Every tenth says no under a key under which others say yes.
                let choice = if n % 20 == 10 { "no" } else { "yes" };
                (
                    dedupe,
                    choice,
                    say(&server, &server.key, &run, &format!("k{dedupe}"), choice).await,
                )
            })
        })
        .collect();
    let mut fresh = Vec::new();
    let mut answers = Vec::new();
    for client in clients {
        let (dedupe, choice, (status, body)) = client.await.unwrap();
        assert!(status == 200 || status == 409, "{status} {body}");
        if status == 200 && body["isReplay"] == false {
            fresh.push((dedupe, choice));
        }
        answers.push((dedupe, choice, status));
    }
    assert_eq!(fresh.len(), 1, "{answers:?}");
    for (dedupe, choice, status) in answers {
        let wins = (dedupe, choice) == fresh[0];
        assert_eq!(status == 200, wins, "k{dedupe} {choice} {status}");
    }
    let want = if fresh[0].1 == "yes" { "succeeded" } else { "failed" };
    end(&server, &run, want).await;
    assert_eq!(number(&sql, INTERACTIONS, &run).await, 10, "each key is on record once");
    assert_eq!(number(&sql, VOTES, &run).await, 1);
    assert_eq!(number(&sql, DECISIONS, &run).await, 1);
    assert_eq!(number(&sql, EXECUTIONS, &run).await, i64::from(want == "succeeded"));
    proven(&server).await;
}

/// Anything that might stand where something else should.
fn junk(dice: &mut Dice) -> Value {
    match dice.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(1.5e300),
        4 => json!(9_007_199_254_740_993_u64),
        5 => json!(""),
        6 => json!("x".repeat(5_000)),
        7 => json!("a\u{0}b"),
        8 => json!("\u{1b}[2J\r\n"),
        9 => json!("\u{202e}\u{1f4a3}"),
        10 => json!([[[[{}]]]]),
        11 => json!({"choice": "yes", "edits": {"n": 1}}),
        12 => json!({"choice": ["yes"]}),
        _ => json!("' OR 1=1 --"),
    }
}

#[tokio::test]
async fn whatever_is_sent_to_a_gate_that_asks_nobody_is_refused_and_never_a_500() {
    let mut dice = Dice::new("whatever_is_sent_to_a_gate");
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let run = waiting(&server, &recipe("nobody", "group: nobody"), json!({}), json!({})).await;
    let keys = [
        server.key.clone(),
        key(&server, &["approver"], &["sre"]).await.1,
        key(&server, &["auditor"], &["nobody"]).await.1,
        "cfd_none".to_owned(),
    ];
    let id = text(&run, "runId");
    let routes = [
        (
            format!("/api/runs/{id}/gates/approve-plan/reply"),
            json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "origin": "manual", "topic": "human:approve-plan"}),
        ),
        (format!("/api/runs/{id}/approve-plan"), json!({"approvedBy": "ann", "notes": "n"})),
        (
            "/api/events/hitl".to_owned(),
            json!({"workflowId": run["workflowID"], "gateKey": "approve-plan", "topic": "human:approve-plan",
                "payload": {"choice": "no"}, "dedupeKey": "k", "origin": "webhook"}),
        ),
        ("/api/delegations".to_owned(), json!({"to": "k_none", "ttlS": 60, "reason": "r"})),
    ];
    let before = row_counts(&sql).await;
    for _ in 0..600 {
        let at = usize::try_from(dice.below(4)).unwrap();
        let (path, good) = &routes[at];
        let mut body = good.clone();
        let fields = body.as_object_mut().unwrap();
        for _ in 0..dice.below(4) {
            let names: Vec<String> = fields.keys().cloned().collect();
            let nth = usize::try_from(dice.below(8)).unwrap();
            let name = names.get(nth).cloned().unwrap_or_else(|| "surprise".to_owned());
            match dice.below(5) {
                0 => drop(fields.remove(&name)),
                _ => drop(fields.insert(name, junk(&mut dice))),
            }
        }
        let secret = &keys[usize::try_from(dice.below(4)).unwrap()];
        let (status, said) = server.post_as(secret, path, &body).await;
        assert!((400..500).contains(&status), "{path} {body}: {status} {said}");
        assert!(said["code"].is_string() && said["error"].is_string(), "{path} {body}: {said}");
    }
    assert_eq!(row_counts(&sql).await, before, "and nothing was written");
}
