//! Connections that are opened and left.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, text};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::doors::raw::{address, whole};
use crate::support::gates::waiting;
use crate::support::{names, said, until};

const FLOOD: usize = 3_000;
/// Heads have 20 s; the rest is a loaded machine's.
const CLOSED: Duration = Duration::from_secs(120);
const GATED: &str =
    "id: gated\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks: [{name: t, value: kept}]\n";

/// Whether the other side has closed it.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 512]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn m1_thousands_of_idle_connections_leave_database_and_worker_alone() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let home = Home::new();
    let up = home.up();
    let before = names(format!("/proc/{}/fd", up.pid()).as_ref()).len();
    let mut flood = Vec::with_capacity(FLOOD);
    for n in 0..FLOOD {
        let mut stream = TcpStream::connect(address(&up)).unwrap();
        let half = ["", "GET /healthz HTTP/1.1\r\nHost: 127", "PRI * HTTP/2.0\r\n\r\n"][n % 3];
        let _ = stream.write_all(half.as_bytes());
        stream.set_nonblocking(true).unwrap();
        flood.push(stream);
    }
    // What is beyond the bound is closed at once, long before any head is late.
    let began = Instant::now();
    until("the flood is cut", Duration::from_secs(60), async || {
        flood.retain_mut(|stream| !is_closed(stream));
        flood.len() <= 1_000
    })
    .await;
    let taken = names(format!("/proc/{}/fd", up.pid()).as_ref()).len();
    assert!(taken < before + 1_200, "{taken} descriptors, {before} before");
    // The worker and its database go on, and the operator's own way in is another door.
    let output = home.run(&["run", "examples/hello.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    until("idle ones and half heads are closed", CLOSED, async || {
        flood.retain_mut(|stream| !is_closed(stream));
        flood.is_empty()
    })
    .await;
    assert!(began.elapsed() < CLOSED);
    assert_eq!(up.get("/healthz").await.0, 200);
    let left = names(format!("/proc/{}/fd", up.pid()).as_ref()).len();
    assert!(left < before + 200, "{left} descriptors, {before} before");
}

#[tokio::test(flavor = "multi_thread")]
async fn m1_a_body_that_does_not_come_ends_and_a_stream_that_is_silent_does_not() {
    let home = Home::new();
    let up = home.up();
    let run = waiting(&up, GATED, json!({}), json!({})).await;
    let id = text(&run, "runId");
    let head = |line: &str| {
        format!("{line} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n", address(&up), up.key)
    };
    let mut stream = tokio::net::TcpStream::connect(address(&up)).await.unwrap();
    let follow = head(&format!("GET /api/runs/{id}/stream/status?follow=true"));
    stream.write_all(format!("{follow}\r\n").as_bytes()).await.unwrap();
    let mut half = tokio::net::TcpStream::connect(address(&up)).await.unwrap();
    let post = head("POST /api/recipes/import");
    let post = format!("{post}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"ya");
    half.write_all(post.as_bytes()).await.unwrap();
    let answer = whole(&mut half).await;
    assert_eq!(answer.code(), (408, "request_timeout".to_owned()), "{}", answer.text);
    // Half a minute later, the follower still hears what happens.
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, said) = up.post(&format!("/api/runs/{id}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200, "{said}");
    up.wait_terminal(&id).await;
    let mut heard = String::new();
    until("it is told the end", Duration::from_secs(60), async || {
        let mut bytes = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut bytes)).await;
        heard.push_str(&String::from_utf8_lossy(&bytes[..read.unwrap().unwrap()]));
        heard.contains("succeeded")
    })
    .await;
}

/// What is left of an answer, to its end or to where it is cut off.
async fn rest(stream: &mut tokio::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(CLOSED, stream.read_to_end(&mut bytes)).await;
    // A connection that is reset is one that was cut off.
    drop(read.expect("the stream goes on"));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a3f9_a_stream_of_a_run_is_cut_off_with_the_key_that_asked_for_it() {
    let home = Home::new();
    let up = home.up();
    let run = waiting(&up, GATED, json!({}), json!({})).await;
    let id = text(&run, "runId");
    let head = format!(
        "GET /api/runs/{id}/stream/status?follow=true HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
        address(&up)
    );
    let roles = json!({"roles": ["auditor"]});
    let (ended, stays) = (up.new_key(&roles).await, up.new_key(&roles).await);
    let mut streams = Vec::new();
    for (_, key) in [&ended, &stays] {
        let mut stream = tokio::net::TcpStream::connect(address(&up)).await.unwrap();
        let whole = format!("{head}Authorization: Bearer {key}\r\n\r\n");
        stream.write_all(whole.as_bytes()).await.unwrap();
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).await.unwrap();
        let begun = String::from_utf8_lossy(&bytes[..read]);
        assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
        streams.push(stream);
    }
    let path = format!("/api/keys/{}", ended.0);
    let (status, said) = up.request("DELETE", &path, Some(&up.key), None).await;
    assert_eq!(status, 200, "{said}");
    // A body's last piece is empty. A reader that misses it knows that more was to come.
    const END: &str = "\r\n0\r\n\r\n";
    let cut = rest(&mut streams[0]).await;
    assert!(!cut.ends_with(END) && !cut.contains("succeeded"), "{cut:?}");
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, said) = up.post(&format!("/api/runs/{id}/gates/approve-plan/reply"), &reply).await;
    assert_eq!(status, 200, "{said}");
    let all = rest(&mut streams[1]).await;
    assert!(all.contains("succeeded") && all.ends_with(END), "{all:?}");
}
