//! Recipes that run by the clock: each instant once over workers that are killed, and on record where it starts nothing.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, row_counts, tamper, text};
use serde_json::{Value, json};
use sqlx::{Executor as _, PgPool};
use support::{assert_proven, code, count, recipe, said, stdout, texts, until};

const LIMIT: Duration = Duration::from_secs(60);
const SHIM: &[&str] = &["shim", "--listen", "127.0.0.1:0"];
const WORKER: &[&str] = &["worker"];

fn yaml(id: &str, schedule: &str, gate: &str) -> String {
    format!(
        "id: {id}\nv: \"1\"\nschedule: {schedule}\nplan:\n{gate}  tasks: [{{name: t, value: kept}}]\n"
    )
}

/// Imports a recipe and consents to its schedule, with a key.
async fn add(up: &Server, key: &str, text: &str) -> (u16, Value) {
    let (status, imported) = up.post_as(key, "/api/recipes/import", &json!({"yaml": text})).await;
    assert_eq!(status, 201, "{imported}");
    up.post_as(key, "/api/schedules", &json!({"recipeRef": imported["recipeRef"]})).await
}

async fn firings(up: &Server, name: &str) -> Vec<Value> {
    let (status, rows) = up.get(&format!("/api/schedules/{name}/firings?limit=500")).await;
    assert_eq!(status, 200, "{rows}");
    let mut rows = rows.as_array().unwrap().clone();
    rows.reverse();
    rows
}

/// The firings of a schedule, once so many are in a state.
async fn with(up: &Server, name: &str, state: &str, n: usize) -> Vec<Value> {
    until(&format!("{n} firings of {name} are {state}"), LIMIT, async || {
        firings(up, name).await.iter().filter(|row| row["state"] == state).count() >= n
    })
    .await;
    firings(up, name).await
}

