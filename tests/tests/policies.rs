//! What a run's sandboxes may reach is on record before the first of them exists, with whose consent.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, row_counts, tamper};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use support::{assert_proven, count, hold_claims, names, postmaster, signal, until};

fn recipe(id: &str, gate: &str, egress: &str) -> String {
    format!(
        "id: {id}\nv: \"1\"\nplan:\n{gate}  tasks:\n    - name: t\n      build: {{run: 'true', egress: [b.example, '@pip']}}\n      \
         exec: {{run: 'echo ran', egress: {egress}, timeout: 30s}}\n    - {{name: plain, exec: {{run: 'true', timeout: 30s}}}}\n"
    )
}

/// The operator lets the tenant `acme` use a mirror.
async fn mirrors(up: &Server, version: u32, list: Value) {
    let body = json!({"value": {"acme": list}, "expectedVersion": version, "scope": "global"});
    let (path, body) = ("/api/config/egress.mirrors", Some(body.to_string().into_bytes()));
    let (status, answer) = up.request("PUT", path, Some(&up.key), body).await;
    assert_eq!(status, 200, "{answer}");
}

/// A caller of the tenant `acme`, who is nobody's host admin.
struct Caller<'a> {
    up: &'a Server,
    key: String,
}

impl<'a> Caller<'a> {
    async fn new(up: &'a Server, roles: &[&str]) -> Self {
        Self { up, key: up.new_key(&json!({"tenant": "acme", "roles": roles})).await.1 }
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.up.post_as(&self.key, path, &body).await
    }

    async fn get(&self, path: &str) -> Value {
        self.up.get_as(&self.key, path).await.1
    }

    async fn run(&self, yaml: &str) -> (u16, Value) {
        self.up.start_recipe_as(&self.key, yaml, json!({}), json!({})).await
    }

