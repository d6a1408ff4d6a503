//! A sandbox by E2B's API over loopback, on the real binary: made, used, paused, resumed and killed, in turns with a bare
//! `crun run` of the same command.
//!
//! | Figure | The clock starts | It stops |
//! |---|---|---|
//! | `e2b_create_to_output` | before `POST /v2/sandboxes` | with the end of a command that printed; the kill is outside |
//! | `e2b_kill` | before `DELETE` | with its answer, which the verified wipe comes before |
//! | `e2b_command` | before `Start` of `true` | with the end of its stream |
//! | `e2b_upload`, `e2b_download` | before a request of 64 MiB | with the end of its answer |
//! | `e2b_pause`, `e2b_resume` | before the request | with its answer, beside 100 MB of changes |
//! | `e2b_hundred_creates` | before the first of 100 at once, of five tenants | with the last answer |
//! | `e2b_idle_thousand` | - | what the host's available memory lost to 1,000 that do nothing |
//!
//! The bare run makes and removes its container: its clock has both ends of a life in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, text};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::bare::Bare;
use super::figures::{emit, median, percentile, rounded};
use super::life::ms;

/// Turns; the first few warm the caches.
const TURNS: usize = 60;
const COLD: usize = 5;
const COMMANDS: usize = 200;
const FILES: usize = 7;
const FILE: usize = 64 << 20;
const PAUSES: usize = 7;
/// Of changes in a sandbox that is paused.
const CHANGES: usize = 100_000_000;
const AT_ONCE: usize = 100;
const IDLE: usize = 1_000;
/// Sandboxes of one tenant.
const A_TENANT: usize = 20;
/// Room for the limits of all: what is measured is what they take.
const ROOM_MIB: &str = "1048576";
const BARE: &str = "crun run of crun spec with own ids";

/// A client of E2B's API, as thin as one can be.
struct Client {
    http: reqwest::Client,
    url: String,
    key: String,
}

#[derive(Clone)]
struct Made {
    id: String,
    token: String,
}

pub async fn run() {
    let scratch = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().unwrap();
    let mut all = Bare::all(scratch.path());
    let Some(at) = all.iter().position(|(name, bare)| *name == BARE && bare.is_ok()) else {
        return println!("{}", json!({"name": "e2b_create_to_output", "absent": BARE}));
    };
    let bare = all.swap_remove(at).1.unwrap();
    let home = Home::new();
    let mut server = home.up_with(&["--memory-mb", ROOM_MIB], &[]);
    let client = Client::of(&server, "bench").await;
    let sql = server.sql().await;
    let many = "UPDATE dbos.queues SET worker_concurrency = 2000, partition_concurrency = 200 WHERE name = 'sbxQ'";
    sqlx::query(many).execute(&sql).await.unwrap();
    sql.close().await;
    lives(&client, &bare).await;
    commands(&client).await;
    files(&client).await;
    pauses(&client).await;
    at_once(&server).await;
    if std::env::var_os("BENCH_QUICK").is_none() {
        idle(&server).await;
    }
    server.stop();
}

