//! Processes side by side on one database, `up`, `api` and `worker` in any mixture: a life is held by the process that was
//! asked for it, and every other one says so.

use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::{Home, Server, repository, text};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinSet;

use super::built::{ended, opened};
use super::{PYTHON, gone, installed, run};
use crate::support::{count, texts, until};

const SOON: Duration = Duration::from_secs(30);
/// Creations at once.
const MANY: usize = 40;
const ROOM: [&str; 2] = ["--memory-mb", "65536"];
/// A name that every tenant is granted. Nothing answers there.
const NAME: &str = "a.example";
const HELD: &str =
    "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NULL AND started_at IS NOT NULL";

async fn granted(sql: &PgPool) {
    let list = format!(
        "INSERT INTO app.dynamic_config (key, version, value, actor) VALUES ('egress.exec.allowed', 1, '[\"{NAME}\"]', 'sec')"
    );
    sqlx::query(sqlx::AssertSqlSafe(list)).execute(sql).await.unwrap();
}

/// The same key at another server.
fn at(caller: &Caller, server: &Server) -> Caller {
    let (http, key) = (caller.http.clone(), caller.key.clone());
    Caller { http, url: server.url.clone(), key, class: caller.class }
}

/// A creation; each fifth has names, so that its run compiles its plan itself.
fn base(n: usize) -> Value {
    let mut body = json!({"templateID": "base", "timeout": 600});
    if n.is_multiple_of(5) {
        body["network"] = json!({"allowOut": [NAME]});
    }
    body
}

/// So many creations at once, in turn at each of these servers: what each has made.
async fn created(servers: &[Caller], many: usize) -> Vec<Vec<String>> {
    let mut all = JoinSet::new();
    for n in 0..many {
        let (of, caller) = (n % servers.len(), &servers[n % servers.len()]);
        let request = caller.http.post(format!("{}/v2/sandboxes", caller.url));
        let made = answered(request.header("x-api-key", &caller.key).json(&base(n)));
        all.spawn(async move { (of, made.await) });
    }
    let mut made = vec![Vec::new(); servers.len()];
    let mut refused = Vec::new();
    for (of, (status, answer)) in all.join_all().await {
        match status {
            201 => made[of].push(text(&answer, "sandboxID")),
            _ => refused.push((of, status, answer)),
        }
    }
    assert!(refused.is_empty(), "{} of {many} were refused: {refused:#?}", refused.len());
    made
}

/// What becomes of sandboxes at the server that holds them: pauses and resumes, forks, and builds of templates beside them.
async fn live_on(here: &Caller, ids: &[String], name: &str) -> Vec<String> {
    let mut made = Vec::new();
    let (builds, lives) = tokio::join!(
        async {
            let mut ends = Vec::new();
            for n in 0..2 {
                let (_, path) = opened(here, &format!("{name}-{n}")).await;
                let steps = json!([{"type": "RUN", "args": [format!("echo {n} > ~/made")]}]);
                let body = json!({"fromTemplate": "base", "steps": steps});
                assert_eq!(here.api("POST", &path, Some(body)).await.0, 202);
                ends.push(ended(here, &path).await);
            }
            ends
        },
        async {
            for id in &ids[..2] {
                here.pause(id).await;
                let (status, said) = here.resume(id, json!({"timeout": 600})).await;
                assert_eq!(status, 201, "{said}");
            }
            let fork = format!("/sandboxes/{}/fork", ids[2]);
            here.api("POST", &fork, Some(json!({"count": 4, "timeout": 600}))).await
        }
    );
    assert!(builds.iter().all(|end| end["status"] == "ready"), "{builds:#?}");
    let (status, forks) = lives;
    assert_eq!(status, 201, "{forks}");
    for fork in forks.as_array().unwrap() {
        assert!(fork["error"].is_null(), "{forks:#}");
        made.push(text(&fork["sandbox"], "sandboxID"));
    }
    made
}

/// Each was held by the process that was asked for it: as many executors as servers.
async fn assert_held_by(sql: &PgPool, servers: i64) {
    let query =
        "SELECT count(DISTINCT executor_id) FROM app.live_sandboxes WHERE started_at IS NOT NULL";
    assert_eq!(count(sql, query).await, servers);
}

