//! The E2B API by its own clients, unmodified, and by hand where they would not ask so.
//!
//! One file: what every client is asked stands beside the clients.

mod answers;
mod attack;
mod begun;
mod beside;
mod built;
mod built_bounds;
mod cached;
mod classes;
mod cli;
mod commands;
mod expected;
mod interpreter;
mod kept;
mod kept_bounds;
mod kept_faults;
mod kept_plain;
mod lost;
mod machine_memory;
mod machines;
mod many;
mod mixed;
mod moved;
mod network;
mod packages;
mod provider;
mod restart;
mod rested;
mod seen;
mod woken;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, Server, assert_nothing_left, repository, text};
use serde_json::json;

use packages::{install_modules, install_python, installed, modules};

pub use packages::{install_clients, install_interpreter};

use crate::support::{
    assert_proven, assert_wiped, count, ended, has_npm, is_long, said, texts, until,
};

/// The versions that this repository is tested with, the newest first.
const PYTHON: [&str; 4] = ["2.63.0", "2.52.1", "2.40.0", "2.20.0"];
const JAVASCRIPT: [&str; 3] = ["2.51.0", "2.45.0", "2.30.5"];
/// A script of a client takes seconds; a loaded machine takes it ten times as long.
const SCRIPT: Duration = Duration::from_secs(180);

/// Runs a client's script against the server, as a new tenant with a key of E2B's form. What it asks for is in the file of
/// this name.
async fn run(server: &Server, mut command: Command, client: Option<&str>) {
    let relay = seen::Relay::to(server).await;
    let body = json!({"tenant": "clients", "roles": ["submitter"], "format": "e2b"});
    let (_, key) = server.new_key(&body).await;
    assert!(key.starts_with("e2b_") && key.len() == 44, "{key}");
    command
        .env("E2B_API_KEY", key)
        .env("E2B_API_URL", &relay.url)
        .env("E2B_SANDBOX_URL", &relay.url)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || ended(command, SCRIPT)).await.unwrap();
    let is_whole = output.stdout.ends_with(b"done\n");
    assert!(output.status.success() && is_whole, "{}", said(&output));
    if let Some(client) = client {
        relay.hold(client);
    }
}

async fn by_python(script: &str, version: &str, client: Option<&str>) {
    by_python_as(script, "", version, client).await;
}

/// `kind`: which of both clients the script uses, where it can use either.
async fn by_python_as(script: &str, kind: &str, version: &str, client: Option<&str>) {
    let Some(python) = installed(version) else { return };
    let home = Home::new();
    let server = home.up();
    let mut command = Command::new(python);
    command.arg(repository().join("tests/tests/e2b").join(script)).env("KIND", kind);
    run(&server, command, client).await;
    gone(home, server).await;
}

async fn by_javascript(script: &str, version: &str, client: Option<&str>) {
    let Some(command) = javascript(script, version) else { return };
    let home = Home::new();
    let server = home.up();
    run(&server, command, client).await;
    gone(home, server).await;
}

/// A script with this version of the JavaScript client; `None`: that could not be installed, which is reported.
fn javascript(script: &str, version: &str) -> Option<Command> {
    if !has_npm("the JavaScript client of E2B") {
        return None;
    }
    let Some(modules) = modules(version) else {
        not_run("the JavaScript client of E2B", "npm could not install it");
        return None;
    };
    // A module finds its packages beside it.
    let beside = modules.join(script);
    fs::copy(repository().join("tests/tests/e2b").join(script), &beside).unwrap();
    let mut command = Command::new("node");
    command.arg(beside);
    Some(command)
}

