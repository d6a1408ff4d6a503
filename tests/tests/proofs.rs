//! A proof that cannot fail proves nothing: for every claim a row is tampered with, in a copy of a
//! real ledger, and `cofferdam prove` has to say no and name that claim.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test that cannot go on should say so and stop"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Output;

use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use support::{assert_proven, said, texts};

/// What somebody with the database in hand might do, and the claim that it breaks.
struct Tampering {
    proof: &'static str,
    /// Statements; `$H` is a hash, of nothing that is stored.
    sql: &'static [&'static str],
}

const OTHER_HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

macro_rules! tamper {
    ($proof:literal: $($sql:literal),+ $(,)?) => { Tampering { proof: $proof, sql: &[$($sql),+] } };
}

/// Drops every key and check of the table named in `$1`, as somebody who hides a duplicate would.
const UNBIND: &str = "DO $$ DECLARE c record; BEGIN
  FOR c IN SELECT conname FROM pg_constraint WHERE conrelid = '$1'::regclass AND contype IN ('u', 'p', 'c') LOOP
    EXECUTE format('ALTER TABLE $1 DROP CONSTRAINT %I CASCADE', c.conname); END LOOP;
  FOR c IN SELECT indexrelid::regclass AS name FROM pg_index WHERE indrelid = '$1'::regclass AND indisunique LOOP
    EXECUTE format('DROP INDEX %s', c.name); END LOOP;
END $$";

