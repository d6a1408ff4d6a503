//! What a task does to its run: how it fails, what goes in and comes out, what it may use and see.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use crate::http::calls::{artifacts, attempts, fetched, list, ran, raw};
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

/// Id, task, status, error code, attempts, and what the cause names.
type Failing<'a> = (&'a str, &'a str, &'a str, &'a str, i64, &'a str);

fn failing() -> [Failing<'static>; 7] {
    [
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
            "services",
            "{name: t, exec: {run: 'true'}, services: [oracle]}",
            "failed",
            "BOOT_FAIL",
            1,
            "spec.services",
        ),
        (
            "isolation",
            "{name: t, exec: {run: 'true'}, isolation: {class_min: remote}}",
            "failed",
            "BOOT_FAIL",
            1,
            "spec.isolation.class_min",
        ),
        (
            "image",
            "{name: t, image: 'oci:debian', exec: {run: 'true'}}",
            "failed",
            "BOOT_FAIL",
            1,
            "envRef",
        ),
    ]
}

#[tokio::test]
async fn every_way_to_fail_has_its_code_and_says_why() {
    let home = Home::new();
    let server = home.up();
    let recipe =
        |id: &str, task: &str| format!("id: {id}\nv: '1'\nplan:\n  tasks:\n    - {task}\n");
    let cases = failing();
    let mut runs = Vec::new();
    for (id, task, ..) in &cases {
        runs.push(server.run_recipe(&recipe(id, task), json!({}), json!({})).await);
    }
    for (case, run) in cases.iter().zip(&runs) {
        failed(&server, case, run).await;
    }
    let report = fetched(&server, "/api/proofs").await;
    assert_eq!(report["verdict"], "GO", "failures are in order too: {report}");
}

async fn failed(server: &Server, case: &Failing<'_>, run: &Value) {
    let (id, _, status, code, count, cause) = *case;
    let end = server.wait_terminal(&text(run, "runId")).await;
    assert_eq!(end["status"], status, "{id}: {end}");
    assert_eq!(
        (&end["nextAction"], &end["durableStatus"]),
        (&json!("REPAIR"), &json!("ERROR")),
        "{id}: {end}"
    );
    assert!(text(&end, "error").contains(code), "{id}: {end}");
    let attempts = attempts(server, &end).await;
    let numbers: Vec<i64> = attempts.iter().map(|a| a["attempt"].as_i64().unwrap()).collect();
    assert_eq!(
        numbers,
        (1..=count).collect::<Vec<i64>>(),
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
    let wipes = fetched(server, &format!("/api/runs/{}/wipes", text(run, "runId"))).await;
    assert_eq!(list(&wipes).len(), attempts.len(), "{id}: {wipes}");
    assert!(
        list(&wipes).iter().all(|w| w["status"] == "verified" && w["terminalState"] == "FAILED"),
        "{id}: {wipes}"
    );
    if id == "exit" {
        assert_eq!(attempt_exit(&attempts), 7);
        let out =
            artifacts(server, &end).await.into_iter().find(|a| a["kind"] == "stdout").unwrap();
        let path = format!("/api/artifacts/{}", text(&out, "uri"));
        assert_eq!(
            raw(server, &path, &server.key, None).await.1,
            b"before\n",
            "a failure keeps what it said"
        );
    }
}

/// Before a person could be asked to approve it.
#[tokio::test]
async fn a_bad_name_is_refused_at_import_submission_config_and_dispatch_by_its_field() {
    let home = Home::new();
    let server = home.up();
    let recipe = |name: &str| {
        format!(
            "id: bad\nv: '1'\nplan:\n  gate: approve-plan\n  tasks:\n    - {{name: t, exec: {{run: 'true', egress: ['{name}']}}}}\n"
        )
    };
    for name in ["*.example.org", "127.1", "a..b", "example", "@maven"] {
        let yaml = recipe(name);
        let body = json!({"yaml": yaml, "origin": "bad.yaml"});
        let (status, refused) = server.post("/api/recipes/import", &body).await;
        assert_eq!((status, &refused["code"]), (400, &json!("recipe_invalid")), "{refused}");
        let said = text(&refused, "error");
        assert!(said.starts_with("bad.yaml:6:"), "{said}");
        assert!(said.contains("plan.tasks[0].exec.egress[0]: "), "{said}");
        assert!(said.contains(&format!("{name:?}")), "{said}");
        let config = json!({"value": [name], "expectedVersion": 0});
        let bytes = config.to_string().into_bytes();
        let path = "/api/config/egress.exec.allowed";
        let (status, refused) = server.request("PUT", path, Some(&server.key), Some(bytes)).await;
        assert_eq!((status, &refused["code"]), (400, &json!("schema_violation")), "{refused}");
        assert_eq!(refused["details"][0]["instancePath"], "/value/0", "{refused}");
        let spawn = json!({
            "agent_type": "command", "prompt": "true\n", "project_dir": "/tmp",
            "sandbox_spec": {"phases": {"exec": {"egress": [name]}}},
        });
        let (status, refused) = server.post("/api/dispatches", &spawn).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused.to_string().contains("egress"), "{refused}");
        assert!(text(&refused, "error").contains(name), "{refused}");
    }
    assert_eq!(fetched(&server, "/api/recipes").await, json!([]), "nothing was written");
    assert_eq!(fetched(&server, "/api/hitl/inbox").await, json!([]), "and no one is asked");
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
    let boot =
        "id: boot\nv: '1'\nplan: {tasks: [{name: t, exec: {run: 'true'}, services: [oracle]}]}\n";
    let end = ran(&server, boot, json!({}), json!({"budget": {"maxRetriesPerStep": 0}})).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert_eq!(attempts(&server, &end).await.len(), 1, "no retries means one attempt");
}

/// No run is made of what the caller may not be given.
async fn refused(server: &Server, recipe: &str, dir: &str) {
    let key = server.key.clone();
    let (status, answer) =
        server.start_recipe_as(&key, recipe, json!({"dir": dir}), json!({})).await;
    assert_eq!((status, &answer["code"]), (400, &json!("recipe_invalid")), "{dir}: {answer}");
    assert!(text(&answer, "error").contains("not within"), "{dir}: {answer}");
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
    let acme = server.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await.1;
    let roles = json!(["submitter", "auditor", "operator"]);
    let submitter = server.new_key(&json!({"tenant": "default", "roles": roles})).await.1;
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
            refused(&server, recipe, dir).await;
        }
        let seen = ran(&server, listing, json!({"dir": inside}), json!({})).await;
        assert_eq!(seen["status"], "succeeded", "{seen}");
        for dir in [&outside, &format!("{inside}/way-out"), &"/etc".to_owned()] {
            let end = ran(&server, listing, json!({"dir": dir}), json!({})).await;
            assert_eq!(end["status"], "failed", "names are content too: {end}");
            let steps = fetched(&server, &format!("/api/runs/{}/steps", text(&end, "runId"))).await;
            assert!(!steps.to_string().contains("top-secret-name"), "{steps}");
        }
        refused(&server, image, &outside).await;
    }
    server.key = admin;
    let own =
        json!({"runKey": "the admin's own, since an equal start would be the submitter's run"});
    let end = ran(&server, recipe, json!({"dir": outside}), own).await;
    assert_eq!(end["status"], "succeeded", "the host's own admin may: {end}");
}
