//! The database, the disk, the process: what is taken away comes back, and nothing is lost.

use crate::support;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, Server, assert_nothing_left, live_dir, text};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{
    assert_proven, assert_wiped, count, ended, executing, hold_claims, names, postmaster, recipe,
    said, signal, texts, until,
};

const SOON: Duration = Duration::from_secs(60);

/// Three tasks of about a second; each leaves a file.
const BUSY: &str = "id: busy\nv: \"1\"\nplan:\n  tasks:\n    - name: part-${item}\n      each: ${range(3)}\n      \
    exec: {run: \"sleep 1.${item}; echo ${item} | tee out.txt\", timeout: 60s}\n      artifacts: [out.txt]\n";

fn slow(seconds: u32) -> String {
    format!(
        "id: slow\nv: \"1\"\nplan:\n  tasks:\n    - name: slow\n      exec: {{run: \"echo begun; sleep {seconds}; echo done\", timeout: 120s}}\n"
    )
}

async fn submit(up: &Server, yaml: &str, key: &str) -> String {
    let header = up.run_recipe(yaml, json!({}), json!({"runKey": key})).await;
    text(&header, "runId")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_killed_comes_back_and_every_run_goes_on() {
    let home = Home::new();
    let up = home.up();
    for (round, how) in [Signal::SIGKILL, Signal::SIGINT, Signal::SIGQUIT].into_iter().enumerate() {
        let mut runs = Vec::new();
        for n in 0..3 {
            runs.push(submit(&up, BUSY, &format!("{round}.{n}")).await);
        }
        executing(&up.sql().await, SOON).await;
        let victim = postmaster(&home).expect("a database runs");
        signal(victim, how);
        for run in &runs {
            // Whoever asks meanwhile is told so, or waits; a 500 or a lost run is a bug.
            until("the run has ended", SOON, async || {
                let (status, body) = up.get(&format!("/api/runs/{run}")).await;
                assert!(
                    status == 200 || (status == 503 && body["code"] == "unavailable"),
                    "{status} {body}"
                );
                body["status"] == "succeeded"
            })
            .await;
        }
        assert_ne!(postmaster(&home), Some(victim), "{how}: the database is another process");
        for run in &runs {
            let header = up.wait_terminal(run).await;
            assert_eq!(header["status"], "succeeded", "{how}: {header}");
        }
    }
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_runs WHERE err_code = 'NONE'").await, 27);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.artifacts WHERE kind = 'file'").await, 27);
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

/// The commit reached the database, its answer did not reach the worker: nobody else will ever look
/// at a row that a live worker owns, so the worker itself must.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_is_found_and_run() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let claims = hold_claims(&sql, "intentQ").await;
    let run =
        submit(&up, "id: v\nv: \"1\"\nplan: {tasks: [{name: keep, value: kept}]}\n", "lost").await;
    until("the worker is about to claim", SOON, async || {
        count(&sql, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            .await
            > 0
    })
    .await;
    let lost = sqlx::query(
        "UPDATE dbos.workflow_status SET status = 'PENDING', owner_xid = NULL,
                executor_id = (SELECT id FROM app.executors WHERE state = 'live')
          WHERE name = 'run' AND status = 'ENQUEUED'",
    )
    .execute(&sql)
    .await
    .unwrap();
    assert_eq!(lost.rows_affected(), 1);
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
    )
    .execute(&sql)
    .await
    .unwrap();
    claims.close().await.unwrap();
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_runs").await, 1);
    assert_proven(&home);
}

