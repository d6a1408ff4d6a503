//! Configuration over HTTP and from the command line: who may write what, that bad input writes
//! nothing, that two writers do not overwrite each other, and that a plan keeps what it was compiled
//! with.

use crate::support;

use cofferdam_tests::{Home, Server, row_counts};
use serde_json::{Value, json};
use support::{Dice, count, said};

const GATED: &str = "
id: tests
v: '1'
plan:
  gate: approve-plan
  tasks:
    - {name: t, profile: python, exec: {run: echo done}}
";

fn value(ms: u64) -> Value {
    json!({"buildTimeoutMs": ms, "execTimeoutMs": ms, "limits": {"memMB": 300}})
}

fn write(value: &Value, expected: i64, scope: &str) -> Value {
    json!({"value": value, "expectedVersion": expected, "scope": scope})
}

async fn put(server: &Server, key: &str, name: &str, body: &Value) -> (u16, Value) {
    let body = Some(body.to_string().into_bytes());
    server.request("PUT", &format!("/api/config/{name}"), Some(key), body).await
}

async fn get(server: &Server, key: &str, name: &str) -> Value {
    let (status, entry) = server.get_as(key, &format!("/api/config/{name}")).await;
    assert_eq!(status, 200, "{entry}");
    entry
}

async fn key(server: &Server, tenant: &str, role: &str) -> String {
    server.new_key(&json!({"tenant": tenant, "roles": [role]})).await.1
}

#[tokio::test]
async fn bad_input_is_refused_by_its_place_and_writes_nothing() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let before = row_counts(&sql).await;
    let good = value(1_000);
    let with = |pointer: &str, field: &str, new: Value| {
        let mut body = write(&good, 0, "tenant");
        body.pointer_mut(pointer).unwrap()[field] = new;
        body
    };
    for (body, place) in [
        (with("/value", "execTimeoutMs", json!(0)), "/value/execTimeoutMs"),
        (with("/value", "execTimeoutMs", json!(86_400_001)), "/value/execTimeoutMs"),
        (with("/value", "execTimeoutMs", json!(1.5)), "/value/execTimeoutMs"),
        (with("/value", "execTimeoutMs", json!("5m")), "/value/execTimeoutMs"),
        (with("/value", "buildTimeoutMs", json!(-1)), "/value/buildTimeoutMs"),
        (with("/value", "surprise", json!(1)), "/value"),
        (with("/value", "limits", json!([])), "/value/limits"),
        (with("/value/limits", "memMB", json!(15)), "/value/limits/memMB"),
        (with("/value/limits", "mem_mb", json!(300)), "/value"),
        (with("/value/limits", "cpu", json!(0)), "/value/limits/cpu"),
        (with("/value/limits", "nofile", json!(63)), "/value/limits/nofile"),
        (with("/value/limits", "outputBytes", json!(8_388_609)), "/value/limits/outputBytes"),
        (with("/value/limits", "disk", json!(1)), "/value/limits"),
        (with("", "value", json!({})), "/value"),
        (with("", "value", json!(7)), "/value"),
        (with("", "expectedVersion", json!(-1)), "/expectedVersion"),
        (with("", "expectedVersion", json!(1_000_001)), "/expectedVersion"),
        (with("", "expectedVersion", json!(0.5)), "/expectedVersion"),
        (with("", "scope", json!("default")), "/scope"),
        (with("", "scope", json!("acme")), "/scope"),
        (with("", "reason", json!("x")), ""),
    ] {
        let (status, answer) = put(&server, &server.key, "profile.python", &body).await;
        assert_eq!((status, &answer["code"]), (400, &json!("schema_violation")), "{body} {answer}");
        assert_eq!(answer["details"][0]["instancePath"], place, "{body} {answer}");
    }
    for name in ["profile", "profile.cobol", "PROFILE.PYTHON", "limits", "queue.sbxQ", "*"] {
        let (status, answer) = put(&server, &server.key, name, &write(&good, 0, "tenant")).await;
        assert_eq!((status, &answer["code"]), (400, &json!("invalid_id")), "{name} {answer}");
        for path in [format!("/api/config/{name}"), format!("/api/config/{name}/history")] {
            assert_eq!(server.get(&path).await.0, 400, "{path}");
        }
    }
    // A profile's value is no ceiling and the other way round.
    let (status, _) = put(&server, &server.key, "limits.ceiling", &write(&good, 0, "tenant")).await;
    assert_eq!(status, 400);
    assert_eq!(row_counts(&sql).await, before);
}

