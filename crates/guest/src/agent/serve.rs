//! The HTTP/2 server on the agent's stream, and its routes.
//!
//! crun hands its own stdin through, so the stream is one socket, used both ways. runc copies
//! through pipes, so it reads from one and writes to another. A virtual machine has a
//! port, or a socket of a family of its own.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_guest::wire::{self, CollectRequest, ExecRequest, Health};
use cofferdam_guest::{layer_stream as layer_protocol, sleep};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::net::{AddressFamily, getsockname};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::agent_sleep::{awake, cut, restore};
use super::answer::{self, Answer, json, refuse};
use super::clock::{sleep_ms, within_ms};
use super::jobs::Jobs;
use super::persistent_stream::PersistentStream;
use super::port::Port;
use super::reaper::Reaper;
use super::run::CommandTable;
use super::{
    collect, dial, doors, exec, file, freeze, layer_stream, metrics, pack, subreaper, tree, unpack,
    watch,
};
use crate::machine;

/// Requests at once. The host runs a build, a task and a few file transfers.
const MAX_STREAMS: u32 = 64;
/// Flow-control windows: what the host may send ahead of us, and so what an upload may cost us. The
/// connection's is larger for its half is the budget for small pieces that nobody reads yet, beyond which
/// the library would give up the connection, and with it the sandbox.
const WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_BYTES: u32 = 1024 * 1024;
/// Between two looks whether the host's end is closed: three fit into the 15 s within which a sandbox ends after its
/// worker, and a thousand idle agents cost a host 250 system calls a second.
const HUNG_UP_MS: u64 = 4_000;

/// How long answers may take to their end when the agent falls asleep. Those that have none, such as connections to ports,
/// are cut off then.
const LAST_WORDS_MS: u64 = 150;

/// What all connections share.
struct Agent {
    /// Whether its stream can be followed by another: it is one socket, or a machine's port.
    sleeps: AtomicBool,
    reaper: Arc<Reaper>,
    running: Arc<CommandTable>,
    jobs: Jobs,
}

/// Serves one connection until it ends; a subreaper agent one after another, until its provider ends it.
pub async fn serve(reaper: Reaper) -> io::Result<()> {
    let reaper = Arc::new(reaper);
    let (waiter, running) = (Arc::clone(&reaper), Arc::new(CommandTable::default()));
    let reaping = tokio::spawn(async move { waiter.run().await });
    let sleeps = AtomicBool::new(false);
    let agent = Arc::new(Agent { sleeps, reaper, running, jobs: Jobs::default() });
    let served = async {
        if !agent.reaper.is_subreaper() {
            return first(&agent).await;
        }
        let streams = subreaper::listen()?;
        // Whoever comes later is the one who is served: what was there before has lost its other end, or its
        // right to be here.
        let mut served = tokio::spawn(own(Arc::clone(&agent)));
        loop {
            let (stream, _) = streams.accept().await?;
            served.abort();
            let agent = Arc::clone(&agent);
            served = tokio::spawn(async move { connection(stream, agent).await.map(drop) });
        }
    };
    tokio::select! {
        // However the connection ends, the host is gone and so are we.
        served = served => served,
        reaped = reaping => reaped.map_err(io::Error::other)?,
    }
}

async fn own(agent: Arc<Agent>) -> io::Result<()> {
    first(&agent).await
}

/// The stream that was there when we were started.
async fn first(agent: &Arc<Agent>) -> io::Result<()> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let kind = FileType::from_raw_mode(fstat(&stdin)?.st_mode);
    // A machine's, either way: what is no socket of this host's kind is read as a port is.
    let is_unix =
        || getsockname(&stdin).is_ok_and(|own| own.address_family() == AddressFamily::UNIX);
    let agent = Arc::clone(agent);
    if kind == FileType::CharacterDevice {
        agent.sleeps.store(machine::layer_line().is_some(), Ordering::Release);
        // It stays open, with what came: it has one opener.
        return by_day(&agent, |_| Port::new(stdin.try_clone()?)).await;
    }
    if kind == FileType::Socket && !is_unix() {
        return connection(Port::new(stdin)?, agent).await.map(drop);
    }
    if kind == FileType::Socket {
        let socket = std::os::unix::net::UnixStream::from(stdin);
        socket.set_nonblocking(true)?;
        agent.sleeps.store(!agent.reaper.is_subreaper(), Ordering::Release);
        return tokio::select! {
            served = by_day(&agent, |looks| PersistentStream::of(&socket, looks)) => served,
            () = hung_up(&socket) => Ok(()),
        };
    }
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    let pipes = join(Receiver::from_owned_fd(stdin)?, Sender::from_owned_fd(stdout)?);
    connection(pipes, agent).await.map(drop)
}

/// One connection after the other on this stream; between them the agent sleeps. From then on there may be no notice of what comes
/// on it.
async fn by_day<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    agent: &Arc<Agent>,
    stream: impl Fn(bool) -> io::Result<S>,
) -> io::Result<()> {
    let mut looks = false;
    loop {
        let ended = connection(stream(looks)?, Arc::clone(agent)).await?;
        looks = true;
        match ended {
            ConnectionEnd::Over => return Ok(()),
            ConnectionEnd::CutOff => cut(&mut stream(looks)?).await?,
            ConnectionEnd::Asleep => {}
        }
        awake(&mut stream(looks)?).await?;
        if let Some(line) = machine::layer_line() {
            restore(line).await?;
        }
        agent.running.wake();
    }
}

/// Returns once nobody has the stream's other end. gVisor tells about one of a hundred agents on a busy host nothing
/// when that end is closed, and its sandbox would outlive its worker.
async fn hung_up(stream: &impl AsFd) {
    while !is_hung_up(stream) {
        sleep_ms(HUNG_UP_MS).await;
    }
}

