//! What the worker adds to a call of a model, beside two peers in the same turns: the provider itself over bare loopback, and
//! what a sandbox could have without the endpoint: the provider over TLS through the egress proxy. Once more with a provider
//! that sends as fast as a network of 1 and of 5 Gbit/s: one that is elsewhere shares no processor with what is measured.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cofferdam_tests::Home;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use super::figures::{emit, median, percentile, rounded};
use super::life::ms;
use super::proxy::{COLD, Fallible, HOST, PROXY, certificate, held, in_turns, sizes};

/// Long answers of each kind.
const LONG: usize = 7;
/// What a chunk of a model's answer looks like.
const EVENT: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"sixteen letters!\"}}]}\n\n";
const LAST: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
/// Bytes that a network of 1 Gbit/s carries in a second.
const GIGABIT: f64 = 125e6;
/// Networks between a provider and us: the name of its bench, its provider and model, and what it carries.
const NETWORKS: [(&str, &str, &str, f64); 2] = [
    ("model_throughput_ratio_gigabit", "far", "g", GIGABIT),
    ("model_throughput_ratio_five_gigabit", "near", "n", 5.0 * GIGABIT),
];
/// Where a sandbox calls models.
const ENDPOINT: &str = "127.0.0.53:3129";

fn request(model: &str, long: bool) -> String {
    let text = if long { "long" } else { "short" };
    json!({"model": model, "stream": true, "max_tokens": 10, "messages": [{"role": "user", "content": text}]}).to_string()
}

/// One call of a model: milliseconds to the first byte of its answer, and to its end.
fn call(stream: &mut TcpStream, long: bool) -> Fallible<[f64; 2]> {
    let body = request("m", long);
    let clock = Instant::now();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let (mut buffer, mut tail) = (vec![0; 256 * 1024], Vec::new());
    let mut first = None;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err("the answer broke off".into());
        }
        // Of a large piece only its end is looked at: the client is nothing that is measured.
        let from = if first.is_some() { count.saturating_sub(16) } else { 0 };
        tail.extend_from_slice(&buffer[from..count]);
        if first.is_none() && tail.windows(5).any(|at| at == b"data:") {
            first = Some(ms(clock));
        }
        if tail.ends_with(b"\r\n0\r\n\r\n") {
            return Ok([first.ok_or("no event")?, ms(clock)]);
        }
        if first.is_some() {
            tail.drain(..tail.len().saturating_sub(16));
        }
    }
}

/// A client as agents have: milliseconds of one long answer.
fn client(url: String, model: &'static str, proxy: bool) -> impl FnMut() -> Fallible<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).http1_only();
    let builder = match proxy {
        true => builder.proxy(reqwest::Proxy::all(PROXY).unwrap()),
        false => builder.no_proxy(),
    };
    let client = builder.build().unwrap();
    move || {
        runtime.block_on(async {
            let clock = Instant::now();
            let sent = client.post(&url).header("content-type", "application/json");
            let mut answer = sent.body(request(model, true)).send().await?.error_for_status()?;
            let mut bytes = 0;
            while let Some(piece) = answer.chunk().await? {
                bytes += piece.len();
            }
            assert!(bytes >= sizes().1 / EVENT.len() * EVENT.len() / 2, "{bytes}");
            Ok(ms(clock))
        })
    }
}

/// A provider: an answer of one event, or of many.
fn provide(listener: &TcpListener, tls: Option<Arc<ServerConfig>>, pace: Option<f64>) {
    for stream in listener.incoming().flatten() {
        let tls = tls.clone();
        thread::spawn(move || -> Fallible<()> {
            stream.set_nodelay(true)?;
            match tls {
                None => provided(stream, pace),
                Some(tls) => provided(StreamOwned::new(ServerConnection::new(tls)?, stream), pace),
            }
        });
    }
}

/// `pace`: at most so many bytes a second.
fn provided(stream: impl Read + Write, pace: Option<f64>) -> Fallible<()> {
    let mut requests = BufReader::new(stream);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let many = EVENT.repeat(16 * 1024 / EVENT.len());
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while requests.read_line(&mut line)? > 0 && line != "\r\n" {
            let head = line.to_ascii_lowercase();
            if let Some(said) = head.strip_prefix("content-length:") {
                length = said.trim().parse()?;
            }
            line.clear();
        }
        if line.is_empty() {
            return Ok(());
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body)?;
        let stream = requests.get_mut();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}{}", chunk(EVENT)).as_bytes())?;
        if body.windows(4).any(|at| at == b"long") {
            let (piece, clock) = (chunk(&many), Instant::now());
            for sent in 0..sizes().1 / many.len() {
                stream.write_all(piece.as_bytes())?;
                if let Some(pace) = pace {
                    let due = Duration::from_secs_f64((sent * piece.len()) as f64 / pace);
                    thread::sleep(due.saturating_sub(clock.elapsed()));
                }
            }
        }
        stream.write_all(format!("{}0\r\n\r\n", chunk(LAST)).as_bytes())?;
        stream.flush()?;
    }
}