/// Lets schedules fire each second, which a host does not by itself.
pub async fn every_second(up: &Server) {
    let body = json!({"value": 1, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/schedule.min_interval_s";
    let (status, set) = up.request("PUT", path, Some(&up.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{set}");
}

/// As if nobody had looked for so many minutes.
async fn down_for(sql: &PgPool, name: &str, minutes: i64) {
    let back = format!(
        "UPDATE app.triggers SET next_ms = m.at, due_ms = m.at
           FROM (SELECT app.ms(date_trunc('minute', clock_timestamp()) - interval '{minutes} minutes') AS at) m
          WHERE name = '{name}'"
    );
    sql.execute(sqlx::AssertSqlSafe(back)).await.unwrap();
}

async fn set(up: &Server, name: &str, to: &str) -> (u16, Value) {
    up.post(&format!("/api/schedules/{name}/{to}"), &json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instant_fires_once_over_two_workers_that_are_killed_at_every_place() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    every_second(&shim).await;
    let ticks = yaml("ticks", "{cron: '* * * * * *', overlap: queue}", "");
    let (status, row) = add(&shim, &shim.key, &ticks).await;
    assert_eq!(status, 201, "{row}");
    for place in ["firing.recorded", "firing.run", "firing.done"] {
        let before = firings(&shim, "ticks").await.len();
        // It says that it is ready before its first instant kills it.
        set(&shim, "ticks", "pause").await;
        let mut doomed = Server::start(&home, WORKER, &[("COFFERDAM_FAILPOINT", place)]);
        assert_eq!(set(&shim, "ticks", "resume").await.0, 200);
        until(place, LIMIT, async || doomed.has_ended()).await;
        // Two at once go on from there.
        let (_one, _two) = (Server::start(&home, WORKER, &[]), Server::start(&home, WORKER, &[]));
        with(&shim, "ticks", "started", before + 3).await;
    }
    let mut last = Server::start(&home, WORKER, &[]);
    assert_eq!(set(&shim, "ticks", "pause").await.0, 200);
    let rows = firings(&shim, "ticks").await;
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row["seq"], json!(n + 1), "{row}");
        assert_ne!(row["state"], "pending", "{row}");
        assert_eq!(row["state"] == "started", row["runId"].is_string(), "{row}");
    }
    let started = rows.iter().filter(|row| row["state"] == "started").count();
    let runs = "SELECT count(*) FROM app.runs WHERE recipe_id = 'ticks'";
    assert_eq!(count(&sql, runs).await, i64::try_from(started).unwrap());
    let events: Vec<String> = rows.iter().map(|row| text(row, "event")).collect();
    assert!(events.is_sorted() && events.iter().all(|at| at.ends_with(".000Z")), "{events:?}");
    for row in rows.iter().filter(|row| row["state"] == "started") {
        let end = shim.wait_terminal(row["runId"].as_str().unwrap()).await;
        assert_eq!(end["status"], "succeeded", "{end}");
    }
    assert_proven(&home);
    last.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instant_while_a_run_waits_at_its_gate_is_skipped_or_queued_as_its_schedule_says() {
    let home = Home::new();
    let up = home.up();
    every_second(&up).await;
    let gate = "  gate: approve-plan\n";
    for (id, schedule) in
        [("skips", "'* * * * * *'"), ("queues", "{cron: '* * * * * *', overlap: queue}")]
    {
        let (status, row) = add(&up, &up.key, &yaml(id, schedule, gate)).await;
        assert_eq!(status, 201, "{row}");
    }
    let rows = with(&up, "skips", "skipped", 2).await;
    assert_eq!(rows.iter().filter(|row| row["state"] == "started").count(), 1, "{rows:?}");
    let skipped: Vec<&Value> = rows.iter().filter(|row| row["state"] == "skipped").collect();
    assert!(skipped.iter().all(|row| row["reason"] == "overlap"), "{skipped:?}");
    assert_eq!(set(&up, "skips", "pause").await.0, 200);

    let rows = with(&up, "queues", "pending", 2).await;
    let started: Vec<&Value> = rows.iter().filter(|row| row["state"] == "started").collect();
    assert_eq!(started.len(), 1, "{rows:?}");
    let run = text(started[0], "runId");
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    let (status, body) =
        up.post(&format!("/api/runs/{run}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
    let rows = with(&up, "queues", "started", 2).await;
    assert_eq!(rows[1]["state"], "started", "in their order: {rows:?}");
    // What waits is skipped by name, and nothing of it starts later.
    assert_eq!(set(&up, "queues", "pause").await.0, 200);
    let rows = firings(&up, "queues").await;
    assert!(rows[2..].iter().all(|row| row["reason"] == "paused"), "{rows:?}");
    let (status, again) = set(&up, "queues", "pause").await;
    assert_eq!((status, &again["code"]), (409, &json!("state_conflict")));
    assert_eq!(set(&up, "queues", "resume").await.1["state"], "active");
    with(&up, "queues", "pending", 1).await;
    assert_eq!(up.request("DELETE", "/api/schedules/queues", Some(&up.key), None).await.0, 200);
    assert_eq!(up.get("/api/schedules/queues/firings").await.0, 404);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_goes_by_its_policy_and_each_instant_is_on_record() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    for (id, schedule, least, most) in [
        ("skip", "'* * * * *'", 0, 1),
        ("once", "{cron: '* * * * *', missed: once, overlap: queue}", 1, 2),
        ("all", "{cron: '* * * * *', missed: all, overlap: queue}", 5, 7),
    ] {
        let (status, row) = add(&up, &up.key, &yaml(id, schedule, "")).await;
        assert_eq!(status, 201, "{row}");
        down_for(&sql, id, 5).await;
        until("what was missed is settled", LIMIT, async || {
            let rows = firings(&up, id).await;
            rows.len() >= 5 && rows.iter().all(|row| row["state"] != "pending")
        })
        .await;
        let rows = firings(&up, id).await;
        let started = rows.iter().filter(|row| row["state"] == "started").count();
        assert!((least..=most).contains(&started), "{id}: {rows:?}");
        let skipped: Vec<&Value> = rows.iter().filter(|row| row["state"] != "started").collect();
        assert!(skipped.iter().all(|row| row["reason"] == "missed"), "{id}: {skipped:?}");
    }
    // A policy that could not hold is refused.
    let text = yaml("both", "{cron: '* * * * *', missed: all}", "");
    let (status, refused) = up.post("/api/recipes/import", &json!({"yaml": text})).await;
    assert_eq!((status, &refused["code"]), (400, &json!("recipe_invalid")), "{refused}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_has_the_rights_that_its_key_has_then() {
    let home = Home::new();
    let up = home.up();
    every_second(&up).await;
    let acme = |roles: Value| json!({"tenant": "acme", "roles": roles});
    let (id, key) = up.new_key(&acme(json!(["submitter"]))).await;
    let (_, other) = up.new_key(&acme(json!(["submitter"]))).await;
    let (_, operator) = up.new_key(&acme(json!(["operator"]))).await;
    let text = yaml("theirs", "'* * * * * *'", "");
    let (status, row) = add(&up, &key, &text).await;
    assert_eq!((status, &row["keyId"]), (201, &json!(id)), "{row}");
    let path = "/api/schedules/theirs/firings";
    until("it fires", LIMIT, async || {
        let (_, rows) = up.get_as(&key, path).await;
        rows.as_array().unwrap().iter().any(|row| row["state"] == "started")
    })
    .await;
    let (_, rows) = up.get_as(&operator, path).await;
    let run = rows.as_array().unwrap().iter().find_map(|row| row["runId"].as_str()).unwrap();
    assert_eq!(up.get_as(&operator, &format!("/api/runs/{run}")).await.0, 200, "its own tenant's");
    // Another tenant sees nothing, another submitter steers nothing, and a name is one schedule's.
    assert_eq!(up.get(path).await.0, 404);
    let pause = "/api/schedules/theirs/pause";
    assert_eq!(up.post_as(&other, pause, &json!({})).await.0, 403);
    assert_eq!(add(&up, &other, &text).await.0, 409);
    // A key that is revoked starts nothing more; each instant says so.
    let revoke = format!("/api/keys/{id}?tenant=acme");
    assert_eq!(up.request("DELETE", &revoke, Some(&up.key), None).await.0, 200);
    until("it is refused", LIMIT, async || {
        let (_, rows) = up.get_as(&operator, path).await;
        rows[0]["state"] == "refused" && rows[1]["state"] == "refused"
    })
    .await;
    let (_, rows) = up.get_as(&operator, path).await;
    assert_eq!(rows[0]["reason"], "forbidden", "{rows}");
    assert!(rows[0]["detail"].as_str().unwrap().contains("is revoked"), "{rows}");
    assert_eq!(up.post_as(&operator, pause, &json!({})).await.0, 200);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_schedule_is_refused_and_writes_nothing() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let plain = "id: plain\nv: \"1\"\nform: {type: object, required: [n], properties: {n: {type: integer}}}\nplan:\n  tasks: [{name: t, value: kept}]\n";
    let (status, imported) = up.post("/api/recipes/import", &json!({"yaml": plain})).await;
    assert_eq!(status, 201, "{imported}");
    let before = row_counts(&sql).await;
    let reference = json!({"id": "plain", "v": "1"});
    for (body, wanted) in [
        (json!({"recipeRef": reference}), "schema_violation"),
        (json!({"recipeRef": reference, "schedule": "0 3 * *"}), "schema_violation"),
        (json!({"recipeRef": reference, "schedule": "0 0 30 2 *"}), "schema_violation"),
        // Closer than this host allows, whatever the form of its inputs.
        (
            json!({"recipeRef": reference, "schedule": {"cron": "*/30 * * * * *", "inputs": {"n": 1}}}),
            "schema_violation",
        ),
        (
            json!({"recipeRef": reference, "schedule": {"cron": "0 3 * * *", "time_zone": "Mars"}}),
            "schema_violation",
        ),
        // Its form is not filled in.
        (json!({"recipeRef": reference, "schedule": "0 3 * * *"}), "schema_violation"),
        (
            json!({"recipeRef": reference, "schedule": {"cron": "0 3 * * *", "inputs": {"n": 1}, "x": 1}}),
            "schema_violation",
        ),
        (json!({"recipeRef": {"id": "nowhere", "v": "1"}, "schedule": "0 3 * * *"}), "not_found"),
    ] {
        let (status, refused) = up.post("/api/schedules", &body).await;
        assert_eq!(refused["code"], wanted, "{status} {body}: {refused}");
    }
    assert_eq!(row_counts(&sql).await, before);
    let good = json!({"recipeRef": reference, "name": "nightly", "schedule": {"cron": "0 3 * * *", "time_zone": "Europe/Berlin", "jitter": "5m", "inputs": {"n": 1}}});
    let (status, row) = up.post("/api/schedules", &good).await;
    assert_eq!((status, &row["state"]), (201, &json!("active")), "{row}");
    assert!(row["nextAt"].as_i64().is_some(), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_adds_pauses_resumes_and_removes() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    every_second(&up).await;
    let dir = tempfile::tempdir().unwrap();
    let file = recipe(dir.path(), "tick.yaml", &yaml("tick", "'* * * * * *'", ""));
    let added = home.run_json(&["schedule", "add", &file, "--name", "mine", "--json"]);
    assert_eq!((&added["schemaVersion"], &added["name"]), (&json!(1), &json!("mine")));
    with(&up, "mine", "started", 1).await;
    let paused = home.run(&["schedule", "pause", "mine"]);
    assert!(stdout(&paused).contains("mine is paused"), "{}", said(&paused));
    let listed = stdout(&home.run(&["schedule", "ls"]));
    assert!(listed.contains("mine") && listed.contains("paused"), "{listed}");
    let fired = home.run_json(&["schedule", "firings", "mine", "--json"]);
    assert!(!fired["firings"].as_array().unwrap().is_empty(), "{fired}");
    assert_eq!(code(&home.run(&["schedule", "resume", "mine"])), 0);
    assert_eq!(stdout(&home.run(&["schedule", "rm", "mine"])).trim(), "removed");
    assert_ne!(code(&home.run(&["schedule", "rm", "mine"])), 0);
    let once = home.run_json(&[
        "schedule",
        "add",
        "tick@1",
        "--cron",
        "0 3 * * *",
        "--time-zone",
        "Asia/Tokyo",
        "--json",
    ]);
    assert_eq!(once["schedule"]["time_zone"], "Asia/Tokyo", "{once}");
    let ops = texts(&sql, "SELECT op FROM app.audit WHERE op LIKE 'schedule.%' ORDER BY id").await;
    assert_eq!(
        ops,
        ["schedule.add", "schedule.pause", "schedule.resume", "schedule.remove", "schedule.add"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn instants_are_a_minute_apart_unless_the_host_says_otherwise() {
    let home = Home::new();
    let up = home.up();
    let text = yaml("fast", "'0,59 * * * * *'", "");
    let (status, refused) = add(&up, &up.key, &text).await;
    assert_eq!((status, &refused["code"]), (400, &json!("schema_violation")), "{refused}");
    let why = refused.to_string();
    assert!(why.contains("are 1 s apart") && why.contains("schedule.min_interval_s"), "{why}");
    assert_eq!(add(&up, &up.key, &yaml("minutes", "'* * * * *'", "")).await.0, 201);
    every_second(&up).await;
    assert_eq!(add(&up, &up.key, &text).await.0, 201);
    // It is the host's to say.
    let (_, admin) = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await;
    let body = json!({"value": 1, "expectedVersion": 0}).to_string().into_bytes();
    let path = "/api/config/schedule.min_interval_s";
    assert_eq!(up.request("PUT", path, Some(&admin), Some(body)).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_resumes_after_what_is_on_record_and_keeps_its_newest_rows() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    assert_eq!(add(&up, &up.key, &yaml("kept", "'* * * * *'", "")).await.0, 201);
    assert_eq!(set(&up, "kept", "pause").await.0, 200);
    // As if the clock had gone back by an hour since: instants until then are on record.
    let rows = "INSERT INTO app.firings (trigger_id, event, seq, state, reason, settled_at)
                SELECT t.id, to_char(date_trunc('minute', clock_timestamp() AT TIME ZONE 'UTC') + make_interval(mins => 60 - 600 + n),
                                     'YYYY-MM-DD\"T\"HH24:MI\":30.000Z\"'), t.firings + n, 'skipped', 'missed', clock_timestamp()
                  FROM app.triggers t, generate_series(1, 600) n WHERE t.name = 'kept'";
    tamper(&sql, rows).await;
    tamper(&sql, "UPDATE app.triggers SET firings = firings + 600 WHERE name = 'kept'").await;
    let newest = firings(&up, "kept").await.last().unwrap()["event"].as_str().unwrap().to_owned();
    assert_eq!(set(&up, "kept", "resume").await.1["state"], "active");
    let next = "SELECT next_ms - app.ms(($1)::timestamptz) FROM app.triggers WHERE name = 'kept'";
    let ahead = next.replace("($1)", &format!("'{newest}'"));
    assert_eq!(count(&sql, &ahead).await, 30_000, "the instant after the newest one");
    // One that stays cannot be deleted by whoever has the database in hand.
    assert!(sqlx::query("DELETE FROM app.firings WHERE seq = 600").execute(&sql).await.is_err());
    down_for(&sql, "kept", 0).await;
    let runless = "SELECT count(*) FROM app.firings WHERE run_id IS NULL";
    until("older rows are folded", LIMIT, async || count(&sql, runless).await <= 500).await;
    let kept = "SELECT firings - folded - (SELECT count(*) FROM app.firings) FROM app.triggers";
    assert_eq!(count(&sql, kept).await, 0);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instant_taken_down_by_a_worker_that_died_is_missed_after_its_grace() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let sql = shim.sql().await;
    every_second(&shim).await;
    assert_eq!(add(&shim, &shim.key, &yaml("late", "'* * * * * *'", "")).await.0, 201);
    assert_eq!(set(&shim, "late", "pause").await.0, 200);
    let place = [("COFFERDAM_FAILPOINT", "firing.recorded")];
    let mut doomed = Server::start(&home, WORKER, &place);
    assert_eq!(set(&shim, "late", "resume").await.0, 200);
    until("it is killed", LIMIT, async || doomed.has_ended()).await;
    let old = "UPDATE app.firings SET created_at = created_at - interval '31 seconds' WHERE state = 'pending'";
    tamper(&sql, old).await;
    let mut worker = Server::start(&home, WORKER, &[]);
    let rows = with(&shim, "late", "skipped", 1).await;
    assert_eq!((&rows[0]["state"], &rows[0]["reason"]), (&json!("skipped"), &json!("missed")));
    assert_eq!(set(&shim, "late", "pause").await.0, 200);
    worker.stop();
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_a_bounded_number_of_schedules() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let text = yaml("one", "'0 3 1 1 *'", "");
    assert_eq!(add(&up, &up.key, &text).await.0, 201);
    let more = "INSERT INTO app.triggers (id, kind, tenant_id, name, key_id, recipe_id, recipe_v, recipe_hash, spec, next_ms, due_ms)
                SELECT 'sc_' || md5(n::text), kind, tenant_id, 'n' || n, key_id, recipe_id, recipe_v, recipe_hash, spec, next_ms, due_ms
                  FROM app.triggers, generate_series(2, 255) n";
    sql.execute(more).await.unwrap();
    assert_eq!(add(&up, &up.key, &text.replace("id: one", "id: last")).await.0, 201);
    let (status, refused) = add(&up, &up.key, &text.replace("id: one", "id: beyond")).await;
    assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
    assert!(refused.to_string().contains("at most 256"), "{refused}");
}
