//! What the egress proxy costs: a tunnel through it beside the same server without it.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_sandbox::provision;
use nix::sched::{CloneFlags, setns};
use serde_json::json;

use super::figures::{emit, median, rounded};
use super::life::{BenchHost, exec, ms, planned, wipe};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const NAME: &str = "a.example";
/// Tries of each kind, alternating, so that both see the same machine.
const TRIES: usize = 200;
/// Bytes of the download.
const BULK: usize = 512 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;

/// A client hello for [`NAME`].
fn hello() -> Vec<u8> {
    let sni = [&[0, 0, 0, 14, 0, 12, 0, 0, 9], NAME.as_bytes()].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0, 18], &sni].concat();
    let length = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    let message = [&[1, 0, 0, length(body.len())][..], &body].concat();
    [&[22, 3, 1, 0, length(message.len())][..], &message].concat()
}

/// Answers the hello with one byte, every byte with itself, and `B` with the download.
fn serve(listener: &TcpListener, hello: usize) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || answer(stream, hello));
    }
}

fn answer(mut stream: TcpStream, hello: usize) -> Fallible<()> {
    stream.set_nodelay(true)?;
    let mut first = vec![0; hello];
    stream.read_exact(&mut first)?;
    stream.write_all(b"h")?;
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        if byte == *b"B" {
            for _ in 0..BULK / CHUNK {
                stream.write_all(&[7; CHUNK])?;
            }
        } else {
            stream.write_all(&byte)?;
        }
    }
}

fn open(direct: Option<SocketAddr>) -> Fallible<TcpStream> {
    let mut stream = match direct {
        Some(address) => TcpStream::connect(address)?,
        None => TcpStream::connect("127.0.0.53:3128")?,
    };
    stream.set_nodelay(true)?;
    let mut byte = [0];
    if direct.is_none() {
        stream.write_all(format!("CONNECT {NAME}:443 HTTP/1.1\r\n\r\n").as_bytes())?;
        let mut said = Vec::new();
        while !said.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            said.extend_from_slice(&byte);
        }
    }
    stream.write_all(&hello())?;
    stream.read_exact(&mut byte)?;
    Ok(stream)
}

/// Milliseconds to a first answer, milliseconds of one exchange, MB/s.
fn measure(direct: Option<SocketAddr>, bulk: bool) -> Fallible<[f64; 3]> {
    let clock = Instant::now();
    let mut stream = open(direct)?;
    let opened = ms(clock);
    let mut byte = [0];
    let clock = Instant::now();
    stream.write_all(b"x")?;
    stream.read_exact(&mut byte)?;
    let exchange = ms(clock);
    if !bulk {
        return Ok([opened, exchange, 0.0]);
    }
    let clock = Instant::now();
    stream.write_all(b"B")?;
    let mut buffer = vec![0; CHUNK];
    for _ in 0..BULK / CHUNK {
        stream.read_exact(&mut buffer)?;
    }
    let megabytes = f64::from(u32::try_from(BULK)?) / 1e6;
    Ok([opened, exchange, megabytes / clock.elapsed().as_secs_f64()])
}

pub async fn run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hello = hello().len();
    thread::spawn(move || serve(&listener, hello));
    let place = BenchHost::new(None, [(NAME.to_owned(), address)].into());
    let request: SandboxRequest = serde_json::from_value(json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 20_000, "net": [NAME],
    }))
    .unwrap();
    let plan = planned(&place.host, &request);
    let sandbox = provision(&place.host, &plan, &[]).await.unwrap();
    exec(&sandbox, &plan).await;
    let netns = File::open(format!("/proc/{}/ns/net", sandbox.init_pid())).unwrap();
    let measured = tokio::task::spawn_blocking(move || alternate(netns, address)).await.unwrap();
    wipe(sandbox).await;
    let [direct, proxied] = measured.unwrap();
    let of = |all: &[[f64; 3]], index: usize| {
        median(all.iter().map(|one| one[index]).filter(|value| *value > 0.0).collect())
    };
    for (index, name) in [(0, "egress_added_open"), (1, "egress_added_exchange")] {
        let (without, with) = (of(&direct, index), of(&proxied, index));
        let more = json!({"direct": rounded(without), "proxied": rounded(with), "n": TRIES});
        emit(name, with - without, "ms", 1.0, more);
    }
    let more = json!({"direct": rounded(of(&direct, 2)), "at_least": true});
    emit("egress_throughput", of(&proxied, 2), "MB/s", 200.0, more);
}

/// Two threads in turn: one stays outside, one lives in the sandbox's namespace.
fn alternate(netns: File, address: SocketAddr) -> Fallible<[Vec<[f64; 3]>; 2]> {
    let (ask, asked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let entered = setns(netns, CloneFlags::CLONE_NEWNET);
        for bulk in asked {
            let measured = entered.map_err(Into::into).and_then(|()| measure(None, bulk));
            if tell.send(measured).is_err() {
                return;
            }
        }
    });
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    for index in 0..TRIES {
        // A few downloads suffice.
        let bulk = index % (TRIES / 5) == 0;
        direct.push(measure(Some(address), bulk)?);
        ask.send(bulk)?;
        proxied.push(told.recv()??);
    }
    Ok([direct, proxied])
}
