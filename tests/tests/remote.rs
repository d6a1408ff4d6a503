//! A worker whose sandboxes a provider elsewhere holds: its runs, its rows, and a provider that is lost.
//!
//! The provider is a stand-in of `crates/sandbox/tests`: its sandboxes are containers of this host.

use crate::provider;
use crate::support;

use std::time::Duration;

use cofferdam_sandbox::{Host, HostConfig, enter_private_mounts, reconcile};
use cofferdam_tests::{Home, Server};
use provider::{KEY, StandIn};
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, count, texts, until};

pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const OPEN: &str =
    "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL";
pub(crate) const TASKS: &str = "id: elsewhere\nv: \"1\"\nplan:\n  tasks:\n    - name: hello\n      build: {run: \"echo built > built.txt\", timeout: 60s}\n      exec: {run: \"cat built.txt; echo oops >&2; echo out > out.txt\", timeout: 60s}\n      artifacts: [out.txt]\n    - name: late\n      exec: {run: \"trap '' TERM; sleep 100\", timeout: 700ms}\n";
pub(crate) const SLOW: &str = "id: slow\nv: \"1\"\nplan:\n  tasks:\n    - name: slow\n      exec: {run: \"echo begun; sleep 100\", timeout: 90s}\n";
pub(crate) const LIMITED: &str = "id: limited\nv: \"1\"\nplan:\n  tasks:\n    - name: limited\n      exec: {run: \"true\", timeout: 60s}\n      limits: {mem_mb: 64}\n";

/// A provider on a host of its own, for as long as the test.
fn with_provider(test: impl AsyncFnOnce(&StandIn)) {
    enter_private_mounts().expect("these tests need root: run them as root");
    let state = tempfile::tempdir().unwrap();
    let state_dir = state.path().to_owned();
    let host = Host::detect(HostConfig { state_dir, ..HostConfig::default() }).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let provider = StandIn::start(&host).await;
        test(&provider).await;
        provider.close().await;
        assert!(reconcile(&host, |_| false).await.is_empty());
    });
    drop(runtime);
    host.leave();
}

fn up(home: &Home, provider: &StandIn) -> Server {
    let key = home.path().join("provider.key");
    std::fs::write(&key, format!("{KEY}\n")).unwrap();
    let url = provider.url();
    let key = key.to_str().unwrap();
    home.up_with(
        &[
            "--runtime",
            "remote",
            "--remote-url",
            &url,
            "--remote-sandbox-url",
            &url,
            "--remote-key-file",
            key,
        ],
        &[],
    )
}

pub(crate) async fn start(up: &Server, recipe: &str, key: &str) -> (String, String) {
    let header = up.run_recipe(recipe, json!({}), json!({"runKey": key})).await;
    let text = |name: &str| header[name].as_str().unwrap().to_owned();
    (text("runId"), text("workflowID"))
}

