//! A proof that cannot fail proves nothing: for every claim a row is tampered with, in a copy of a
//! real ledger, and `cofferdam prove` has to say no and name that claim.

mod cases;

use crate::support;

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Output;
use std::time::Duration;

use cases::{APPLIED, BUILT, CACHED, ERASED, SETTLE, TAMPERINGS, TEMPLATE, Tampering};
use cofferdam_tests::{Home, Server, postgres, superuser_url, tamper, text};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use support::fake_model::make_calls;
use support::{assert_proven, count, receiver, said, texts, until};

const OTHER_HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Drops every key and check of the table named in `$1`, as somebody who hides a duplicate would.
const UNBIND: &str = "DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT conname FROM pg_constraint WHERE conrelid = '$1'::regclass AND contype IN ('u', 'p', 'c') LOOP
    EXECUTE format('ALTER TABLE $1 DROP CONSTRAINT %I CASCADE', c.conname); END LOOP;
  FOR c IN SELECT indexrelid::regclass AS name FROM pg_index WHERE indrelid = '$1'::regclass AND indisunique LOOP
    EXECUTE format('DROP INDEX %s', c.name); END LOOP;
END $$";

/// A task that asks for a name and is granted it.
async fn make_ask(up: &Server) {
    let yaml = "id: asks\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {ask: true, timeout: 60s, run: 'until curl -sf http://wanted.example/; do sleep 0.1; done'}\n";
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let run = header["runId"].as_str().unwrap();
    let gate = format!("/api/runs/{run}/gates/egress-1");
    until("it asks", Duration::from_secs(30), async || up.get(&gate).await.0 == 200).await;
    let grant = json!({"name": "wanted.example", "until": 4_000_000_000_000_i64});
    let reply = json!({"payload": {"choice": "yes", "grant": grant}, "dedupeKey": "k"});
    let (status, body) = up.post(&format!("{gate}/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
}

/// One sandboxed run with bytes that are too many for a row and a test report, one engine-only, one behind a gate, one
/// whose tasks are a graph.
async fn make_runs(up: &Server) -> Vec<String> {
    let big = "id: big\nv: \"1\"\nplan:\n  tasks:\n    - name: big\n      exec: {run: \"head -c 60000 /dev/urandom > big.bin; echo 1..1 > r.tap; echo ok 1 >> r.tap; echo big\", timeout: 30s}\n      artifacts: [big.bin]\n      reports: [r.tap]\n      files: [{from: /usr/share/misc, to: /in}]\n";
    let read = |name: &str| {
        std::fs::read_to_string(cofferdam_tests::repository().join("examples").join(name)).unwrap()
    };
    let graph = "id: graph\nv: \"1\"\nplan:\n  tasks:\n    - {name: first, value: x}\n    - {name: second, needs: [first], value: y}\n    - {name: sorry, when: {task: first, is: failed}, value: z}\n    - {name: third, needs: [first], gate: release, value: w}\n";
    let mut runs = Vec::new();
    for yaml in [big.to_owned(), read("value.yaml"), read("hello-gated.yaml"), graph.to_owned()] {
        let header = up.run_recipe(&yaml, json!({}), json!({})).await;
        runs.push(text(&header, "runId"));
    }
    let gated = &runs[2];
    up.wait_for(gated, "waiting", |h| h["status"] == "waiting_input").await;
    // Through a link, so that every kind of row is there.
    let links = format!("/api/runs/{gated}/gates/approve-plan/links");
    let (status, link) = up.post(&links, &json!({"for": "Ada", "expiresS": 600})).await;
    assert_eq!(status, 201, "{link}");
    let reply = json!({"payload": {"choice": "yes"}});
    let (status, body) = up.post(link["path"].as_str().unwrap(), &reply).await;
    assert_eq!(status, 200, "{body}");
    let graph = &runs[3];
    up.wait_for(graph, "waiting", |h| h["status"] == "waiting_input").await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "release"});
    let (status, body) = up.post(&format!("/api/runs/{graph}/gates/release/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
    for run in &runs {
        assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
    }
    let sent = json!({"agent_type": "command", "prompt": "true\n", "project_dir": "/usr/share",
        "sandbox": "read-only", "sandbox_spec": {"max_turns": 3}});
    let (status, held) = up.post("/api/sandboxes", &json!({"template": "base"})).await;
    assert_eq!(status, 201, "{held}");
    let path = format!("/api/sandboxes/{}", text(&held, "id"));
    assert_eq!(up.request("DELETE", &path, Some(&up.key), None).await.0, 200);
    let (status, paused) = up.post("/api/sandboxes", &json!({"template": "base"})).await;
    assert_eq!(status, 201, "{paused}");
    let path = format!("/api/sandboxes/{}/pause", text(&paused, "id"));
    assert_eq!(up.post(&path, &json!({})).await.0, 200);
    // The run of a life ends after it.
    for life in [&held, &paused] {
        assert_eq!(up.wait_terminal(&text(life, "runId")).await["status"], "succeeded");
    }
    let (status, made) = up.post("/api/dispatches", &sent).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(up.wait_terminal(made["run_id"].as_str().unwrap()).await["status"], "succeeded");
    runs
}

/// A schedule that fired, and is removed.
async fn make_firing(up: &Server) {
    crate::schedules::every_second(up).await;
    let yaml =
        "id: ticks\nv: \"1\"\nschedule: '* * * * * *'\nplan:\n  tasks: [{name: t, value: kept}]\n";
    let (status, imported) = up.post("/api/recipes/import", &json!({"yaml": yaml})).await;
    assert_eq!(status, 201, "{imported}");
    let (status, added) =
        up.post("/api/schedules", &json!({"recipeRef": imported["recipeRef"]})).await;
    assert_eq!(status, 201, "{added}");
    let fired = async || {
        let (_, rows) = up.get("/api/schedules/ticks/firings").await;
        rows.as_array().unwrap().iter().find_map(|row| row["runId"].as_str().map(str::to_owned))
    };
    let run = support::found("a firing", fired).await;
    assert_eq!(up.request("DELETE", "/api/schedules/ticks", Some(&up.key), None).await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
}

/// A private database that outlives its server: this process counts as one of its users.
struct Kept {
    /// Given up first, so that the home's own end is the last user's.
    _user: File,
    home: Home,
    url: String,
    runs: Vec<String>,
}

impl Kept {
    async fn with_runs() -> Self {
        let home = Home::new();
        let url = receiver();
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let table = format!("wanted.example={address}");
        let mut up = home.up_with(&["--webhook-private", "--egress-host", &table], &[]);
        let (status, made) = up.post("/api/webhooks", &json!({"url": url})).await;
        assert_eq!(status, 201, "{made}");
        let runs = make_runs(&up).await;
        make_ask(&up).await;
        make_firing(&up).await;
        make_calls(&up).await;
        let sql = up.sql().await;
        let told = "SELECT count(*) FROM app.webhook_deliveries HAVING count(*) >= 8 AND bool_and(state = 'delivered') UNION ALL SELECT 0 LIMIT 1";
        until("all is told", Duration::from_secs(30), async || count(&sql, told).await >= 8).await;
        sql.close().await;
        let url = superuser_url(&home.database_url());
        let user = File::open(home.path().join("database/users.lock")).unwrap();
        user.lock_shared().unwrap();
        up.stop();
        assert!(url.contains("/cofferdam?"), "{url}");
        Self { _user: user, home, url, runs }
    }

    fn database(&self, name: &str) -> String {
        self.url.replacen("/cofferdam?", &format!("/{name}?"), 1)
    }

    /// A copy of everything, for one tampering; nothing of it is sealed, however long the runs took.
    async fn copy(&self, name: &str) -> (String, PgConnection) {
        let mut admin = PgConnection::connect(&self.database("postgres")).await.unwrap();
        admin
            .execute(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE cofferdam")))
            .await
            .unwrap();
        let url = self.database(name);
        let mut conn = PgConnection::connect(&url).await.unwrap();
        conn.execute("SET session_replication_role = replica").await.unwrap();
        conn.execute("DELETE FROM app.ledger_chain").await.unwrap();
        (url, conn)
    }

    /// Whether the command says no after a tampering, and names the claim.
    async fn is_told(&self, name: &str, case: &Tampering) -> bool {
        let (url, mut conn) = self.copy(name).await;
        for sql in case.sql {
            apply(&mut conn, sql).await;
        }
        let (output, report) = self.prove(&url, &[]);
        conn.close().await.unwrap();
        let mut admin = PgConnection::connect(&self.database("postgres")).await.unwrap();
        admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
        output.status.code() == Some(1)
            && report["verdict"] == "NO_GO"
            && rows(&report, case.proof) > 0
    }

    fn prove(&self, url: &str, args: &[&str]) -> (Output, Value) {
        let mut all = vec!["--db", url, "prove", "--json"];
        all.extend(args);
        let output = self.home.run(&all);
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
        (output, report)
    }
}

/// Whether the query of a claim finds a further tampering, which is taken back: that the command finds what the queries do, the test of
/// each file says.
async fn is_found(conn: &mut PgConnection, case: &Tampering) -> bool {
    conn.execute("BEGIN").await.unwrap();
    for sql in case.sql {
        apply(conn, sql).await;
    }
    let file = format!("crates/ledger/proofs/{}.sql", case.proof);
    let query = std::fs::read_to_string(cofferdam_tests::repository().join(file)).unwrap();
    let found = conn.fetch_all(AssertSqlSafe(query)).await.unwrap();
    conn.execute("ROLLBACK").await.unwrap();
    !found.is_empty()
}

async fn apply(conn: &mut PgConnection, sql: &str) {
    let sql = sql.replace("$H", OTHER_HASH);
    let statements = match sql.split_once(' ') {
        _ if sql == "$ERASED" => ERASED.map(str::to_owned).to_vec(),
        _ if sql == "$SETTLE" => SETTLE.map(str::to_owned).to_vec(),
        _ if sql == "$BUILT" => BUILT.map(str::to_owned).to_vec(),
        _ if sql == "$TEMPLATE" => TEMPLATE.map(|text| text.replace("$H", OTHER_HASH)).to_vec(),
        _ if sql == "$APPLIED" => APPLIED.map(|text| text.replace("$H", OTHER_HASH)).to_vec(),
        Some(("unbind", table)) => vec![UNBIND.replace("$1", table)],
        Some(("double", what)) => {
            let table = what.split(' ').next().unwrap();
            let again =
                format!("INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {what} LIMIT 1");
            vec![UNBIND.replace("$1", table), again]
        }
        _ => vec![sql],
    };
    for statement in statements {
        let done = conn
            .execute(AssertSqlSafe(statement.clone()))
            .await
            .unwrap_or_else(|e| panic!("{statement}: {e}"));
        let writes = ["INSERT", "UPDATE", "DELETE"].iter().any(|verb| statement.starts_with(verb));
        assert!(!writes || done.rows_affected() > 0, "it changed nothing: {statement}");
    }
}

fn rows(report: &Value, proof: &str) -> usize {
    let proofs = report["proofs"].as_array().unwrap();
    let found =
        proofs.iter().find(|p| p["name"] == proof).unwrap_or_else(|| panic!("no proof {proof}"));
    found["rows"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_proof_fails_after_a_row_is_tampered_with() {
    let kept = Kept::with_runs().await;
    let (output, report) = kept.prove(&kept.url, &[]);
    assert_eq!(output.status.code(), Some(0), "{report}");
    let names =
        |proofs: &[&str]| -> BTreeSet<String> { proofs.iter().map(|p| (*p).to_owned()).collect() };
    let claimed: Vec<&str> =
        report["proofs"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    let tampered: Vec<&str> = TAMPERINGS.iter().map(|t| t.proof).collect();
    assert_eq!(
        names(&claimed),
        names(&tampered),
        "every proof has a case, and no case is for nothing"
    );
    let (url, mut conn) = kept.copy("settled").await;
    apply(&mut conn, "$SETTLE").await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "a settlement in good order: {report}");
    conn.close().await.unwrap();
    let (url, mut conn) = kept.copy("built").await;
    apply(&mut conn, "$BUILT").await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "a patch in good order: {report}");
    conn.close().await.unwrap();
    let (url, mut conn) = kept.copy("template").await;
    apply(&mut conn, "$TEMPLATE").await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "a template in good order: {report}");
    conn.close().await.unwrap();
    let (url, mut conn) = kept.copy("applied").await;
    apply(&mut conn, "$APPLIED").await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "a patch that was written in good order: {report}");
    conn.close().await.unwrap();
    let (url, mut conn) = kept.copy("erased").await;
    apply(&mut conn, "$ERASED").await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "erasures in good order: {report}");
    conn.close().await.unwrap();
    let mut missed = Vec::new();
    let (mut seen, mut taken_back) = (BTreeSet::new(), kept.copy("taken_back").await.1);
    for (n, case) in TAMPERINGS.iter().enumerate() {
        let no = match seen.insert(case.proof) {
            true => kept.is_told(&format!("case_{n}"), case).await,
            false => is_found(&mut taken_back, case).await,
        };
        if !no {
            missed.push(format!("{} after {:?}", case.proof, case.sql));
        }
    }
    taken_back.close().await.unwrap();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The rows that the cases above tamper with break no claim by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_cached_base_that_is_on_record_breaks_no_claim() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("cached").await;
    apply(&mut conn, CACHED).await;
    let (output, report) = kept.prove(&url, &[]);
    assert_eq!(output.status.code(), Some(0), "{report}");
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_finds_with_each_file_what_prove_finds() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("by_file").await;
    for table in ["app.secure_wipe_evidence", "app.plan_approvals", "app.gate_votes"] {
        apply(&mut conn, &format!("DELETE FROM {table}")).await;
    }
    let (_, report) = kept.prove(&url, &[]);
    let proofs = report["proofs"].as_array().unwrap();
    let dir = cofferdam_tests::repository().join("crates/ledger/proofs");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), proofs.len(), "each file is a proof");
    let mut found = 0;
    for proof in proofs {
        let file = dir.join(format!("{}.sql", proof["name"].as_str().unwrap()));
        let by_psql = postgres::psql(&url, &file);
        let rows = proof["rows"].as_array().unwrap();
        let mut runs: Vec<&str> = by_psql.iter().map(|row| row[0].as_str()).collect();
        let mut by_prove: Vec<&str> =
            rows.iter().map(|row| row["run_id"].as_str().unwrap_or("")).collect();
        runs.sort_unstable();
        by_prove.sort_unstable();
        assert_eq!(runs, by_prove, "{}: {by_psql:?}", file.display());
        found += rows.len();
    }
    assert!(found > 3, "{report}");
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_told_which_claim_is_broken_by_what() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("told").await;
    apply(&mut conn, "DELETE FROM app.secure_wipe_evidence").await;
    let output = kept.home.run(&["--db", &url, "prove"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let told =
        "terminal_sessions_wiped: a sandbox is called ended without evidence that it is gone";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("query: SELECT") && text.contains("\"sandbox_id\""), "{text}");
    assert_eq!(text.lines().last(), Some("NO_GO"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_of_one_run_says_nothing_about_another() {
    let kept = Kept::with_runs().await;
    let (url, mut conn) = kept.copy("scoped").await;
    let [big, value, gated, ..] = kept.runs.as_slice() else { panic!("three runs") };
    apply(
        &mut conn,
        &format!("DELETE FROM app.artifacts WHERE kind = 'stdout' AND run_id = '{big}'"),
    )
    .await;
    apply(&mut conn, &format!("DELETE FROM app.plan_approvals WHERE run_id = '{gated}'")).await;
    for (run, broken) in [
        (big, Some("index_lists_every_artifact")),
        (value, None),
        (gated, Some("gated_work_was_approved")),
    ] {
        let (output, report) = kept.prove(&url, &["--run", run]);
        assert_eq!(output.status.code(), Some(i32::from(broken.is_some())), "{run}: {report}");
        let found: Vec<&str> = report["proofs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| !p["rows"].as_array().unwrap().is_empty())
            .map(|p| p["name"].as_str().unwrap())
            // Whether a row was sealed before its end depends on when the leader looked.
            .filter(|name| *name != "the_chain_holds")
            .collect();
        assert_eq!(found, broken.into_iter().collect::<Vec<_>>(), "{run}");
    }
    let output =
        kept.home.run(&["--db", &url, "prove", "--run", "rn_00000000000000000000000000000000"]);
    assert_eq!(output.status.code(), Some(1), "an unknown run is a no: {}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not found"), "{}", said(&output));
}

#[test]
fn a_fresh_database_proves_everything() {
    assert_proven(&Home::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_sees_the_proofs_of_their_own_tenant_alone() {
    let home = Home::new();
    let up = home.up();
    let mut keys = Vec::new();
    for tenant in ["acme", "zenith"] {
        for roles in [json!(["auditor"]), json!(["submitter"])] {
            keys.push(up.new_key(&json!({"tenant": tenant, "roles": roles})).await.1);
        }
    }
    let [acme, acme_submits, zenith, zenith_submits] = keys.as_slice() else { panic!("four keys") };
    let yaml =
        std::fs::read_to_string(cofferdam_tests::repository().join("examples/value.yaml")).unwrap();
    for submits in [acme_submits, zenith_submits] {
        let (status, header) = up.start_recipe_as(submits, &yaml, json!({}), json!({})).await;
        assert_eq!(status, 201, "{header}");
        let path = format!("/api/runs/{}", header["runId"].as_str().unwrap());
        support::until("the run has ended", std::time::Duration::from_secs(30), async || {
            up.get_as(submits, &path).await.1["durableStatus"] == "SUCCESS"
        })
        .await;
    }
    let sql = up.sql().await;
    let of_acme = texts(&sql, "SELECT id FROM app.runs WHERE tenant_id = 'acme'").await.remove(0);
    let late = format!("UPDATE app.sbx_runs SET err_code = 'TIMEOUT' WHERE run_id = '{of_acme}'");
    tamper(&sql, &late).await;
    let verdict = async |key: &str| {
        let (status, report) = up.get_as(key, "/api/proofs").await;
        assert_eq!(status, 200, "{report}");
        (text(&report, "verdict"), rows(&report, "succeeded_runs_are_whole"))
    };
    assert_eq!(verdict(acme).await, ("NO_GO".into(), 1));
    assert_eq!(verdict(zenith).await, ("GO".into(), 0));
    assert_eq!(verdict(&up.key).await, ("NO_GO".into(), 1), "the host's admin sees every tenant");
    let (status, _) = up.get_as(acme_submits, "/api/proofs").await;
    assert_eq!(status, 403);
    let path = format!("/api/runs/{of_acme}/proofs");
    assert_eq!(up.get_as(zenith, &path).await.0, 404, "another tenant's run");
    let (status, report) = up.get_as(acme, &path).await;
    assert_eq!((status, rows(&report, "succeeded_runs_are_whole")), (200, 1));
}
