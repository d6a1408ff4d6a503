//! A warm-up: all that a machine does for its sandbox until the first command has ended, done for nobody
//! while it waits.
//!
//! ```text
//! enter -- Setup --> a process with namespaces of its own: root, limits, agent
//!       -- health, a command --> the same agent, ended with the stream
//! its mounts are gone -> GREETING
//! ```
//! An emulator translates code when it first meets it, and knows it again by its place: so everything
//! is done by the same program at the same addresses. What stays of it is what the kernel has learnt
//! anyway, and counters.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use bytes::Bytes;
use cofferdam_guest::setup::{CLOCK, READY, REHEARSAL, Setup};
use cofferdam_guest::wire::{self, ExecRequest};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sched::{CloneFlags, unshare};
use tokio::task::JoinSet;

use super::fault::{Fault, at};
use super::{disk, enter};
use crate::agent::now_ms;

/// A command that a root without any file has: this program, which ends where its input does.
const COMMAND: &str = "/proc/self/exe";
const COMMAND_MS: u64 = 10_000;

/// Holds it, and returns when nothing of it is left.
pub(super) fn wait_gone(setup: &Setup) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(at("a runtime"))?.block_on(async {
        play(setup).await.map_err(at("the warm-up"))?;
        disk::wait_until_free().await
    })
}

/// Its talk before the agent is there is short and blocking, as the machine's own is.
async fn play(setup: &Setup) -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut player = Command::new("/proc/self/exe")
        .arg(REHEARSAL)
        .env_clear()
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let mut said = serde_json::to_vec(setup)?;
    said.push(b'\n');
    ours.write_all(&said)?;
    loop {
        match word(&mut ours)?.as_str() {
            CLOCK => writeln!(ours, "{}", now_ms())?,
            READY => break,
            fault => return Err(io::Error::other(fault.trim_end().to_owned())),
        }
    }
    ask(ours).await?;
    // The stream has ended, and so it ends.
    let status = player.wait()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(status.to_string())),
    }
}

/// A line with its end, byte by byte: what follows is the agent's, which speaks unasked.
fn word(stream: &mut UnixStream) -> io::Result<String> {
    let mut said = Vec::new();
    let mut byte = [0];
    while said.last() != Some(&b'\n') {
        stream.read_exact(&mut byte)?;
        said.extend_from_slice(&byte);
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// What the host asks first: whether the agent is there, and a command.
async fn ask(stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let stream = tokio::net::UnixStream::from_std(stream)?;
    let builder = http2::Builder::new(TokioExecutor::new());
    let shaken = builder.handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
    let (mut requests, connection) = shaken.map_err(io::Error::other)?;
    // Aborted with the set, and the stream is closed then.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let command = serde_json::to_vec(&command())?;
    for (method, path, body) in
        [(Method::GET, wire::HEALTH, Bytes::new()), (Method::POST, wire::EXEC, command.into())]
    {
        let uri = format!("http://agent{path}");
        let request = Request::builder().method(method).uri(uri).body(Full::new(body));
        let answer = requests.send_request(request.map_err(io::Error::other)?).await;
        let body = answer.map_err(io::Error::other)?.into_body().collect().await;
        body.map_err(io::Error::other)?;
    }
    driver.shutdown().await;
    Ok(())
}

fn command() -> ExecRequest {
    ExecRequest {
        argv: vec![COMMAND.to_owned()],
        env: [].into(),
        cwd: "/".to_owned(),
        timeout_ms: COMMAND_MS,
        stream_limit_bytes: 0,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    }
}

/// The process that plays the machine's part: the stream is its standard input, before and after.
pub fn run() -> io::Result<()> {
    let apart = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    unshare(apart)?;
    enter::follow(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}
