//! What the worker adds to a request with a secret: the same client in a sandbox's network and outside, in turns, so that
//! both see the same machine.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, processes_mentioning};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use super::figures::{emit, median, percentile, rounded};
use super::life::ms;

pub(super) type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Short calls of each kind, and how many of them are not counted.
const TURNS: usize = 300;
pub(super) const COLD: usize = 20;
/// Bytes of a long answer: beyond what one buffer holds.
const LONG_BYTES: usize = 32 << 20;
/// The same where `BENCH_QUICK` is set: whether it runs at all.
const QUICK: (usize, usize) = (20, 1 << 20);
/// A sandbox's proxy.
pub(super) const PROXY: &str = "http://127.0.0.53:3128";
/// The host that gets a secret.
pub(super) const HOST: &str = "a.example";
/// A host that answers every request with two bytes over TLS, on connections that stay.
const TLS: &str = "import http.server, ssl, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    wbufsize = -1
    def log_message(self, *a): pass
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Length', '2'); self.end_headers(); self.wfile.write(b'ok'); self.wfile.flush()
s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain(sys.argv[1] + '/crt', sys.argv[1] + '/key')
s.socket = c.wrap_socket(s.socket, server_side=True, do_handshake_on_connect=False)
print(s.server_address[1], flush=True)
s.serve_forever()";

/// Short calls of each kind, and bytes of a long answer.
pub(super) fn sizes() -> (usize, usize) {
    match std::env::var_os("BENCH_QUICK") {
        Some(_) => QUICK,
        None => (TURNS, LONG_BYTES),
    }
}

/// A task that waits, in whose network the second client is. Its end is the server's.
pub(super) async fn held(up: &Server, exec: Value, more: Value, mark: &str) -> File {
    let mut task =
        json!({"name": "t", "exec": {"run": format!("exec sleep {mark}"), "timeout": "20m"}});
    for (name, value) in exec.as_object().into_iter().flatten() {
        task["exec"][name] = value.clone();
    }
    for (name, value) in more.as_object().into_iter().flatten() {
        task[name] = value.clone();
    }
    let recipe = json!({"id": "held", "v": "1", "plan": {"tasks": [task]}}).to_string();
    up.run_recipe(&recipe, json!({}), json!({})).await;
    for _ in 0..600 {
        let line = format!("sleep {mark}");
        let found =
            processes_mentioning(&line).into_iter().find(|(_, said)| said.starts_with("sleep"));
        if let Some((pid, _)) = found {
            return File::open(format!("/proc/{pid}/ns/net")).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the task does not start");
}

/// Runs work in turns outside and in a sandbox's network; each answers with what it took.
pub(super) fn in_turns<T: Send + 'static>(
    netns: File,
    turns: usize,
    mut outside: impl FnMut(usize) -> Fallible<T>,
    inside: impl FnOnce() -> Box<dyn FnMut(usize) -> Fallible<T>> + Send + 'static,
) -> [Vec<T>; 2] {
    let (ask, asked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET).expect("the sandbox's network");
        let mut work = inside();
        for turn in asked {
            if tell.send(work(turn)).is_err() {
                return;
            }
        }
    });
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        without.push(outside(turn).unwrap());
        ask.send(turn).unwrap();
        with.push(told.recv().unwrap().unwrap());
    }
    [without, with]
}

/// Writes a certificate of [`HOST`] and of this host's loopback, and its key.
pub(super) fn certificate(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let text = format!(
        "[req]\ndistinguished_name = dn\nx509_extensions = v3\n[dn]\n[v3]\nsubjectAltName = DNS:{HOST},IP:127.0.0.1\nbasicConstraints = CA:FALSE\n"
    );
    std::fs::write(at("cnf"), text).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "1", "-subj", "/CN=t", "-config"])
        .args([at("cnf"), "-keyout".into(), at("key"), "-out".into(), at("crt")])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The host of a secret; its end is the bench's.
struct TlsHost {
    server: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl TlsHost {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificate(dir.path());
        let mut server = Command::new("/usr/bin/python3")
            .args(["-c", TLS])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { server, port: line.trim().parse().unwrap(), dir }
    }
}

impl Drop for TlsHost {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A client that keeps its connection; the host's certificate is nothing that is measured.
fn client(proxy: bool, port: u16) -> impl FnMut(usize) -> Fallible<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).http1_only();
    let builder = match proxy {
        true => builder.proxy(reqwest::Proxy::all(PROXY).unwrap()),
        false => builder.no_proxy().resolve(HOST, SocketAddr::from(([127, 0, 0, 1], port))),
    };
    let client = builder.build().unwrap();
    let url = if proxy { format!("https://{HOST}/") } else { format!("https://{HOST}:{port}/") };
    move |_| {
        runtime.block_on(async {
            let clock = Instant::now();
            let answer = client.get(&url).header("authorization", "Bearer nobody").send().await?;
            let answer = answer.error_for_status()?.bytes().await?;
            assert_eq!(&answer[..], b"ok");
            Ok(ms(clock))
        })
    }
}

pub async fn secrets() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let host = TlsHost::start();
    let ca = host.dir.path().join("crt");
    let home = Home::new();
    let at = format!("{HOST}=127.0.0.1:{}", host.port);
    let up = home.up_with(&["--egress-host", &at], &[("SSL_CERT_FILE", ca.to_str().unwrap())]);
    let value =
        Some(json!({"value": "a-secret-of-this-bench", "for": [HOST]}).to_string().into_bytes());
    let (status, put) = up.request("PUT", "/api/secrets/one", Some(&up.key), value).await;
    assert_eq!(status, 200, "{put}");
    let uses = json!([{"name": "one", "for": HOST, "as": "header Authorization \"Bearer {}\""}]);
    let exec = json!({"egress": [HOST], "secrets": uses});
    let netns = held(&up, exec, json!({}), "6172").await;
    let (port, turns) = (host.port, sizes().0 + COLD);
    let measured = tokio::task::spawn_blocking(move || {
        let outside = client(false, port);
        in_turns(netns, turns, outside, move || Box::new(client(true, port)))
    });
    let [direct, proxied] = measured.await.unwrap();
    let (without, with) = (direct[COLD..].to_vec(), proxied[COLD..].to_vec());
    let more = json!({"direct": rounded(median(without.clone())), "proxied": rounded(median(with.clone())),
        "proxied_p99": rounded(percentile(with.clone(), 99)), "n": with.len()});
    emit("secret_added_request", median(with) - median(without), "ms", 1.0, more);
}