/// A task that takes its worker down each time must not take down every worker of the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_lost_ten_workers_is_not_started_again() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let claims = hold_claims(&sql, "sbxQ").await;
    let run = submit(&up, &slow(0), "deadly").await;
    until("the task is queued", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.sbx_runs").await == 1
    })
    .await;
    sqlx::query(
        "INSERT INTO app.sbx_executions (task_key, execution_no, worker)
         SELECT task_key, n, 'ex-lost' FROM app.sbx_runs, generate_series(1, 10) n",
    )
    .execute(&sql)
    .await
    .unwrap();
    claims.close().await.unwrap();
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "failed", "{header}");
    assert_eq!(
        texts(&sql, "SELECT response->>'cause' FROM app.sbx_runs").await,
        ["its worker was lost 10 times while it ran; it is not started again"]
    );
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_away_the_api_says_unavailable_and_writes_nothing() {
    let home = Home::new();
    let up = home.up();
    let run = submit(&up, BUSY, "before").await;
    executing(&up.sql().await, SOON).await;
    // Whoever starts the database takes this lock first, so it stays away while the test holds it.
    let lock = File::open(home.path().join("database/start.lock")).unwrap();
    lock.lock().unwrap();
    signal(postmaster(&home).unwrap(), Signal::SIGKILL);
    // Its children end a moment after it, and may answer until then.
    until("the database is away", SOON, async || up.get("/healthz").await.0 == 503).await;
    let intent = json!({"goal": "lost?", "inputs": {}, "constraints": {}});
    let run_path = format!("/api/runs/{run}");
    let asked = tokio::join!(
        up.get("/healthz"),
        up.get(&run_path),
        up.get("/api/runs"),
        up.post("/api/intents", &intent)
    );
    for (status, body) in [asked.0, asked.1, asked.2, asked.3] {
        assert_eq!(status, 503, "{body}");
        assert!(body["code"] == "unavailable" || body["ok"] == false, "{body}");
    }
    lock.unlock().unwrap();
    let header = up.wait_for(&run, "succeeded", |h| h["status"] == "succeeded").await;
    assert_eq!(header["status"], "succeeded", "{header}");
    up.wait_terminal(&run).await;
    assert_eq!(
        count(&up.sql().await, "SELECT count(*) FROM app.intents WHERE goal = 'lost?'").await,
        0
    );
    assert_proven(&home);
}

#[test]
fn a_missing_runtime_is_named_and_nothing_stays_up() {
    let home = Home::new();
    let output = ended(
        home.command(&["up", "--listen", "127.0.0.1:0", "--runtime", "/nonexistent/crun"]),
        SOON,
    );
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("no OCI runtime") && stderr.contains("/nonexistent/crun"), "{stderr}");
    assert!(stderr.contains("install"), "the remedy is named: {stderr}");
    assert!(output.stdout.is_empty(), "no address was promised");
    assert_nothing_left(home.path());
}