/// Whatever is mutated into a good value is either refused with nothing written, or stands as sent.
#[tokio::test]
async fn a_mutated_value_is_refused_or_stored_whole() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let mut random = Dice::new("a_mutated_value_is_refused_or_stored_whole");
    let numbers = [-1, 0, 1, 16, 63, 64, 1_000_000, 8_388_609, 86_400_001, i64::MAX];
    let fields = ["cpu", "memMB", "pids", "diskMB", "outputBytes", "nofile", "memMb", "\u{e9}"];
    let mut version = 0;
    for _ in 0..150 {
        let mut sent = value(1_000);
        for _ in 0..=random.below(2) {
            let field = fields[usize::try_from(random.below(8)).unwrap()];
            let number = numbers[usize::try_from(random.below(10)).unwrap()];
            sent["limits"][field] = match random.below(5) {
                0 => json!(number.to_string()),
                1 => Value::Null,
                _ => json!(number),
            };
        }
        let rows = "SELECT count(*) FROM app.dynamic_config";
        let before = count(&sql, rows).await;
        let (status, answer) =
            put(&server, &server.key, "profile.c", &write(&sent, version, "tenant")).await;
        let written = count(&sql, rows).await - before;
        match status {
            200 => {
                version += 1;
                let mut kept = sent.clone();
                // A null is a field that is left out.
                kept["limits"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
                if let Some(cpu) = kept["limits"].get("cpu").and_then(Value::as_f64) {
                    kept["limits"]["cpu"] = json!(cpu);
                }
                assert_eq!((written, &answer["value"]), (1, &kept), "{sent}");
            }
            400 => assert_eq!(written, 0, "{sent} {answer}"),
            other => panic!("{other}: {sent} {answer}"),
        }
    }
    assert!(version > 0, "some of them were good");
    assert_eq!(get(&server, &server.key, "profile.c").await["version"], version);
}

#[tokio::test]
async fn a_tenant_overrides_for_itself_and_only_the_hosts_admin_for_everybody() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let mut keys = Vec::new();
    for (tenant, role) in
        [("acme", "operator"), ("acme", "admin"), ("other", "auditor"), ("default", "operator")]
    {
        keys.push(key(&server, tenant, role).await);
    }
    let [operator, admin, other, ours] = keys.try_into().unwrap();
    let name = "profile.node";
    for refused in [&operator, &admin, &ours] {
        let (status, answer) = put(&server, refused, name, &write(&value(9), 0, "global")).await;
        assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    }
    let (status, answer) = put(&server, &other, name, &write(&value(9), 0, "tenant")).await;
    assert_eq!(status, 403, "an auditor reads: {answer}");
    assert_eq!(get(&server, &other, name).await["scope"], "default");
    // The host's, then one tenant's: each tenant sees what is in force for it.
    let (status, _) = put(&server, &server.key, name, &write(&value(5_000), 0, "global")).await;
    assert_eq!(status, 200);
    let (status, mine) = put(&server, &operator, name, &write(&value(7_000), 0, "tenant")).await;
    assert_eq!((status, &mine["scope"], &mine["version"]), (200, &json!("tenant"), &json!(1)));
    let theirs = get(&server, &other, name).await;
    assert_eq!((&theirs["scope"], &theirs["value"]), (&json!("global"), &value(5_000)));
    assert_eq!(theirs["tenantVersion"], 0, "another tenant's is not there: {theirs}");
    // Taken back, it is the host's again; the history keeps both and names only one's own keys.
    let (status, back) = put(&server, &admin, name, &write(&Value::Null, 1, "tenant")).await;
    assert_eq!(
        (status, &back["scope"], &back["tenantVersion"]),
        (200, &json!("global"), &json!(2))
    );
    let path = format!("/api/config/{name}/history");
    let (_, history) = server.get_as(&admin, &path).await;
    let seen: Vec<_> =
        history.as_array().unwrap().iter().map(|v| (&v["scope"], &v["version"])).collect();
    let (tenant, global) = (json!("tenant"), json!("global"));
    assert_eq!(
        seen,
        [(&tenant, &json!(2)), (&tenant, &json!(1)), (&global, &json!(1))],
        "{history}"
    );
    assert_eq!(history[2]["actor"], "host");
    let (_, history) = server.get_as(&other, &path).await;
    assert_eq!(history.as_array().unwrap().len(), 1, "{history}");
    // Every write has its audit row, under the tenant that wrote.
    let audited =
        "SELECT count(*) FROM app.audit WHERE op = 'config.set' AND target = 'profile.node'";
    assert_eq!(count(&sql, audited).await, 3);
    assert_eq!(count(&sql, &format!("{audited} AND tenant_id = 'acme'")).await, 2);
    // Append-only, by trigger.
    for sql_text in
        ["UPDATE app.dynamic_config SET value = 'null'", "DELETE FROM app.dynamic_config"]
    {
        assert!(sqlx::query(sql_text).execute(&sql).await.is_err(), "{sql_text}");
    }
    let (status, all) = server.get_as(&other, "/api/config").await;
    assert_eq!((status, all.as_array().unwrap().len()), (200, 35));
    // What nobody will be asked about is for an admin to say, in exact names.
    let names = |names: Value| write(&names, 0, "tenant");
    let allowed = "egress.exec.allowed";
    let (status, answer) = put(&server, &operator, allowed, &names(json!(["a.example"]))).await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    for bad in [json!("a.example"), json!(["*.example"]), json!(["127.1"]), json!(["a b"])] {
        let (status, answer) = put(&server, &admin, allowed, &names(bad)).await;
        assert_eq!((status, &answer["code"]), (400, &json!("schema_violation")), "{answer}");
    }
    let (status, answer) =
        put(&server, &admin, allowed, &names(json!(["a.example", "@pip"]))).await;
    assert_eq!((status, &answer["scope"]), (200, &json!("tenant")), "{answer}");
}

