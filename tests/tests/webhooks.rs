//! Webhooks from outside: signed, tried again, given up, replayed, and never where they must not go.
//!
//! One file: one receiver, and every way in which it fails.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_tests::{Home, Server, row_counts, text};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sqlx::{Executor, PgPool};
use support::{assert_proven, count, texts, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const GATED: &str =
    "id: told\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks: [{name: t, value: kept}]\n";
const VALUE: &str = "id: plain\nv: \"1\"\nform: {type: object, additionalProperties: false, properties: {n: {type: integer}}}\nplan:\n  tasks: [{name: t, value: kept}]\n";
const LIMIT: Duration = Duration::from_secs(30);

/// What a receiver was sent.
#[derive(Debug, Clone)]
struct Heard {
    headers: BTreeMap<String, String>,
    body: String,
}

impl Heard {
    fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    fn event(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        text(&body, "type")
    }
}

/// A receiver on loopback that answers what it is told to; 0 hangs.
struct Receiver {
    url: String,
    answers: Arc<AtomicU16>,
    heard: Arc<Mutex<Vec<Heard>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn new(answers: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?a=1", listener.local_addr().unwrap());
        let answers = Arc::new(AtomicU16::new(answers));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (told, list, own) = (Arc::clone(&answers), Arc::clone(&heard), url.clone());
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (told, list, own) = (Arc::clone(&told), Arc::clone(&list), own.clone());
                tokio::spawn(async move {
                    let mut bytes = Vec::new();
                    let heard = loop {
                        let mut more = [0; 4096];
                        let read = stream.read(&mut more).await.unwrap_or(0);
                        if read == 0 {
                            return;
                        }
                        bytes.extend_from_slice(&more[..read]);
                        if let Some(heard) = parse(&bytes) {
                            break heard;
                        }
                    };
                    list.lock().unwrap().push(heard);
                    let status = told.load(Ordering::SeqCst);
                    if status == 0 {
                        tokio::time::sleep(Duration::from_secs(600)).await;
                    }
                    let answer = format!(
                        "HTTP/1.1 {status} X\r\nlocation: {own}&moved=1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { url, answers, heard, task }
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    async fn hears(&self, what: &str, n: usize) -> Vec<Heard> {
        until(what, LIMIT, async || self.heard().len() >= n).await;
        self.heard()
    }
}

/// A whole request, once it is there.
fn parse(bytes: &[u8]) -> Option<Heard> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let headers: BTreeMap<String, String> = head
        .lines()
        .skip(1)
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers["content-length"].parse().unwrap();
    (body.len() >= length).then(|| Heard { headers, body: body.to_owned() })
}

fn is_signed(heard: &Heard, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    mac.update(
        format!("{}.{}.{}", heard.id(), heard.headers["webhook-timestamp"], heard.body).as_bytes(),
    );
    heard.headers["webhook-signature"]
        == format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

async fn webhook(up: &Server, url: &str, events: &[&str]) -> (String, String) {
    let mut body = json!({"url": url});
    if !events.is_empty() {
        body["events"] = json!(events);
    }
    let (status, made) = up.post("/api/webhooks", &body).await;
    assert_eq!(status, 201, "{made}");
    (text(&made, "webhookId"), text(&made, "secret"))
}

async fn gated(up: &Server) -> String {
    let header = up.run_recipe(GATED, json!({}), json!({})).await;
    let run = text(&header, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    run
}

/// Makes what waits for its next attempt due now, as time would.
async fn hurry(sql: &PgPool) {
    // Not one that is in flight: its claim is what keeps a second sender away.
    make_due(
        sql,
        "EXISTS (SELECT 1 FROM app.webhook_attempts a
                 WHERE a.delivery_id = d.id AND a.attempt = d.attempts)",
    )
    .await;
}

/// As if the time of every claim had run out.
async fn expire_claims(sql: &PgPool) {
    make_due(sql, "true").await;
}

async fn make_due(sql: &PgPool, which: &str) {
    let update = format!(
        "UPDATE app.webhook_deliveries d SET next_at = clock_timestamp()
         WHERE d.state = 'pending' AND {which}"
    );
    sql.execute(sqlx::query(sqlx::AssertSqlSafe(update))).await.unwrap();
    sql.execute("SELECT pg_notify('cofferdam', 'd:test')").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_signed_and_the_secret_is_shown_once_and_stored_nowhere() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let receiver = Receiver::new(204).await;
    let (id, secret) = webhook(&up, &receiver.url, &[]).await;
    let run = gated(&up).await;
    let reply =
        json!({"payload": {"choice": "yes", "rationale": "a private thought"}, "dedupeKey": "k"});
    let (status, _) = up.post(&format!("/api/runs/{run}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200);
    up.wait_terminal(&run).await;
    let heard = receiver.hears("three events", 3).await;
    let events: BTreeSet<String> = heard.iter().map(Heard::event).collect();
    assert_eq!(events, ["gate.decided", "gate.opened", "run.terminal"].map(str::to_owned).into());
    for one in &heard {
        assert!(is_signed(one, &secret), "{one:?}");
        assert!(!is_signed(one, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
        assert!(!one.body.contains("private thought"), "bodies are thin: {}", one.body);
        let body: Value = serde_json::from_str(&one.body).unwrap();
        assert_eq!(body["data"]["runId"], json!(run));
        // e6: what was decided is told, and only where something was.
        let decision = (one.event() == "gate.decided").then(|| json!("yes"));
        assert_eq!(body["data"].get("decision"), decision.as_ref(), "{body}");
        assert_eq!(body["data"].get("askedName"), None, "{body}");
        assert_eq!(one.headers["content-type"], "application/json");
    }
    assert_eq!(heard.iter().map(Heard::id).collect::<BTreeSet<_>>().len(), 3);
    let sql = up.sql().await;
    let delivered =
        "SELECT count(*) FROM app.webhook_deliveries WHERE state = 'delivered' AND attempts = 1";
    until("all are recorded", LIMIT, async || count(&sql, delivered).await == 3).await;
    // The secret, and the key that it is derived from, are in no row and in no answer.
    let (_, listed) = up.get("/api/webhooks").await;
    assert_eq!(listed[0]["webhookId"], json!(id));
    let key = std::fs::read_to_string(home.path().join("signing.key")).unwrap();
    let mode = std::fs::metadata(home.path().join("signing.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let mut everything = listed.to_string();
    for table in ["webhooks", "webhook_deliveries", "webhook_attempts", "signing_keys", "audit"] {
        everything += &texts(&sql, &format!("SELECT t::text FROM app.{table} t")).await.join("\n");
    }
    assert!(everything.contains(&id) && !everything.contains(secret.trim_start_matches("whsec_")));
    assert!(!everything.contains(key.trim()));
    let listed = home.run_json(&["webhook", "deliveries", &id, "--status", "delivered", "--json"]);
    assert_eq!(listed["deliveries"].as_array().unwrap().len(), 3);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_fails_is_tried_again_given_up_and_replayed_under_the_same_id() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let receiver = Receiver::new(500).await;
    let (id, secret) = webhook(&up, &receiver.url, &["run.terminal"]).await;
    let run = up.run_recipe(VALUE, json!({}), json!({})).await;
    up.wait_terminal(run["runId"].as_str().unwrap()).await;
    let sql = up.sql().await;
    until("it is given up", LIMIT, async || {
        hurry(&sql).await;
        count(&sql, "SELECT count(*) FROM app.webhook_dead_letters WHERE attempts = 9").await == 1
    })
    .await;
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.webhook_attempts WHERE NOT ok AND status = 500")
            .await,
        9
    );
    let heard = receiver.heard();
    assert_eq!(heard.len(), 9);
    assert!(heard.iter().all(|one| one.id() == heard[0].id() && one.body == heard[0].body));
    assert!(
        heard.iter().all(|one| is_signed(one, &secret)),
        "each attempt is signed for its own time"
    );
    // Dead stays dead until somebody says so.
    hurry(&sql).await;
    let delivery = heard[0].id().to_owned();
    receiver.answers.store(200, Ordering::SeqCst);
    let output = home.run(&["webhook", "replay", &id, &delivery]);
    assert_eq!(output.status.code(), Some(0), "{}", support::said(&output));
    receiver.hears("the replay", 10).await;
    until("it is delivered", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.webhook_deliveries WHERE state = 'delivered' AND attempts = 10").await == 1
    })
    .await;
    assert_eq!(receiver.heard().len(), 10);
    assert_eq!(receiver.heard()[9].id(), delivery);
    assert_eq!(
        texts(&sql, "SELECT target FROM app.audit WHERE op = 'webhook.replay'").await,
        std::slice::from_ref(&delivery)
    );
    // What arrived may be replayed as well; what is on its way is not.
    receiver.answers.store(503, Ordering::SeqCst);
    let path = format!("/api/webhooks/{id}/deliveries/{delivery}/replay");
    assert_eq!(up.post(&path, &json!({})).await.0, 202);
    let (status, answer) = up.post(&path, &json!({})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("state_conflict")));
    receiver.answers.store(200, Ordering::SeqCst);
    until("it is delivered again", LIMIT, async || {
        hurry(&sql).await;
        count(&sql, "SELECT count(*) FROM app.webhook_deliveries WHERE state = 'delivered'").await
            == 1
    })
    .await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_gone_is_asked_once_and_no_redirect_is_followed() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let (gone, moved) = (Receiver::new(410).await, Receiver::new(302).await);
    let of_gone = webhook(&up, &gone.url, &["run.terminal"]).await.0;
    let of_moved = webhook(&up, &moved.url, &["run.terminal"]).await.0;
    let run = up.run_recipe(VALUE, json!({}), json!({})).await;
    up.wait_terminal(run["runId"].as_str().unwrap()).await;
    let sql = up.sql().await;
    until("both were asked", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.webhook_attempts").await == 2
    })
    .await;
    let of = async |id: &str| {
        let (status, rows) = up.get(&format!("/api/webhooks/{id}/deliveries")).await;
        assert_eq!(status, 200);
        rows[0].clone()
    };
    assert_eq!(of(&of_gone).await["state"], "dead");
    let waiting = of(&of_moved).await;
    assert_eq!((&waiting["state"], &waiting["lastStatus"]), (&json!("pending"), &json!(302)));
    assert_eq!((gone.heard().len(), moved.heard().len()), (1, 1));
    // Removing a webhook gives up what is on its way, and ends its events.
    let output = home.run(&["webhook", "rm", &of_moved]);
    assert_eq!(output.status.code(), Some(0), "{}", support::said(&output));
    assert_eq!(of(&of_moved).await["state"], "dead");
    let run = up.run_recipe(VALUE, json!({"n": 2}), json!({})).await;
    up.wait_terminal(run["runId"].as_str().unwrap()).await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.webhook_deliveries").await, 3);
    let output = home.run(&["webhook", "rm", &of_moved]);
    assert_eq!(output.status.code(), Some(1), "it is gone: {}", support::said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_is_killed_leaves_its_delivery_to_the_next_one() {
    let home = Home::new();
    let mut up = home.up_with(&["--webhook-private"], &[]);
    let receiver = Receiver::new(0).await;
    webhook(&up, &receiver.url, &["run.terminal"]).await;
    let run = up.run_recipe(VALUE, json!({}), json!({})).await;
    up.wait_terminal(run["runId"].as_str().unwrap()).await;
    receiver.hears("the first attempt", 1).await;
    up.kill();
    receiver.answers.store(200, Ordering::SeqCst);
    let up = home.up_with(&["--webhook-private"], &[]);
    let sql = up.sql().await;
    expire_claims(&sql).await;
    until("it is delivered", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.webhook_deliveries WHERE state = 'delivered' AND attempts >= 2").await == 1
    })
    .await;
    let heard = receiver.heard();
    assert!(heard.len() >= 2 && heard.iter().all(|one| one.id() == heard[0].id()), "{heard:?}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.webhook_attempts WHERE ok").await, 1);
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.webhook_attempts WHERE attempt = 1").await,
        0,
        "its end was never seen"
    );
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_workers_send_each_event_once() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let _worker = Server::start(&home, &["worker", "--webhook-private"], &[]);
    let receiver = Receiver::new(200).await;
    webhook(&up, &receiver.url, &["run.terminal"]).await;
    for n in 0..20 {
        up.run_recipe(VALUE, json!({"n": n}), json!({})).await;
    }
    let sql = up.sql().await;
    until("all are delivered", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.webhook_deliveries WHERE state = 'delivered'").await
            == 20
    })
    .await;
    let heard = receiver.heard();
    assert_eq!(heard.len(), 20);
    assert_eq!(heard.iter().map(Heard::id).collect::<BTreeSet<_>>().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_are_for_operators_to_allow_at_making_and_at_sending() {
    let home = Home::new();
    let mut up = home.up_with(&["--webhook-private"], &[]);
    let receiver = Receiver::new(200).await;
    webhook(&up, &receiver.url, &["run.terminal"]).await;
    webhook(&up, &receiver.url.replace("127.0.0.1", "localhost"), &["run.terminal"]).await;
    up.stop();
    let up = home.up();
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    for url in [
        receiver.url.as_str(),
        "http://169.254.169.254/",
        "http://[::1]/",
        "ftp://example.com/",
        "https://u:p@example.com/",
    ] {
        let (status, answer) = up.post("/api/webhooks", &json!({"url": url})).await;
        assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{url} {answer}");
    }
    let (status, _) = up
        .post("/api/webhooks", &json!({"url": "https://example.com", "events": ["gate.*"]}))
        .await;
    assert_eq!(status, 400);
    assert_eq!(row_counts(&sql).await, before);
    let run = up.run_recipe(VALUE, json!({}), json!({})).await;
    up.wait_terminal(run["runId"].as_str().unwrap()).await;
    until("both were refused", LIMIT, async || {
        count(&sql, "SELECT count(*) FROM app.webhook_attempts WHERE NOT ok AND status IS NULL AND error LIKE '%private address%'").await == 2
    })
    .await;
    assert!(receiver.heard().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_cancel_and_another_tenant_are_told_to_whom_they_concern() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await;
    let (mine, theirs) = (Receiver::new(200).await, Receiver::new(200).await);
    webhook(&up, &mine.url, &[]).await;
    let wanted = json!({"url": theirs.url});
    assert_eq!(up.post_as(&acme, "/api/webhooks", &wanted).await.0, 201);
    let canceled = gated(&up).await;
    let output = home.run(&["cancel", &canceled]);
    assert_eq!(output.status.code(), Some(0), "{}", support::said(&output));
    let heard = mine.hears("opened, canceled, terminal", 3).await;
    let events: BTreeSet<String> = heard.iter().map(Heard::event).collect();
    assert_eq!(events, ["gate.canceled", "gate.opened", "run.terminal"].map(str::to_owned).into());
    let (_, header) = up.get(&format!("/api/runs/{canceled}")).await;
    let intent = json!({"goal": "g", "inputs": {}, "constraints": {"planApprovalTimeoutS": 1}});
    let (status, made) = up.post("/api/intents", &intent).await;
    assert_eq!(status, 201, "{made} {header}");
    let run = json!({"intentId": made["intentId"], "recipeName": "told", "recipeVersion": "1"});
    let (status, header) = up.post("/api/runs", &run).await;
    assert_eq!(status, 201, "{header}");
    let late = header["runId"].as_str().unwrap();
    up.wait_terminal(late).await;
    mine.hears("opened, timed out, escalated, terminal", 7).await;
    let of_late: BTreeSet<String> =
        mine.heard().iter().filter(|one| one.body.contains(late)).map(Heard::event).collect();
    assert_eq!(
        of_late,
        ["gate.escalated", "gate.opened", "gate.timed_out", "run.terminal"]
            .map(str::to_owned)
            .into()
    );
    assert!(theirs.heard().is_empty(), "another tenant's events");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_commits_with_what_made_it_or_not_at_all() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let receiver = Receiver::new(200).await;
    webhook(&up, &receiver.url, &["gate.timed_out", "gate.reminded"]).await;
    gated(&up).await;
    let sql = up.sql().await;
    let mut tx = sql.begin().await.unwrap();
    tx.execute("UPDATE app.human_gates SET state = 'timed_out', decided_at = clock_timestamp()")
        .await
        .unwrap();
    let inside: i64 = sqlx::query_scalar("SELECT count(*) FROM app.webhook_deliveries")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(inside, 1);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.webhook_deliveries").await, 0);
    let reminds = "id: told\nv: \"2\"\nplan:\n  gate: {key: approve-plan, remind: 3s, deadline: 60s}\n  tasks: [{name: t, value: kept}]\n";
    up.run_recipe(reminds, json!({}), json!({})).await;
    assert_eq!(receiver.hears("the reminder", 1).await[0].event(), "gate.reminded");
    for change in [
        "DELETE FROM app.webhook_deliveries",
        "UPDATE app.webhook_deliveries SET gate_key = 'another'",
        "UPDATE app.webhook_attempts SET ok = true",
    ] {
        until("there is an attempt", LIMIT, async || {
            count(&sql, "SELECT count(*) FROM app.webhook_attempts").await >= 1
        })
        .await;
        let refused = sql.execute(change).await.unwrap_err().to_string();
        assert!(!refused.contains("does not exist"), "{change}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_a_bounded_number_of_webhooks() {
    let home = Home::new();
    let up = home.up();
    let body = json!({"url": "https://example.com/", "events": ["gate.reminded"]});
    let made =
        futures_util::future::join_all((0..40).map(|_| up.post("/api/webhooks", &body))).await;
    let refused: Vec<&Value> =
        made.iter().filter(|(s, _)| *s == 400).map(|(_, answer)| answer).collect();
    assert_eq!((made.iter().filter(|(s, _)| *s == 201).count(), refused.len()), (32, 8));
    assert!(refused.iter().all(|answer| answer["code"] == "policy_violation"), "{refused:?}");
    let id = made.iter().find(|(s, _)| *s == 201).unwrap().1["webhookId"].as_str().unwrap();
    assert_eq!(home.run(&["webhook", "rm", id]).status.code(), Some(0));
    assert_eq!(up.post("/api/webhooks", &body).await.0, 201, "one was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_hangs_holds_up_nobody_else() {
    let home = Home::new();
    let up = home.up_with(&["--webhook-private"], &[]);
    let (hangs, answers) = (Receiver::new(0).await, Receiver::new(200).await);
    let slow = webhook(&up, &hangs.url, &["run.terminal"]).await.0;
    webhook(&up, &answers.url, &["run.terminal"]).await;
    for n in 0..30 {
        up.run_recipe(VALUE, json!({"n": n}), json!({})).await;
    }
    let sql = up.sql().await;
    // All of the one are there while the first attempts of the other still wait for their answer.
    until("the other one has all of its own", LIMIT, async || {
        let delivered = "SELECT count(*) FROM app.webhook_deliveries WHERE state = 'delivered'";
        count(&sql, delivered).await == 30
    })
    .await;
    let ended = format!(
        "SELECT count(*) FROM app.webhook_deliveries d JOIN app.webhook_attempts a ON a.delivery_id = d.id WHERE d.webhook_id = '{slow}' AND a.ok"
    );
    assert_eq!(count(&sql, &ended).await, 0);
    assert!(hangs.heard().len() < 30, "it has its share: {}", hangs.heard().len());
    assert_eq!(answers.heard().len(), 30);
}
