//! Runs as clients start them: what each answer says, when a start is a replay, and what a run left.

use std::collections::BTreeSet;

use crate::http::calls::{artifacts, attempts, fetched, import, intent, list, raw, sha256};
use cofferdam_tests::{Home, Server, text};
use futures_util::future::join_all;
use serde_json::{Value, json};

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

    let task = steps_of(&server, &run).await;
    let of_task = artifacts_of(&server, &header, &task).await;
    index_of(&server, &of_task, &task).await;
    records_of(&server, &run, &header).await;
    streams_of(&server, &run, &task).await;
}

/// The steps are all there; the task's key.
async fn steps_of(server: &Server, run: &str) -> String {
    let steps = fetched(server, &format!("/api/runs/{run}/steps")).await;
    let named: Vec<&str> = list(&steps).iter().map(|s| s["stepId"].as_str().unwrap()).collect();
    assert_eq!(
        named.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&"CompileST", &"ExecuteST", &"ExecuteST:shell"])
    );
    assert!(list(&steps).iter().all(|s| s["status"] == "ok" && s["attempt"] == 1), "{steps}");
    list(&steps).iter().find_map(|s| s["taskKey"].as_str()).unwrap().to_owned()
}

/// Each artifact is what its digest says; those of the task.
async fn artifacts_of(server: &Server, header: &Value, task: &str) -> Vec<Value> {
    let run = text(header, "runId");
    let artifacts = artifacts(server, header).await;
    let of_task: Vec<Value> =
        artifacts.iter().filter(|a| a["taskKey"] == json!(task)).cloned().collect();
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
            raw(server, &format!("/api/artifacts/{uri}"), &server.key, None).await;
        assert_eq!((status, tag.as_str()), (200, format!("\"{sha}\"").as_str()), "{uri}");
        assert_eq!(sha256(&bytes), sha, "{uri}");
        assert_eq!(json!(bytes.len()), artifact["size"], "{uri}");
        ranges_of(server, &uri, &bytes).await;
        let known = Some(("if-none-match", tag.as_str()));
        let (status, bytes, ..) =
            raw(server, &format!("/api/artifacts/{uri}"), &server.key, known).await;
        assert_eq!((status, bytes.len()), (304, 0), "{uri}");
        let other = Some(("if-none-match", "\"0\""));
        assert_eq!(raw(server, &format!("/api/artifacts/{uri}"), &server.key, other).await.0, 200);
    }
    of_task
}

/// One range of an artifact, as a tail or a download that broke off asks for it.
async fn ranges_of(server: &Server, uri: &str, whole: &[u8]) {
    let path = format!("/api/artifacts/{uri}");
    let get = async |range: &str| raw(server, &path, &server.key, Some(("range", range))).await;
    let size = whole.len();
    if size > 2 {
        for (range, from, to) in [
            ("bytes=-2".to_owned(), size - 2, size),
            ("bytes=1-1".to_owned(), 1, 2),
            (format!("bytes={}-", size - 1), size - 1, size),
            (format!("bytes=0-{}", size + 9), 0, size),
        ] {
            let (status, bytes, tag, _) = get(&range).await;
            assert_eq!((status, bytes.as_slice()), (206, &whole[from..to]), "{uri}: {range}");
            assert!(tag.contains(&sha256(whole)), "the tag is of all: {tag}");
        }
        let (status, bytes, ..) = get("bytes=0-0,2-2").await;
        assert_eq!((status, bytes.as_slice()), (200, whole), "{uri}: several ranges");
    }
    let (status, refused, ..) = get(&format!("bytes={size}-")).await;
    let refused: Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!(
        (status, &refused["code"], &refused["details"]["size"]),
        (416, &json!("range_not_satisfiable"), &json!(size)),
        "{uri}: {refused}"
    );
}