/// A small file system of the test's own over a home, gone with it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn over(home: &Home, size: &str) -> Self {
        let options = format!("size={size},mode=0711");
        mount(Some("tmpfs"), home.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("a tmpfs");
        Self(home.path().to_path_buf())
    }

    /// Takes all that is left; `Err` as soon as the disk is full.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("fill");
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let chunk = vec![7u8; 64 * 1024];
        while file.write_all(&chunk).is_ok() {}
        while file.write_all(&[7]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_delays_work_and_loses_none_of_it() {
    let home = Home::new();
    let disk = SmallDisk::over(&home, "160m");
    let mut up = home.up();
    let before = submit(&up, BUSY, "before").await;
    let sql = up.sql().await;
    until("all of it executes", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'EXECUTING'")
            .await
            == 3
    })
    .await;
    let fill = disk.fill();
    let bulky = "id: bulky\nv: \"1\"\nplan:\n  tasks:\n    - name: bulk\n      exec: {run: \"head -c 1000000 /dev/urandom > out.bin\", timeout: 60s}\n      artifacts: [out.bin]\n";
    let request = json!({"recipeRef": {"id": "bulky", "v": "1"}, "formData": {}, "opts": {}});
    // The database has a few free pages of its own: until the last of them is gone too.
    let mut told = None;
    let mut dice = support::Dice::new("a_full_disk_delays_work_and_loses_none_of_it");
    until("the API says that there is no room", SOON, async || {
        let noise: String = (0..8_000).map(|_| format!("{:016x}", dice.below(u64::MAX))).collect();
        let large = json!({"goal": "fill", "inputs": {"noise": noise}, "constraints": {}});
        let (status, body) = up.post("/api/intents", &large).await;
        assert!(
            status == 201 || (status == 503 && body["code"] == "unavailable"),
            "{status} {body}"
        );
        told = body["error"].as_str().map(str::to_owned);
        status == 503
    })
    .await;
    assert!(told.as_deref().is_some_and(|text| text.contains("disk is full")), "{told:?}");
    let (_, _) = up.post("/api/recipes/import", &json!({"yaml": bulky})).await;
    let (status, body) = up.post("/api/run", &request).await;
    assert!([201, 404, 503].contains(&status), "{status} {body}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (status, body) = up.get(&format!("/api/runs/{before}")).await;
    assert!(
        status == 503 || body["status"] == "running" || body["status"] == "succeeded",
        "{status} {body}"
    );
    fs::remove_file(fill).unwrap();
    let mut after = String::new();
    until("space is back and the run is taken", SOON, async || {
        let (status, _) = up.post("/api/recipes/import", &json!({"yaml": bulky})).await;
        let (taken, header) = up.post("/api/run", &request).await;
        after = header["runId"].as_str().unwrap_or("").to_owned();
        status == 201 && (taken == 201 || taken == 200)
    })
    .await;
    let header = up.wait_terminal(&before).await;
    assert_eq!(header["status"], "succeeded", "what had begun has its end: {header}");
    let header = up.wait_terminal(&after).await;
    if header["status"] != "succeeded" {
        // It began while there was no room for a sandbox, says so, and can be had again.
        // What there was no room for any more may be the runtime's own file, of which it says only that.
        let why = header["error"].as_str().unwrap();
        let words =
            ["No space left on device", "write to seccomp fd", "the artifact store is full"];
        assert!(words.iter().any(|words| why.contains(words)), "{header}");
        let (status, retried) = up.post(&format!("/api/runs/{after}/retry"), &json!({})).await;
        assert_eq!(status, 202, "{retried}");
        let header = up.wait_terminal(retried["newRunId"].as_str().unwrap()).await;
        assert_eq!(header["status"], "succeeded", "{header}");
    }
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    up.stop();
    assert_nothing_but_the_disk(&home);
    drop(disk);
}

fn assert_nothing_but_the_disk(home: &Home) {
    let text = home.path().to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(mounts.lines().filter(|line| line.contains(&text)).count(), 1);
}

#[test]
fn a_state_directory_below_a_private_one_works_and_leaves_it_private() {
    let home = Home::new();
    let private = home.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    let state = private.join("state");
    let state = state.to_str().unwrap();
    let output =
        ended(home.command(&["--state", state, "run", "examples/hello.yaml", "--json"]), SOON);
    let elsewhere =
        fs::read_to_string(Path::new(state).join("database/elsewhere")).unwrap_or_default();
    let proven = ended(home.command(&["--state", state, "prove"]), SOON);
    assert_nothing_left(Path::new(state));
    if !elsewhere.trim().is_empty() {
        fs::remove_dir_all(elsewhere.trim()).unwrap();
    }
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(proven.status.code(), Some(0), "{}", said(&proven));
    assert_eq!(private.metadata().unwrap().mode() & 0o7777, 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_state_directory_share_the_work_and_either_may_go() {
    let home = Home::new();
    let mut first = home.up();
    let second = home.up();
    assert_ne!(first.url, second.url);
    assert_eq!(first.key, second.key);
    let mut runs = Vec::new();
    for n in 0..4 {
        runs.push(submit(if n % 2 == 0 { &first } else { &second }, BUSY, &n.to_string()).await);
    }
    executing(&second.sql().await, SOON).await;
    assert!(first.stop().success());
    for run in &runs {
        let header = second.wait_terminal(run).await;
        assert_eq!(header["status"], "succeeded", "{header}");
    }
    let listed = home.run_json(&["ps", "--json"]);
    assert_eq!(listed["runs"].as_array().unwrap().len(), 4, "{listed}");
    assert_wiped(&home, &second.sql().await).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_server_wipes_what_it_ran_and_the_next_one_runs_it_again() {
    let home = Home::new();
    let mut up = home.up();
    let run = submit(&up, &slow(2), "term").await;
    executing(&up.sql().await, SOON).await;
    assert_eq!(up.stop().code(), Some(0));
    assert_nothing_left(home.path());
    assert!(names(&live_dir(home.path()).join("sandboxes")).is_empty());
    let up = home.up();
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let sql = up.sql().await;
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.sbx_executions").await,
        2,
        "both starts are on record"
    );
    assert_eq!(count(&sql, "SELECT count(*) FROM app.executors WHERE state = 'left'").await, 1);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.executors WHERE state = 'dead'").await, 0);
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_an_orphan_that_its_successor_wipes_and_runs_again() {
    let home = Home::new();
    let mut up = home.up();
    let run = submit(&up, &slow(2), "kill").await;
    executing(&up.sql().await, SOON).await;
    up.kill();
    let up = home.up();
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let (_, wipes) = up.get(&format!("/api/runs/{run}/wipes")).await;
    let ends: Vec<_> = wipes
        .as_array()
        .unwrap()
        .iter()
        .map(|w| (&w["state"], &w["status"], &w["reason"]))
        .collect();
    let told = |state: &str, reason: &str| (json!(state), json!("verified"), json!(reason));
    let ends: Vec<(Value, Value, Value)> =
        ends.into_iter().map(|(a, b, c)| (a.clone(), b.clone(), c.clone())).collect();
    assert_eq!(ends, [told("ORPHANED", "orphan"), told("COMPLETED", "task-end")]);
    assert_wiped(&home, &up.sql().await).await;
    assert_proven(&home);
}

/// A one-shot run in a process of its own, once its sandbox executes.
fn one_shot(home: &Home, seconds: u32) -> (Child, BufReader<std::process::ChildStderr>) {
    let file = recipe(home.path(), "slow.yaml", &slow(seconds));
    let mut command = home.command(&["run", &file]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("run rn_"), "{line}");
    let deadline = std::time::Instant::now() + SOON;
    while names(&live_dir(home.path()).join("sandboxes")).is_empty() {
        assert!(std::time::Instant::now() < deadline, "no sandbox");
        std::thread::sleep(Duration::from_millis(5));
    }
    (child, stderr)
}

#[test]
fn an_interrupted_one_shot_run_is_canceled_and_leaves_nothing() {
    let home = Home::new();
    let (mut child, _stderr) = one_shot(&home, 60);
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let status = child.wait().unwrap();
    // As a shell has it for a program that was interrupted.
    assert_eq!(status.code(), Some(130));
    assert_nothing_left(home.path());
    assert!(names(&live_dir(home.path()).join("sandboxes")).is_empty());
    let listed = home.run_json(&["ps", "--json"]);
    assert_eq!(listed["runs"][0]["status"], "canceled", "{listed}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_run_that_was_killed_is_finished_by_the_next_server() {
    let home = Home::new();
    let (mut child, _stderr) = one_shot(&home, 2);
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGKILL);
    child.wait().unwrap();
    let up = home.up();
    let (_, runs) = up.get("/api/runs").await;
    let header = up.wait_terminal(runs[0]["runId"].as_str().unwrap()).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_wiped(&home, &up.sql().await).await;
    assert_proven(&home);
}

/// A worker that was suspended longer than the others waited finds itself dead and ends with the
/// status that asks a supervisor to start it again; what it ran ends once.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_away_too_long_stops_itself() {
    let home = Home::new();
    let up = home.up();
    let mut worker =
        home.command(&["worker"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready.trim(), "worker ready");
    let pid = i32::try_from(worker.id()).unwrap();
    signal(pid, Signal::SIGSTOP);
    let sql = up.sql().await;
    until("it is declared dead", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.executors WHERE state = 'dead'").await == 1
    })
    .await;
    signal(pid, Signal::SIGCONT);
    let mut status = None;
    until("it has ended", SOON, async || {
        status = worker.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(75));
    assert_proven(&home);
}

/// Whoever deletes a state directory under a running server means it: nothing is put there again.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_that_was_deleted_is_not_made_again() {
    let home = Home::new();
    let up = home.up();
    let victim = postmaster(&home).unwrap();
    until("it is deleted", SOON, async || {
        let _ = fs::remove_dir_all(home.path());
        !home.path().exists()
    })
    .await;
    signal(victim, Signal::SIGKILL);
    // Several times as long as a killed database stays away.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!home.path().exists(), "{:?}", names(home.path()));
    signal(up.pid(), Signal::SIGTERM);
    until("the server has ended", SOON, async || {
        fs::read_to_string(format!("/proc/{}/stat", up.pid()))
            .is_ok_and(|stat| stat.contains(") Z "))
    })
    .await;
}