async fn lives(client: &Client, bare: &Bare) {
    let (mut outputs, mut kills, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + COLD {
        let clock = Instant::now();
        let made = client.create(60).await;
        client.command(&made).await;
        let output = ms(clock);
        let clock = Instant::now();
        client.kill(&made).await;
        let kill = ms(clock);
        let one = bare.run();
        if turn >= COLD {
            outputs.push(output);
            kills.push(kill);
            bares.push(one);
        }
    }
    let bare_ms = median(bares);
    for (name, times, bound) in [("e2b_create_to_output", outputs, 2.5), ("e2b_kill", kills, 1.2)] {
        let half = median(times.clone());
        let more = json!({
            "n": TURNS, "ms": rounded(half), "p90": rounded(percentile(times, 90)), "bare_ms": rounded(bare_ms),
        });
        emit(name, half / bare_ms, "x bare run", bound, more);
    }
}

async fn commands(client: &Client) {
    let made = client.create(300).await;
    let mut times = Vec::new();
    for turn in 0..COMMANDS + COLD {
        let clock = Instant::now();
        client.command(&made).await;
        if turn >= COLD {
            times.push(ms(clock));
        }
    }
    let more = json!({"n": COMMANDS, "p90": rounded(percentile(times.clone(), 90))});
    emit("e2b_command", median(times), "ms", 4.0, more);
    client.kill(&made).await;
}

async fn files(client: &Client) {
    let made = client.create(300).await;
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..FILES {
        let clock = Instant::now();
        client.write(&made, "/tmp/file", FILE).await;
        up.push(mb_per_s(FILE, clock));
        let clock = Instant::now();
        let read = client.of_sandbox(client.http.get(client.file("/tmp/file")), &made);
        let bytes = read.send().await.unwrap().bytes().await.unwrap();
        down.push(mb_per_s(bytes.len(), clock));
        assert_eq!(bytes.len(), FILE);
    }
    let more = json!({"n": FILES, "bytes": FILE});
    emit("e2b_upload", median(up), "MB/s", 200.0, more.clone());
    emit("e2b_download", median(down), "MB/s", 200.0, more);
    client.kill(&made).await;
}

async fn pauses(client: &Client) {
    let mut made = client.create(300).await;
    client.write(&made, "/home/changes", CHANGES).await;
    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    for _ in 0..PAUSES {
        let clock = Instant::now();
        let pause = format!("/sandboxes/{}/pause", made.id);
        let (status, answer) = client.api("POST", &pause, Some(&json!({"memory": false}))).await;
        pauses.push(ms(clock));
        assert_eq!(status, 204, "{answer}");
        let clock = Instant::now();
        let connect = format!("/v2/sandboxes/{}/connect", made.id);
        let (status, answer) = client.api("POST", &connect, Some(&json!({"timeout": 300}))).await;
        resumes.push(ms(clock));
        assert!(status == 200 || status == 201, "{status} {answer}");
        if let Some(token) = answer["envdAccessToken"].as_str() {
            token.clone_into(&mut made.token);
        }
    }
    let more = json!({"n": PAUSES, "bytes": CHANGES});
    emit("e2b_pause", median(pauses), "ms", 15.0, more.clone());
    emit("e2b_resume", median(resumes), "ms", 15.0, more);
    client.kill(&made).await;
}

async fn at_once(server: &Server) {
    let tenants = tenants(server, AT_ONCE).await;
    let clock = Instant::now();
    let all = made(&tenants, A_TENANT).await;
    emit("e2b_hundred_creates", ms(clock), "ms", 1_000.0, json!({"n": all.len()}));
    killed(all).await;
}

async fn idle(server: &Server) {
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
    killed(all).await;
}

async fn tenants(server: &Server, sandboxes: usize) -> Vec<Arc<Client>> {
    let mut all = Vec::new();
    for n in 0..sandboxes / A_TENANT {
        all.push(Arc::new(Client::of(server, &format!("bench-{n}")).await));
    }
    all
}

/// So many of each tenant, all asked for at once.
async fn made(tenants: &[Arc<Client>], each: usize) -> Vec<(Arc<Client>, Made)> {
    let mut creates = JoinSet::new();
    for client in tenants {
        for _ in 0..each {
            let client = Arc::clone(client);
            creates.spawn(async move {
                let made = client.create(600).await;
                (client, made)
            });
        }
    }
    creates.join_all().await
}

async fn killed(all: Vec<(Arc<Client>, Made)>) {
    for (client, made) in all {
        client.kill(&made).await;
    }
}

/// What the kernel says that programs could still take.
fn available_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:")).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
    kib / 1024.0
}

fn mb_per_s(bytes: usize, since: Instant) -> f64 {
    bytes as f64 / 1e3 / ms(since)
}

impl Client {
    async fn of(server: &Server, tenant: &str) -> Self {
        let wish = json!({"tenant": tenant, "roles": ["submitter"], "format": "e2b"});
        let (_, key) = server.new_key(&wish).await;
        let http = reqwest::Client::builder()
            .no_proxy()
            // The server bounds the connections of one address.
            .pool_max_idle_per_host(1)
            .timeout(Duration::from_secs(120))
            .build()
            .unwrap();
        Self { http, url: server.url.clone(), key }
    }

    async fn api(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let url = format!("{}{path}", self.url);
        let mut request = self.http.request(method.parse().unwrap(), url);
        request = request.header("x-api-key", &self.key);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
    }

    async fn create(&self, seconds: u32) -> Made {
        let wish = json!({"templateID": "base", "timeout": seconds});
        let (status, made) = self.api("POST", "/v2/sandboxes", Some(&wish)).await;
        assert_eq!(status, 201, "{made}");
        Made { id: text(&made, "sandboxID"), token: text(&made, "envdAccessToken") }
    }

    async fn kill(&self, made: &Made) {
        let (status, answer) = self.api("DELETE", &format!("/sandboxes/{}", made.id), None).await;
        assert_eq!(status, 204, "{answer}");
    }

    /// `echo`, to the end of its stream.
    async fn command(&self, made: &Made) {
        let message =
            json!({"process": {"cmd": "/bin/echo", "args": ["hi"]}, "stdin": false}).to_string();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend_from_slice(message.as_bytes());
        let start = self.http.post(format!("{}/process.Process/Start", self.url));
        let start = self.of_sandbox(start, made).header("content-type", "application/connect+json");
        let answer = start.body(body).send().await.unwrap().bytes().await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("\"exitCode\":0"), "{answer}");
    }

    async fn write(&self, made: &Made, path: &str, bytes: usize) {
        let write = self.of_sandbox(self.http.post(self.file(path)), made);
        let write = write.header("content-type", "application/octet-stream");
        let answer = write.body(vec![7; bytes]).send().await.unwrap();
        let (status, said) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{said}");
    }

    fn file(&self, path: &str) -> String {
        format!("{}/files?path={path}", self.url)
    }

    fn of_sandbox(&self, request: RequestBuilder, made: &Made) -> RequestBuilder {
        request.header("e2b-sandbox-id", &made.id).header("x-access-token", &made.token)
    }
}
