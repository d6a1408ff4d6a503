//! The operator's least isolation class: one recipe unchanged over what the installation says, refused where no worker can, and on
//! record as it was asked for and as it was.

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, Server, row_counts, text};
use serde_json::{Value, json};

use crate::support::{assert_proven, texts};

const RECIPE: &str = "id: plain\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {run: \"uname -r\", timeout: 120s}\n";
const GATED: &str = "id: gated\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks:\n    - name: t\n      exec: {run: \"true\", timeout: 30s}\n";

async fn put(up: &Server, key: &str, name: &str, value: Value, scope: &str) -> (u16, Value) {
    let (_, now) = up.get_as(key, &format!("/api/config/{name}")).await;
    let version = if scope == "global" { &now["globalVersion"] } else { &now["tenantVersion"] };
    let body = json!({"value": value, "expectedVersion": version, "scope": scope});
    let body = Some(body.to_string().into_bytes());
    up.request("PUT", &format!("/api/config/{name}"), Some(key), body).await
}

async fn set(up: &Server, name: &str, value: Value) {
    let (status, answer) = put(up, &up.key, name, value, "global").await;
    assert_eq!(status, 200, "{answer}");
}

async fn key(up: &Server, tenant: &str, roles: &[&str]) -> String {
    up.new_key(&json!({"tenant": tenant, "roles": roles})).await.1
}

/// One recipe, as it lies there, under each class that this host has.
#[tokio::test(flavor = "multi_thread")]
async fn one_recipe_unchanged_runs_in_each_class_that_the_installation_sets() {
    let home = Home::new();
    let up = home.up();
    let doctor = home.run_json(&["doctor", "--json"]);
    let sql = up.sql().await;
    let mut version = 0;
    for class in ["container", "gvisor", "microvm"] {
        if doctor["classes"][class] != true {
            not_run(&format!("the class {class}"), &doctor["classNotes"][class].to_string());
            continue;
        }
        set(&up, "isolation.class_min", json!(class)).await;
        version += 1;
        let run = up.run_recipe(RECIPE, json!({}), json!({"runKey": class})).await;
        let id = text(&run, "runId");
        let header = up.wait_terminal(&id).await;
        assert_eq!(header["status"], "succeeded", "{class}: {header}");
        let asked_and_was = format!(
            "SELECT concat_ws(' ', x.request #>> '{{sandbox,spec,isolation,class_min}}', x.effective ->> 'isolationClass', s.class, s.attestation ->> 'hardwareIsolation')
               FROM app.sbx_runs x JOIN app.remote_execution_sessions s USING (task_key) WHERE x.run_id = '{id}'"
        );
        let found = texts(&sql, &asked_and_was).await.remove(0);
        let hardware = doctor["hardwareIsolation"][class].as_str().unwrap();
        let wanted = match class {
            // A request that accepts the weakest class stays as it was written.
            "container" => format!("{class} {class} {hardware}"),
            _ => format!("{class} {class} {class} {hardware}"),
        };
        assert_eq!(found, wanted, "asked for, effective, session, hardware");
        assert!(class == "microvm" || hardware == "no", "{class}: {hardware}");
        let card = format!(
            "SELECT inline FROM app.artifacts WHERE run_id = '{id}' AND kind = 'plan_card'"
        );
        let card: Value = serde_json::from_str(&texts(&sql, &card).await.remove(0)).unwrap();
        let by = json!({"key": "isolation.class_min", "scope": "global", "version": version});
        assert!(card["config"].as_array().unwrap().contains(&by), "{card}");
    }
    assert_proven(&home);
}

