//! The listeners: connections in, each within its bounds of number and time.
//!
//! ```text
//! health_listener: accept -> a slot, or closed at once
//!   -> TLS -> head within 20 s -> body within 30 s -> answer
//!      ^                                    |
//!      +---- the slot comes back -----------+ idle for 20 s, stalled for 60 s, or closed
//! ```
//! HTTP/1.1 alone is spoken: no client of ours needs more, and one connection is then one request
//! at a time, which is what the bounds count.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_ambient::clock;
use cofferdam_contracts::error::Refusal;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::api::{Api, Label, Probe};
use crate::connection_limit::{ConnectionLimit, ConnectionPermit, ConnectionShares};
use crate::health_listener::{self, NewConnection};
use crate::refuse::refuse;
use crate::request_guard::RequestGuard;
use crate::stall_timeout::StallTimeout;

/// How long a client may take for the head of a request, and how long an idle connection is kept.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(20);
/// A handshake is two round trips.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a head with all its headers; ours have some hundred.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Where no descriptor is left, accepting again at once would be a busy loop.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// A peer that vanished without a word is asked after a minute of silence, and given up after another.
const KEEPALIVE_IDLE_S: u32 = 60;
const KEEPALIVE_EVERY_S: u32 = 15;
const KEEPALIVE_TRIES: u32 = 4;

/// The socket for callers on this host.
#[derive(Debug)]
pub struct Local {
    /// Bound, and reachable by its owner alone.
    pub listener: StdUnixListener,
    /// Whose it is. Besides root, nobody else is answered.
    pub owner: u32,
}

/// What every connection of this server shares.
pub(crate) struct ServerState {
    /// In the order in which they are asked.
    apis: Vec<Arc<dyn Api>>,
    door: RequestGuard,
    tls: Option<TlsAcceptor>,
    http: http1::Builder,
}

impl ServerState {
    pub(crate) fn new(
        apis: Vec<Arc<dyn Api>>,
        door: RequestGuard,
        tls: Option<TlsAcceptor>,
    ) -> Arc<Self> {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
        http.max_buf_size(MAX_HEAD_BYTES);
        Arc::new(Self { apis, door, tls, http })
    }

    /// Serves both listeners until `stop` says so, then lets open requests finish.
    pub(crate) async fn run(
        self: Arc<Self>,
        network: TcpListener,
        local: Option<Local>,
        probe: Box<dyn Probe>,
        stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let shares = ConnectionShares::of_this_process();
        let bound = ConnectionLimit::new(shares.network);
        let network = network.into_std()?;
        let arrivals =
            health_listener::open(Arc::clone(&self), network, bound, probe, stop.clone())?;
        let network = Arc::clone(&self).network(arrivals, stop.clone());
        let Some(Local { listener, owner }) = local else {
            network.await;
            return Ok(());
        };
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        tokio::join!(
            network,
            self.local(listener, owner, ConnectionLimit::new(shares.local), stop)
        );
        Ok(())
    }

    async fn network(
        self: Arc<Self>,
        mut arrivals: mpsc::UnboundedReceiver<NewConnection>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut open = JoinSet::new();
        loop {
            let arrived = async { arrivals.recv().await.ok_or(io::ErrorKind::BrokenPipe.into()) };
            let Some(Ok((stream, place))) = next(arrived, &mut open, &mut stop).await else {
                break;
            };
            if let Ok(stream) = TcpStream::from_std(stream) {
                open.spawn(Arc::clone(&self).connection(stream, place, stop.clone()));
            }
        }
        drop(arrivals);
        while open.join_next().await.is_some() {}
    }