/// `double TABLE [WHERE ..]` is [`UNBIND`] and one row inserted again; `unbind TABLE` alone exists too.
const TAMPERINGS: &[Tampering] = &[
    tamper!("run_steps_unique": "double app.run_steps"),
    tamper!("artifacts_unique": "double app.artifacts"),
    tamper!("sbx_runs_unique": "double app.sbx_runs"),
    tamper!("interactions_unique": "double app.human_interactions"),
    tamper!("decisions_unique": "double dbos.workflow_events WHERE key LIKE 'decision:%'"),
    tamper!("prompts_unique": "double dbos.workflow_events_history WHERE key = 'ui:approve-plan'"),
    tamper!("escalations_unique":
        "unbind dbos.workflow_status",
        "CREATE TEMP TABLE esc AS SELECT * FROM dbos.workflow_status LIMIT 1",
        "UPDATE esc SET workflow_uuid = 'esc:a:b'",
        "INSERT INTO dbos.workflow_status SELECT * FROM esc UNION ALL SELECT * FROM esc",
        "UPDATE app.human_gates SET escalation_workflow_id = 'esc:a:b'"),
    tamper!("opencode_calls_unique":
        "INSERT INTO app.opencode_calls (op_key, run_id, step_id, attempt, session_id, request, origin) SELECT '$H', id, 's', 1, 'x', '{}', 'manual' FROM app.runs LIMIT 1",
        "double app.opencode_calls"),
    tamper!("hashes_well_formed":
        "unbind app.artifacts",
        "UPDATE app.artifacts SET sha256 = upper(sha256) WHERE kind = 'plan_card'"),
    tamper!("hashes_well_formed":
        "unbind app.human_interactions",
        "UPDATE app.human_interactions SET payload_hash = 'sha256:' || payload_hash"),
    tamper!("artifact_bytes_match": "UPDATE app.artifacts SET inline = replace(inline, 'a', 'b') WHERE kind = 'plan_card'"),
    tamper!("artifact_bytes_match": "UPDATE app.artifacts SET size = size + 1 WHERE kind = 'stdout'"),
    tamper!("artifact_bytes_match": "UPDATE app.artifacts SET sha256 = '$H' WHERE kind = 'stdout'"),
    tamper!("artifact_bytes_match": "UPDATE app.blobs SET bytes = bytes || '\\x00'"),
    tamper!("artifact_bytes_match": "DELETE FROM app.blobs"),
    tamper!("index_lists_every_artifact": "DELETE FROM app.artifacts WHERE kind = 'stdout'"),
    tamper!("index_lists_every_artifact": "DELETE FROM app.artifacts WHERE kind = 'artifact_index'"),
    tamper!("index_lists_every_artifact":
        "INSERT INTO app.artifacts SELECT run_id, step_id, task_key, attempt, 99, kind, 'files/planted', uri || '2', inline, sha256, size, origin, created_at FROM app.artifacts WHERE kind = 'stdout'"),
    tamper!("terminal_sessions_wiped": "DELETE FROM app.secure_wipe_evidence"),
    tamper!("terminal_sessions_wiped": "UPDATE app.secure_wipe_evidence SET wipe_status = 'failed'"),
    tamper!("terminal_sessions_wiped": "UPDATE app.secure_wipe_evidence SET terminal_state = 'CANCELED'"),
    tamper!("wipe_evidence_holds": "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{checks,0,ok}', 'false')"),
    tamper!("wipe_evidence_holds": "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{checks}', '[]')"),
    tamper!("wipe_evidence_holds": "UPDATE app.secure_wipe_evidence SET evidence = jsonb_set(evidence, '{sandboxId}', '\"sb00000000000000000000\"')"),
    tamper!("executions_have_sessions": "DELETE FROM app.remote_execution_sessions"),
    tamper!("executions_have_sessions": "DELETE FROM app.sbx_executions WHERE sandbox_id IS NOT NULL"),
    tamper!("executions_have_sessions": "UPDATE app.remote_execution_sessions SET execution_no = 7"),
    tamper!("results_were_executed": "DELETE FROM app.sbx_executions WHERE sandbox_id IS NULL"),
    tamper!("tasks_match_engine": "DELETE FROM dbos.workflow_status WHERE name = 'task'"),
    tamper!("tasks_match_engine": "UPDATE app.sbx_runs SET response = NULL, err_code = NULL"),
    tamper!("runs_match_engine": "UPDATE app.runs SET status = 'failed'"),
    tamper!("runs_match_engine": "UPDATE app.runs SET status = 'canceled'"),
    tamper!("runs_match_engine": "UPDATE app.runs SET status = 'running', finished_at = NULL"),
    tamper!("runs_match_engine": "UPDATE dbos.workflow_status SET status = 'ERROR' WHERE name = 'run'"),
    tamper!("runs_match_engine": "DELETE FROM dbos.workflow_status WHERE name = 'run'"),
    tamper!("runs_match_engine":
        "UPDATE dbos.workflow_status SET status = 'PENDING' WHERE name = 'run'",
        "UPDATE app.runs SET finished_at = finished_at - interval '2 minutes'"),
    tamper!("succeeded_runs_are_whole": "UPDATE app.sbx_runs SET err_code = 'TIMEOUT'"),
    tamper!("succeeded_runs_are_whole": "DELETE FROM app.run_steps WHERE step_id = 'ExecuteST'"),
    tamper!("gated_work_was_approved": "DELETE FROM app.plan_approvals"),
    tamper!("gated_work_was_approved": "UPDATE app.plan_approvals SET approved_at = approved_at + interval '1 hour'"),
    tamper!("gated_work_was_approved": "UPDATE app.plan_approvals SET plan_digest = '$H'"),
    tamper!("gated_work_was_approved": "UPDATE app.runs SET plan_digest = '$H'"),
    tamper!("accepted_replies_decide": "DELETE FROM app.human_interactions"),
    tamper!("accepted_replies_decide":
        "INSERT INTO app.human_interactions OVERRIDING SYSTEM VALUE SELECT id + 100, workflow_id, run_id, gate_key, topic, 'another', payload_hash, payload, origin, outcome, key_id, created_at FROM app.human_interactions"),
    tamper!("reply_payloads_match": "UPDATE app.human_interactions SET payload_hash = '$H'"),
    tamper!("reply_payloads_match": "UPDATE app.human_interactions SET payload = '{\"choice\": \"no\"}'"),
    tamper!("reply_payloads_match":
        "UPDATE dbos.workflow_events SET value = replace(value::text, '\"yes\"', '\"no\"') WHERE key LIKE 'ui:%:result'"),
    tamper!("parents_do_not_starve":
        "UPDATE dbos.workflow_status SET status = 'ENQUEUED', updated_at = updated_at - 120000 WHERE name = 'run'",
        "INSERT INTO app.executors (id, host_id, pid, app_version, started_at) VALUES ('ex-idle', 'h', 1, 'v', now() - interval '1 hour')"),
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_partition_key = NULL WHERE name = 'task'"),
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_partition_key = 'another' WHERE name = 'task'"),
    tamper!("partitions_are_named": "UPDATE dbos.workflow_status SET queue_name = 'intentQ' WHERE name = 'task'"),
    tamper!("dispatch_specs_unchanged": "UPDATE app.dispatches SET sandbox_spec = '{\"max_turns\": 9}'"),
    tamper!("dispatch_specs_unchanged": "UPDATE app.dispatches SET sandbox_spec = NULL"),
    tamper!("dispatch_specs_unchanged":
        "UPDATE app.dispatches SET sandbox_spec = '{\"max_turns\": 9}'",
        "UPDATE app.dispatch_runs SET spec_canonical = '{\"max_turns\":9}'"),
    tamper!("dispatch_specs_unchanged": "DELETE FROM app.dispatch_runs"),
    tamper!("dispatch_effective_at_end": "UPDATE app.dispatches SET sandbox_effective = NULL"),
    tamper!("dispatch_effective_at_end": "UPDATE app.dispatches SET status = 'running'"),
    tamper!("dispatches_match_runs": "UPDATE app.dispatches SET status = 'spawned', sandbox_effective = NULL"),
    tamper!("dispatches_match_runs": "UPDATE app.dispatches SET sandbox_effective = sandbox_effective || '{\"violations\": [1]}'"),
    tamper!("dispatches_match_runs": "UPDATE app.runs SET status = 'failed' WHERE recipe_id = 'dispatch'"),
];