#[tokio::test]
async fn what_no_worker_can_give_is_refused_before_anything_is_written_and_for_its_tenant_alone() {
    let home = Home::new();
    let up = home.up_with(&["--allow-dir", "/usr/share"], &[]);
    let acme = key(&up, "acme", &["submitter", "approver"]).await;
    let sql = up.sql().await;
    // No worker of this installation holds sandboxes elsewhere.
    set(&up, "isolation.tenants", json!({"acme": "remote"})).await;
    let (status, imported) =
        up.post_as(&acme, "/api/recipes/import", &json!({"yaml": RECIPE})).await;
    assert_eq!(status, 201, "{imported}");
    let before = row_counts(&sql).await;
    let run = json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {}});
    let dispatch = json!({"agent_type": "command", "prompt": "true\n", "project_dir": "/usr/share",
        "sandbox": "read-only"});
    for (path, body) in [
        ("/api/run", run),
        ("/api/dispatches", dispatch),
        ("/api/sandboxes", json!({"template": "base"})),
    ] {
        let (status, answer) = up.post_as(&acme, path, &body).await;
        assert_eq!(
            (status, &answer["code"]),
            (400, &json!("policy_violation")),
            "{path}: {answer}"
        );
        let details = &answer["details"];
        assert_eq!(
            (&details["metric"], &details["limit"]),
            (&json!("isolation.class_min"), &json!("remote"))
        );
        assert_eq!(details["setBy"]["key"], "isolation.tenants", "{answer}");
        let words = answer["error"].to_string();
        assert!(words.contains("doctor") && words.contains("remote"), "what to do: {words}");
    }
    assert_eq!(row_counts(&sql).await, before);
    // Another tenant is not bound, and is not told of it.
    let other = key(&up, "other", &["submitter", "auditor"]).await;
    let (status, started) = up.start_recipe_as(&other, RECIPE, json!({}), json!({})).await;
    assert_eq!(status, 201, "{started}");
    let (_, seen) = up.get_as(&other, "/api/config/isolation.tenants").await;
    assert_eq!(seen["value"], json!({}), "{seen}");
    let (_, own) =
        up.get_as(&key(&up, "acme", &["auditor"]).await, "/api/config/isolation.tenants").await;
    assert_eq!(own["value"], json!({"acme": "remote"}), "{own}");
}

#[tokio::test]
async fn a_tenant_raises_its_own_class_and_lowers_none() {
    let home = Home::new();
    let up = home.up();
    set(&up, "isolation.class_min", json!("gvisor")).await;
    let admin = key(&up, "acme", &["admin"]).await;
    let operator = key(&up, "acme", &["operator"]).await;
    let name = "isolation.class_min";
    let (status, answer) = put(&up, &operator, name, json!("microvm"), "tenant").await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    let (status, answer) = put(&up, &admin, name, json!("container"), "tenant").await;
    assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
    assert_eq!(answer["details"]["limit"], "gvisor", "{answer}");
    for bad in [json!("firecracker"), json!(3), json!({"acme": "gvisor"})] {
        assert_eq!(put(&up, &admin, name, bad, "tenant").await.0, 400);
    }
    let (status, answer) = put(&up, &admin, "isolation.tenants", json!({}), "tenant").await;
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    let (status, answer) = put(&up, &admin, name, json!("microvm"), "tenant").await;
    assert_eq!((status, &answer["value"]), (200, &json!("microvm")), "{answer}");
}

/// What was planned and approved for a class that is no longer enough is not run, and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_is_raised_before_a_task_is_claimed_refuses_it_there() {
    let home = Home::new();
    let up = home.up();
    let run = up.run_recipe(GATED, json!({}), json!({})).await;
    let id = text(&run, "runId");
    up.wait_for(&id, "waiting", |header| header["status"] == "waiting_input").await;
    set(&up, "isolation.class_min", json!("remote")).await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, answer) =
        up.post(&format!("/api/runs/{id}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200, "{answer}");
    let header = up.wait_terminal(&id).await;
    assert_eq!(header["status"], "failed", "{header}");
    let sql = up.sql().await;
    let cause = format!(
        "SELECT err_code || ' ' || (response ->> 'cause') FROM app.sbx_runs WHERE run_id = '{id}'"
    );
    let cause = texts(&sql, &cause).await.remove(0);
    for words in [
        "BOOT_FAIL",
        "policy_violation",
        "isolation.class_min of the host, version 1",
        "fork it from step 0",
    ] {
        assert!(cause.contains(words), "{cause}");
    }
    assert_proven(&home);
}

#[tokio::test]
async fn doctor_attestation_and_plan_say_what_is_not_hardware_isolation() {
    let home = Home::new();
    let up = home.up();
    let doctor = home.run_json(&["doctor", "--json"]);
    assert_eq!(doctor["hardwareIsolation"]["container"], "no", "{doctor}");
    let words = String::from_utf8(home.run(&["doctor"]).stdout).unwrap();
    assert!(words.contains("not hardware isolation"), "{words}");
    let run = up.run_recipe(GATED, json!({}), json!({})).await;
    let id = text(&run, "runId");
    up.wait_for(&id, "waiting", |header| header["status"] == "waiting_input").await;
    let shown = String::from_utf8(home.run(&["gate", "show", &id]).stdout).unwrap();
    assert!(shown.contains("isolation container or stronger: shares the host's kernel, which is not hardware isolation"), "{shown}");
}
