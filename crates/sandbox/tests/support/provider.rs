//! A stand-in for a service that speaks the E2B API: no such service is part of this repository, and
//! none on the internet is asked by a test. Its API is written down here from what its clients send; **its
//! sandboxes are real**, containers of this host, and so are the processes, streams and ends in them.
//!
//! ```text
//! POST /sandboxes -> a container | /files, process.Process/* -> its agent | timeout passed or DELETE -> wiped
//! stop() -> every connection ends, the sandboxes live on | start() -> the same port again
//! ```
//!
//! One file: the whole of one API, so that what it lacks is seen.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_ambient::{clock, random};
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::WipeStatus;
use cofferdam_guest::wire::{CommandExit, ExecRequest};
use cofferdam_sandbox::{
    Agent, ExecOptions, Host, Key, RemoteConfig, Sandbox, Stream, plan, provision,
};
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::port_reservation::PortReservation;

pub const KEY: &str = "e2b_0123456789abcdef";
/// How often it looks for sandboxes whose time is over.
const SWEEP: Duration = Duration::from_millis(100);
const MIB: usize = 1024 * 1024;
const PAGE: usize = 2;

/// What it does wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Requests whose path has this part get this answer.
    Answers(&'static str, u16, &'static str),
    /// Sandboxes that reach the internet, as it says.
    Open,
    /// It says that it deleted, and did not.
    Undying,
}

/// Whoever answers now.
struct Serving {
    task: JoinHandle<()>,
    /// Its listening socket.
    socket: OwnedFd,
}

pub struct StandIn {
    inner: Arc<Inner>,
    port: PortReservation,
    serving: Mutex<Option<Serving>>,
}

struct Inner {
    host: Host,
    held: Mutex<BTreeMap<String, Arc<Held>>>,
    calls: Mutex<Vec<String>>,
    fault: Mutex<Option<Fault>>,
}