/// One sandboxed run with bytes that are too many for a row, one engine-only, one behind a gate.
async fn make_runs(up: &Server) -> Vec<String> {
    let big = "id: big\nv: \"1\"\nplan:\n  tasks:\n    - name: big\n      exec: {run: \"head -c 300000 /dev/urandom > big.bin; echo big\", timeout: 30s}\n      artifacts: [big.bin]\n";
    let read = |name: &str| {
        std::fs::read_to_string(cofferdam_tests::repository().join("examples").join(name)).unwrap()
    };
    let mut runs = Vec::new();
    for yaml in [big.to_owned(), read("value.yaml"), read("hello-gated.yaml")] {
        let header = up.run_recipe(&yaml, json!({}), json!({})).await;
        runs.push(header["runId"].as_str().unwrap().to_owned());
    }
    let gated = &runs[2];
    up.wait_for(gated, "waiting", |h| h["status"] == "waiting_input").await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, body) =
        up.post(&format!("/api/runs/{gated}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
    for run in &runs {
        assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
    }
    let sent = json!({"agent_type": "command", "prompt": "true\n", "project_dir": "/usr/share",
        "sandbox": "read-only", "sandbox_spec": {"max_turns": 3}});
    let (status, made) = up.post("/api/dispatches", &sent).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(up.wait_terminal(made["run_id"].as_str().unwrap()).await["status"], "succeeded");
    runs
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
        let mut up = home.up();
        let runs = make_runs(&up).await;
        let url = String::from_utf8(home.run(&["db"]).stdout).unwrap().trim().to_owned();
        let user = File::open(home.path().join("database/users.lock")).unwrap();
        user.lock_shared().unwrap();
        up.stop();
        assert!(url.contains("/cofferdam?"), "{url}");
        Self { _user: user, home, url, runs }
    }

    fn database(&self, name: &str) -> String {
        self.url.replacen("/cofferdam?", &format!("/{name}?"), 1)
    }

    /// A copy of everything, for one tampering.
    async fn copy(&self, name: &str) -> (String, PgConnection) {
        let mut admin = PgConnection::connect(&self.database("postgres")).await.unwrap();
        admin
            .execute(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE cofferdam")))
            .await
            .unwrap();
        let url = self.database(name);
        let mut conn = PgConnection::connect(&url).await.unwrap();
        conn.execute("SET session_replication_role = replica").await.unwrap();
        (url, conn)
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

async fn apply(conn: &mut PgConnection, sql: &str) {
    let sql = sql.replace("$H", OTHER_HASH);
    let statements = match sql.split_once(' ') {
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
    let mut missed = Vec::new();
    for (n, case) in TAMPERINGS.iter().enumerate() {
        let (url, mut conn) = kept.copy(&format!("case_{n}")).await;
        for sql in case.sql {
            apply(&mut conn, sql).await;
        }
        let (output, report) = kept.prove(&url, &[]);
        let no = output.status.code() == Some(1)
            && report["verdict"] == "NO_GO"
            && rows(&report, case.proof) > 0;
        if !no {
            missed.push(format!("{} after {:?}: {}", case.proof, case.sql, report["verdict"]));
        }
        conn.close().await.unwrap();
    }
    assert!(missed.is_empty(), "{missed:#?}");
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
    let [big, value, gated] = kept.runs.as_slice() else { panic!("three runs") };
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
            let (status, made) =
                up.post("/api/keys", &json!({"tenant": tenant, "roles": roles})).await;
            assert_eq!(status, 201, "{made}");
            keys.push(made["key"].as_str().unwrap().to_owned());
        }
    }
    let [acme, acme_submits, zenith, zenith_submits] = keys.as_slice() else { panic!("four keys") };
    let yaml =
        std::fs::read_to_string(cofferdam_tests::repository().join("examples/value.yaml")).unwrap();
    for submits in [acme_submits, zenith_submits] {
        let body = |value: Value| Some(value.to_string().into_bytes());
        let (status, imported) = up
            .request("POST", "/api/recipes/import", Some(submits), body(json!({"yaml": yaml})))
            .await;
        assert_eq!(status, 201, "{imported}");
        let run = json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {}});
        let (status, header) = up.request("POST", "/api/run", Some(submits), body(run)).await;
        assert_eq!(status, 201, "{header}");
        let path = format!("/api/runs/{}", header["runId"].as_str().unwrap());
        support::until("the run has ended", std::time::Duration::from_secs(30), async || {
            up.request("GET", &path, Some(submits), None).await.1["durableStatus"] == "SUCCESS"
        })
        .await;
    }
    let sql = up.sql().await;
    let mut conn = sql.acquire().await.unwrap().detach();
    conn.execute("SET session_replication_role = replica").await.unwrap();
    let of_acme = texts(&sql, "SELECT id FROM app.runs WHERE tenant_id = 'acme'").await.remove(0);
    apply(
        &mut conn,
        &format!("UPDATE app.sbx_runs SET err_code = 'TIMEOUT' WHERE run_id = '{of_acme}'"),
    )
    .await;
    let verdict = async |key: &str| {
        let (status, report) = up.request("GET", "/api/proofs", Some(key), None).await;
        assert_eq!(status, 200, "{report}");
        (report["verdict"].as_str().unwrap().to_owned(), rows(&report, "succeeded_runs_are_whole"))
    };
    assert_eq!(verdict(acme).await, ("NO_GO".into(), 1));
    assert_eq!(verdict(zenith).await, ("GO".into(), 0));
    assert_eq!(verdict(&up.key).await, ("NO_GO".into(), 1), "the host's admin sees every tenant");
    let (status, _) = up.request("GET", "/api/proofs", Some(acme_submits), None).await;
    assert_eq!(status, 403);
    let path = format!("/api/runs/{of_acme}/proofs");
    assert_eq!(up.request("GET", &path, Some(zenith), None).await.0, 404, "another tenant's run");
    let (status, report) = up.request("GET", &path, Some(acme), None).await;
    assert_eq!((status, rows(&report, "succeeded_runs_are_whole")), (200, 1));
}