/// H4: which tenant uses the host's mirrors is for the host's admin to say, and each tenant sees its own.
#[tokio::test]
async fn h4_mirrors_are_granted_by_the_host_alone_and_name_no_tenant_to_another() {
    let home = Home::new();
    let server = home.up();
    let acme = key(&server, "acme", "admin").await;
    let grants = json!({"acme": ["@pip"], "bravo": ["@npm"]});
    let name = "egress.mirrors";
    for scope in ["tenant", "global"] {
        let (status, answer) = put(&server, &acme, name, &write(&grants, 0, scope)).await;
        assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{scope}: {answer}");
    }
    let (status, answer) = put(&server, &server.key, name, &write(&grants, 0, "tenant")).await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    for bad in [json!({"acme": ["@maven"]}), json!({"Acme": ["@pip"]}), json!(["@pip"])] {
        let (status, answer) = put(&server, &server.key, name, &write(&bad, 0, "global")).await;
        assert_eq!((status, &answer["code"]), (400, &json!("schema_violation")), "{answer}");
    }
    let (status, answer) = put(&server, &server.key, name, &write(&grants, 0, "global")).await;
    assert_eq!((status, &answer["value"]), (200, &grants), "{answer}");
    let path = format!("/api/config/{name}");
    let (_, seen) = server.get_as(&acme, &path).await;
    assert_eq!(seen["value"], json!({"acme": ["@pip"]}), "{seen}");
    let (_, history) = server.get_as(&acme, &format!("{path}/history")).await;
    assert!(!history.to_string().contains("bravo"), "{history}");
}

#[tokio::test]
async fn of_writers_at_once_one_wins_and_the_others_are_told_the_version() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let bodies: Vec<Value> = (1..=12).map(|n| write(&value(n), 0, "tenant")).collect();
    let writes = bodies.iter().map(|body| put(&server, &server.key, "profile.java", body));
    let answers = futures_util::future::join_all(writes).await;
    let won: Vec<_> = answers.iter().filter(|(status, _)| *status == 200).collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    for (status, answer) in answers.iter().filter(|(status, _)| *status != 200) {
        assert_eq!((*status, &answer["code"]), (409, &json!("conflict")), "{answer}");
        assert_eq!(answer["details"]["version"], 1, "{answer}");
    }
    let rows = "SELECT count(*) FROM app.dynamic_config";
    let audits = "SELECT count(*) FROM app.audit WHERE op = 'config.set'";
    assert_eq!((count(&sql, rows).await, count(&sql, audits).await), (1, 1));
    // An older and a future version are both not the newest.
    for expected in [0, 2] {
        let body = write(&value(1), expected, "tenant");
        assert_eq!(put(&server, &server.key, "profile.java", &body).await.0, 409);
    }
    assert_eq!(
        put(&server, &server.key, "profile.java", &write(&value(1), 1, "tenant")).await.0,
        200
    );
}