#[test]
fn runs_elsewhere_are_remote_ones_with_results_evidence_and_facts() {
    with_provider(async |provider| {
        let home = Home::new();
        let up = up(&home, provider);
        let sql = up.sql().await;
        let (run, _) = start(&up, TASKS, "elsewhere").await;
        let ended = up.wait_terminal(&run).await;
        assert_eq!(ended["status"], "failed", "one of its tasks is too late: {ended}");
        let results = texts(
            &sql,
            "SELECT concat_ws(' ', split_part(task_key, '/', 2), response->>'exit', err_code, response->>'stdout') FROM app.sbx_runs ORDER BY err_code",
        );
        let results = results.await;
        assert!(results[0].contains("NONE") && results[0].contains("built"), "{results:?}");
        assert!(results[1].contains("TIMEOUT"), "{results:?}");
        let kept = texts(&sql, "SELECT inline FROM app.artifacts WHERE kind = 'file'").await;
        assert_eq!(kept, ["out\n"]);
        assert_eq!(texts(&sql, "SELECT execution_mode FROM app.runs").await, ["REMOTE_SANDBOX"]);
        let rows = texts(
            &sql,
            "SELECT DISTINCT concat_ws(' ', class, runtime, runtime_version, attestation->>'cgroups') FROM app.remote_execution_sessions",
        );
        let facts = format!("remote remote E2B API at {}, template base remote", provider.url());
        assert_eq!(rows.await, [facts]);
        let evidence = texts(
            &sql,
            "SELECT DISTINCT evidence->>'method' FROM app.secure_wipe_evidence WHERE wipe_status = 'verified'",
        );
        assert_eq!(evidence.await, ["remote-absence"]);
        // Canceled in the middle.
        let (run, workflow) = start(&up, SLOW, "slow").await;
        until("a command elsewhere", SOON, async || provider.held() == 1).await;
        let wish = json!({"actor": "a", "reason": "r"});
        let (status, body) = up.post(&format!("/api/ops/wf/{workflow}/cancel"), &wish).await;
        assert_eq!(status, 202, "{body}");
        assert_eq!(up.wait_terminal(&run).await["status"], "canceled");
        until("its end elsewhere", SOON, async || count(&sql, OPEN).await == 0).await;
        // What only the provider could enforce.
        let made = || provider.calls().iter().filter(|call| *call == "POST /sandboxes").count();
        let before = made();
        let (run, _) = start(&up, LIMITED, "limited").await;
        let header = up.wait_terminal(&run).await;
        assert_eq!(header["status"], "failed", "{header}");
        // It would have been there: nothing of it was ever on this host.
        assert_eq!(header["executionMode"], "REMOTE_SANDBOX", "{header}");
        let why = format!(
            "SELECT concat_ws(' ', err_code, response::text) FROM app.sbx_runs WHERE run_id = '{run}'"
        );
        let why = texts(&sql, &why).await;
        assert!(why[0].starts_with("BOOT_FAIL") && why[0].contains("limits.memMB"), "{why:?}");
        assert_eq!(made(), before, "nobody was asked for one");
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
        // The key is nowhere but in its file.
        for rows in [
            "SELECT s::text FROM app.remote_execution_sessions s",
            "SELECT w::text FROM app.secure_wipe_evidence w",
            "SELECT r::text FROM app.sbx_runs r",
        ] {
            let rows = texts(&sql, rows).await;
            assert!(!rows.is_empty() && rows.iter().all(|text| !text.contains(KEY)));
        }
        let doctor = home.run_json(&["doctor", "--json"]);
        assert_eq!(doctor["classes"]["remote"], false);
        let note: &Value = &doctor["classNotes"]["remote"];
        assert!(note.as_str().unwrap().contains("no provider was asked for"), "{note}");
    });
}

#[test]
fn a_provider_that_is_lost_in_the_middle_holds_the_run_until_it_is_back() {
    with_provider(async |provider| {
        let home = Home::new();
        let up = up(&home, provider);
        let sql = up.sql().await;
        let (run, _) = start(&up, SLOW, "lost").await;
        let begun = format!(
            "SELECT count(*) FROM app.remote_execution_sessions WHERE run_id = '{run}' AND state = 'EXECUTING'"
        );
        until("a command elsewhere", SOON, async || count(&sql, &begun).await == 1).await;
        provider.stop().await;
        let held = "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'REMOTE_WIPE_VERIFYING' AND wipe_looks > 0";
        until("a held session", SOON, async || count(&sql, held).await == 1).await;
        let (_, header) = up.get(&format!("/api/runs/{run}")).await;
        assert_eq!(header["status"], "running", "{header}");
        let (_, sessions) = up.get("/api/sessions?state=REMOTE_WIPE_VERIFYING").await;
        let finding = sessions[0]["findings"][0].as_str().unwrap();
        assert!(finding.contains("does not answer"), "{finding}");
        assert_eq!(provider.held(), 1);
        provider.resume().await;
        let header = up.wait_terminal(&run).await;
        assert_eq!(header["status"], "failed", "{header}");
        // It would have been there: nothing of it was ever on this host.
        assert_eq!(header["executionMode"], "REMOTE_SANDBOX", "{header}");
        assert_eq!(provider.held(), 0);
        let last = "SELECT w.wipe_status FROM app.remote_execution_sessions s JOIN app.secure_wipe_evidence w
                       ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks";
        assert_eq!(texts(&sql, last).await, ["verified"]);
        assert_proven(&home);
    });
}

