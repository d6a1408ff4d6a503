//! Accepts the network's connections on a thread that nothing else uses, and answers there who asks how this server is.
//!
//! ```text
//! accept -> a slot, or closed at once -> begins with `GET /healthz`: here, by the probe
//!                                      -> anything else, and all TLS: the runtime
//! ```
//! So who probes hears of a server that is busy as soon as of one that is not.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::thread;

use axum::body::Body;
use axum::http::{Method, Response};
use cofferdam_ambient::clock;
use cofferdam_contracts::error::Refusal;
use hyper::body::{Body as _, Incoming};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::api::Probe;
use crate::connection_limit::{ConnectionLimit, ConnectionPermit};
use crate::listen::{HEAD_PATIENCE, PAUSE, ServerState, keep_alive, next};
use crate::refuse::refuse;

/// What a request begins with that the probe answers.
const PROBE: &[u8] = b"GET /healthz ";

/// A connection for the runtime.
pub(crate) type NewConnection = (StdTcpStream, ConnectionPermit);

struct HealthListener {
    serving: Arc<ServerState>,
    /// Where everything else is done.
    runtime: Handle,
    arrived: mpsc::UnboundedSender<NewConnection>,
    probe: Box<dyn Probe>,
    stop: watch::Receiver<bool>,
}

/// Begins to accept; gives what is the runtime's.
pub(crate) fn open(
    serving: Arc<ServerState>,
    listener: StdTcpListener,
    bound: Arc<ConnectionLimit>,
    probe: Box<dyn Probe>,
    stop: watch::Receiver<bool>,
) -> io::Result<mpsc::UnboundedReceiver<NewConnection>> {
    // As many may wait in it as connections have slots.
    let (arrived, arrivals) = mpsc::unbounded_channel();
    let health_listener =
        Arc::new(HealthListener { serving, runtime: Handle::current(), arrived, probe, stop });
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("health_listener".to_owned()).spawn(move || {
        if let Err(error) = runtime.block_on(health_listener.accept(listener, &bound)) {
            tracing::error!(%error, "the listener broke off");
        }
    })?;
    Ok(arrivals)
}

impl HealthListener {
    async fn accept(
        self: Arc<Self>,
        listener: StdTcpListener,
        bound: &Arc<ConnectionLimit>,
    ) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let (mut open, mut stop) = (JoinSet::new(), self.stop.clone());
        while let Some(accepted) = next(listener.accept(), &mut open, &mut stop).await {
            let Ok((stream, from)) = accepted else {
                clock::sleep(PAUSE).await;
                continue;
            };
            // Dropped where there is no slot: the descriptor is free again at once.
            if let Some(place) = bound.place(Some(from.ip())) {
                keep_alive(&stream);
                open.spawn(Arc::clone(&self).connection(stream, place));
            }
        }
        drop(listener);
        while open.join_next().await.is_some() {}
        Ok(())
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, place: ConnectionPermit) {
        let mut begin = [0; PROBE.len()];
        let is_probe = match self.serving.is_tls() {
            true => false,
            false => match tokio::time::timeout(HEAD_PATIENCE, stream.peek(&mut begin)).await {
                Ok(Ok(size)) if size > 0 => begin.as_slice() == PROBE,
                // Without a word in time, or gone.
                _ => return,
            },
        };
        let Ok(arrived) = stream.local_addr().map(|address| address.ip()) else { return };
        if is_probe {
            let own = Arc::clone(&self);
            let answer = move |request| Arc::clone(&own).answer(arrived, request);
            return self.serving.http(stream, place, self.stop.clone(), answer).await;
        }
        // Where it is refused the server is gone.
        if let Ok(stream) = stream.into_std() {
            let _ = self.arrived.send((stream, place));
        }
    }

    async fn answer(
        self: Arc<Self>,
        arrived: IpAddr,
        request: hyper::Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let is_probe = *request.method() == Method::GET
            && request.uri().path_and_query().is_some_and(|path| path == "/healthz")
            && request.body().is_end_stream();
        if is_probe && self.serving.is_for_the_last(arrived, &request) {
            return Ok(self.probe.answer().await);
        }
        let serving = Arc::clone(&self.serving);
        let answered =
            self.runtime.spawn(async move { serving.answer(Some(arrived), request).await });
        answered.await.unwrap_or_else(|_| Ok(refuse(Refusal::internal())))
    }
}