/// The task's index lists exactly what is stored, in order.
async fn index_of(server: &Server, of_task: &[Value], task: &str) {
    let index = of_task.iter().find(|a| a["idx"] == 0).unwrap();
    assert_eq!(
        (index["kind"].as_str(), index["name"].as_str()),
        (Some("artifact_index"), Some("index.json"))
    );
    let index = fetched(server, &format!("/api/artifacts/{}", text(index, "uri"))).await;
    assert_eq!(
        (text(&index, "taskKey"), text(&index, "provider")),
        (task.to_owned(), "container".into())
    );
    assert!(
        index["createdAt"].is_i64() && index["rawRef"].as_str().unwrap().ends_with("/raw.json"),
        "{index}"
    );
    let listed: Vec<(&Value, &Value, &Value)> =
        list(&index["items"]).iter().map(|i| (&i["kind"], &i["uri"], &i["sha256"])).collect();
    let mut stored: Vec<&Value> = of_task.iter().filter(|a| a["idx"] != 0).collect();
    stored.sort_by_key(|a| a["idx"].as_i64());
    let stored: Vec<(&Value, &Value, &Value)> =
        stored.iter().map(|a| (&a["kind"], &a["uri"], &a["sha256"])).collect();
    assert_eq!(listed, stored, "the index lists exactly what is stored, in order");
}

/// What else stands on record: the wipe, no gate, what it takes to repeat the run, and the proofs.
async fn records_of(server: &Server, run: &str, header: &Value) {
    let wipes = fetched(server, &format!("/api/runs/{run}/wipes")).await;
    assert_eq!(list(&wipes).len(), 1);
    assert_eq!(
        (&wipes[0]["status"], &wipes[0]["terminalState"]),
        (&json!("verified"), &json!("COMPLETED"))
    );
    assert_eq!(fetched(server, &format!("/api/runs/{run}/gates")).await, json!([]));
    assert_eq!(fetched(server, &format!("/api/runs/{run}/interactions")).await, json!([]));
    let repro = fetched(server, &format!("/api/runs/{run}/repro")).await;
    assert_eq!((&repro["runId"], &repro["recipeHash"]), (&header["runId"], &header["recipeHash"]));
    assert_eq!(repro["formData"]["cmd"], "echo out; echo err >&2; echo more");
    assert_eq!(text(&repro, "planDigest").len(), 64);
    for path in [format!("/api/runs/{run}/proofs"), "/api/proofs".to_owned()] {
        let report = fetched(server, &path).await;
        assert_eq!(report["verdict"], "GO", "{report}");
        assert!(list(&report["proofs"]).len() >= 20, "{report}");
    }
}

/// The output of the task and the statuses of the run, by lines and by events.
async fn streams_of(server: &Server, run: &str, task: &str) {
    let lines = |bytes: Vec<u8>| -> Vec<Value> {
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    };
    for (stream, want) in [("stdout", "out\nmore\n"), ("stderr", "err\n")] {
        let path = format!("/api/runs/{task}/stream/{stream}");
        let (status, bytes, _, kind) = raw(server, &path, &server.key, None).await;
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
            raw(server, &path, &server.key, Some(("accept", "text/event-stream"))).await;
        assert_eq!(kind, "text/event-stream");
        let events = String::from_utf8(bytes).unwrap();
        assert!(events.starts_with("id: 0\ndata: {") && events.ends_with("\n\n"), "{events:?}");
        let (_, rest, ..) = raw(server, &format!("{path}?from=1000"), &server.key, None).await;
        assert!(rest.is_empty());
    }
    let (_, bytes, ..) =
        raw(server, &format!("/api/runs/{run}/stream/status"), &server.key, None).await;
    let statuses: Vec<String> = lines(bytes).iter().map(|l| text(l, "status")).collect();
    assert_eq!(statuses, ["queued", "running", "succeeded"]);
    let (_, bytes, ..) =
        raw(server, &format!("/api/runs/{run}/stream/status?follow=true"), &server.key, None).await;
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

#[tokio::test]
async fn a_deduplication_id_holds_while_its_run_is_live_and_only_in_its_tenant() {
    const WAIT: &str =
        "id: wait\nv: '1'\nplan: {gate: approve-plan, tasks: [{name: t, value: x}]}\n";
    let home = Home::new();
    let mut server = home.up();
    let other = server.new_key(&json!({"tenant": "other", "roles": ["admin"]})).await.1;
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