#[test]
fn a_worker_that_is_killed_leaves_a_sandbox_that_the_next_one_or_its_own_term_ends() {
    with_provider(async |provider| {
        let home = Home::new();
        let mut first = up(&home, provider);
        let (run, _) = start(&first, SLOW, "killed").await;
        until("a sandbox elsewhere", SOON, async || provider.held() == 1).await;
        first.kill();
        assert_eq!(provider.held(), 1, "nobody told the provider");
        provider.pass(Duration::from_secs(121)).await;
        assert_eq!(provider.held(), 0, "nobody prolonged it");
        let next = up(&home, provider);
        let sql = next.sql().await;
        let first_end = format!(
            "SELECT count(*) FROM app.remote_execution_sessions WHERE run_id = '{run}' AND ended_at IS NOT NULL"
        );
        until("the lost session's end", SOON, async || count(&sql, &first_end).await >= 1).await;
        let (_, header) = next.get(&format!("/api/runs/{run}")).await;
        let workflow = header["workflowID"].as_str().unwrap();
        let wish = json!({"actor": "a", "reason": "r"});
        next.post(&format!("/api/ops/wf/{workflow}/cancel"), &wish).await;
        next.wait_terminal(&run).await;
        until("its end elsewhere", SOON, async || count(&sql, OPEN).await == 0).await;
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
    });
}

/// Counts for some seconds, and leaves a line with its process beside each number.
pub(crate) const COUNTS: &str = "id: counts\nv: \"1\"\nplan:\n  tasks:\n    - name: counts\n      build: {run: \"echo built >> built.txt; echo built\", timeout: 60s}\n      exec: {run: \"i=0; while [ $i -lt 120 ]; do i=$((i+1)); echo line $i; echo $$ >> ran.txt; sleep 0.1; done\", timeout: 120s}\n      artifacts: [\"*.txt\"]\n";

/// As text, each stream and file of the only task.
pub(crate) async fn kept(sql: &sqlx::PgPool, run: &str, name: &str) -> String {
    let kept = format!(
        "SELECT coalesce(a.inline, convert_from(b.bytes, 'UTF8')) FROM app.artifacts a
           LEFT JOIN app.blobs b ON b.sha256 = a.sha256 WHERE a.run_id = '{run}' AND a.name = '{name}'"
    );
    texts(sql, &kept).await.concat()
}

/// All of it was said once, by one process, and watchers were given every line once.
pub(crate) async fn assert_counted_once(sql: &sqlx::PgPool, run: &str) {
    let lines: String = (1..=120).map(|i| format!("line {i}\n")).collect();
    let whole = format!("built\n{lines}");
    assert_eq!(kept(sql, run, "stdout.log").await, whole);
    let ran = kept(sql, run, "files/ran.txt").await;
    let mut processes: Vec<&str> = ran.lines().collect();
    assert_eq!(processes.len(), 120);
    processes.dedup();
    assert_eq!(processes.len(), 1, "{processes:?}");
    assert_eq!(kept(sql, run, "files/built.txt").await, "built\n");
    let watched = format!(
        "SELECT string_agg(c.chunk, '' ORDER BY c.seq) FROM app.run_streams c
           JOIN app.sbx_runs t ON t.task_key = c.run_id WHERE t.run_id = '{run}' AND c.key = 'stdout'"
    );
    assert_eq!(texts(sql, &watched).await.concat(), whole);
}

/// One sandbox, one session, and the second execution on record that went on with it.
pub(crate) async fn assert_met_again(sql: &sqlx::PgPool) {
    let sessions =
        "SELECT concat_ws(' ', state, remote->>'attached') FROM app.remote_execution_sessions";
    assert_eq!(texts(sql, sessions).await, ["COMPLETED 1"]);
    let executions = "SELECT concat_ws(' ', execution_no, sandbox_id IS NOT NULL) FROM app.sbx_executions ORDER BY 1";
    assert_eq!(texts(sql, executions).await, ["1 t", "2 f"]);
}

