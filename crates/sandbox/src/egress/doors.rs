//! Connections that the agent accepted inside the sandbox and hands out, where no namespace of the host's
//! is the sandbox's network.
//!
//! ```text
//! sandbox                                          worker
//!  client -> 127.0.0.53:3128 -> agent ==CONNECT==>  Doors -> Arrival -> the same proxy
//!                       (loopback)  (the agent's own stream; no device, no route)
//! ```
//! **The agent is a pipe and is not trusted with more.** Which door it names decides only which
//! protocol we expect; policy, phase, lease and violations are decided here, by what is said on the
//! stream. A task that imitates the agent thus speaks to the proxy, which it may anyhow; one that kills
//! it ends its sandbox; one that speaks nonsense ends the connection, and its network with it. What it
//! can cost the host is bounded: streams, bytes of each that we have not read, and of a head.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_guest::door::{self, Door as GuestDoor};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::ports::{ADDRESS, DNS_PORT, Door, HTTP_PORT, MODEL_PORT, PROXY_PORT, TLS_PORT};
use crate::agent::{Agent, AgentError, DoorConnection};
use crate::host::task::Driver;

/// Streams at once: more than the proxy serves, so that what it refuses comes here and is counted.
const MAX_STREAMS: u32 = 512;
/// What a client may send ahead of us: of one, and of all flows that the proxy serves.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * STREAM_WINDOW;
/// Of a request: it has a method and a target.
const MAX_HEAD_BYTES: u32 = 4 * 1024;
/// Arrivals that wait to be looked at; the others wait in their streams.
const QUEUED: usize = 16;
/// The agent closes its doors in a moment. One that does not is no danger: nobody is behind them.
const CLOSE_MS: u64 = 1_000;

/// A connection at a door. Dropping it refuses it.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub door: Door,
    admitted: oneshot::Sender<()>,
    stream: OnUpgrade,
}

impl Arrival {
    /// Its bytes, from now on; `None`: it has gone.
    pub(crate) async fn admit(self) -> Option<TokioIo<Upgraded>> {
        self.admitted.send(()).ok()?;
        self.stream.await.ok().map(TokioIo::new)
    }
}

/// The doors of one sandbox. Dropping them ends every connection through them.
#[derive(Debug)]
pub(crate) struct Doors {
    arrivals: mpsc::Receiver<Arrival>,
    driver: Driver,
    ended: JoinHandle<()>,
}

impl Doors {
    /// Opens the same ways in as the sockets of a namespace.
    pub(crate) async fn open(agent: &Agent) -> Result<Self, AgentError> {
        let wanted = door::Doors {
            address: ADDRESS,
            tcp: vec![PROXY_PORT, TLS_PORT, HTTP_PORT, DNS_PORT, MODEL_PORT],
            udp: vec![DNS_PORT],
        };
        Ok(Self::over(agent.doors(&wanted).await?))
    }

    fn over(DoorConnection { stream, ended }: DoorConnection) -> Self {
        let (knocks, arrivals) = mpsc::channel(QUEUED);
        let service = service_fn(move |request| knock(request, knocks.clone()));
        let served = http2::Builder::new(TokioExecutor::new())
            // Clients let flows go in the middle, as on the outer connection.
            .max_local_error_reset_streams(None)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let driver = Driver(tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "the doors of a sandbox ended");
            }
        }));
        Self { arrivals, driver, ended }
    }

    /// Whether connections can still come.
    pub(crate) fn is_open(&self) -> bool {
        !self.ended.is_finished() && !self.driver.0.is_finished()
    }

    /// The next one. Where none can come any more, this waits for ever, as at a port where nobody
    /// connects.
    pub(crate) async fn next(&mut self) -> Arrival {
        match self.arrivals.recv().await {
            Some(arrival) => arrival,
            None => std::future::pending().await,
        }
    }

    /// Ends them, and waits until nothing listens inside.
    pub(crate) async fn close(self) {
        let Self { driver, ended, .. } = self;
        drop(driver);
        let limit = Duration::from_millis(CLOSE_MS);
        if tokio::time::timeout(limit, ended).await.is_err() {
            tracing::warn!("an agent did not close its doors in time");
        }
    }
}

/// One stream of the agent's.
async fn knock(
    request: Request<Incoming>,
    knocks: mpsc::Sender<Arrival>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut response = Response::new(Empty::new());
    let target = request.uri().authority().filter(|_| request.method() == Method::CONNECT);
    let door = target.and_then(|target| of(GuestDoor::parse(target.as_str())?));
    *response.status_mut() = match door {
        None => StatusCode::NOT_FOUND,
        Some(door) => {
            let (admitted, is_admitted) = oneshot::channel();
            let arrival = Arrival { door, admitted, stream: hyper::upgrade::on(request) };
            match (knocks.send(arrival).await, is_admitted.await) {
                (Ok(()), Ok(())) => StatusCode::OK,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            }
        }
    };
    Ok(response)
}

/// What is spoken at a door.
fn of(kept: GuestDoor) -> Option<Door> {
    Some(match kept {
        GuestDoor::Tcp(PROXY_PORT) => Door::Proxy,
        GuestDoor::Tcp(TLS_PORT) => Door::Tls,
        GuestDoor::Tcp(HTTP_PORT) => Door::Http,
        GuestDoor::Tcp(MODEL_PORT) => Door::Model,
        GuestDoor::Tcp(DNS_PORT) | GuestDoor::Udp(DNS_PORT) => Door::Dns,
        GuestDoor::Tcp(_) | GuestDoor::Udp(_) => return None,
    })
}

#[cfg(test)]
#[path = "doors/forged.rs"]
mod forged;