struct Held {
    sandbox: Mutex<Option<Sandbox>>,
    agent: Agent,
    metadata: Value,
    token: String,
    /// ms since the epoch.
    ends: Mutex<i64>,
    inputs: Mutex<BTreeMap<u32, mpsc::Sender<bytes::Bytes>>>,
    last: AtomicU32,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// What is answered: a whole, or pieces as they come.
enum Reply {
    Json(u16, Value),
    Raw(u16, String),
    /// Some of a list, and where the rest begins.
    Page(Value, Option<String>),
    Stream(mpsc::UnboundedReceiver<Vec<u8>>),
}

impl StandIn {
    /// On a free port; its sandboxes are containers of this host.
    pub async fn start(host: &Host) -> Self {
        let inner = Arc::new(Inner {
            host: host.clone(),
            held: Mutex::default(),
            calls: Mutex::default(),
            fault: Mutex::default(),
        });
        let this = Self { inner, port: PortReservation::new(), serving: Mutex::default() };
        this.resume().await;
        this
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// What a worker of it is told.
    pub fn config(&self) -> RemoteConfig {
        RemoteConfig {
            url: self.url(),
            sandbox_url: Some(self.url()),
            template: "base".to_owned(),
            key: Key::new(KEY),
            term_s: RemoteConfig::TERM_S,
        }
    }

    /// Nobody answers, and every connection ends. What it holds lives on.
    pub async fn stop(&self) {
        let serving = self.serving.lock().unwrap().take();
        if let Some(Serving { task, socket }) = serving {
            // A child that another thread forked has the socket, too, until it executes its program: closing it here
            // would leave it listening for a moment.
            shutdown(socket.as_raw_fd(), Shutdown::Both).unwrap();
            task.abort();
            let _ = task.await;
        }
    }

    /// Every connection ends, as a proxy before it may end them, and the next ones are taken.
    pub async fn cut(&self) {
        self.stop().await;
        self.resume().await;
    }

    /// It answers again.
    pub async fn resume(&self) {
        let listener = TcpListener::bind(self.port.address()).await.unwrap();
        let socket = listener.as_fd().try_clone_to_owned().unwrap();
        let task = tokio::spawn(serve(Arc::clone(&self.inner), listener));
        *self.serving.lock().unwrap() = Some(Serving { task, socket });
    }

    pub fn fault(&self, fault: Option<Fault>) {
        *self.inner.fault.lock().unwrap() = fault;
    }

    /// As if so much time had passed for every sandbox's end, which nobody prolongs meanwhile.
    pub async fn pass(&self, time: Duration) {
        self.inner.end_over(clock::now_ms() + i64::try_from(time.as_millis()).unwrap()).await;
    }

    /// The sandboxes that it holds.
    pub fn held(&self) -> usize {
        self.inner.held.lock().unwrap().len()
    }

    /// Method and path of every request so far.
    pub fn calls(&self) -> Vec<String> {
        self.inner.calls.lock().unwrap().clone()
    }

    /// Ends the first process of each sandbox, as its kernel might.
    pub fn kill_all(&self) {
        for held in self.inner.held.lock().unwrap().values() {
            held.sandbox.lock().unwrap().as_ref().unwrap().kill_handle().kill();
        }
    }

    /// Nothing that was made for anybody may be left; then it ends.
    pub async fn close(self) {
        let left: Vec<_> =
            std::mem::take(&mut *self.inner.held.lock().unwrap()).into_iter().collect();
        for (_, held) in &left {
            end(held).await;
        }
        self.stop().await;
        assert!(left.is_empty(), "{} sandboxes are left with the provider", left.len());
    }
}

async fn end(held: &Held) {
    let sandbox = held.sandbox.lock().unwrap().take();
    if let Some(sandbox) = sandbox {
        let evidence = sandbox.wipe("deleted").await;
        assert_eq!(evidence.status, WipeStatus::Verified, "{evidence:#?}");
    }
}

async fn serve(inner: Arc<Inner>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    connections.spawn(sweep(Arc::clone(&inner)));
    loop {
        // Shut down, it takes no more until it is aborted.
        let Ok((stream, _)) = listener.accept().await else { return std::future::pending().await };
        connections.spawn(connection(Arc::clone(&inner), stream));
    }
}

async fn sweep(inner: Arc<Inner>) {
    loop {
        clock::sleep(SWEEP).await;
        inner.end_over(clock::now_ms()).await;
    }
}

impl Inner {
    /// Ends what nobody prolonged beyond this time.
    async fn end_over(&self, now_ms: i64) {
        let over: Vec<_> = {
            let mut held = self.held.lock().unwrap();
            let is_over = |one: &Arc<Held>| *one.ends.lock().unwrap() <= now_ms;
            let ids: Vec<_> =
                held.iter().filter(|(_, one)| is_over(one)).map(|(id, _)| id.clone()).collect();
            ids.iter().map(|id| held.remove(id).unwrap()).collect()
        };
        for held in over {
            end(&held).await;
        }
    }
}

async fn connection(inner: Arc<Inner>, mut stream: TcpStream) {
    let mut buffer = Vec::new();
    while let Some(request) = read(&mut stream, &mut buffer).await {
        let asked = format!("{} {}", request.method, request.path);
        inner.calls.lock().unwrap().push(asked);
        let fault = inner.fault.lock().unwrap().clone();
        let reply = match fault {
            Some(Fault::Answers(part, status, body)) if request.path.contains(part) => {
                Reply::Raw(status, body.to_owned())
            }
            fault => answer(&inner, request, fault).await,
        };
        if write(&mut stream, reply).await.is_none() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        more(stream, buffer).await?;
    };
    let head = String::from_utf8(buffer[..end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(Some(0), |text| text.parse().ok())?;
    assert!(length < 64 * MIB, "a body without bounds");
    while buffer.len() < end + 4 + length {
        more(stream, buffer).await?;
    }
    let body = buffer[end + 4..end + 4 + length].to_vec();
    buffer.drain(..end + 4 + length);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), headers, body })
}

async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    (stream.read_buf(buffer).await.ok()? > 0).then_some(())
}

async fn write(stream: &mut TcpStream, reply: Reply) -> Option<()> {
    let whole = |status: u16, text: String| {
        let length = text.len();
        let head = format!("HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n");
        match status {
            204 => format!("{head}\r\n"),
            _ => format!("{head}content-length: {length}\r\n\r\n{text}"),
        }
    };
    match reply {
        Reply::Json(status, value) => {
            stream.write_all(whole(status, value.to_string()).as_bytes()).await.ok()
        }
        Reply::Page(value, next) => {
            let next = next.map(|token| format!("x-next-token: {token}\r\n")).unwrap_or_default();
            let text = value.to_string();
            let head = format!("HTTP/1.1 200 -\r\n{next}content-length: {}\r\n\r\n", text.len());
            stream.write_all(format!("{head}{text}").as_bytes()).await.ok()
        }
        Reply::Raw(status, text) => stream.write_all(whole(status, text).as_bytes()).await.ok(),
        Reply::Stream(mut pieces) => {
            let head = "HTTP/1.1 200 -\r\ncontent-type: application/connect+json\r\n\
                        transfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok()?;
            while let Some(piece) = pieces.recv().await {
                let size = format!("{:x}\r\n", piece.len());
                stream.write_all(&[size.as_bytes(), &piece, b"\r\n"].concat()).await.ok()?;
            }
            stream.write_all(b"0\r\n\r\n").await.ok()
        }
    }
}

