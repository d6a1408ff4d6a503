//! The API as clients know it: what each route answers, and what stands in the ledger afterwards.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use cofferdam_ambient::clock;
use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

async fn import(server: &Server, yaml: &str) -> Value {
    let (status, imported) = server.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    assert_eq!(status, 201, "{imported}");
    imported
}

async fn intent(server: &Server, inputs: Value) -> Value {
    let (status, made) =
        server.post("/api/intents", &json!({"goal": "a goal", "inputs": inputs})).await;
    assert_eq!(status, 201, "{made}");
    made["intentId"].clone()
}

async fn fetched(server: &Server, path: &str) -> Value {
    let (status, answer) = server.get(path).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// A run to its end; the header.
async fn ran(server: &Server, yaml: &str, form: Value, opts: Value) -> Value {
    let header = server.run_recipe(yaml, form, opts).await;
    server.wait_terminal(&text(&header, "runId")).await
}

async fn artifacts(server: &Server, run: &Value) -> Vec<Value> {
    list(&fetched(server, &format!("/api/runs/{}/artifacts", text(run, "runId"))).await).clone()
}

/// The task attempts of a run, from `/steps`.
async fn attempts(server: &Server, run: &Value) -> Vec<Value> {
    let steps = fetched(server, &format!("/api/runs/{}/steps", text(run, "runId"))).await;
    list(&steps).iter().filter(|s| s["taskKey"].is_string()).cloned().collect()
}

/// Bytes, status, ETag and content type of a GET.
async fn raw(
    server: &Server,
    path: &str,
    key: &str,
    header: Option<(&str, &str)>,
) -> (u16, Vec<u8>, String, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .get(format!("{}{path}", server.url))
        .header("authorization", format!("Bearer {key}"));
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap();
    let named = |name: &str| {
        answer.headers().get(name).map_or(String::new(), |v| v.to_str().unwrap().to_owned())
    };
    let (status, tag, kind) = (answer.status().as_u16(), named("etag"), named("content-type"));
    (status, answer.bytes().await.unwrap().to_vec(), tag, kind)
}

/// The SHA-256 as the machine's own tool computes it: not by the code under test.
fn sha256(bytes: &[u8]) -> String {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum (coreutils)");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()[..64].to_owned()
}

async fn key(server: &Server, tenant: &str, roles: &[&str]) -> Value {
    let (status, made) =
        server.post("/api/keys", &json!({"tenant": tenant, "roles": roles, "label": "test"})).await;
    assert_eq!(status, 201, "{made}");
    made
}

#[tokio::test]
async fn an_intent_runs_once_and_everything_it_left_can_be_read() {
    let home = Home::new();
    let server = home.up();
    let (status, health) = server.request("GET", "/healthz", None, None).await;
    assert_eq!((status, &health["ok"]), (200, &json!(true)));
    let intent = intent(&server, json!({"cmd": "echo out; echo err >&2; echo more"})).await;
    assert!(intent.as_str().unwrap().starts_with("it_"), "{intent}");
    let body = json!({"intentId": intent, "traceId": "t1", "budget": {"maxFanout": 2}});
    let (status, first) = server.post("/api/runs", &body).await;
    assert_eq!((status, &first["isReplay"]), (201, &json!(false)), "{first}");
    assert_eq!(first["workflowID"], intent, "the parent's workflow id is its intent's");
    let (status, again) = server.post("/api/runs", &body).await;
    assert_eq!((status, &again["isReplay"]), (200, &json!(true)), "{again}");
    assert_eq!(again["runId"], first["runId"]);

    let run = text(&first, "runId");
    let header = server.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    for (field, want) in [
        ("workflowName", json!("run")),
        ("recipeRef", json!({"id": "shell", "v": "1"})),
        ("traceId", json!("t1")),
        ("nextAction", json!("NONE")),
        ("lastStep", json!("ExecuteST")),
        ("durableStatus", json!("SUCCESS")),
    ] {
        assert_eq!(header[field], want, "{field} of {header}");
    }
    for field in ["createdAt", "updatedAt"] {
        assert!(header[field].as_i64().unwrap() > 1_600_000_000_000, "{field} in ms: {header}");
    }
    assert_eq!(text(&header, "recipeHash").len(), 64);
    assert!(!text(&header, "appVersion").is_empty() && header.get("error").is_none(), "{header}");
    assert_eq!(fetched(&server, &format!("/api/runs/{}", intent.as_str().unwrap())).await, header);
    let (status, replay) = server.post("/api/runs", &body).await;
    assert_eq!((status, &replay["status"]), (200, &json!("succeeded")), "a replay after the end");

    let steps = fetched(&server, &format!("/api/runs/{run}/steps")).await;
    let named: Vec<&str> = list(&steps).iter().map(|s| s["stepId"].as_str().unwrap()).collect();
    assert_eq!(
        named.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&"CompileST", &"ExecuteST", &"ExecuteST:shell"])
    );
    assert!(list(&steps).iter().all(|s| s["status"] == "ok" && s["attempt"] == 1), "{steps}");

    let artifacts = artifacts(&server, &header).await;
    let task = list(&steps).iter().find_map(|s| s["taskKey"].as_str()).unwrap().to_owned();
    let of_task: Vec<&Value> = artifacts.iter().filter(|a| a["taskKey"] == json!(task)).collect();
    let kinds: BTreeSet<&str> = of_task.iter().map(|a| a["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["artifact_index", "raw", "stderr", "stdout", "timings"]));
    assert!(
        artifacts.iter().any(|a| a["kind"] == "plan_card" && a["name"] == "plan.json"),
        "{artifacts:?}"
    );
    for artifact in &artifacts {
        let (sha, uri) = (text(artifact, "sha256"), text(artifact, "uri"));
        assert!(uri.starts_with(&format!("artifact://run/{run}/step/")), "{uri}");
        assert!(uri.ends_with(&format!("/{}", text(artifact, "name"))), "{uri}");
        let (status, bytes, tag, _) =
            raw(&server, &format!("/api/artifacts/{uri}"), &server.key, None).await;
        assert_eq!((status, tag.as_str()), (200, format!("\"{sha}\"").as_str()), "{uri}");
        assert_eq!(sha256(&bytes), sha, "{uri}");
        assert_eq!(json!(bytes.len()), artifact["size"], "{uri}");
        let known = Some(("if-none-match", tag.as_str()));
        let (status, bytes, ..) =
            raw(&server, &format!("/api/artifacts/{uri}"), &server.key, known).await;
        assert_eq!((status, bytes.len()), (304, 0), "{uri}");
        let other = Some(("if-none-match", "\"0\""));
        assert_eq!(raw(&server, &format!("/api/artifacts/{uri}"), &server.key, other).await.0, 200);
    }
    let index = of_task.iter().find(|a| a["idx"] == 0).unwrap();
    assert_eq!(
        (index["kind"].as_str(), index["name"].as_str()),
        (Some("artifact_index"), Some("index.json"))
    );
    let index = fetched(&server, &format!("/api/artifacts/{}", text(index, "uri"))).await;
    assert_eq!(
        (text(&index, "taskKey"), text(&index, "provider")),
        (task.clone(), "container".into())
    );
    assert!(
        index["createdAt"].is_i64() && index["rawRef"].as_str().unwrap().ends_with("/raw.json"),
        "{index}"
    );
    let listed: Vec<(&Value, &Value, &Value)> =
        list(&index["items"]).iter().map(|i| (&i["kind"], &i["uri"], &i["sha256"])).collect();
    let mut stored: Vec<&&Value> = of_task.iter().filter(|a| a["idx"] != 0).collect();
    stored.sort_by_key(|a| a["idx"].as_i64());
    let stored: Vec<(&Value, &Value, &Value)> =
        stored.iter().map(|a| (&a["kind"], &a["uri"], &a["sha256"])).collect();
    assert_eq!(listed, stored, "the index lists exactly what is stored, in order");

    let wipes = fetched(&server, &format!("/api/runs/{run}/wipes")).await;
    assert_eq!(list(&wipes).len(), 1);
    assert_eq!(
        (&wipes[0]["status"], &wipes[0]["terminalState"]),
        (&json!("verified"), &json!("COMPLETED"))
    );
    assert_eq!(fetched(&server, &format!("/api/runs/{run}/gates")).await, json!([]));
    assert_eq!(fetched(&server, &format!("/api/runs/{run}/interactions")).await, json!([]));
    let repro = fetched(&server, &format!("/api/runs/{run}/repro")).await;
    assert_eq!((&repro["runId"], &repro["recipeHash"]), (&header["runId"], &header["recipeHash"]));
    assert_eq!(repro["formData"]["cmd"], "echo out; echo err >&2; echo more");
    assert_eq!(text(&repro, "planDigest").len(), 64);
    for path in [format!("/api/runs/{run}/proofs"), "/api/proofs".to_owned()] {
        let report = fetched(&server, &path).await;
        assert_eq!(report["verdict"], "GO", "{report}");
        assert!(list(&report["proofs"]).len() >= 20, "{report}");
    }

    let lines = |bytes: Vec<u8>| -> Vec<Value> {
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    };
    for (stream, want) in [("stdout", "out\nmore\n"), ("stderr", "err\n")] {
        let path = format!("/api/runs/{task}/stream/{stream}");
        let (status, bytes, _, kind) = raw(&server, &path, &server.key, None).await;
        assert_eq!((status, kind.as_str()), (200, "application/x-ndjson"));
        let lines = lines(bytes);
        let whole: String = lines.iter().map(|l| l["chunk"].as_str().unwrap()).collect();
        assert_eq!(whole, want);
        assert!(
            lines
                .iter()
                .enumerate()
                .all(|(n, l)| l["seq"] == json!(n) && l["kind"] == json!(stream)),
            "{lines:?}"
        );
        let (_, bytes, _, kind) =
            raw(&server, &path, &server.key, Some(("accept", "text/event-stream"))).await;
        assert_eq!(kind, "text/event-stream");
        let events = String::from_utf8(bytes).unwrap();
        assert!(events.starts_with("id: 0\ndata: {") && events.ends_with("\n\n"), "{events:?}");
        let (_, rest, ..) = raw(&server, &format!("{path}?from=1000"), &server.key, None).await;
        assert!(rest.is_empty());
    }
    let (_, bytes, ..) =
        raw(&server, &format!("/api/runs/{run}/stream/status"), &server.key, None).await;
    let statuses: Vec<String> = lines(bytes).iter().map(|l| text(l, "status")).collect();
    assert_eq!(statuses, ["queued", "running", "succeeded"]);
    let (_, bytes, ..) =
        raw(&server, &format!("/api/runs/{run}/stream/status?follow=true"), &server.key, None)
            .await;
    assert_eq!(lines(bytes).len(), 3, "following a run that is over ends");
}

#[tokio::test]
async fn a_replay_that_differs_is_a_conflict_that_names_the_drift() {
    const TWO: &str = "id: two\nv: '1'\nform: {type: object, properties: {cmd: {type: string}}}\nplan: {tasks: [{name: t, value: x}]}\n";
    let home = Home::new();
    let server = home.up();
    import(&server, TWO).await;
    let intent = intent(&server, json!({"cmd": "true"})).await;
    let base = json!({"intentId": intent, "traceId": "a", "budget": {"maxFanout": 2}, "lane": "interactive"});
    let (status, run) = server.post("/api/runs", &base).await;
    assert_eq!(status, 201, "{run}");
    let changed = |more: Value| {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, fields) in [
        (json!({"traceId": "b"}), vec!["traceId"]),
        (json!({"budget": {"maxFanout": 3}}), vec!["budget"]),
        (json!({"queuePartitionKey": "default/x"}), vec!["queuePartitionKey"]),
        (json!({"recipeName": "two"}), vec!["recipe", "recipeHash"]),
        (
            json!({"traceId": "b", "queuePartitionKey": "default/x"}),
            vec!["traceId", "queuePartitionKey"],
        ),
    ] {
        let (status, answer) = server.post("/api/runs", &changed(more)).await;
        assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
        let drift = list(&answer["details"]["drift"]);
        assert_eq!(
            drift.iter().map(|d| d["field"].as_str().unwrap()).collect::<Vec<_>>(),
            fields,
            "{answer}"
        );
        assert!(
            drift.iter().all(|d| d.get("existing").is_some() && d.get("incoming").is_some()),
            "{answer}"
        );
    }
    for more in
        [json!({"lane": "batch"}), json!({"priority": 7}), json!({"workload": {"steps": 1}})]
    {
        let (status, answer) = server.post("/api/runs", &changed(more)).await;
        assert_eq!((status, &answer["isReplay"]), (200, &json!(true)), "not identity: {answer}");
    }
}

#[tokio::test]
async fn equal_recipe_starts_are_one_run_and_a_form_has_its_defaults() {
    const GREET: &str = "
id: greet
v: '1'
form:
  type: object
  required: [who]
  additionalProperties: false
  properties:
    who: {type: string, minLength: 1, maxLength: 20}
    times: {type: integer, minimum: 1, maximum: 3, default: 2}
plan:
  tasks: [{name: 'greet-${item}', each: '${range(form.times)}', value: 'hello ${form.who}'}]
";
    let home = Home::new();
    let server = home.up();
    let imported = import(&server, GREET).await;
    assert_eq!(
        (&imported["status"], &imported["recipeRef"]),
        (&json!("draft"), &json!({"id": "greet", "v": "1"}))
    );
    let body = json!({"recipeRef": imported["recipeRef"], "formData": {"who": "ann"}});
    let starts = (0..12).map(|_| server.post("/api/run", &body));
    let answers = join_all(starts).await;
    assert_eq!(answers.iter().filter(|(status, _)| *status == 201).count(), 1, "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|(status, a)| matches!(status, 200 | 201) && a["runId"] == answers[0].1["runId"]),
        "{answers:?}"
    );
    let header = answers[0].1.clone();
    assert_eq!(header["workflowID"], json!(format!("ih_{}", text(&header, "intentHash"))));
    let explicit =
        json!({"recipeRef": imported["recipeRef"], "formData": {"who": "ann", "times": 2}});
    assert_eq!(
        server.post("/api/run", &explicit).await.1["runId"],
        header["runId"],
        "a default said aloud is the same run"
    );
    for other in [
        json!({"recipeRef": imported["recipeRef"], "formData": {"who": "bob"}}),
        json!({"recipeRef": imported["recipeRef"], "formData": {"who": "ann"}, "opts": {"runKey": "again"}}),
    ] {
        let (status, answer) = server.post("/api/run", &other).await;
        assert_eq!(status, 201, "{answer}");
        assert_ne!(answer["runId"], header["runId"]);
    }
    let (status, answer) = server
        .post(
            "/api/run",
            &json!({"recipeRef": imported["recipeRef"], "formData": {"times": 9, "x": 1}}),
        )
        .await;
    assert_eq!((status, &answer["code"]), (400, &json!("schema_violation")), "{answer}");
    assert_eq!(list(&answer["details"]).len(), 3, "every violation: {answer}");
    // The same form by the long way: defaults hold there too.
    let intent = intent(&server, json!({"who": "eve"})).await;
    let (status, run) = server
        .post(
            "/api/runs",
            &json!({"intentId": intent, "recipeName": "greet", "recipeVersion": "1"}),
        )
        .await;
    assert_eq!(status, 201, "{run}");
    for run in [&header, &run] {
        let end = server.wait_terminal(&text(run, "runId")).await;
        assert_eq!(end["status"], "succeeded", "{end}");
        assert_eq!(attempts(&server, &end).await.len(), 2);
    }
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, slot) in pinned.iter_mut().zip(done.iter_mut()) {
            if slot.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *slot = Some(output);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().map(Option::unwrap).collect()
}

#[tokio::test]
async fn a_deduplication_id_holds_while_its_run_is_live_and_only_in_its_tenant() {
    const WAIT: &str =
        "id: wait\nv: '1'\nplan: {gate: approve-plan, tasks: [{name: t, value: x}]}\n";
    let home = Home::new();
    let mut server = home.up();
    let other = text(&key(&server, "other", &["admin"]).await, "key");
    import(&server, WAIT).await;
    let request = |intent: Value| json!({"intentId": intent, "recipeName": "wait", "deduplicationID": "nightly"});
    let first = intent(&server, json!({})).await;
    let (status, run) = server.post("/api/runs", &request(first.clone())).await;
    assert_eq!(status, 201, "{run}");
    let second = intent(&server, json!({})).await;
    let (status, answer) = server.post("/api/runs", &request(second.clone())).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
    assert_eq!(server.post("/api/runs", &request(first)).await.0, 200, "the same run is a replay");
    let admin = std::mem::replace(&mut server.key, other);
    import(&server, WAIT).await;
    let theirs = intent(&server, json!({})).await;
    let (status, answer) = server.post("/api/runs", &request(theirs)).await;
    assert_eq!(status, 201, "another tenant's id is no one's business: {answer}");
    server.key = admin;
    let run = text(&run, "runId");
    server.wait_for(&run, "at its gate", |h| h["status"] == "waiting_input").await;
    assert_eq!(
        server
            .post(&format!("/api/runs/{run}/approve-plan"), &json!({"approvedBy": "ann"}))
            .await
            .0,
        202
    );
    server.wait_terminal(&run).await;
    let (status, answer) = server.post("/api/runs", &request(second)).await;
    assert_eq!(status, 201, "the first is over: {answer}");
}

#[tokio::test]
async fn workflows_are_listed_canceled_resumed_and_forked_by_their_rules() {
    const SLOW: &str = "id: slow\nv: '1'\nplan: {tasks: [{name: s, exec: {run: 'sleep 6; echo woke', timeout: 60s}}]}\n";
    const QUICK: &str = "id: quick\nv: '1'\nplan: {tasks: [{name: q, value: x}]}\n";
    let home = Home::new();
    let server = home.up();
    let done = ran(&server, QUICK, json!({}), json!({})).await;
    let slow = server.run_recipe(SLOW, json!({}), json!({})).await;
    let (done_id, slow_id) = (text(&done, "workflowID"), text(&slow, "workflowID"));
    let action = json!({"actor": "ann", "reason": "a drill"});
    let act = async |wid: &str, op: &str, body: &Value| {
        server.post(&format!("/api/ops/wf/{wid}/{op}"), body).await
    };

    let all = fetched(&server, "/api/ops/wf?limit=200").await;
    let times: Vec<i64> = list(&all).iter().map(|w| w["createdAt"].as_i64().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first: {times:?}");
    assert_eq!(list(&fetched(&server, "/api/ops/wf?limit=1").await).len(), 1);
    let runs = fetched(&server, "/api/ops/wf?name=run&status=SUCCESS").await;
    assert_eq!(
        list(&runs).iter().map(|w| text(w, "workflowID")).collect::<Vec<_>>(),
        [done_id.as_str()]
    );
    let steps = fetched(&server, &format!("/api/ops/wf/{done_id}/steps")).await;
    let names: Vec<String> = list(&steps).iter().map(|s| text(s, "name")).collect();
    assert_eq!(names, ["CompileST", "ExecuteST#1"]);
    assert!(list(&steps).iter().enumerate().all(|(n, s)| s["stepN"] == json!(n)), "{steps}");

    for (wid, op) in [(&done_id, "cancel"), (&done_id, "resume"), (&slow_id, "resume")] {
        if op == "resume" && wid == &slow_id {
            server.wait_for(&slow_id, "running", |h| h["durableStatus"] == "PENDING").await;
        }
        let (status, answer) = act(wid, op, &action).await;
        assert_eq!((status, &answer["code"]), (409, &json!("state_conflict")), "{op}: {answer}");
    }
    let task = loop {
        let attempts = attempts(&server, &slow).await;
        if let Some(task) = attempts.first() {
            break text(task, "taskKey");
        }
        clock::sleep(std::time::Duration::from_millis(10)).await;
    };
    let (status, answer) =
        act(&task, "fork", &json!({"actor": "a", "reason": "r", "stepN": 0})).await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("state_conflict")),
        "a task is not forked: {answer}"
    );

    let (status, answer) = act(&slow_id, "cancel", &action).await;
    assert_eq!((status, &answer["accepted"]), (202, &json!(true)), "{answer}");
    let canceled = server.wait_terminal(&slow_id).await;
    assert_eq!(
        (&canceled["status"], &canceled["durableStatus"]),
        (&json!("canceled"), &json!("CANCELLED"))
    );
    assert_eq!(act(&slow_id, "cancel", &action).await.0, 409, "it is canceled already");
    let audit = fetched(&server, &format!("/api/ops/wf/{slow_id}")).await["audit"].clone();
    assert_eq!(list(&audit).len(), 1, "refused actions leave no audit row: {audit}");
    for (field, want) in
        [("op", "cancel"), ("actor", "ann"), ("reason", "a drill"), ("targetWorkflowID", &slow_id)]
    {
        assert_eq!(audit[0][field], want, "{audit}");
    }
    // The sandbox of the canceled task goes at once, not after its six seconds.
    let wiped = wait_wipes(&server, &slow_id, 1).await;
    assert_eq!(wiped[0]["terminalState"], "CANCELED", "{wiped:?}");
    let retried = server
        .request("POST", &format!("/api/runs/{slow_id}/retry"), Some(&server.key), None)
        .await;
    assert_eq!(
        (retried.0, &retried.1["code"]),
        (409, &json!("state_conflict")),
        "only a failed run is retried"
    );
    let (status, answer) = act(&slow_id, "resume", &action).await;
    assert_eq!(status, 202, "{answer}");
    let resumed =
        server.wait_for(&slow_id, "going again", |h| h["durableStatus"] == "PENDING").await;
    assert_eq!(resumed["status"], "repairing", "a recorded repair: {resumed}");
    let end = server.wait_terminal(&slow_id).await;
    assert_eq!(end["status"], "succeeded", "what was canceled is done after all: {end}");
    let attempts = attempts(&server, &end).await;
    let seen: Vec<(&Value, &Value)> =
        attempts.iter().map(|a| (&a["attempt"], &a["status"])).collect();
    assert_eq!(seen, [(&json!(1), &json!("canceled")), (&json!(2), &json!("ok"))]);

    for (step, want) in [(99, 409), (2, 409), (1, 202)] {
        let (status, answer) =
            act(&done_id, "fork", &json!({"actor": "ann", "reason": "again", "stepN": step})).await;
        assert_eq!(status, want, "{step}: {answer}");
        if want == 202 {
            let fork = text(&answer, "forkedWorkflowID");
            assert_eq!(
                server.wait_terminal(&text(&answer, "newRunId")).await["workflowID"],
                json!(fork)
            );
            let audit = fetched(&server, &format!("/api/ops/wf/{done_id}")).await["audit"].clone();
            assert_eq!(
                (&audit[0]["op"], &audit[0]["forkedWorkflowID"]),
                (&json!("fork"), &json!(fork))
            );
        }
    }
    let report = fetched(&server, "/api/proofs").await;
    let failed: Vec<&Value> =
        list(&report["proofs"]).iter().filter(|p| !list(&p["rows"]).is_empty()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

async fn wait_wipes(server: &Server, run: &str, count: usize) -> Vec<Value> {
    for _ in 0..500 {
        let wipes = fetched(server, &format!("/api/runs/{run}/wipes")).await;
        let done: Vec<Value> =
            list(&wipes).iter().filter(|w| w["status"].is_string()).cloned().collect();
        if done.len() >= count {
            return done;
        }
        clock::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("run {run} has no {count} wipes after five seconds");
}

#[tokio::test]
async fn recipes_are_imported_as_drafts_exported_canonically_and_immutable_once_stable() {
    const V1: &str = "id: r\nv: '1'\n# a note\ntitle: T\nplan: {tasks: [{name: t, value: one}]}\n";
    let home = Home::new();
    let server = home.up();
    let first = import(&server, V1).await;
    assert_eq!(
        import(&server, &format!("\n{V1}\n# another")).await["hash"],
        first["hash"],
        "layout is not content"
    );
    let changed = import(&server, &V1.replace("one", "two")).await;
    assert_ne!(changed["hash"], first["hash"]);
    import(&server, &V1.replace("v: '1'", "v: '2'")).await;
    let recipes = fetched(&server, "/api/recipes").await;
    assert_eq!((&recipes[0]["id"], &recipes[0]["versions"]), (&json!("r"), &json!(2)), "{recipes}");
    let versions = fetched(&server, "/api/recipes/r/versions").await;
    assert_eq!(list(&versions).len(), 3, "{versions}");
    assert!(list(&versions).iter().all(|v| v["status"] == "draft"), "{versions}");
    let sql = server.sql().await;
    let stable = sqlx::query("UPDATE app.recipe_versions SET status = 'stable' WHERE hash = $1");
    stable.bind(text(&first, "hash")).execute(&sql).await.unwrap();
    let (status, answer) =
        server.post("/api/recipes/import", &json!({"yaml": V1.replace("one", "three")})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
    assert_eq!(import(&server, V1).await["hash"], first["hash"], "the same content is no change");
    let versions = fetched(&server, "/api/recipes/r/versions").await;
    let of_first = list(&versions).iter().find(|v| v["hash"] == first["hash"]).unwrap();
    assert_eq!(of_first["status"], "stable", "an import does not make it a draft again");
    let (status, body, ..) =
        post_raw(&server, "/api/recipes/export", &json!({"id": "r", "v": "1"})).await;
    assert_eq!(status, 200);
    assert_eq!(
        json!(sha256(body.as_bytes())),
        first["hash"],
        "what is exported is the canonical text: {body}"
    );
    let (status, again) = server
        .post(
            "/api/recipes/import",
            &json!({"recipe": serde_json::from_str::<Value>(&body).unwrap()}),
        )
        .await;
    assert_eq!((status, &again["hash"]), (201, &first["hash"]), "export and import are inverse");
    let (_, run) = server.post("/api/run", &json!({"recipeRef": {"id": "r", "v": "1"}})).await;
    assert_eq!(run["recipeHash"], first["hash"], "a version that is stable is the one that runs");
}

async fn post_raw(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client
        .post(format!("{}{path}", server.url))
        .header("authorization", format!("Bearer {}", server.key))
        .body(body.to_string());
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn keys_are_made_listed_without_their_secret_and_revoked() {
    let home = Home::new();
    let mut server = home.up();
    let made = key(&server, "default", &["submitter", "auditor", "submitter"]).await;
    assert_eq!(made["roles"], json!(["submitter", "auditor"]));
    let secret = text(&made, "key");
    assert_eq!(server.request("GET", "/api/runs", Some(&secret), None).await.0, 200);
    let listed = fetched(&server, "/api/keys").await;
    let row = list(&listed).iter().find(|k| k["keyId"] == made["keyId"]).unwrap();
    assert_eq!(
        (&row["label"], &row["tenant"], &row["revokedAt"]),
        (&json!("test"), &json!("default"), &Value::Null)
    );
    assert!(!listed.to_string().contains(&secret), "a secret is shown once");
    let sql = server.sql().await;
    let stored: Vec<String> = sqlx::query_scalar("SELECT to_jsonb(k)::text FROM app.api_keys k")
        .fetch_all(&sql)
        .await
        .unwrap();
    assert!(
        stored.iter().all(|row| !row.contains(&secret) && !row.contains(&server.key)),
        "only a hash is stored"
    );
    let (id, admin) = (text(&made, "keyId"), server.key.clone());
    let path = format!("/api/keys/{id}");
    assert_eq!(server.request("DELETE", &path, Some(&admin), None).await.0, 200);
    assert_eq!(server.request("GET", "/api/runs", Some(&secret), None).await.0, 401);
    assert_eq!(
        server.request("DELETE", &path, Some(&admin), None).await.0,
        404,
        "it is revoked already"
    );
    let me = list(&listed).iter().find(|k| k["roles"] == json!(["admin"])).unwrap();
    let (status, answer) = server
        .request("DELETE", &format!("/api/keys/{}", text(me, "keyId")), Some(&admin), None)
        .await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("state_conflict")),
        "nobody locks themselves out: {answer}"
    );
    let ops: Vec<String> =
        sqlx::query_scalar("SELECT op FROM app.audit ORDER BY id").fetch_all(&sql).await.unwrap();
    assert_eq!(ops, ["key.create", "key.revoke"]);
    server.key = text(&key(&server, "acme", &["admin"]).await, "key");
    assert!(list(&fetched(&server, "/api/keys").await).iter().all(|k| k["tenant"] == "acme"));
    let (status, answer) =
        server.post("/api/keys", &json!({"tenant": "default", "roles": ["admin"]})).await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
}

#[tokio::test]
async fn the_inbox_shows_the_most_urgent_gate_first() {
    const WAIT: &str =
        "id: wait\nv: '1'\nplan: {gate: approve-plan, tasks: [{name: t, value: x}]}\n";
    let home = Home::new();
    let server = home.up();
    let mut runs = Vec::new();
    for ttl in [600, 30, 3000] {
        let opts = json!({"planApprovalTimeoutS": ttl, "runKey": format!("{ttl}")});
        runs.push(text(&server.run_recipe(WAIT, json!({}), opts).await, "runId"));
    }
    for run in &runs {
        server.wait_for(run, "at its gate", |h| h["status"] == "waiting_input").await;
    }
    let inbox = fetched(&server, "/api/hitl/inbox").await;
    let order: Vec<String> = list(&inbox).iter().map(|g| text(g, "runId")).collect();
    assert_eq!(order, [runs[1].clone(), runs[0].clone(), runs[2].clone()], "{inbox}");
    let sla: Vec<&Value> = list(&inbox).iter().map(|g| &g["slaStatus"]).collect();
    assert_eq!(sla, ["WARNING", "NORMAL", "NORMAL"], "{inbox}");
    for row in list(&inbox) {
        assert_eq!(
            (&row["gateKey"], &row["topic"]),
            (&json!("approve-plan"), &json!("human:approve-plan"))
        );
        assert!(
            row["deadline"].as_i64() > row["createdAt"].as_i64()
                && row["escalationWorkflowID"].is_null(),
            "{row}"
        );
    }
    assert_eq!(list(&fetched(&server, "/api/hitl/inbox?limit=1").await).len(), 1);
    assert_eq!(
        server
            .post(&format!("/api/runs/{}/approve-plan", runs[1]), &json!({"approvedBy": "ann"}))
            .await
            .0,
        202
    );
    assert_eq!(
        list(&fetched(&server, "/api/hitl/inbox").await).len(),
        2,
        "an answered gate is nobody's work"
    );
}

#[tokio::test]
async fn every_way_to_fail_has_its_code_and_says_why() {
    let home = Home::new();
    let server = home.up();
    let missing = home.path().join("nowhere").to_string_lossy().into_owned();
    let recipe =
        |id: &str, task: &str| format!("id: {id}\nv: '1'\nplan:\n  tasks:\n    - {task}\n");
    // id, task, status, error code, attempts, what the cause names
    let cases = [
        ("exit", "{name: t, exec: {run: 'echo before; exit 7'}}", "failed", "CMD_NONZERO", 1, "7"),
        ("noprog", "{name: t, exec: {run: [/no/such/program]}}", "failed", "CMD_NONZERO", 1, ""),
        ("slow", "{name: t, exec: {run: 'sleep 60', timeout: 300ms}}", "failed", "TIMEOUT", 1, ""),
        (
            "oom",
            "{name: t, exec: {run: 'tail /dev/zero', timeout: 60s}, limits: {mem_mb: 64}}",
            "failed",
            "OOM",
            1,
            "",
        ),
        (
            "net",
            "{name: t, exec: {run: 'true', egress: ['*.example.org']}}",
            "retries_exceeded",
            "BOOT_FAIL",
            3,
            "net",
        ),
        (
            "services",
            "{name: t, exec: {run: 'true'}, services: [oracle]}",
            "retries_exceeded",
            "BOOT_FAIL",
            3,
            "spec.services",
        ),
        (
            "isolation",
            "{name: t, exec: {run: 'true'}, isolation: {class_min: remote}}",
            "retries_exceeded",
            "BOOT_FAIL",
            3,
            "spec.isolation.class_min",
        ),
        (
            "image",
            "{name: t, image: 'oci:debian', exec: {run: 'true'}}",
            "retries_exceeded",
            "BOOT_FAIL",
            3,
            "envRef",
        ),
        (
            "upload",
            &format!("{{name: t, files: [{{from: {missing}, to: /work}}], exec: {{run: 'true'}}}}"),
            "retries_exceeded",
            "UPLOAD_FAIL",
            3,
            "nowhere",
        ),
    ];
    let mut runs = Vec::new();
    for (id, task, ..) in &cases {
        runs.push(server.run_recipe(&recipe(id, task), json!({}), json!({})).await);
    }
    for ((id, _, status, code, count, cause), run) in cases.iter().zip(&runs) {
        let end = server.wait_terminal(&text(run, "runId")).await;
        assert_eq!(end["status"], *status, "{id}: {end}");
        assert_eq!(
            (&end["nextAction"], &end["durableStatus"]),
            (&json!("REPAIR"), &json!("ERROR")),
            "{id}: {end}"
        );
        assert!(text(&end, "error").contains(code), "{id}: {end}");
        let attempts = attempts(&server, &end).await;
        let numbers: Vec<i64> = attempts.iter().map(|a| a["attempt"].as_i64().unwrap()).collect();
        assert_eq!(
            numbers,
            (1..=*count).collect::<Vec<i64>>(),
            "{id}: each attempt is a row of its own"
        );
        let keys: BTreeSet<String> = attempts.iter().map(|a| text(a, "taskKey")).collect();
        assert_eq!(keys.len(), attempts.len(), "{id}: and a key of its own");
        for attempt in &attempts {
            assert_eq!(
                (attempt["status"].as_str(), &attempt["output"]["errCode"]),
                (Some("failed"), &json!(code)),
                "{id}: {attempt}"
            );
            let said = format!("{} {}", attempt["error"], attempt["output"]["exit"]);
            assert!(said.contains(cause), "{id}: {attempt}");
        }
        let wipes = fetched(&server, &format!("/api/runs/{}/wipes", text(run, "runId"))).await;
        assert_eq!(list(&wipes).len(), attempts.len(), "{id}: {wipes}");
        assert!(
            list(&wipes)
                .iter()
                .all(|w| w["status"] == "verified" && w["terminalState"] == "FAILED"),
            "{id}: {wipes}"
        );
        if *id == "exit" {
            assert_eq!(attempt_exit(&attempts), 7);
            let out =
                artifacts(&server, &end).await.into_iter().find(|a| a["kind"] == "stdout").unwrap();
            let path = format!("/api/artifacts/{}", text(&out, "uri"));
            assert_eq!(
                raw(&server, &path, &server.key, None).await.1,
                b"before\n",
                "a failure keeps what it said"
            );
        }
    }
    let report = fetched(&server, "/api/proofs").await;
    assert_eq!(report["verdict"], "GO", "failures are in order too: {report}");
}

fn attempt_exit(attempts: &[Value]) -> i64 {
    attempts[0]["output"]["exit"].as_i64().unwrap()
}

#[tokio::test]
async fn files_go_in_and_come_out_and_the_host_keeps_its_own() {
    let home = Home::new();
    let server = home.up();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("host.txt"), "of the host\n").unwrap();
    let recipe = format!(
        "
id: files
v: '1'
plan:
  tasks:
    - name: t
      files:
        - {{text: \"inline\\n\", to: /in/text}}
        - {{from: '{dir}', to: /work, access: workspace-write}}
        - {{from: '{dir}', to: /ro, access: read-only}}
      exec:
        run: |
          set -e
          cat /in/text host.txt /ro/host.txt
          if echo x > /ro/new 2>/dev/null; then exit 9; fi
          echo changed > host.txt
          mkdir -p logs/deep
          echo a > logs/a.log; echo b > logs/deep/b.log; echo no > other
          printf 'a\\000b' > logs/nul.bin
        timeout: 30s
      artifacts: [host.txt, 'logs/**', 'none-*.xml']
",
        dir = dir.path().display()
    );
    let end = ran(&server, &recipe, json!({}), json!({})).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let artifacts = artifacts(&server, &end).await;
    let files: BTreeSet<String> =
        artifacts.iter().filter(|a| a["kind"] == "file").map(|a| text(a, "name")).collect();
    let wanted =
        ["files/host.txt", "files/logs/a.log", "files/logs/deep/b.log", "files/logs/nul.bin"];
    assert_eq!(files.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    let bytes = async |name: &str| {
        let artifact = artifacts.iter().find(|a| a["name"] == name).unwrap();
        raw(&server, &format!("/api/artifacts/{}", text(artifact, "uri")), &server.key, None)
            .await
            .1
    };
    assert_eq!(bytes("files/host.txt").await, b"changed\n");
    assert_eq!(bytes("files/logs/nul.bin").await, b"a\0b");
    assert_eq!(bytes("stdout.log").await, b"inline\nof the host\nof the host\n");
    assert_eq!(
        std::fs::read(dir.path().join("host.txt")).unwrap(),
        b"of the host\n",
        "writes stay in the sandbox"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let uri = text(artifacts.iter().find(|a| a["name"] == "files/logs/a.log").unwrap(), "uri");
    let next = format!(
        "id: next\nv: '1'\nplan: {{tasks: [{{name: t, files: [{{from: '{uri}', to: /in/a}}], exec: {{run: 'test \"$(cat /in/a)\" = a', timeout: 30s}}}}]}}\n"
    );
    let end = ran(&server, &next, json!({}), json!({})).await;
    assert_eq!(end["status"], "succeeded", "an artifact is another task's input: {end}");
}

#[tokio::test]
async fn a_budget_that_is_reached_ends_the_run_and_says_metric_limit_and_observed() {
    let home = Home::new();
    let server = home.up();
    let wide = "id: wide\nv: '1'\nform: {type: object, properties: {n: {type: integer}}}\nplan: {tasks: [{name: 'w-${item}', each: '${range(form.n)}', value: x}]}\n";
    let sleepy =
        "id: sleepy\nv: '1'\nplan: {tasks: [{name: s, exec: {run: sleep 60, timeout: 90s}}]}\n";
    let heavy = "id: heavy\nv: '1'\nplan: {tasks: [{name: h, exec: {run: 'head -c 3000000 /dev/zero > big', timeout: 90s}, artifacts: [big]}, {name: s, exec: {run: sleep 60, timeout: 90s}}]}\n";
    let cases = [
        (wide, json!({"n": 5}), json!({"maxFanout": 4}), "fanout", 4, Some(5)),
        (sleepy, json!({}), json!({"maxWallClockMS": 700}), "wall_clock_ms", 700, None),
        (heavy, json!({}), json!({"maxArtifactsMB": 1}), "artifacts_mb", 1, Some(3)),
    ];
    for (recipe, form, budget, metric, limit, observed) in cases {
        let end = ran(&server, recipe, form, json!({"budget": budget})).await;
        assert_eq!(
            (&end["status"], &end["nextAction"]),
            (&json!("failed"), &json!("REPAIR")),
            "{metric}: {end}"
        );
        let left = artifacts(&server, &end).await;
        let diagnosis = left
            .iter()
            .find(|a| a["kind"] == "json_diagnostic")
            .unwrap_or_else(|| panic!("{metric}: {left:?}"));
        let said = fetched(&server, &format!("/api/artifacts/{}", text(diagnosis, "uri"))).await;
        let said = said.get("blocked").or_else(|| said.get("details")).unwrap_or(&said).clone();
        assert_eq!((&said["metric"], &said["limit"]), (&json!(metric), &json!(limit)), "{said}");
        let seen = said["observed"].as_i64().unwrap();
        assert!(observed.map_or(seen >= limit, |o| seen == o), "{said}");
        let wipes = fetched(&server, &format!("/api/runs/{}/wipes", text(&end, "runId"))).await;
        assert!(list(&wipes).iter().all(|w| w["status"] == "verified"), "nothing goes on: {wipes}");
    }
    let boot = "id: boot\nv: '1'\nplan: {tasks: [{name: t, exec: {run: 'true', egress: ['*.example.org']}}]}\n";
    let end = ran(&server, boot, json!({}), json!({"budget": {"maxRetriesPerStep": 0}})).await;
    assert_eq!(end["status"], "retries_exceeded", "{end}");
    assert_eq!(attempts(&server, &end).await.len(), 1, "no retries means one attempt");
}

#[tokio::test]
async fn a_tenant_sees_only_the_host_directories_that_everybody_may() {
    let (open, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(secret.path().join("top-secret-name"), "x").unwrap();
    std::fs::write(open.path().join("shared"), "y").unwrap();
    symlink(secret.path(), open.path().join("way-out")).unwrap();
    symlink(secret.path().join("top-secret-name"), open.path().join("file-out")).unwrap();
    let home = Home::new();
    let mut server = home.up_with(&["--allow-dir", &open.path().to_string_lossy()], &[]);
    let admin = server.key.clone();
    let acme = text(&key(&server, "acme", &["admin"]).await, "key");
    let submitter =
        text(&key(&server, "default", &["submitter", "auditor", "operator"]).await, "key");
    let recipe = "
id: dir
v: '1'
form: {type: object, properties: {dir: {type: string}, access: {type: string}}}
plan: {tasks: [{name: t, files: [{from: '${form.dir}', to: /data, access: read-only}], exec: {run: 'ls /data', timeout: 30s}}]}
";
    let listing = "
id: listing
v: '1'
form: {type: object, properties: {dir: {type: string}}}
plan: {tasks: [{name: 'f-${item}', each: '${glob(form.dir, \"*\")}', value: '${item}'}]}
";
    let image = "
id: image
v: '1'
form: {type: object, properties: {dir: {type: string}}}
plan: {tasks: [{name: t, image: 'dir:${form.dir}', exec: {run: ls}}]}
";
    let (inside, outside) =
        (open.path().display().to_string(), secret.path().display().to_string());
    let none = json!({"budget": {"maxRetriesPerStep": 0}});
    for who in [&acme, &submitter] {
        server.key.clone_from(who);
        let good = ran(&server, recipe, json!({"dir": inside}), none.clone()).await;
        assert_eq!(good["status"], "succeeded", "{good}");
        for dir in [
            &outside,
            &format!("{inside}/way-out"),
            &format!("{inside}/file-out"),
            &format!("{inside}/../.."),
            &"/etc".to_owned(),
        ] {
            let end = ran(&server, recipe, json!({"dir": dir}), none.clone()).await;
            assert_eq!(end["status"], "retries_exceeded", "{dir}: {end}");
            let attempts = attempts(&server, &end).await;
            assert_eq!(attempts[0]["output"]["errCode"], "UPLOAD_FAIL", "{dir}: {attempts:?}");
            let left = artifacts(&server, &end).await;
            assert!(!left.iter().any(|a| a["kind"] == "stdout"), "nothing ran: {left:?}");
        }
        let seen = ran(&server, listing, json!({"dir": inside}), json!({})).await;
        assert_eq!(seen["status"], "succeeded", "{seen}");
        for dir in [&outside, &format!("{inside}/way-out"), &"/etc".to_owned()] {
            let end = ran(&server, listing, json!({"dir": dir}), json!({})).await;
            assert_eq!(end["status"], "failed", "names are content too: {end}");
            let steps = fetched(&server, &format!("/api/runs/{}/steps", text(&end, "runId"))).await;
            assert!(!steps.to_string().contains("top-secret-name"), "{steps}");
        }
        let end = ran(&server, image, json!({"dir": outside}), none.clone()).await;
        let attempts = attempts(&server, &end).await;
        assert_eq!(attempts[0]["output"]["errCode"], "BOOT_FAIL", "{attempts:?}");
    }
    server.key = admin;
    let own =
        json!({"runKey": "the admin's own, since an equal start would be the submitter's run"});
    let end = ran(&server, recipe, json!({"dir": outside}), own).await;
    assert_eq!(end["status"], "succeeded", "the host's own admin may: {end}");
}