/// The second execution began in a sandbox of its own, and the first one's is gone.
pub(crate) async fn assert_begun_anew(sql: &sqlx::PgPool, run: &str) {
    let ran = kept(sql, run, "files/ran.txt").await;
    assert_eq!(ran.lines().count(), 120, "the second began in a sandbox of its own");
    let ends = "SELECT state FROM app.remote_execution_sessions ORDER BY created_at";
    assert_eq!(texts(sql, ends).await, ["ORPHANED", "COMPLETED"]);
}

/// A run whose client is killed once it has said something.
pub(crate) async fn left_by_its_client(home: &Home, sql: &sqlx::PgPool) -> String {
    let recipe = home.path().join("counts.yaml");
    std::fs::write(&recipe, COUNTS).unwrap();
    let mut command = home.command(&["run", recipe.to_str().unwrap(), "--yes"]);
    let mut client = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let begun = "SELECT count(*) FROM app.sbx_runs";
    until("its task", SOON, async || count(sql, begun).await == 1).await;
    let run = texts(sql, "SELECT id FROM app.runs").await.concat();
    has_said(sql, &run, 60).await;
    client.kill().unwrap();
    client.wait().unwrap();
    run
}

/// Once watchers have so many bytes of its output.
pub(crate) async fn has_said(sql: &sqlx::PgPool, run: &str, least: i64) {
    let said = format!(
        "SELECT coalesce(max(c.upto), 0) FROM app.run_streams c JOIN app.sbx_runs t ON t.task_key = c.run_id
          WHERE t.run_id = '{run}' AND c.key = 'stdout'"
    );
    until("some output", SOON, async || count(sql, &said).await >= least).await;
}

#[test]
fn a_worker_that_is_killed_is_followed_by_one_that_goes_on_with_its_command() {
    with_provider(async |provider| {
        let home = Home::new();
        let mut first = up(&home, provider);
        let (run, _) = start(&first, COUNTS, "goes-on").await;
        let sql = first.sql().await;
        has_said(&sql, &run, 60).await;
        let known = "SELECT concat_ws(' ', remote->>'provider', remote->>'command') FROM app.remote_execution_sessions";
        assert_eq!(texts(&sql, known).await, [format!("{} command-1", provider.url())]);
        first.kill();
        assert_eq!(provider.held(), 1, "nobody told the provider");
        let next = up(&home, provider);
        let sql = next.sql().await;
        assert_eq!(next.wait_terminal(&run).await["status"], "succeeded");
        assert_counted_once(&sql, &run).await;
        assert_met_again(&sql).await;
        let made = provider.calls().iter().filter(|call| *call == "POST /sandboxes").count();
        assert_eq!((made, provider.held()), (1, 0));
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
    });
}

#[test]
fn a_worker_that_stops_leaves_its_command_to_the_next_one() {
    with_provider(async |provider| {
        let home = Home::new();
        let mut first = up(&home, provider);
        let (run, _) = start(&first, COUNTS, "stopped").await;
        let sql = first.sql().await;
        has_said(&sql, &run, 60).await;
        first.stop();
        assert_eq!(provider.held(), 1, "it is somebody's still");
        let next = up(&home, provider);
        let sql = next.sql().await;
        assert_eq!(next.wait_terminal(&run).await["status"], "succeeded");
        assert_counted_once(&sql, &run).await;
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
    });
}

#[test]
fn what_the_provider_lost_with_the_worker_begins_anew() {
    with_provider(async |provider| {
        let home = Home::new();
        let mut first = up(&home, provider);
        let (run, _) = start(&first, COUNTS, "anew").await;
        let sql = first.sql().await;
        has_said(&sql, &run, 60).await;
        first.kill();
        provider.pass(Duration::from_secs(121)).await;
        assert_eq!(provider.held(), 0, "nobody prolonged it");
        let next = up(&home, provider);
        let sql = next.sql().await;
        assert_eq!(next.wait_terminal(&run).await["status"], "succeeded");
        assert_begun_anew(&sql, &run).await;
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
    });
}