#[tokio::test]
async fn nothing_exceeds_a_ceiling_and_the_refusal_names_who_set_it() {
    let home = Home::new();
    let mut server = home.up();
    let sql = server.sql().await;
    let host = server.key.clone();
    let acme = key(&server, "acme", "admin").await;
    let name = "profile.python";
    assert_eq!(put(&server, &acme, name, &write(&value(50_000), 0, "tenant")).await.0, 200);
    let ceiling = json!({"timeoutMs": 40_000, "limits": {"memMB": 200, "pids": 50}});
    let (status, answer) =
        put(&server, &host, "limits.ceiling", &write(&ceiling, 0, "global")).await;
    assert_eq!(status, 200, "{answer}");
    let before = row_counts(&sql).await;
    // An override above it, and a tenant's own ceiling above the host's.
    let higher = json!({"limits": {"pids": 51}});
    for (name, body, metric) in [
        (name, write(&value(30_000), 1, "tenant"), "limits.memMB"),
        ("limits.ceiling", write(&higher, 0, "tenant"), "limits.pids"),
    ] {
        let (status, answer) = put(&server, &acme, name, &body).await;
        assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
        assert_eq!(answer["details"]["metric"], metric);
        let by = json!({"key": "limits.ceiling", "scope": "global", "version": 1});
        assert_eq!(answer["details"]["setBy"], by, "{answer}");
    }
    // An older override above a newer ceiling is not lowered in silence: it fails closed.
    server.key = acme;
    let (status, imported) = server.post("/api/recipes/import", &json!({"yaml": GATED})).await;
    assert_eq!(status, 201, "{imported}");
    let before_run = row_counts(&sql).await;
    let body = json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {}});
    let (status, answer) = server.post("/api/run", &body).await;
    assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("limits.ceiling of the host, version 1"));
    assert_eq!(row_counts(&sql).await, before_run);
    let changed = before.iter().zip(&before_run).filter(|(a, b)| a != b).count();
    assert_eq!(changed, 3, "the recipe, its version and the record alone");
}

#[tokio::test]
async fn a_plan_keeps_the_version_that_it_was_compiled_with() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let name = "profile.python";
    assert_eq!(put(&server, &server.key, name, &write(&value(61_000), 0, "tenant")).await.0, 200);
    let run = server.run_recipe(GATED, json!({}), json!({"runKey": "a"})).await;
    let id = run["runId"].as_str().unwrap();
    server.wait_for(id, "at its gate", |h| h["status"] == "waiting_input").await;
    // Changed while the plan waits for its approver.
    assert_eq!(put(&server, &server.key, name, &write(&value(62_000), 1, "tenant")).await.0, 200);
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let path = format!("/api/runs/{id}/gates/approve-plan/reply");
    assert_eq!(server.post(&path, &reply).await.0, 200);
    let ended = server.wait_terminal(id).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let (plan, timeout, mem): (String, i64, i64) = sqlx::query_as(
        "SELECT a.inline, (s.effective->>'timeoutMs')::bigint, (s.effective->'limits'->>'memMB')::bigint
           FROM app.artifacts a JOIN app.sbx_runs s USING (run_id)
          WHERE a.run_id = $1 AND a.kind = 'plan_card'",
    )
    .bind(id)
    .fetch_one(&sql)
    .await
    .unwrap();
    assert_eq!((timeout, mem), (61_000, 300));
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["config"], json!([{"key": name, "scope": "tenant", "version": 1}]));
    // The next plan is another.
    let run = server.run_recipe(GATED, json!({}), json!({"runKey": "b"})).await;
    let id = run["runId"].as_str().unwrap();
    server.wait_for(id, "at its gate", |h| h["status"] == "waiting_input").await;
    let digests: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT sha256 FROM app.artifacts WHERE kind = 'plan_card'")
            .fetch_all(&sql)
            .await
            .unwrap();
    assert_eq!(digests.len(), 2, "what is consented to differs");
}

#[test]
fn the_command_line_reads_and_writes_the_same() {
    let home = Home::new();
    let ok = |args: &[&str]| {
        let output = home.run(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = ok(&["config", "ls"]);
    assert!(
        listed.lines().any(|l| l.starts_with("profile.rust") && l.contains("default")),
        "{listed}"
    );
    let text = value(4_000).to_string();
    ok(&["config", "set", "profile.rust", &text]);
    let got: Value = serde_json::from_str(&ok(&["config", "get", "profile.rust"])).unwrap();
    assert_eq!(got, value(4_000));
    let outdated = home.run(&["config", "set", "profile.rust", &text, "--expect", "0"]);
    assert_eq!(outdated.status.code(), Some(1), "{}", said(&outdated));
    ok(&["config", "set", "profile.rust", "null"]);
    let history = ok(&["config", "history", "profile.rust"]);
    assert_eq!(history.lines().count(), 3, "{history}");
    for (args, code) in [
        (["config", "set", "profile.rust", "{"], 3),
        (["config", "set", "profile.rust", "{}"], 2),
        (["config", "set", "profile.cobol", "null"], 2),
    ] {
        let output = home.run(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
    }
}