/// The same at once, whatever there is to be read.
fn is_hung_up(stream: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(stream, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let looked = poll(&mut asked, Some(&at_once));
    looked.is_ok() && asked.iter().any(|one| one.revents().contains(PollFlags::HUP))
}

/// How a connection ended.
enum ConnectionEnd {
    Over,
    /// The agent sleeps.
    Asleep,
    /// The same, and the host may not know yet that it ended.
    CutOff,
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    agent: Arc<Agent>,
) -> io::Result<ConnectionEnd> {
    let sleep_state = agent.running.sleep_state().clone();
    let service = service_fn(move |request| {
        let agent = Arc::clone(&agent);
        async move { Ok::<_, Infallible>(route(&agent, request).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_BYTES)
        // The host lets streams go in the middle, as often as its clients do: see its own end.
        .max_local_error_reset_streams(None)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    tokio::select! {
        // An error is an end like any other.
        _ = served.as_mut() => return Ok(ConnectionEnd::Over),
        () = sleep_state.fallen() => {}
    }
    served.as_mut().graceful_shutdown();
    Ok(match within_ms(LAST_WORDS_MS, served).await {
        Some(_) => ConnectionEnd::Asleep,
        None => ConnectionEnd::CutOff,
    })
}

/// Answers `POST /v1/sleep`: the agent serves nothing more until a host wakes it.
fn fall_asleep(agent: &Agent) -> Response<Answer> {
    if !agent.sleeps.load(Ordering::Acquire) {
        return refuse(StatusCode::CONFLICT, "this agent's stream cannot be followed by another");
    }
    agent.running.sleep();
    answer::done()
}

async fn route(agent: &Agent, request: Request<Incoming>) -> Response<Answer> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or("");
    match (&parts.method, parts.uri.path()) {
        (&Method::GET, wire::HEALTH) => {}
        (&Method::POST, layer_protocol::KEEP) => {
            return layer_stream::stream_layer(body, agent.running.sleep_state().clone()).await;
        }
        // Of a machine, which stands still then.
        (&Method::POST, sleep::SLEEP) => return fall_asleep(agent),
        // It may change a file, or start what does.
        _ => freeze::over().await,
    }
    match (&parts.method, parts.uri.path()) {
        (&Method::GET, wire::HEALTH) => {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            json(StatusCode::OK, &Health { version, level: wire::LEVEL })
        }
        (&Method::GET, sleep::COMMANDS) => agent.running.commands(),
        (&Method::GET, wire::METRICS) => json(StatusCode::OK, &metrics::usage()),
        (&Method::PUT, wire::FILE) => file::put(query, body).await,
        (&Method::PUT, wire::UNPACK) => unpack::unpack(query, body).await,
        (&Method::PUT, wire::STDIN) => agent.running.stdin(query, body).await,
        (&Method::POST, wire::DIAL) => dial::dial(query, body).await,
        (&Method::POST, wire::DOORS) => doors::open(query, body).await,
        (&Method::POST, path) => match posted(agent, path, body).await {
            Ok(response) | Err(response) => response,
        },
        _ => refuse(StatusCode::NOT_FOUND, "no such route"),
    }
}

/// Routes whose request is JSON.
async fn posted(
    Agent { reaper, running, jobs, .. }: &Agent,
    path: &str,
    body: Incoming,
) -> Result<Response<Answer>, Response<Answer>> {
    Ok(match path {
        wire::EXEC => {
            let wanted = parse::<ExecRequest>(body).await?;
            let (frames, response) = answer::frames();
            tokio::spawn(exec::exec(Arc::clone(reaper), wanted, frames));
            response
        }
        wire::COLLECT => {
            let wanted = parse::<CollectRequest>(body).await?;
            let (frames, response) = answer::frames();
            tokio::spawn(collect::collect(wanted, frames));
            response
        }
        wire::RUN => running.run(reaper, parse(body).await?),
        wire::JOB => jobs.job(reaper, parse(body).await?),
        sleep::FOLLOW => running.follow(parse(body).await?),
        wire::CONTROL => running.control(reaper, &parse(body).await?),
        wire::READ => tree::read(parse(body).await?),
        wire::STAT => tree::stat(&parse(body).await?),
        wire::LIST => tree::list(parse(body).await?),
        wire::MKDIR => tree::mkdir(&parse(body).await?),
        wire::REMOVE => tree::remove(&parse(body).await?),
        wire::RENAME => tree::rename(&parse(body).await?),
        wire::PACK => pack::pack(parse(body).await?),
        wire::WATCH => watch::watch(parse(body).await?),
        _ => refuse(StatusCode::NOT_FOUND, "no such route"),
    })
}

async fn parse<T: DeserializeOwned>(body: Incoming) -> Result<T, Response<Answer>> {
    let bytes = match Limited::new(body, wire::MAX_REQUEST_BYTES).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) => return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())),
    };
    // It may have come slowly.
    freeze::over().await;
    serde_json::from_slice(&bytes)
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as Socket;

    use super::*;

    #[test]
    fn a_stream_that_nobody_holds_is_found_whatever_there_is_to_be_read() {
        let (ours, mut theirs) = Socket::pair().unwrap();
        theirs.write_all(b"unread").unwrap();
        assert!(!is_hung_up(&ours));
        let held_on = theirs.try_clone().unwrap();
        drop(theirs);
        assert!(!is_hung_up(&ours), "somebody holds it");
        drop(held_on);
        assert!(is_hung_up(&ours));
    }
}