    async fn succeeded(&self, run: &str) {
        let path = format!("/api/runs/{run}");
        until("the run has ended", Duration::from_secs(60), async || {
            let header = self.get(&path).await;
            assert!(
                !["failed", "retries_exceeded"].contains(&header["status"].as_str().unwrap_or("")),
                "{header}"
            );
            header["status"] == "succeeded" && header["durableStatus"] == "SUCCESS"
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_while_a_task_runs_are_refused_by_their_field_without_consent() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let acme = Caller::new(&up, &["submitter"]).await;
    mirrors(&up, 0, json!(["@pip"])).await;
    list(&sql, "egress.build.allowed", 1, &json!(["b.example"])).await;
    let named = recipe("named", "", "[a.example]");
    let (_, imported) = acme.post("/api/recipes/import", json!({"yaml": named})).await;
    let intent = json!({"goal": "g", "inputs": {}});
    let (_, intent) = acme.post("/api/intents", intent).await;
    let before = row_counts(&sql).await;
    for (path, body) in [
        ("/api/run", json!({"recipeRef": imported["recipeRef"], "formData": {}})),
        (
            "/api/runs",
            json!({"intentId": intent["intentId"], "recipeName": "named", "recipeVersion": "1"}),
        ),
    ] {
        let (status, refused) = acme.post(path, body).await;
        assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
        assert_eq!(
            refused["details"],
            json!({"field": "plan.tasks[0].exec.egress", "name": "a.example"})
        );
        assert!(refused["error"].as_str().unwrap().contains("plan.gate"), "{refused}");
    }
    assert_eq!(row_counts(&sql).await, before, "a refusal writes nothing");
    // Another list of the organisation's, and another tenant's, are no consent either.
    let refuses = async |names: &str| {
        let (status, refused) = acme.run(&named).await;
        assert_eq!(
            (status, &refused["code"]),
            (400, &json!("policy_violation")),
            "{names}: {refused}"
        );
    };
    for (version, names) in [(1, json!([])), (2, json!(["b.example"])), (3, json!(["aa.example"]))]
    {
        org(&sql, version, &names).await;
        refuses(&names.to_string()).await;
    }
    org(&sql, 4, &json!(["a.example", "c.example"])).await;
    let (status, header) = acme.run(&named).await;
    assert_eq!(status, 201, "{header}");
    let run = header["runId"].as_str().unwrap();
    acme.succeeded(run).await;
    let egress = acme.get(&format!("/api/runs/{run}/egress")).await;
    let by = |n: usize| {
        (
            egress[n]["source"].clone(),
            egress[n]["policyVersion"].clone(),
            egress[n]["approver"].clone(),
        )
    };
    assert_eq!(by(0), (json!("org-policy"), json!(1), json!("sec")));
    assert_eq!(by(1), (json!("org-policy"), json!(4), json!("sec")));
    assert_eq!(egress[0]["policy"], json!([["b.example", "@pip"], "none"]), "mirrors by name");
    assert_eq!(egress[1]["policy"], json!([["a.example"], "none"]));
    // What is withdrawn is no consent for the next run.
    org(&sql, 5, &json!([])).await;
    let (status, _) = acme
        .post(
            "/api/run",
            json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {"runKey": "2"}}),
        )
        .await;
    assert_eq!(status, 400);
    assert_proven(&home);
}

async fn org(sql: &sqlx::PgPool, version: i32, names: &Value) {
    list(sql, "egress.exec.allowed", version, names).await;
}

async fn list(sql: &sqlx::PgPool, key: &str, version: i32, names: &Value) {
    sqlx::query(
        "INSERT INTO app.dynamic_config (key, version, value, actor) VALUES ($1, $2, $3, 'sec')",
    )
    .bind(key)
    .bind(version)
    .bind(names)
    .execute(sql)
    .await
    .unwrap();
}

/// H3: a command that is moved to the build phase, where the task's files are, needs the same consent.
#[tokio::test(flavor = "multi_thread")]
async fn h3_names_of_the_build_phase_are_refused_by_their_field_without_consent() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let acme = Caller::new(&up, &["submitter", "approver"]).await;
    mirrors(&up, 0, json!(["@pip"])).await;
    let built = |id: &str, gate: &str| recipe(id, gate, "none");
    // A gate that its recipe answers is nobody's consent, and a list of the other phase is none.
    org(&sql, 1, &json!(["b.example"])).await;
    let silent = "  gate: {key: approve-plan, deadline: 1s, on_timeout: {then: approve}}\n";
    for (id, gate) in [("built", ""), ("silent", silent)] {
        let before = row_counts(&sql).await;
        let (status, refused) = acme.run(&built(id, gate)).await;
        assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
        let field = json!({"field": "plan.tasks[0].build.egress", "name": "b.example"});
        assert_eq!(refused["details"], field);
        assert!(refused["error"].as_str().unwrap().contains("egress.build.allowed"), "{refused}");
        let after = row_counts(&sql).await;
        let written = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert_eq!(written, 3, "the recipe, its version and the audit of both alone");
    }
    list(&sql, "egress.build.allowed", 1, &json!(["b.example"])).await;
    let (status, header) = acme.run(&built("listed", "")).await;
    assert_eq!(status, 201, "{header}");
    let run = header["runId"].as_str().unwrap();
    acme.succeeded(run).await;
    let egress = acme.get(&format!("/api/runs/{run}/egress")).await;
    assert_eq!(egress[0]["policyKey"], "egress.build.allowed", "{egress}");
    // What is withdrawn between a silent gate's question and its answer is no consent either.
    let (status, header) = acme.run(&built("withdrawn", silent)).await;
    assert_eq!(status, 201, "{header}");
    list(&sql, "egress.build.allowed", 2, &json!([])).await;
    let run = header["runId"].as_str().unwrap();
    let path = format!("/api/runs/{run}");
    until("it is refused", Duration::from_secs(60), async || {
        acme.get(&path).await["status"] == "failed"
    })
    .await;
    let error = acme.get(&path).await["error"].to_string();
    assert!(error.contains("build.egress: ") && error.contains("needs consent"), "{error}");
    assert_eq!(
        count(&sql, &format!("SELECT count(*) FROM app.sbx_runs WHERE run_id = '{run}'")).await,
        0
    );
    assert_proven(&home);
}