fn refuse(status: u16, message: &str) -> Reply {
    Reply::Json(status, json!({"code": status, "message": message}))
}

async fn answer(inner: &Arc<Inner>, request: Request, fault: Option<Fault>) -> Reply {
    if let Some(id) = request.headers.get("e2b-sandbox-id") {
        let held = inner.held.lock().unwrap().get(id).cloned();
        return match held {
            Some(held) => daemon(&held, &request).await,
            None => refuse(502, "The sandbox was not found"),
        };
    }
    if request.headers.get("x-api-key").map(String::as_str) != Some(KEY) {
        return refuse(401, "Invalid API key");
    }
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("POST", ["sandboxes"]) => make(inner, &request).await,
        ("GET", ["v2", "sandboxes"]) => listed(inner, &request.query),
        ("GET", ["sandboxes", id]) => match inner.held.lock().unwrap().get(*id) {
            Some(held) => Reply::Json(200, described(id, held, fault == Some(Fault::Open))),
            None => refuse(404, "sandbox not found"),
        },
        ("DELETE", ["sandboxes", _]) if fault == Some(Fault::Undying) => {
            Reply::Raw(204, String::new())
        }
        ("DELETE", ["sandboxes", id]) => {
            let held = inner.held.lock().unwrap().remove(*id);
            match held {
                Some(held) => {
                    end(&held).await;
                    Reply::Raw(204, String::new())
                }
                None => refuse(404, "sandbox not found"),
            }
        }
        ("POST", ["sandboxes", id, "timeout"]) => match inner.held.lock().unwrap().get(*id) {
            Some(held) => {
                let wanted: Value = serde_json::from_slice(&request.body).unwrap();
                let seconds = wanted["timeout"].as_i64().unwrap();
                *held.ends.lock().unwrap() = clock::now_ms() + seconds * 1_000;
                Reply::Raw(204, String::new())
            }
            None => refuse(404, "sandbox not found"),
        },
        _ => refuse(404, "no such route"),
    }
}

fn described(id: &str, held: &Held, is_open: bool) -> Value {
    json!({
        "sandboxID": id, "templateID": "base", "clientID": "stand-in", "envdVersion": "0.6.13",
        "state": "running", "cpuCount": 2, "memoryMB": 256, "diskSizeMB": 256,
        "metadata": held.metadata, "allowInternetAccess": is_open, "envdAccessToken": held.token,
    })
}

async fn make(inner: &Arc<Inner>, request: &Request) -> Reply {
    let wanted: Value = serde_json::from_slice(&request.body).unwrap();
    if wanted["templateID"] != "base" {
        return refuse(404, "template not found");
    }
    // What would make it weaker than we need is no matter of taste.
    let is_closed = wanted["allow_internet_access"] == false && wanted["autoPause"] == false;
    if !is_closed || wanted["secure"] != true {
        return refuse(400, "open, unending or without a token");
    }
    let fields = json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 1_000,
        "limits": {"memMB": 256, "diskMB": 256, "pids": 128},
    });
    let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
    let plan = plan(&serde_json::from_value(fields).unwrap(), &id, inner.host.facts()).unwrap();
    let sandbox = provision(&inner.host, &plan, &[]).await.unwrap();
    let seconds = wanted["timeout"].as_i64().unwrap();
    let token = random::secret_hex(16);
    let name = format!("i{}", random::secret_hex(10));
    let held = Held {
        agent: sandbox.agent().clone(),
        sandbox: Mutex::new(Some(sandbox)),
        metadata: wanted["metadata"].clone(),
        token,
        ends: Mutex::new(clock::now_ms() + seconds * 1_000),
        inputs: Mutex::default(),
        last: AtomicU32::new(100),
    };
    let said = described(&name, &held, false);
    inner.held.lock().unwrap().insert(name, Arc::new(held));
    Reply::Json(201, said)
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let hex = (*byte == b'%').then(|| std::str::from_utf8(&tail[..2]).unwrap());
        bytes.push(hex.map_or(*byte, |hex| u8::from_str_radix(hex, 16).unwrap()));
        rest = if hex.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).unwrap()
}

fn asked(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
}

/// A page has two, so that whoever lists must turn it.
fn listed(inner: &Inner, query: &str) -> Reply {
    let filter = asked(query, "metadata").unwrap_or_default();
    let filter = filter.split_once('=').map(|(name, value)| (decoded(name), decoded(value)));
    let from: usize = asked(query, "nextToken").map_or(0, |token| token.parse().unwrap());
    let held = inner.held.lock().unwrap();
    let fits = |one: &Held| {
        filter.as_ref().is_none_or(|(name, value)| one.metadata[name] == *value.as_str())
    };
    let all: Vec<Value> = held
        .iter()
        .filter(|(_, one)| fits(one))
        .map(|(id, one)| described(id, one, false))
        .collect();
    let next = (all.len() > from + PAGE).then(|| (from + PAGE).to_string());
    Reply::Page(all.into_iter().skip(from).take(PAGE).collect(), next)
}