#[test]
fn a_client_that_is_killed_and_a_stream_that_is_cut_change_nothing_of_a_run_elsewhere() {
    with_provider(async |provider| {
        let home = Home::new();
        let up = up(&home, provider);
        let sql = up.sql().await;
        let run = left_by_its_client(&home, &sql).await;
        provider.cut().await;
        assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
        assert_counted_once(&sql, &run).await;
        assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_executions").await, 1);
        assert_wiped(&home, &sql).await;
        assert_proven(&home);
    });
}

#[test]
fn a_run_says_where_its_sandboxes_are_to_be_and_a_worker_that_has_them_elsewhere_refuses() {
    with_provider(async |provider| {
        let home = Home::new();
        let up = up(&home, provider);
        let sql = up.sql().await;
        let text = "id: mode\nv: \"1\"\nplan:\n  tasks:\n    - name: one\n      exec: {run: \"echo here\", timeout: 60s}\n";
        let recipe = home.path().join("mode.yaml");
        std::fs::write(&recipe, text).unwrap();
        let run = |mode: &str| {
            let args =
                ["run", recipe.to_str().unwrap(), "--yes", "--json", "--execution-mode", mode];
            home.command(&args).output().unwrap()
        };
        assert!(run("REMOTE_SANDBOX").status.success());
        assert_eq!(provider.held(), 0);
        let before = provider.calls().iter().filter(|call| *call == "POST /sandboxes").count();
        assert!(!run("LOCAL_NATIVE").status.success());
        let why =
            "SELECT DISTINCT response->>'cause' FROM app.sbx_runs WHERE err_code = 'BOOT_FAIL'";
        let words =
            "this host cannot enforce executionMode LOCAL_NATIVE: its sandboxes are REMOTE_SANDBOX";
        assert_eq!(texts(&sql, why).await, [words]);
        let after = provider.calls().iter().filter(|call| *call == "POST /sandboxes").count();
        assert_eq!(after, before, "nobody was asked for one");
        let said = String::from_utf8_lossy(&run("SOMEWHERE").stderr).into_owned();
        assert!(said.contains("--execution-mode <MODE>"), "{said}");
        // The mode is part of what a start means.
        let opts = |mode: &str| json!({"runKey": "one", "executionMode": mode});
        let one = up.run_recipe(text, json!({}), opts("REMOTE_SANDBOX")).await;
        let reference = json!({"id": "mode", "v": "1"});
        let again = json!({"recipeRef": reference, "formData": {}, "opts": opts("LOCAL_DOCKER")});
        let (status, body) = up.post("/api/run", &again).await;
        assert_eq!((status, &body["drift"][0]["field"]), (409, &json!("executionMode")), "{body}");
        let (status, body) =
            up.post("/api/run", &json!({"recipeRef": reference, "opts": opts("HERE")})).await;
        assert_eq!(status, 400, "{body}");
        let one = up.wait_terminal(one["runId"].as_str().unwrap()).await;
        assert_eq!(one["status"], "succeeded", "{one}");
        assert_wiped(&home, &sql).await;
    });
}

#[test]
fn a_worker_without_a_usable_provider_says_why_and_ends() {
    let home = Home::new();
    for (args, words) in [
        (vec![], "no provider was named"),
        (vec!["--remote-url", "http://127.0.0.1:9"], "there is no key"),
        (vec!["--remote-url", "http://provider.example"], "must be https://"),
    ] {
        let mut all = vec!["up", "--listen", "127.0.0.1:0", "--runtime", "remote"];
        all.extend(args);
        let mut command = home.command(&all);
        command.env_remove("E2B_API_KEY").env_remove("E2B_API_URL");
        let ended = command.output().unwrap();
        assert!(!ended.status.success());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains(words), "{said}");
    }
}
