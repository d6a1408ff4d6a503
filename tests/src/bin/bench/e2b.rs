//! A sandbox by E2B's API over loopback, on the real binary: made, used, paused, resumed and killed, in turns with a bare
//! `crun run` of the same command.
//!
//! | Figure | The clock starts | It stops |
//! |---|---|---|
//! | `e2b_create_to_output` | before `POST /v2/sandboxes` | with the end of a command that printed; the kill is outside |
//! | `e2b_kill` | before `DELETE` | with its answer, which the verified wipe comes before |
//! | `e2b_command` | before `Start` of `true` | with the end of its stream |
//! | `e2b_upload`, `e2b_download` | before a request of 64 MiB | with the end of its answer |
//! | `e2b_pause`, `e2b_resume` | before the request | with its answer, beside 100 MB of changes; resumed at once, turns 0.3 s apart |
//! | `e2b_seal` | with a pause's answer | when the list says that it is sealed |
//! | `e2b_resume_sealed` | before the request | with its answer, once they are sealed, while the layer is retained |
//! | `e2b_resume_from_file` | before the request | with its answer, once they are sealed and no layer is retained |
//! | `e2b_hundred_creates` | before the first of 100 at once, of five tenants | with the last answer |
//! | `e2b_create_beside_thousand`, `e2b_kill_beside_thousand` | as without `beside` | as there, with 1,000 that do nothing |
//! | `e2b_idle_thousand` | - | what the host's available memory lost to 1,000 that do nothing |
//!
//! The bare run makes and removes its container: its clock has both ends of a life in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::{Home, Server};
use serde_json::json;
use tokio::task::JoinSet;

use super::bare::Bare;
use super::figures::{emit, median, percentile, rounded};
use super::life::ms;
use super::runs::proc_kb;

/// Turns; the first few of each kind warm the caches.
const TURNS: usize = 60;
const COLD: usize = 5;
/// Between two of them: what one leaves to be done is not the next one's.
const APART: Duration = Duration::from_millis(300);
const COMMANDS: usize = 200;
const FILES: usize = 7;
const FILE: usize = 64 << 20;
const PAUSES: usize = 31;
/// Of changes in a sandbox that is paused.
const CHANGES: usize = 100_000_000;
const AT_ONCE: usize = 100;
const IDLE: usize = 1_000;
/// Sandboxes of one tenant.
const A_TENANT: usize = 20;
/// Room for the limits of all: what is measured is what they take.
const ROOM_MIB: &str = "1048576";
const BARE: &str = "crun run of crun spec with own ids";

type SandboxToken = (String, String);

pub async fn run() {
    let scratch = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().unwrap();
    let Some(bare) = Bare::named(scratch.path(), BARE, "e2b_create_to_output") else { return };
    let home = Home::new();
    let mut server = home.up_with(&["--memory-mb", ROOM_MIB], &[]);
    let client = caller(&server, "bench").await;
    lives(&client, &bare, ["e2b_create_to_output", "e2b_kill"]).await;
    commands(&client).await;
    files(&client).await;
    pauses(&client).await;
    sealed_pauses(&server, &client, "e2b_resume_sealed").await;
    no_layer_rests(&server).await;
    sealed_pauses(&server, &client, "e2b_resume_from_file").await;
    at_once(&server).await;
    if std::env::var_os("BENCH_QUICK").is_none() {
        idle(&server, &client, &bare).await;
    }
    server.stop();
}

