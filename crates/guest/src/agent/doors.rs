//! The agent's half of the doors: it listens where the host says, carries, and decides nothing.
//!
//! ```text
//! POST /v1/doors -> bind all -> 200
//!   client --accept--> flow == CONNECT tcp:PORT on the inner connection ==> host serves it, or refuses
//! body ends -> listeners and flows are dropped -> the answer ends
//! ```
//! At the other end of this pipe is what the phase's policy lists and nothing else, so a task that
//! speaks to it as if it were the agent reaches what it reaches through the ports.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_guest::door::{Door, Doors, MAX_DATAGRAM_BYTES, MAX_DOORS};
use cofferdam_guest::wire::decode_path;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::answer::{Answer, inward, outward, refuse, stream};
use super::clock::{sleep_ms, within_ms};

/// Connections at once: more than the host serves, so that it is the host that refuses, and counts.
/// Others wait in the kernel's queue.
const MAX_FLOWS: usize = 320;
/// Of the agent's open files, so many are left to its other work.
const OTHER_FILES: usize = 32;
/// Questions at once; a client asks again where one is lost.
const MAX_QUESTIONS: usize = 64;
/// What a resolver waits, before it asks again.
const QUESTION_MS: u64 = 5_000;
/// An answer has its question and one address more.
const MAX_ANSWER_BYTES: usize = 2 * MAX_DATAGRAM_BYTES;
/// What the host may send ahead of one client, and of all.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// Of a flow in each direction.
const BUFFER_BYTES: usize = 16 * 1024;
/// Between the bodies and the inner connection.
const TRUNK_BYTES: usize = 64 * 1024;
/// A client to which the host says nothing more may finish what it says within this time.
const LAST_WORDS_MS: u64 = 5_000;
/// After a failed accept: a process without descriptors should not also be without CPU.
const ACCEPT_PAUSE_MS: u64 = 10;

/// The way to the host.
#[derive(Clone)]
struct Host {
    requests: http2::SendRequest<Empty<Bytes>>,
    flows: Arc<Semaphore>,
    questions: Arc<Semaphore>,
}

/// Answers `POST /v1/doors`: listens on all ports of `with` until the body ends.
pub async fn open(query: &str, body: Incoming) -> Response<Answer> {
    let text = query.strip_prefix("with=").and_then(decode_path).unwrap_or_default();
    let doors: Doors = match serde_json::from_str(&text) {
        Ok(doors) => doors,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let bound = match bind(&doors).await {
        Ok(bound) => bound,
        Err(error) => return refuse(StatusCode::CONFLICT, format!("{}: {error}", doors.address)),
    };
    let (pieces, response) = stream();
    tokio::spawn(async move {
        let (inner, outer) = tokio::io::duplex(TRUNK_BYTES);
        let mut trunk = JoinSet::new();
        let (from, to) = tokio::io::split(outer);
        trunk.spawn(inward(body, to));
        trunk.spawn(outward(from, pieces.clone()));
        // A connection that could not be made, or that failed, is one that ended.
        let _ = serve(bound, inner).await;
        trunk.shutdown().await;
        // Nothing listens and nothing is carried: now the host may know.
        drop(pieces);
    });
    response
}

struct DoorListeners {
    tcp: Vec<(Door, TcpListener)>,
    udp: Vec<(Door, UdpSocket)>,
}

/// All of them, or none.
async fn bind(doors: &Doors) -> io::Result<DoorListeners> {
    let Doors { address, tcp, udp } = doors;
    let is_own = address.is_loopback() && *address != Ipv4Addr::LOCALHOST;
    if !is_own || tcp.len() + udp.len() > MAX_DOORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bound = DoorListeners { tcp: Vec::new(), udp: Vec::new() };
    for port in tcp {
        bound.tcp.push((Door::Tcp(*port), TcpListener::bind((*address, *port)).await?));
    }
    for port in udp {
        bound.udp.push((Door::Udp(*port), UdpSocket::bind((*address, *port)).await?));
    }
    Ok(bound)
}

/// Until the inner connection ends.
async fn serve(bound: DoorListeners, trunk: DuplexStream) -> hyper::Result<()> {
    let (requests, connection) = http2::Builder::new(TokioExecutor::new())
        // Clients let flows go in the middle, as on the outer connection.
        .max_local_error_reset_streams(None)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(trunk))
        .await?;
    let host = Host {
        requests,
        flows: Arc::new(Semaphore::new(room())),
        questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
    };
    let mut doors = JoinSet::new();
    for (door, listener) in bound.tcp {
        doors.spawn(connections(door, listener, host.clone()));
    }
    for (door, socket) in bound.udp {
        doors.spawn(datagrams(door, socket, host.clone()));
    }
    drop(host);
    let ended = connection.await;
    doors.shutdown().await;
    ended
}