/// H4: a mirror is the host's own credentials, which no tenant's approver gives away.
#[tokio::test(flavor = "multi_thread")]
async fn h4_a_mirror_is_refused_to_a_tenant_without_the_operators_grant() {
    let home = Home::new();
    let up = home.up();
    let acme = Caller::new(&up, &["submitter", "approver"]).await;
    let yaml = |id: &str, gate: &str, phase: &str| {
        let lists = [("build", "run: 'true'"), ("exec", "run: 'true', timeout: 30s")];
        let lists = lists.map(|(name, run)| {
            let egress = if name == phase { "['@npm', '@pip']" } else { "none" };
            format!("{name}: {{{run}, egress: {egress}}}")
        });
        format!("id: {id}\nv: \"1\"\nplan:\n{gate}  tasks: [{{name: t, {}}}]\n", lists.join(", "))
    };
    let gate = "  gate: approve-plan\n";
    mirrors(&up, 0, json!(["@npm"])).await;
    for (id, gate, phase) in [("a", "", "build"), ("b", gate, "build"), ("c", gate, "exec")] {
        let (status, refused) = acme.run(&yaml(id, gate, phase)).await;
        assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
        let field = json!({"field": format!("plan.tasks[0].{phase}.egress"), "name": "@pip"});
        assert_eq!(refused["details"], field);
        assert!(refused["error"].as_str().unwrap().contains("egress.mirrors"), "{refused}");
    }
    // Taken back between the question and the answer.
    mirrors(&up, 1, json!(["@npm", "@pip"])).await;
    let (status, header) = acme.run(&yaml("d", gate, "build")).await;
    assert_eq!(status, 201, "{header}");
    let run = header["runId"].as_str().unwrap();
    let path = format!("/api/runs/{run}");
    until("it waits", Duration::from_secs(60), async || {
        acme.get(&path).await["status"] == "waiting_input"
    })
    .await;
    mirrors(&up, 2, json!([])).await;
    let yes = json!({"approvedBy": "ada"});
    assert_eq!(acme.post(&format!("{path}/approve-plan"), yes).await.0, 202);
    until("it is refused", Duration::from_secs(60), async || {
        acme.get(&path).await["status"] == "failed"
    })
    .await;
    let error = acme.get(&path).await["error"].to_string();
    assert!(error.contains("egress.mirrors"), "{error}");
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_runs").await, 0);
    // A submitter of the host's own tenant needs no grant.
    let local = up.new_key(&json!({"roles": ["submitter"]})).await.1;
    let (status, header) =
        up.start_recipe_as(&local, &yaml("e", gate, "build"), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gates_approver_and_the_hosts_admin_stand_on_record_for_the_names_they_let_be() {
    let home = Home::new();
    let up = home.up();
    let acme = Caller::new(&up, &["submitter", "approver"]).await;
    mirrors(&up, 0, json!(["@pip"])).await;
    let (status, header) =
        acme.run(&recipe("gated", "  gate: approve-plan\n", "[a.example]")).await;
    assert_eq!(status, 201, "{header}");
    let run = header["runId"].as_str().unwrap();
    until("it waits", Duration::from_secs(60), async || {
        acme.get(&format!("/api/runs/{run}")).await["status"] == "waiting_input"
    })
    .await;
    assert_eq!(
        acme.get(&format!("/api/runs/{run}/egress")).await,
        json!([]),
        "nothing is let be yet"
    );
    let (status, said) =
        acme.post(&format!("/api/runs/{run}/approve-plan"), json!({"approvedBy": "ada"})).await;
    assert_eq!(status, 202, "{said}");
    acme.succeeded(run).await;
    let egress = acme.get(&format!("/api/runs/{run}/egress")).await;
    for n in [0, 1] {
        assert_eq!(egress[n]["approver"], "ada", "{egress}");
    }
    assert_eq!((&egress[0]["source"], &egress[1]["source"]), (&json!("gate"), &json!("gate")));

    let exec = home.run_json(&["exec", "--egress", "a.example", "--json", "--", "true"]);
    assert_eq!(exec["status"], "succeeded", "{exec}");
    let exec = home.run_json(&["show", exec["runId"].as_str().unwrap(), "--json"]);
    assert_eq!(exec["egress"][1]["source"], "host-admin");
    assert!(exec["egress"][1]["approver"].as_str().is_some_and(|key| !key.is_empty()), "{exec}");
    let other = Caller { up: &up, key: up.key.clone() };
    assert_eq!(other.get(&format!("/api/runs/{run}/egress")).await["code"], "not_found");
    let sql = up.sql().await;
    for change in [
        "UPDATE app.egress_policy_snapshots SET approver = 'eve'",
        "DELETE FROM app.egress_policy_snapshots",
    ] {
        assert!(sqlx::query(change).execute(&sql).await.is_err(), "{change}");
    }
    assert_proven(&home);
}

/// Between the record and the sandbox somebody changes either: the sandbox is not made.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_policy_is_not_the_one_on_record_fails_to_start_by_its_field() {
    for (change, field) in [
        (
            "UPDATE app.egress_policy_snapshots SET policy = '[\"none\"]', policy_digest = app.policy_digest('[\"none\"]') WHERE phase = 'exec'",
            "net: ",
        ),
        (
            "UPDATE app.egress_policy_snapshots SET policy = policy || '[[\"x.example\"]]' WHERE phase = 'build'",
            "build.net: ",
        ),
        ("DELETE FROM app.egress_policy_snapshots WHERE phase = 'exec'", "net: "),
    ] {
        let home = Home::new();
        let up = home.up();
        let sql = up.sql().await;
        let claims = hold_claims(&sql, "sbxQ").await;
        let yaml = recipe("drift", "", "[a.example]");
        let header =
            up.run_recipe(&yaml, json!({}), json!({"budget": {"maxRetriesPerStep": 0}})).await;
        let run = header["runId"].as_str().unwrap();
        until("its policy is on record", Duration::from_secs(60), async || {
            count(&sql, "SELECT count(*) FROM app.egress_policy_snapshots").await == 2
        })
        .await;
        tamper(&sql, change).await;
        claims.close().await.unwrap();
        let header = up.wait_terminal(run).await;
        assert_eq!(header["status"], "failed", "{header}");
        let error = header["error"].as_str().unwrap();
        assert!(error.contains("BOOT_FAIL") && error.contains(field), "{error}");
        assert_eq!(
            count(
                &sql,
                "SELECT count(*) FROM app.sbx_runs WHERE effective->'net' = '[\"a.example\"]'"
            )
            .await,
            0
        );
    }
}

/// A server that answers every request, counting them.
fn answering() -> (std::net::SocketAddr, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut request = [0; 4096];
            if stream.read(&mut request).unwrap_or(0) > 0 {
                counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
            }
        }
    });
    (address, asked)
}