/// Everything that was made is wiped, with evidence, and every proof holds.
async fn gone(home: Home, mut server: Server) {
    let sql = server.sql().await;
    until("no sandbox is left", Duration::from_secs(60), async || {
        count(&sql, "SELECT count(*) FROM app.live_sandboxes WHERE ended_at IS NULL").await == 0
    })
    .await;
    // A sandbox of a killed server is on record as ended before the next one has wiped it.
    until("no session is left", Duration::from_secs(60), async || {
        count(&sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL")
            .await
            == 0
    })
    .await;
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    sql.close().await;
    server.stop();
    assert_nothing_left(home.path());
}

#[tokio::test]
async fn the_python_client_works_unmodified() {
    by_python("sync.py", PYTHON[0], Some("sync")).await;
}

#[tokio::test]
async fn the_asynchronous_python_client_works_unmodified() {
    by_python("async.py", PYTHON[0], Some("async")).await;
}

#[tokio::test]
async fn the_javascript_client_works_unmodified() {
    by_javascript("client.mjs", JAVASCRIPT[0], Some("javascript")).await;
}

/// By the library that the client brings, whose default it is: only the codec is another one.
#[tokio::test]
#[ignore = "a minute: `make clients` runs it"]
async fn the_python_client_works_in_protobuf() {
    in_protobuf("sync.py").await;
    in_protobuf("async.py").await;
}

async fn in_protobuf(script: &str) {
    let Some(python) = installed(PYTHON[0]) else { return };
    let home = Home::new();
    let server = home.up();
    let mut command = Command::new(&python);
    command.arg(repository().join("tests/tests/e2b/binary.py")).arg(script);
    run(&server, command, None).await;
    gone(home, server).await;
}

/// Of the client one word is changed: the format of its messages.
#[tokio::test]
async fn the_javascript_client_works_in_protobuf() {
    if !has_npm("the JavaScript client of E2B") {
        return;
    }
    let Some(modules) = modules(JAVASCRIPT[0]) else {
        return not_run("the JavaScript client of E2B", "npm could not install it");
    };
    let dist = modules.join("node_modules/e2b/dist");
    let text = fs::read_to_string(dist.join("index.mjs")).unwrap();
    let (json, binary) = ("useBinaryFormat: false", "useBinaryFormat: true");
    assert!(text.contains(json));
    fs::write(dist.join("binary.mjs"), text.replace(json, binary)).unwrap();
    let script = fs::read_to_string(repository().join("tests/tests/e2b/client.mjs")).unwrap();
    let beside = modules.join("binary.mjs");
    let script = ["'e2b'", "\"e2b\""].iter().fold(script, |script, name| {
        script.replace(&format!("from {name}"), "from './node_modules/e2b/dist/binary.mjs'")
    });
    assert!(script.contains("binary.mjs"));
    fs::write(&beside, script).unwrap();
    let home = Home::new();
    let server = home.up();
    let mut command = Command::new("node");
    command.arg(beside);
    run(&server, command, None).await;
    gone(home, server).await;
}

/// Those before the newest; in CI the oldest alone, since what is between is nearer to both.
pub(super) fn older(all: &[&'static str]) -> Vec<&'static str> {
    let first = if is_long() { 1 } else { all.len() - 1 };
    all[first..].to_vec()
}

/// The oldest of each; `make clients` runs those between, too.
#[tokio::test]
async fn older_clients_work_unmodified() {
    for version in older(&PYTHON) {
        by_python("sync.py", version, None).await;
        by_python("async.py", version, None).await;
    }
    for version in older(&JAVASCRIPT) {
        by_javascript("client.mjs", version, None).await;
    }
}

#[tokio::test]
async fn tenants_of_e2b_clients_cannot_see_reach_or_guess_each_others_sandboxes() {
    let home = Home::new();
    let server = home.up();
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let (other, others_token) = bob.create(json!({"templateID": "base", "timeout": 60})).await;
    assert_eq!(bob.api("GET", "/v2/sandboxes", None).await.1.as_array().unwrap().len(), 1);
    for (method, path, body) in [
        ("GET", format!("/sandboxes/{id}"), None),
        ("DELETE", format!("/sandboxes/{id}"), None),
        ("POST", format!("/sandboxes/{id}/connect"), Some(json!({"timeout": 60}))),
        ("POST", format!("/v2/sandboxes/{id}/connect"), None),
        ("POST", format!("/sandboxes/{id}/timeout"), Some(json!({"timeout": 1}))),
        ("POST", format!("/sandboxes/{id}/refreshes"), Some(json!({"duration": 1}))),
        ("GET", format!("/sandboxes/{id}/metrics"), None),
    ] {
        let (status, answer) = bob.api(method, &path, body).await;
        assert_eq!((status, &answer["code"]), (404, &json!(404)), "{method} {path} {answer}");
    }
    let (_, metrics) =
        bob.api("GET", &format!("/sandboxes/metrics?sandbox_ids={id},{other}"), None).await;
    assert_eq!(metrics["sandboxes"].as_object().unwrap().len(), 1, "{metrics}");
    // With the id, but with no token, a wrong one, and that of another sandbox.
    let list = json!({"path": "/"});
    for wrong in ["", "x", &others_token] {
        let call = ann.envd((&id, wrong), "/filesystem.Filesystem/ListDir", &list);
        assert_eq!(answered(call).await.0, 401, "{wrong}");
        let read = ann.http.get(format!("{}/files?path=/etc/passwd", ann.url));
        let read = read.header("e2b-sandbox-id", &id).header("x-access-token", wrong);
        assert_eq!(answered(read).await.0, 401, "{wrong}");
    }
    let call = bob.envd((&id, &token), "/filesystem.Filesystem/ListDir", &list);
    assert_eq!(answered(call).await.0, 200);
    // A token alone names its own sandbox, and a wrong one none.
    let alone = |token: &str| {
        let call = bob.http.post(format!("{}/filesystem.Filesystem/ListDir", bob.url));
        answered(call.header("x-access-token", token).json(&list))
    };
    assert_eq!(alone(&token).await.0, 200);
    for wrong in ["", "x", &token[1..]] {
        let (status, answer) = alone(wrong).await;
        assert_eq!((status, &answer["message"]), (502, &json!("The sandbox was not found")));
    }
    // What is gone, and what never was, answer alike.
    for (who, id) in
        [(&bob, other.as_str()), (&bob, "zzzzzzzzzzzzzzzzzzzz"), (&bob, "../../api/runs")]
    {
        if id == other {
            assert_eq!(who.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
        }
        let (status, answer) =
            answered(who.envd((id, &token), "/process.Process/List", &json!({}))).await;
        assert_eq!(
            (status, &answer["message"]),
            (502, &json!("The sandbox was not found")),
            "{id}"
        );
    }
    // Nothing of the token is on record but its hash.
    let sql = server.sql().await;
    let rows = texts(&sql, "SELECT to_jsonb(l)::text FROM app.live_sandboxes l").await;
    assert!(rows.iter().all(|row| !row.contains(&token)), "{rows:?}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn bad_input_of_e2b_clients_is_answered_in_their_shape() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let stranger =
        Caller { key: format!("e2b_{}", "0".repeat(40)), ..Caller::of(&server, "x").await };
    assert_eq!(stranger.api("GET", "/v2/sandboxes", None).await.0, 401);
    let none = stranger.http.get(format!("{}/v2/sandboxes", server.url));
    assert_eq!(answered(none).await.0, 401);
    creations(&ann).await;
    routes(&ann).await;
    let health = ann.http.get(format!("{}/health", server.url));
    assert_eq!(answered(health).await.0, 204);
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 60})).await;
    let at = (id.as_str(), token.as_str());
    calls(&ann, at).await;
    messages(&ann, at).await;
    for internal in ["/init", "/freeze", "/upgrade"] {
        assert_eq!(answered(ann.envd(at, internal, &json!({}))).await.0, 404, "{internal}");
    }
    let huge = "x".repeat(5 * 1024 * 1024);
    let call = ann.envd(at, "/filesystem.Filesystem/Stat", &json!({"path": huge}));
    assert_eq!(answered(call).await.0, 429);
    // More than the writable layer holds.
    let upload = ann.upload(at, "/home/user/large").body(vec![7_u8; 450 * 1024 * 1024]);
    assert_eq!(answered(upload).await.0, 507);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    gone(home, server).await;
}

async fn creations(ann: &Caller) {
    for (body, want) in [
        (json!({}), "templateID"),
        (json!({"templateID": "base", "timeout": 0}), "timeout"),
        (json!({"templateID": "base", "timeout": 86_401}), "timeout"),
        (json!({"templateID": "base", "timeout": -1}), "body"),
        (
            json!({"templateID": "base", "autoResume": {"enabled": true}}),
            "autoResume needs autoPause",
        ),
        (json!({"templateID": "base", "surprise": 1}), "surprise"),
        (json!({"templateID": "base", "envVars": {"A=B": "x"}}), "env"),
        (json!({"templateID": "base", "network": {"allowOut": ["8.8.8.8"]}}), "only names"),
        (json!({"templateID": "base", "network": {"allowOut": ["a.example"]}}), "a.example"),
    ] {
        let (status, answer) = ann.api("POST", "/v2/sandboxes", Some(body.clone())).await;
        assert_eq!((status, &answer["code"]), (400, &json!(400)), "{body} {answer}");
        assert!(answer["message"].as_str().unwrap().contains(want), "{body} {answer}");
    }
    let other = json!({"templateID": "other"});
    let (status, answer) = ann.api("POST", "/v2/sandboxes", Some(other)).await;
    assert_eq!((status, &answer["code"]), (404, &json!(404)), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("\"other\" not found"), "{answer}");
}

/// What is not here, or not supported.
async fn routes(ann: &Caller) {
    for (method, path) in
        [("PATCH", "/v2/templates/base"), ("GET", "/volumes"), ("GET", "/secrets")]
    {
        let (status, answer) = ann.api(method, path, None).await;
        assert_eq!(status, 400, "{method} {path} {answer}");
        assert!(answer["message"].as_str().unwrap().starts_with("not supported"), "{answer}");
    }
    for path in ["pause", "resume", "connect", "snapshots", "fork"] {
        let (status, answer) = ann.api("POST", &format!("/sandboxes/x/{path}"), None).await;
        assert_eq!((status, &answer["code"]), (404, &json!(404)), "{path} {answer}");
    }
    assert_eq!(ann.api("DELETE", "/templates/x", None).await.0, 404);
    assert_eq!(ann.api("GET", "/v2/nothing", None).await.0, 404);
    assert_eq!(ann.api("GET", "/v2/sandboxes?limit=0", None).await.0, 400);
}

/// Calls of a sandbox in JSON.
async fn calls(ann: &Caller, at: (&str, &str)) {
    for (path, body, want) in [
        ("/filesystem.Filesystem/Stat", json!({"path": "/none"}), (404, "not_found")),
        (
            "/filesystem.Filesystem/ListDir",
            json!({"path": "/etc/passwd"}),
            (400, "invalid_argument"),
        ),
        ("/filesystem.Filesystem/MakeDir", json!({"path": "/tmp"}), (409, "already_exists")),
        (
            "/filesystem.Filesystem/MakeDir",
            json!({"path": "/etc/passwd/x"}),
            (400, "invalid_argument"),
        ),
        ("/filesystem.Filesystem/Stat", json!({"wrong": 1}), (400, "invalid_argument")),
        ("/filesystem.Filesystem/None", json!({}), (501, "unimplemented")),
        ("/filesystem.Filesystem/GetWatcherEvents", json!({"watcherId": "x"}), (404, "not_found")),
        (
            "/process.Process/SendSignal",
            json!({"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}),
            (404, "not_found"),
        ),
        (
            "/process.Process/SendInput",
            json!({"process": {}, "input": {}}),
            (400, "invalid_argument"),
        ),
    ] {
        let (status, answer) = answered(ann.envd(at, path, &body)).await;
        assert_eq!((status, answer["code"].as_str().unwrap_or("")), want, "{path} {body} {answer}");
    }
}

/// The same in protobuf, and by other names of content.
async fn messages(ann: &Caller, at: (&str, &str)) {
    let call = |path: &str, kind: &str, body: &'static [u8]| {
        let call = ann.http.post(format!("{}/{path}", ann.url));
        let call = call.header("e2b-sandbox-id", at.0).header("x-access-token", at.1);
        answered(call.header("content-type", kind).body(body))
    };
    let (stat, proto) = ("filesystem.Filesystem/Stat", "application/proto");
    for (path, kind, body, want) in [
        (stat, "application/grpc", &b""[..], (415, "")),
        (stat, proto, b"x", (400, "invalid_argument")),
        (stat, proto, b"\x22\x01a", (400, "invalid_argument")),
        (stat, proto, b"\x0a\xff\xff\xff\xff\x0f", (400, "invalid_argument")),
        (stat, proto, b"\x0a\x09/nowhere!", (404, "not_found")),
        ("process.Process/Fork", proto, b"", (501, "unimplemented")),
        ("process.Process/List", proto, b"\x08\x01", (400, "invalid_argument")),
    ] {
        let (status, answer) = call(path, kind, body).await;
        let code = answer["code"].as_str().unwrap_or("");
        assert_eq!((status, code), want, "{path} {body:?} {answer}");
    }
    // A stream answers 200, whatever is wrong with its first message, and says so in JSON.
    let stream = "application/connect+proto";
    let (status, answer) =
        call("process.Process/Start", stream, b"\x00\x00\x00\x00\x02\x2a\x00").await;
    assert_eq!(status, 200);
    assert!(answer.as_str().unwrap().contains("unknown field 5"), "{answer}");
}

#[tokio::test]
async fn a_repeated_creation_is_the_same_sandbox() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let create = || {
        let request = ann.http.post(format!("{}/v2/sandboxes", server.url));
        let request = request.header("x-api-key", &ann.key).header("idempotency-key", "one");
        answered(request.json(&json!({"templateID": "base", "timeout": 60})))
    };
    let (first, second, third) = tokio::join!(create(), create(), create());
    assert_eq!((first.0, &first.1), (201, &second.1));
    assert_eq!(first.1, third.1);
    let sql = server.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.live_sandboxes").await, 1);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.remote_execution_sessions").await, 1);
    let path = format!("/sandboxes/{}", text(&first.1, "sandboxID"));
    assert_eq!(ann.api("DELETE", &path, None).await.0, 204);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_killed_server_leaves_no_sandbox_and_makes_none_anew() {
    killed_server("container").await;
}

async fn killed_server(class: &'static str) {
    let home = Home::new();
    let mut server = home.up();
    let ann = Caller::of(&server, "ann").await.in_class(class);
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    assert_eq!(
        answered(ann.envd((&id, &token), "/filesystem.Filesystem/Stat", &json!({"path": "/"})))
            .await
            .0,
        200
    );
    server.kill();
    let server = home.up();
    let sql = server.sql().await;
    let rows = "SELECT end_reason FROM app.live_sandboxes WHERE ended_at IS NOT NULL";
    until("the sandbox is reported as gone", Duration::from_secs(60), async || {
        !texts(&sql, rows).await.is_empty()
    })
    .await;
    assert_eq!(
        texts(&sql, rows).await,
        ["its worker was lost or restarted; a sandbox is never made anew"]
    );
    let caller = Caller { url: server.url.clone(), ..ann };
    assert_eq!(caller.api("GET", &format!("/sandboxes/{id}"), None).await.0, 404);
    let (status, answer) =
        answered(caller.envd((&id, &token), "/process.Process/List", &json!({}))).await;
    assert_eq!((status, &answer["message"]), (502, &json!("The sandbox was not found")));
    until("its run failed", Duration::from_secs(60), async || {
        texts(&sql, "SELECT status FROM app.runs").await == ["failed"]
    })
    .await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn our_own_api_and_commands_hold_a_sandbox_too() {
    let home = Home::new();
    let server = home.up();
    let made =
        home.run(&["sandbox", "create", "--timeout", "60", "--label", "a=b", "--env", "X=y"]);
    assert!(made.status.success(), "{}", said(&made));
    let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let listed = home.run_json(&["sandbox", "ls", "--json"]);
    assert_eq!(listed["sandboxes"][0]["id"], json!(id), "{listed}");
    let done = home.run(&["sandbox", "exec", &id, "--", "sh", "-c", "echo $X; exit 5"]);
    assert_eq!(
        (done.status.code(), done.stdout.as_slice()),
        (Some(5), b"y\n".as_slice()),
        "{}",
        said(&done)
    );
    let kept = home.run(&["sandbox", "exec", &id, "--", "sh", "-c", "echo kept > a"]);
    assert!(kept.status.success(), "{}", said(&kept));
    let read = home.run(&["sandbox", "exec", &id, "--", "cat", "a"]);
    assert_eq!(read.stdout, b"kept\n", "{}", said(&read));
    let longer = home.run(&["sandbox", "extend", &id, "600"]);
    assert!(longer.status.success(), "{}", said(&longer));
    let killed = home.run(&["sandbox", "rm", &id]);
    assert!(killed.status.success(), "{}", said(&killed));
    let (status, view) = server.get(&format!("/api/sandboxes/{id}")).await;
    assert_eq!(
        (status, &view["state"], &view["wiped"]),
        (200, &json!("ended"), &json!(true)),
        "{view}"
    );
    assert_eq!(view["endReason"], "killed");
    let again = home.run(&["sandbox", "exec", &id, "--", "true"]);
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    gone(home, server).await;
}

#[tokio::test]
async fn a_canceled_run_takes_its_sandbox_with_it() {
    let home = Home::new();
    let server = home.up();
    let (status, made) =
        server.post("/api/sandboxes", &json!({"template": "base", "timeoutS": 600})).await;
    assert_eq!(status, 201, "{made}");
    let (_, run) = server.get(&format!("/api/runs/{}", text(&made, "runId"))).await;
    let cancel = format!("/api/ops/wf/{}/cancel", text(&run, "workflowID"));
    let (status, answer) = server.post(&cancel, &json!({"actor": "ann", "reason": "enough"})).await;
    assert_eq!(status, 202, "{answer}");
    let path = format!("/api/sandboxes/{}", text(&made, "id"));
    until("it is over", Duration::from_secs(60), async || {
        let (_, view) = server.get(&path).await;
        view["state"] == "ended" && view["wiped"] == true && view["endReason"] == "canceled"
    })
    .await;
    gone(home, server).await;
}