/// A flow is one file of the agent's, and the others need some.
fn room() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    files.saturating_sub(OTHER_FILES).clamp(8, MAX_FLOWS)
}

async fn connections(door: Door, listener: TcpListener, host: Host) {
    // They end with their door.
    let mut flows = JoinSet::new();
    while let Ok(place) = Arc::clone(&host.flows).acquire_owned().await {
        while flows.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                let host = host.clone();
                flows.spawn(async move {
                    carry(door, client, &host).await;
                    drop(place);
                });
            }
            Err(_) => sleep_ms(ACCEPT_PAUSE_MS).await,
        }
    }
}

async fn carry(door: Door, mut client: TcpStream, host: &Host) {
    // Small messages go at once; a socket that refuses the option works all the same.
    let _ = client.set_nodelay(true);
    let Some(served) = host.stream(door).await else { return };
    let (mut client_says, mut to_client) = client.split();
    let (mut host_says, mut to_host) = tokio::io::split(served);
    let up = relay(&mut client_says, &mut to_host);
    tokio::pin!(up);
    let down = relay(&mut host_says, &mut to_client);
    tokio::pin!(down);
    tokio::select! {
        () = &mut up => down.await,
        // The host has nothing more to say, and nothing to hear soon.
        () = &mut down => drop(within_ms(LAST_WORDS_MS, up).await),
    }
}

/// Carries one direction to its end, and passes that on.
async fn relay(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn datagrams(door: Door, socket: UdpSocket, host: Host) {
    let socket = Arc::new(socket);
    let mut open = JoinSet::new();
    let mut buffer = [0; MAX_DATAGRAM_BYTES];
    while let Ok(place) = Arc::clone(&host.questions).acquire_owned().await {
        while open.try_join_next().is_some() {}
        let Ok((count, from)) = socket.recv_from(&mut buffer).await else {
            sleep_ms(ACCEPT_PAUSE_MS).await;
            continue;
        };
        let asked = buffer.get(..count).unwrap_or_default().to_vec();
        let (host, socket) = (host.clone(), Arc::clone(&socket));
        open.spawn(async move {
            let told = within_ms(QUESTION_MS, ask(door, &asked, &host)).await;
            if let Some(Some(told)) = told {
                // A client that is gone needs no answer.
                let _ = socket.send_to(&told, from).await;
            }
            drop(place);
        });
    }
}

async fn ask(door: Door, asked: &[u8], host: &Host) -> Option<Vec<u8>> {
    let mut served = host.stream(door).await?;
    let length = u16::try_from(asked.len()).ok()?;
    served.write_all(&[&length.to_be_bytes(), asked].concat()).await.ok()?;
    let length = usize::from(served.read_u16().await.ok()?);
    let mut told = vec![0; length.min(MAX_ANSWER_BYTES)];
    served.read_exact(&mut told).await.ok()?;
    Some(told)
}

impl Host {
    /// Asks the host to serve what came to this door; `None`: it does not.
    async fn stream(&self, door: Door) -> Option<TokioIo<Upgraded>> {
        let request = Request::builder()
            .method(Method::CONNECT)
            .uri(door.authority())
            .body(Empty::new())
            .ok()?;
        let mut requests = self.requests.clone();
        requests.ready().await.ok()?;
        let response = requests.send_request(request).await.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        hyper::upgrade::on(response).await.ok().map(TokioIo::new)
    }
}
