//! A lost host, a lost workflow and a full disk: what a tenant is told is short, soon, and names no path of the host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::{Home, assert_nothing_left, live_dir};
use serde_json::{Value, json};

use super::built::{opened, run};
use super::gone;
use crate::support::{count, until};

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a3l_a_kill_of_a_sandbox_on_a_lost_host_is_answered_at_once() {
    let database = Postgres::start().await;
    let (lost, home) = (Home::on(&database.url()), Home::on(&database.url()));
    let sql = database.sql().await;
    let mut server = lost.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    server.kill();
    // What it was on is another machine from now on, which nobody hears of.
    let as_host = async |host: &str| {
        let mut tx = sql.begin().await.unwrap();
        sqlx::query("SET LOCAL session_replication_role = replica")
            .execute(&mut *tx)
            .await
            .unwrap();
        let before: String = sqlx::query_scalar(
            "SELECT s.host_id FROM app.remote_execution_sessions s JOIN app.live_sandboxes l ON l.run_id = s.run_id WHERE l.id = $1",
        )
        .bind(&id)
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        for table in ["executors", "remote_execution_sessions"] {
            let query = format!("UPDATE app.{table} SET host_id = $1 WHERE host_id = $2");
            let query = sqlx::query(sqlx::AssertSqlSafe(query)).bind(host).bind(&before);
            query.execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
        before
    };
    let host = as_host("elsewhere").await;
    let mut other = home.up();
    let ann = Caller::of(&other, "ann").await;
    let path = format!("/sandboxes/{id}");
    for _ in 0..2 {
        let request = ann.http.delete(format!("{}{path}", ann.url)).header("x-api-key", &ann.key);
        let answer = request.send().await.unwrap();
        let (status, again) = (answer.status(), answer.headers().get("retry-after").cloned());
        let said = answer.text().await.unwrap();
        assert!(status == 503 && again.is_some(), "{status} {said}");
        assert!(said.contains("its host is lost"), "it waits for nothing: {said}");
    }
    let (status, said) = ann.api("POST", &format!("{path}/pause"), None).await;
    assert!((400..=503).contains(&status) && status != 500, "{status} {said}");
    assert!(other.stop().success());
    // It is found again: what was left is wiped, with evidence.
    sqlx::query("UPDATE app.executors SET state = 'dead', ended_at = clock_timestamp() WHERE state = 'live'")
        .execute(&sql)
        .await
        .unwrap();
    as_host(&host).await;
    let server = lost.up();
    let ann = Caller::of(&server, "ann").await;
    until("its wipe is verified", SOON, async || {
        [204, 404].contains(&ann.api("DELETE", &path, None).await.0)
    })
    .await;
    sql.close().await;
    gone(lost, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a3l_a_build_whose_workflow_is_lost_ends_with_the_reason_and_frees_the_next() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (_, path) = opened(&ann, "web").await;
    let body = json!({"fromTemplate": "base", "steps": [run("echo begun; sleep 100")]});
    assert_eq!(ann.api("POST", &path, Some(body)).await.0, 202);
    let status = format!("{}/status", path.trim_start_matches("/v2"));
    until("its step runs", SOON, async || {
        ann.api("GET", &status, None).await.1.to_string().contains("begun")
    })
    .await;
    // As where a statement of its task's workflow was cut, and its repetition refused.
    let sql = server.sql().await;
    let stranded = sqlx::query(
        "UPDATE dbos.workflow_status SET status = 'ERROR', error = '{}', updated_at = app.ms(clock_timestamp())
          WHERE status = 'PENDING' AND workflow_uuid IN (SELECT task_key FROM app.sbx_runs WHERE response IS NULL)",
    );
    assert_eq!(stranded.execute(&sql).await.unwrap().rows_affected(), 1);
    until("the build has ended", SOON, async || {
        ann.api("GET", &status, None).await.1["status"] == "error"
    })
    .await;
    let (_, said) = ann.api("GET", &status, None).await;
    let why = said["reason"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("the sandbox of the build ended"), "{said}");
    let (_, next) = opened(&ann, "web").await;
    let body = json!({"fromTemplate": "base", "steps": [run("true")]});
    assert_eq!(ann.api("POST", &next, Some(body)).await.0, 202);
    let status = format!("{}/status", next.trim_start_matches("/v2"));
    until("the next one is ready", SOON, async || {
        ann.api("GET", &status, None).await.1["status"] == "ready"
    })
    .await;
    sql.close().await;
    gone(home, server).await;
}

/// A disk of 64 MiB, for as long as it lives.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m,mode=0755", "none"])
            .arg(dir.path())
            .status();
        assert!(mounted.unwrap().success());
        Self(dir)
    }

    fn fill(&self) {
        let filled = Command::new("dd")
            .args(["if=/dev/zero", "bs=64k"])
            .arg(format!("of={}", self.0.path().join("filler").display()))
            .output();
        assert!(!filled.unwrap().status.success(), "it is full");
    }

    fn empty(&self) {
        fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// It names no directory of the server.
fn assert_told(what: &str, (status, said): &(u16, Value), hidden: &[&Path]) {
    assert_ne!(*status, 500, "{what}: {said}");
    let said = said.to_string();
    for dir in hidden {
        assert!(!said.contains(dir.to_str().unwrap()), "{what}: {status} {said}");
    }
    for part in ["/run/", "/dev/shm/"] {
        assert!(!said.contains(part), "{what}: {status} {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a3l_a_full_disk_is_no_500_and_names_no_path_of_the_host() {
    let database = Postgres::start().await;
    let (url, disk) = (database.url(), Disk::new());
    let home = Home::below(disk.0.path());
    let mut server = home.up_with(&[], &[("DATABASE_URL", &url)]);
    let ann = Caller::of(&server, "ann").await;
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    let (paused, _) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    ann.pause(&paused).await;
    let sql = database.sql().await;
    let unsealed = "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NULL";
    until("it is sealed", SOON, async || count(&sql, unsealed).await == 0).await;
    let live = live_dir(home.path());
    let hidden = [home.path(), disk.0.path(), live.as_path()];
    disk.fill();
    let (template, build) = opened(&ann, "web").await;
    for (what, method, path, body) in [
        (
            "create",
            "POST",
            "/v2/sandboxes".to_owned(),
            json!({"templateID": "base", "timeout": 600}),
        ),
        ("snapshot", "POST", format!("/sandboxes/{id}/snapshots"), json!({})),
        ("fork", "POST", format!("/sandboxes/{id}/fork"), json!({"count": 1})),
        ("pause", "POST", format!("/sandboxes/{id}/pause"), json!({})),
        ("resume", "POST", format!("/sandboxes/{paused}/resume"), json!({"timeout": 600})),
        ("build", "POST", build.clone(), json!({"fromTemplate": "base", "steps": [run("true")]})),
        ("native", "POST", "/api/sandboxes".to_owned(), json!({"template": "base"})),
    ] {
        let said = ann.api(method, &path, Some(body)).await;
        assert_told(what, &said, &hidden);
    }
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_path_with_name("/bin/true", "a").unwrap();
    let sent = ann.send_files(&template, &"a".repeat(64), tar.into_inner().unwrap()).await;
    assert_told("archive", &sent, &hidden);
    assert!(sent.0 == 503, "there is no room for it: {sent:?}");
    let written = answered(ann.upload((&id, &token), "/home/user/a").body(vec![1; 1 << 20])).await;
    assert_told("file", &written, &hidden);
    let status = format!("{}/status", build.trim_start_matches("/v2"));
    assert_told("build's status", &ann.api("GET", &status, None).await, &hidden);
    let recipe =
        "id: t\nv: '1'\nplan: {tasks: [{name: t, exec: {run: 'echo a > a'}, artifacts: [a]}]}\n";
    let (code, begun) =
        server.start_recipe_as(&server.key, recipe, json!({}), json!({"runKey": "r"})).await;
    assert_told("run", &(code, begun.clone()), &hidden);
    if let Some(run) = begun["runId"].as_str() {
        let ended = server.wait_terminal(run).await;
        assert_told("run's end", &(200, ended), &hidden);
    }
    disk.empty();
    let live = "SELECT id FROM app.live_sandboxes WHERE ended_at IS NULL";
    for id in crate::support::texts(&sql, live).await {
        let said = ann.api("DELETE", &format!("/sandboxes/{id}"), None).await;
        assert!([204, 404].contains(&said.0), "{said:?}");
    }
    sql.close().await;
    assert!(server.stop().success());
    assert_nothing_left(home.path());
}