fn tls(dir: &Path) -> Arc<ServerConfig> {
    let chain = CertificateDer::from_pem_file(dir.join("crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("key")).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![chain], key).unwrap())
}

fn started(tls: Option<Arc<ServerConfig>>, pace: Option<f64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || provide(&listener, tls, pace));
    address
}

/// What one turn of long answers took, in milliseconds.
#[derive(Clone, Copy)]
enum Way {
    /// The provider itself, and the same over TLS: outside the sandbox.
    Direct = 0,
    DirectTls = 1,
    /// The endpoint of models in the sandbox, to each.
    Endpoint = 2,
    EndpointTls = 3,
    /// The sandbox's egress proxy, to the one over TLS.
    Egress = 4,
}

pub async fn run() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    certificate(dir.path());
    let (plain, sealed) = (started(None, None), started(Some(tls(dir.path())), None));
    let networks = NETWORKS.map(|network| started(Some(tls(dir.path())), Some(network.3)));
    let home = Home::new();
    let ca = dir.path().join("crt");
    let at = format!("{HOST}={sealed}");
    let up = home.up_with(&["--egress-host", &at], &[("SSL_CERT_FILE", ca.to_str().unwrap())]);
    let behind = NETWORKS.iter().zip(networks);
    let behind = behind.map(|(network, at)| (network.1, format!("https://{at}/v1"), network.2));
    for (name, url, model) in [
        ("main", format!("http://{plain}/v1"), "m"),
        ("sealed", format!("https://{sealed}/v1"), "t"),
    ]
    .into_iter()
    .chain(behind)
    {
        let body = json!({"name": name, "url": url, "protocols": ["openai-chat"],
            "models": [{"model": model, "input_micros": 1, "output_micros": 1}]});
        let (status, made) = up.post("/api/models", &body).await;
        assert_eq!(status, 201, "{made}");
    }
    let models = json!({"models": {"providers": ["main", "sealed", "far", "near"]}});
    let netns = held(&up, json!({"egress": [HOST]}), models, "6171").await;
    first_tokens(netns.try_clone().unwrap(), plain).await;
    throughput(netns.try_clone().unwrap(), plain, sealed).await;
    for ((name, _, model, _), far) in NETWORKS.into_iter().zip(networks) {
        over_a_network(netns.try_clone().unwrap(), far, name, model).await;
    }
}

async fn first_tokens(netns: std::fs::File, plain: SocketAddr) {
    let turns = sizes().0;
    let measured = tokio::task::spawn_blocking(move || {
        let connected = |to: SocketAddr| {
            let stream = TcpStream::connect(to).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        let mut direct = connected(plain);
        in_turns(
            netns,
            turns + COLD,
            move |_| call(&mut direct, false),
            move || {
                let mut inside = connected(ENDPOINT.parse().unwrap());
                Box::new(move |_| call(&mut inside, false))
            },
        )
    });
    let firsts = |all: &[[f64; 2]]| -> Vec<f64> { all[COLD..].iter().map(|one| one[0]).collect() };
    let [direct, proxied] = measured.await.unwrap();
    let (without, with) = (firsts(&direct), firsts(&proxied));
    let more = json!({"direct": rounded(median(without.clone())), "proxied": rounded(median(with.clone())),
        "proxied_p99": rounded(percentile(with.clone(), 99)), "n": turns});
    emit("model_added_first_token", median(with) - median(without), "ms", 1.0, more);
}

async fn throughput(netns: std::fs::File, plain: SocketAddr, sealed: SocketAddr) {
    let measured = tokio::task::spawn_blocking(move || {
        let path = "v1/chat/completions";
        let mut raw = TcpStream::connect(plain).unwrap();
        let mut over_tls = client(format!("https://{sealed}/{path}"), "t", false);
        let outside = move |_| Ok(vec![call(&mut raw, true)?[1], over_tls()?]);
        in_turns(netns, LONG + 1, outside, move || {
            let mut raw = TcpStream::connect(ENDPOINT).unwrap();
            let mut endpoint = client(format!("http://{ENDPOINT}/{path}"), "t", false);
            let mut egress = client(format!("https://{HOST}/{path}"), "t", true);
            Box::new(move |_| Ok(vec![call(&mut raw, true)?[1], endpoint()?, egress()?]))
        })
    });
    let [outside, inside] = measured.await.unwrap();
    let rows: Vec<Vec<f64>> =
        outside.into_iter().zip(inside).skip(1).map(|(out, inn)| [out, inn].concat()).collect();
    let megabytes = sizes().1 as f64 / 1e6;
    let rate =
        |way: Way| median(rows.iter().map(|row| megabytes * 1e3 / row[way as usize]).collect());
    let more = |direct: f64, proxied: f64| {
        json!({"direct": rounded(direct), "proxied": rounded(proxied), "unit_of_both": "MB/s", "n": LONG,
            "at_least": true})
    };
    let (direct, proxied) = (rate(Way::Direct), rate(Way::Endpoint));
    emit(
        "model_throughput_ratio_loopback",
        proxied / direct,
        "of bare loopback",
        0.9,
        more(direct, proxied),
    );
    let (direct, proxied) = (rate(Way::Egress), rate(Way::EndpointTls));
    let mut more = more(direct, proxied);
    more["direct_outside"] = json!(rounded(rate(Way::DirectTls)));
    emit("model_throughput_ratio", proxied / direct, "of direct", 0.9, more);
}

/// What a client outside has of a provider that is behind a network, and what one inside has by the endpoint.
async fn over_a_network(netns: std::fs::File, far: SocketAddr, name: &str, model: &'static str) {
    let measured = tokio::task::spawn_blocking(move || {
        let path = "v1/chat/completions";
        let mut direct = client(format!("https://{far}/{path}"), model, false);
        let outside = move |_| direct();
        in_turns(netns, LONG + 1, outside, move || {
            let mut endpoint = client(format!("http://{ENDPOINT}/{path}"), model, false);
            Box::new(move |_| endpoint())
        })
    });
    let [outside, inside] = measured.await.unwrap();
    let rate = |all: Vec<f64>| sizes().1 as f64 / 1e3 / median(all.into_iter().skip(1).collect());
    let (direct, proxied) = (rate(outside), rate(inside));
    let more = json!({"direct": rounded(direct), "proxied": rounded(proxied), "unit_of_both": "MB/s", "n": LONG,
        "at_least": true});
    emit(name, proxied / direct, "of direct", 0.9, more);
}