/// Stops a database's processes, and lets them go on when it is dropped.
struct Silent(Vec<i32>);

impl Silent {
    fn stop(main: i32) -> Self {
        let of_main = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let tail = stat.rsplit_once(')').map(|(_, tail)| tail.to_owned()).unwrap_or_default();
            tail.split_whitespace().nth(1) == Some(main.to_string().as_str())
        };
        let mut all = vec![main];
        all.extend(
            names(std::path::Path::new("/proc"))
                .iter()
                .filter_map(|n| n.parse().ok())
                .filter(of_main),
        );
        all.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
        Self(all)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|pid| signal(*pid, Signal::SIGCONT));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_silent_cuts_a_tasks_names_off_until_it_answers() {
    use std::sync::atomic::Ordering::SeqCst;
    let (address, asked) = answering();
    let home = Home::new();
    let listed = format!("a.example={address}");
    let up =
        Server::start(&home, &["up", "--listen", "127.0.0.1:0", "--egress-host", &listed], &[]);
    let yaml = "id: asks\nv: \"1\"\nplan:\n  tasks:\n    - name: asks\n      exec: {run: \"while [ ! -e /work/never ]; do curl -sS -m 5 -o /dev/null http://a.example/; sleep 0.05; done\", egress: [a.example], timeout: 60s}\n";
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let run = header["runId"].as_str().unwrap();
    let rises = async |what: &str| {
        let seen = asked.load(SeqCst);
        until(what, Duration::from_secs(60), async || asked.load(SeqCst) > seen + 2).await;
    };
    rises("the task asks").await;
    let silent = Silent::stop(postmaster(&home).unwrap());
    until("it asks no more", Duration::from_secs(60), async || {
        let seen = asked.load(SeqCst);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        asked.load(SeqCst) == seen
    })
    .await;
    drop(silent);
    rises("it asks again, confirmed").await;
    let wid = header["workflowID"].as_str().unwrap();
    let (status, body) = up
        .post(&format!("/api/ops/wf/{wid}/cancel"), &json!({"actor": "a", "reason": "enough"}))
        .await;
    assert_eq!(status, 202, "{body}");
    up.wait_for(run, "over", |h| h["status"] == "canceled").await;
    let sql = up.sql().await;
    let refused = "SELECT count(*) FROM app.sbx_runs WHERE response->'violations' @> '[{\"why\": \"lease\", \"phase\": \"exec\"}]'";
    until("the refusals are on record", Duration::from_secs(60), async || {
        count(&sql, refused).await == 1
    })
    .await;
}