async fn daemon(held: &Arc<Held>, request: &Request) -> Reply {
    let root = format!("Basic {}", STANDARD.encode("root:"));
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    if header("x-access-token") != Some(&held.token) || header("authorization") != Some(&root) {
        return refuse(401, "no access");
    }
    assert_eq!(header("e2b-sandbox-port"), Some("49983"));
    let unary = || serde_json::from_slice::<Value>(&request.body).unwrap();
    match request.path.as_str() {
        "/files" => {
            let path = asked(&request.query, "path").unwrap();
            let bytes = part(&request.body).to_vec().into();
            held.agent.files().put(&path, 0o644, bytes).await.unwrap();
            Reply::Json(200, json!([{"name": "agent", "type": "file", "path": path}]))
        }
        "/process.Process/Start" => start(held, &request.body).await,
        "/process.Process/SendInput" => {
            let told = unary();
            let bytes = STANDARD.decode(told["input"]["stdin"].as_str().unwrap()).unwrap();
            let input = pid(&told).and_then(|pid| held.inputs.lock().unwrap().get(&pid).cloned());
            match input {
                Some(input) if input.send(bytes.into()).await.is_ok() => {
                    Reply::Json(200, json!({}))
                }
                _ => Reply::Json(404, json!({"code": "not_found", "message": "no such process"})),
            }
        }
        "/process.Process/CloseStdin" => {
            pid(&unary()).map(|pid| held.inputs.lock().unwrap().remove(&pid));
            Reply::Json(200, json!({}))
        }
        _ => refuse(404, "no such route"),
    }
}

fn pid(told: &Value) -> Option<u32> {
    u32::try_from(told["process"]["pid"].as_u64()?).ok()
}

/// The one part of a multipart body.
fn part(body: &[u8]) -> &[u8] {
    let at = |part: &[u8], of: &[u8]| of.windows(part.len()).position(|seen| seen == part).unwrap();
    let boundary = &body[..at(b"\r\n", body)];
    let head = at(b"\r\n\r\n", body) + 4;
    let end = [b"\r\n", boundary, b"--"].concat();
    &body[head..body.len() - end.len() - 2]
}

/// Runs a process whether anybody follows it or not.
async fn start(held: &Arc<Held>, body: &[u8]) -> Reply {
    let wanted: Value = serde_json::from_slice(&body[5..]).unwrap();
    let process = &wanted["process"];
    let args = process["args"].as_array().unwrap().iter();
    let words =
        [&process["cmd"]].into_iter().chain(args).map(|word| word.as_str().unwrap().to_owned());
    let request = ExecRequest {
        argv: words.collect(),
        env: [("PATH".to_owned(), "/usr/bin:/bin:/usr/sbin:/sbin".to_owned())].into(),
        cwd: process["cwd"].as_str().unwrap().to_owned(),
        timeout_ms: 3_600_000,
        stream_limit_bytes: u64::MAX / 2,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    };
    let options = ExecOptions { stdin: wanted["stdin"] == true, ..ExecOptions::default() };
    let Ok(running) = held.agent.start(request, options).await else {
        return refuse(502, "The sandbox was not found");
    };
    let remote = running.remote();
    let (input, pieces) = mpsc::channel(1);
    tokio::spawn(async move { remote.stdin(pieces).await });
    let pid = held.last.fetch_add(1, Ordering::Relaxed);
    held.inputs.lock().unwrap().insert(pid, input);
    let (events, reply) = mpsc::unbounded_channel();
    let _ = events.send(framed(0, &json!({"event": {"start": {"pid": pid}}})));
    tokio::spawn(async move {
        let end = running
            .follow(|stream, bytes| {
                let name = if stream == Stream::Stdout { "stdout" } else { "stderr" };
                let data = json!({"event": {"data": {name: STANDARD.encode(bytes)}}});
                let _ = events.send(framed(0, &data));
            })
            .await;
        if let Ok(end) = end {
            let said = match end.ended {
                CommandExit::Exit(code) => {
                    json!({"exited": true, "exitCode": code, "status": format!("exit status {code}")})
                }
                other => {
                    json!({"exitCode": -1, "status": format!("{other:?}"), "error": format!("{other:?}")})
                }
            };
            let _ = events.send(framed(0, &json!({"event": {"end": said}})));
            let _ = events.send(framed(2, &json!({})));
        }
    });
    Reply::Stream(reply)
}

fn framed(flags: u8, message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[flags], &length[..], text.as_bytes()].concat()
}