async fn kill_all(caller: &Caller, all: &[String]) {
    for id in all {
        caller.kill(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_one_database_each_hold_what_they_were_asked_for() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let (one, mut two) = (home.up_with(&ROOM, &[]), home.up_with(&ROOM, &[]));
    let mut beside = [&["worker"][..], &["api", "--listen", "127.0.0.1:0"]]
        .map(|args| Server::start(&home, args, &[]));
    let sql = one.sql().await;
    granted(&sql).await;
    let ann = Caller::of(&one, "ann").await;
    let servers = [at(&ann, &one), at(&ann, &two)];
    let made = created(&servers, MANY).await;
    let (ones, twos) =
        tokio::join!(live_on(&servers[0], &made[0], "one"), live_on(&servers[1], &made[1], "two"));
    assert_held_by(&sql, 2).await;
    // The next life is held by the server that was asked for that one.
    let moved = &made[0][0];
    servers[0].pause(moved).await;
    let (status, said) = servers[1].resume(moved, json!({"timeout": 600})).await;
    assert_eq!(status, 201, "{said}");
    servers[1].pause(moved).await;
    kill_all(&servers[0], &[&made[0][..], &ones].concat()).await;
    // A kill is heard by the server that holds it.
    kill_all(&servers[0], &[&made[1][..], &twos].concat()).await;
    sql.close().await;
    for other in beside.iter_mut().chain([&mut two]) {
        other.stop();
    }
    gone(home, one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_beside_workers_holds_what_it_was_asked_for() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let server = home.up_with(&ROOM, &[]);
    let mut workers = [(), ()].map(|()| Server::start(&home, &["worker"], &[]));
    let sql = server.sql().await;
    granted(&sql).await;
    let here = [Caller::of(&server, "ann").await];
    let made = created(&here, MANY).await.remove(0);
    let more = live_on(&here[0], &made, "one").await;
    assert_held_by(&sql, 1).await;
    kill_all(&here[0], &[made, more].concat()).await;
    sql.close().await;
    for worker in &mut workers {
        worker.stop();
    }
    gone(home, server).await;
}

/// A call, its answer's status and what its words have.
async fn assert_answers(
    caller: &Caller,
    (method, path): (&str, &str),
    body: Value,
    (status, words): (u16, &str),
) {
    let body = (!body.is_null()).then_some(body);
    let since = Instant::now();
    let (said, answer) = caller.api(method, path, body).await;
    let has = answer["message"].as_str().is_some_and(|message| message.contains(words));
    assert!(said == status && has, "{method} {path}: {said} {answer}");
    assert!(since.elapsed() < Duration::from_secs(5), "{method} {path}: {:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_hold_a_sandbox_says_which_one_does_and_never_that_it_is_done() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let (holds, mut other) = (home.up(), home.up());
    let mut api = Server::start(&home, &["api", "--listen", "127.0.0.1:0"], &[]);
    let sql = holds.sql().await;
    let here = Caller::of(&holds, "ann").await;
    let (id, token) = here.create(json!({"templateID": "base", "timeout": 600})).await;
    let elsewhere = (421, "is held by another process of this installation");
    for wrong in [at(&here, &other), at(&here, &api)] {
        for (method, path, body) in [
            ("POST", "pause", json!({})),
            ("POST", "timeout", json!({"timeout": 60})),
            ("POST", "refreshes", json!({"duration": 60})),
            ("POST", "snapshots", json!({})),
            ("POST", "fork", json!({"count": 1})),
            ("POST", "connect", json!({"timeout": 60})),
            ("POST", "resume", json!({"timeout": 60})),
            ("PUT", "network", json!({})),
            ("GET", "metrics", Value::Null),
        ] {
            let path = format!("/sandboxes/{id}/{path}");
            assert_answers(&wrong, (method, &path), body, elsewhere).await;
        }
        // What is inside, too: it runs, so nothing says that it does not.
        for request in [
            wrong.port("GET", (&id, 49_983), "/health"),
            wrong.port("GET", (&id, 8_000), "/"),
            wrong.download((&id, &token), "/etc/passwd"),
            wrong.envd((&id, &token), "/process.Process/List", &json!({})),
        ] {
            let (status, answer) = answered(request).await;
            let words = answer["message"].as_str().unwrap_or_default();
            assert!(status == 421 && words.contains(elsewhere.1), "{status} {answer}");
        }
        // Of one that there is not, as ever.
        let none = "a".repeat(20);
        let (status, answer) = answered(wrong.port("GET", (&none, 49_983), "/health")).await;
        assert_eq!((status, &answer["message"]), (502, &json!("The sandbox was not found")));
        // What is on record is read anywhere.
        let (status, seen) = wrong.api("GET", &format!("/sandboxes/{id}"), None).await;
        assert_eq!((status, &seen["state"]), (200, &json!("running")), "{seen}");
    }
    assert_eq!(count(&sql, HELD).await, 1, "none of it has changed anything");
    // One that is paused is paused wherever that is asked.
    here.pause(&id).await;
    for any in [&here, &at(&here, &other), &at(&here, &api)] {
        let pause = format!("/sandboxes/{id}/pause");
        assert_answers(any, ("POST", &pause), json!({}), (409, "is paused")).await;
    }
    // A server without a worker holds none, and says so before anything is on record.
    let holds_none = (421, "holds no sandboxes");
    let there = at(&here, &api);
    let connect = format!("/sandboxes/{id}/connect");
    let fork = format!("/sandboxes/{id}/fork");
    assert_answers(&there, ("POST", &connect), json!({"timeout": 60}), holds_none).await;
    assert_answers(&there, ("POST", &fork), json!({"count": 1}), holds_none).await;
    let body = json!({"templateID": "base", "timeout": 60});
    assert_answers(&there, ("POST", "/v2/sandboxes"), body, holds_none).await;
    let (_, build) = opened(&here, "web").await;
    let steps = json!({"fromTemplate": "base", "steps": []});
    assert_answers(&there, ("POST", &build), steps.clone(), holds_none).await;
    assert_eq!(texts(&sql, "SELECT status FROM app.template_builds").await, ["waiting"]);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.live_sandboxes").await, 1);
    // It can be started where sandboxes are held.
    assert_eq!(at(&here, &other).api("POST", &build, Some(steps)).await.0, 202);
    assert_eq!(ended(&there, &build).await["status"], "ready");
    there.kill(&id).await;
    sql.close().await;
    api.stop();
    other.stop();
    gone(home, holds).await;
}

/// Workers alone make no sandboxes for E2B's clients, whoever answers: all of them are told so, and runs go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_beside_workers_alone_refuses_every_creation_and_runs_what_it_is_asked_to() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let api = Server::start(&home, &["api", "--listen", "127.0.0.1:0"], &[]);
    let mut workers = [(), ()].map(|()| Server::start(&home, &["worker"], &[]));
    let sql = api.sql().await;
    let ann = Caller::of(&api, "ann").await;
    let mut all = JoinSet::new();
    for n in 0..MANY {
        let request = ann.http.post(format!("{}/v2/sandboxes", ann.url));
        all.spawn(answered(request.header("x-api-key", &ann.key).json(&base(n))));
    }
    for (status, answer) in all.join_all().await {
        let words = answer["message"].as_str().unwrap_or_default();
        assert!(status == 421 && words.contains("`cofferdam up`"), "{status} {answer}");
    }
    for table in ["live_sandboxes", "runs", "intents"] {
        let rows = format!("SELECT count(*) FROM app.{table}");
        assert_eq!(count(&sql, &rows).await, 0, "{table}");
    }
    let recipe = "id: one\nv: '1'\nplan: {tasks: [{name: t, exec: {run: 'true', timeout: 60s}}]}\n";
    let run = api.run_recipe(recipe, json!({}), json!({})).await;
    assert_eq!(api.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    sql.close().await;
    for worker in &mut workers {
        worker.stop();
    }
    gone(home, api).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_takes_nothing_for_done_at_a_server_that_does_not_hold_its_sandbox() {
    let Some(python) = installed(PYTHON[0]) else {
        return not_run("the Python client at a wrong server", "pip could not install it");
    };
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let (holds, mut other) = (home.up(), home.up());
    let mut api = Server::start(&home, &["api", "--listen", "127.0.0.1:0"], &[]);
    let mut command = Command::new(python);
    command.arg(repository().join("tests/tests/e2b/elsewhere.py"));
    command.env("OTHER_URL", &other.url).env("API_URL", &api.url);
    run(&holds, command, None).await;
    api.stop();
    other.stop();
    gone(home, holds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_was_asked_for_and_does_not_hold_yet_ends_with_it() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let mut doomed = home.up();
    let sql = doomed.sql().await;
    let ann = Caller::of(&doomed, "ann").await;
    // No claim is made while this lasts, so what is asked for stays queued.
    let mut claim = sql.begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('cofferdam.claim.sbxQ', 0))";
    sqlx::query(lock).execute(&mut *claim).await.unwrap();
    let request = ann.http.post(format!("{}/v2/sandboxes", ann.url));
    let request = request.header("x-api-key", &ann.key).json(&base(1));
    let asked = tokio::spawn(request.send());
    let queued =
        "SELECT count(*) FROM dbos.workflow_status WHERE name = 'task' AND status = 'ENQUEUED'";
    until("it is queued", SOON, async || count(&sql, queued).await == 1).await;
    doomed.kill();
    assert!(asked.await.unwrap().is_err());
    let worker = Server::start(&home, &["worker"], &[]);
    claim.rollback().await.unwrap();
    let ended = "SELECT end_reason FROM app.live_sandboxes WHERE ended_at IS NOT NULL";
    until("another worker ends it", SOON, async || !texts(&sql, ended).await.is_empty()).await;
    let why = texts(&sql, ended).await;
    assert!(why[0].starts_with("the process that was asked for it restarted"), "{why:?}");
    sql.close().await;
    drop(worker);
    let server = home.up();
    gone(home, server).await;
}