async fn lives(client: &Caller, bare: &Bare, [of_outputs, of_kills]: [&str; 2]) {
    let (mut outputs, mut kills, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + COLD {
        let clock = Instant::now();
        let made = create(client, 60).await;
        command(client, &made).await;
        let output = ms(clock);
        let clock = Instant::now();
        client.kill(&made.0).await;
        let kill = ms(clock);
        let one = bare.run();
        if turn >= COLD {
            outputs.push(output);
            kills.push(kill);
            bares.push(one);
        }
    }
    let bare_ms = median(bares);
    for (name, times, bound) in [(of_outputs, outputs, 2.5), (of_kills, kills, 1.2)] {
        let half = median(times.clone());
        let more = json!({
            "n": TURNS, "ms": rounded(half), "p90": rounded(percentile(times, 90)), "bare_ms": rounded(bare_ms),
        });
        emit(name, half / bare_ms, "x bare run", bound, more);
    }
}

async fn commands(client: &Caller) {
    let made = create(client, 300).await;
    let mut times = Vec::new();
    for turn in 0..COMMANDS + COLD {
        let clock = Instant::now();
        command(client, &made).await;
        if turn >= COLD {
            times.push(ms(clock));
        }
    }
    let more = json!({"n": COMMANDS, "p90": rounded(percentile(times.clone(), 90))});
    emit("e2b_command", median(times), "ms", 4.0, more);
    client.kill(&made.0).await;
}

async fn files(client: &Caller) {
    let made = create(client, 300).await;
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..FILES {
        let clock = Instant::now();
        write(client, &made, "/tmp/file", FILE).await;
        up.push(mb_per_s(FILE, clock));
        let clock = Instant::now();
        let read = client.download((&made.0, &made.1), "/tmp/file");
        let bytes = read.send().await.unwrap().bytes().await.unwrap();
        down.push(mb_per_s(bytes.len(), clock));
        assert_eq!(bytes.len(), FILE);
    }
    let more = json!({"n": FILES, "bytes": FILE});
    emit("e2b_upload", median(up), "MB/s", 200.0, more.clone());
    emit("e2b_download", median(down), "MB/s", 200.0, more);
    client.kill(&made.0).await;
}

async fn pauses(client: &Caller) {
    let mut made = create(client, 300).await;
    write(client, &made, "/home/changes", CHANGES).await;
    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    for turn in 0..PAUSES + COLD {
        tokio::time::sleep(APART).await;
        let clock = Instant::now();
        let pause = format!("/sandboxes/{}/pause", made.0);
        let (status, answer) = client.api("POST", &pause, Some(json!({"memory": false}))).await;
        let paused = ms(clock);
        assert_eq!(status, 204, "{answer}");
        let clock = Instant::now();
        let connect = format!("/v2/sandboxes/{}/connect", made.0);
        let (status, answer) = client.api("POST", &connect, Some(json!({"timeout": 300}))).await;
        if turn >= COLD {
            pauses.push(paused);
            resumes.push(ms(clock));
        }
        assert!(status == 200 || status == 201, "{status} {answer}");
        if let Some(token) = answer["envdAccessToken"].as_str() {
            token.clone_into(&mut made.1);
        }
    }
    for (name, times) in [("e2b_pause", pauses), ("e2b_resume", resumes)] {
        let p90 = rounded(percentile(times.clone(), 90));
        emit(name, median(times), "ms", 15.0, json!({"n": PAUSES, "bytes": CHANGES, "p90": p90}));
    }
    client.kill(&made.0).await;
}

async fn no_layer_rests(server: &Server) {
    let none = json!({"value": 0, "expectedVersion": 0, "scope": "global"}).to_string();
    let (path, key) = ("/api/config/pause.rest_s", Some(&*server.key));
    let (status, answer) = server.request("PUT", path, key, Some(none.into_bytes())).await;
    assert_eq!(status, 200, "{answer}");
}

/// The same where each resume waits until the files are sealed.
async fn sealed_pauses(server: &Server, client: &Caller, name: &str) {
    let made = create(client, 300).await;
    write(client, &made, "/home/changes", CHANGES).await;
    let (mut seals, mut resumes) = (Vec::new(), Vec::new());
    let sql = server.sql().await;
    let left = "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NULL AND erased_at IS NULL";
    for _ in 0..PAUSES {
        let pause = format!("/sandboxes/{}/pause", made.0);
        let (status, answer) = client.api("POST", &pause, Some(json!({"memory": false}))).await;
        let clock = Instant::now();
        assert_eq!(status, 204, "{answer}");
        while sqlx::query_scalar::<_, i64>(left).fetch_one(&sql).await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        seals.push(ms(clock));
        tokio::time::sleep(APART).await;
        let clock = Instant::now();
        let connect = format!("/v2/sandboxes/{}/connect", made.0);
        let (status, answer) = client.api("POST", &connect, Some(json!({"timeout": 300}))).await;
        resumes.push(ms(clock));
        assert_eq!(status, 201, "{answer}");
    }
    sql.close().await;
    let more = json!({"n": PAUSES, "bytes": CHANGES});
    emit("e2b_seal", median(seals), "ms", 1_000.0, more.clone());
    emit(name, median(resumes), "ms", 15.0, more);
    client.kill(&made.0).await;
}

async fn at_once(server: &Server) {
    let tenants = tenants(server, AT_ONCE).await;
    let clock = Instant::now();
    let all = made(&tenants, A_TENANT).await;
    emit("e2b_hundred_creates", ms(clock), "ms", 1_000.0, json!({"n": all.len()}));
    killed(all).await;
}

async fn idle(server: &Server, client: &Caller, bare: &Bare) {
    let tenants = tenants(server, IDLE).await;
    let before = available_mib();
    let mut all = Vec::new();
    // Not more at once than the bench before: a creation waits no longer than 30 s.
    for some in tenants.chunks(AT_ONCE / A_TENANT) {
        all.extend(made(some, A_TENANT).await);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let took = (before - available_mib()) / 1024.0;
    emit("e2b_idle_thousand", took, "GiB", 1.2, json!({"n": all.len()}));
    lives(client, bare, ["e2b_create_beside_thousand", "e2b_kill_beside_thousand"]).await;
    killed(all).await;
}

async fn tenants(server: &Server, sandboxes: usize) -> Vec<Arc<Caller>> {
    let mut all = Vec::new();
    for n in 0..sandboxes / A_TENANT {
        all.push(Arc::new(caller(server, &format!("bench-{n}")).await));
    }
    all
}

/// So many of each tenant, all asked for at once.
async fn made(tenants: &[Arc<Caller>], each: usize) -> Vec<(Arc<Caller>, SandboxToken)> {
    let mut creates = JoinSet::new();
    for client in tenants {
        for _ in 0..each {
            let client = Arc::clone(client);
            creates.spawn(async move {
                let made = create(&client, 600).await;
                (client, made)
            });
        }
    }
    creates.join_all().await
}

async fn killed(all: Vec<(Arc<Caller>, SandboxToken)>) {
    for (client, made) in all {
        client.kill(&made.0).await;
    }
}

fn mb_per_s(bytes: usize, since: Instant) -> f64 {
    bytes as f64 / 1e3 / ms(since)
}

/// What the kernel says that programs could still take.
fn available_mib() -> f64 {
    proc_kb("/proc/meminfo", "MemAvailable:") / 1024.0
}

async fn caller(server: &Server, tenant: &str) -> Caller {
    // The server bounds the connections of one address.
    let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(1);
    let http = http.timeout(Duration::from_secs(120)).build().unwrap();
    Caller { http, ..Caller::of(server, tenant).await }
}

pub(super) async fn create(caller: &Caller, seconds: u32) -> SandboxToken {
    caller.create(json!({"templateID": "base", "timeout": seconds})).await
}

/// `echo`, to the end of its stream.
pub(super) async fn command(caller: &Caller, (id, token): &SandboxToken) {
    let answer = caller.started((id, token), "/bin/echo", &["hi"]).await;
    assert!(answer.contains("\"exitCode\":0"), "{answer}");
}

async fn write(caller: &Caller, (id, token): &SandboxToken, path: &str, bytes: usize) {
    let (status, said) = answered(caller.upload((id, token), path).body(vec![7; bytes])).await;
    assert_eq!(status, 200, "{said}");
}