    async fn local(
        self: Arc<Self>,
        listener: UnixListener,
        owner: u32,
        bound: Arc<ConnectionLimit>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut open = JoinSet::new();
        while let Some(accepted) = next(listener.accept(), &mut open, &mut stop).await {
            let Ok((stream, _)) = accepted else {
                clock::sleep(PAUSE).await;
                continue;
            };
            // The socket's mode says so already; a copy of the directory may have lost it.
            if !is_of(&stream, owner) {
                continue;
            }
            if let Some(place) = bound.place(None) {
                let serving = Arc::clone(&self);
                let stop = stop.clone();
                open.spawn(async move {
                    let answer = |request| serving.answer(None, request);
                    serving.http(stream, place, stop, answer).await;
                });
            }
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        place: ConnectionPermit,
        stop: watch::Receiver<bool>,
    ) {
        let Ok(arrived) = stream.local_addr().map(|address| address.ip()) else { return };
        let answer = |request| self.answer(Some(arrived), request);
        let Some(tls) = self.tls.clone() else {
            return self.http(stream, place, stop, answer).await;
        };
        let shaken = tokio::time::timeout(HANDSHAKE_PATIENCE, tls.accept(stream)).await;
        if let Ok(Ok(stream)) = shaken {
            self.http(stream, place, stop, answer).await;
        }
    }

    /// The requests of one connection, each answered so.
    pub(crate) async fn http<S, A, F>(
        &self,
        stream: S,
        place: ConnectionPermit,
        mut stop: watch::Receiver<bool>,
        answer: A,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(hyper::Request<Incoming>) -> F,
        F: Future<Output = Result<Response<Body>, Infallible>>,
    {
        let place = Arc::new(place);
        let service = service_fn(|mut request: hyper::Request<Incoming>| {
            // An upgraded connection lives on without this one, and takes its slot along.
            request.extensions_mut().insert(Arc::clone(&place));
            answer(request)
        });
        let stream = TokioIo::new(StallTimeout::new(stream));
        let connection = self.http.serve_connection(stream, service).with_upgrades();
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = told(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke off");
        }
    }

    /// Whether every connection of the network begins with a handshake.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether a request may be asked here, and is for the last API: the one that the health listener's probe speaks for.
    pub(crate) fn is_for_the_last(
        &self,
        arrived: IpAddr,
        request: &hyper::Request<Incoming>,
    ) -> bool {
        let (arrived, uri, headers) = (Some(arrived), request.uri(), request.headers());
        let Some((_, before)) = self.apis.split_last() else { return false };
        self.named(arrived, headers).is_none()
            && self.door.admit(arrived, request.method(), uri, headers).is_ok()
            && !before.iter().any(|api| api.claims(uri, headers))
    }

    /// The API whose own name a request gives this server, and the label of that name.
    fn named(&self, arrived: Option<IpAddr>, headers: &HeaderMap) -> Option<(Arc<dyn Api>, Label)> {
        let label = self.door.label(arrived, headers)?;
        let api = self.apis.iter().find(|api| api.has_label(&label))?;
        Some((Arc::clone(api), Label(label)))
    }

    pub(crate) async fn answer(
        &self,
        arrived: Option<IpAddr>,
        mut request: hyper::Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        // An API's own name is no name of ours: its pages are another origin, and see nothing of the other APIs.
        if let Some((api, label)) = self.named(arrived, request.headers()) {
            request.extensions_mut().insert(label);
            return Ok(api.answer(request).await);
        }
        let (uri, headers) = (request.uri(), request.headers());
        if let Err(refusal) = self.door.admit(arrived, request.method(), uri, headers) {
            return Ok(refuse(refusal));
        }
        match self.apis.iter().find(|api| api.claims(uri, headers)) {
            Some(api) => Ok(Arc::clone(api).answer(request).await),
            None => Ok(refuse(Refusal::not_found("route"))),
        }
    }
}

/// The next connection, or an error of accepting it; `None` at the end. Ended ones are forgotten meanwhile.
pub(crate) async fn next<T>(
    accept: impl Future<Output = io::Result<T>>,
    open: &mut JoinSet<()>,
    stop: &mut watch::Receiver<bool>,
) -> Option<io::Result<T>> {
    tokio::pin!(accept);
    loop {
        tokio::select! {
            accepted = accept.as_mut() => return Some(accepted),
            () = told(stop) => return None,
            Some(_) = open.join_next() => {}
        }
    }
}

/// Until the server is to stop, or is gone.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn is_of(stream: &UnixStream, owner: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == owner)
}

/// A follower's stream may be silent for days; whether its reader is still there, the kernel asks.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S);
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_EVERY_S);
    let _ = setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_TRIES);
}
