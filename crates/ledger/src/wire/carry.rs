//! One connection: dialed until the server says something, then carried until somebody closes it or nothing
//! moves any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixListener, UnixStream};

/// A connection over which nothing moved for so long is closed, whatever it waits for. Shorter than a request
/// may hang, longer than a commit takes on a busy disk. What waits for longer is pinged: listeners are, and
/// idle connections are better made again than found dead.
const SILENCE: Duration = Duration::from_secs(8);
/// How long one attempt to dial may take, and the server's first byte after it: a fork under load.
const DIAL: Duration = Duration::from_secs(3);
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// Between attempts to dial.
const PAUSE: Duration = Duration::from_millis(200);
/// The largest piece that is carried at once; a client's first words are some hundred bytes.
const PIECE: usize = 16 * 1024;
/// The kernel's own look at the other end, for connections that may be silent: after 3 s, each second, four
/// times; and for what was sent and is not acknowledged.
const KEEPALIVE_IDLE_S: u32 = 3;
const KEEPALIVE_EVERY_S: u32 = 1;
const KEEPALIVE_TIMES: u32 = 4;
const UNACKNOWLEDGED_MS: u32 = 7_000;
/// Where accepting fails for want of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a wire's connections may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// For [`SILENCE`].
    Quick,
    /// For as long as the kernel finds the other end alive.
    Patient,
}

/// Where a wire leads.
#[derive(Debug)]
pub(super) struct Target {
    host: String,
    port: u16,
    kind: Kind,
}

impl Target {
    pub(super) fn new(host: &str, port: u16, kind: Kind) -> Self {
        // An address of version 6 stands in brackets in a URL, and nowhere else.
        let host = host.trim_matches(['[', ']']).to_owned();
        Self { host, port, kind }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The name is looked up each time: a database that moved is found.
    async fn dial(&self) -> io::Result<TcpStream> {
        let dialed = TcpStream::connect((self.host.as_str(), self.port));
        let server = tokio::time::timeout(DIAL, dialed).await.map_err(io::Error::from)??;
        server.set_nodelay(true)?;
        setsockopt(&server, sockopt::KeepAlive, &true)?;
        setsockopt(&server, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
        setsockopt(&server, sockopt::TcpKeepInterval, &KEEPALIVE_EVERY_S)?;
        setsockopt(&server, sockopt::TcpKeepCount, &KEEPALIVE_TIMES)?;
        setsockopt(&server, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?;
        Ok(server)
    }
}

/// Carries what comes to the socket until it is aborted.
pub(super) async fn serve(listener: UnixListener, target: Target) {
    let target = Arc::new(target);
    // With the wire, so that none of its connections outlives it.
    let mut carried = tokio::task::JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let target = Arc::clone(&target);
                carried.spawn(async move { carry(client, &target).await });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the database could not be accepted");
                clock::sleep(ACCEPT_PAUSE).await;
            }
        }
        while carried.try_join_next().is_some() {}
    }
}

async fn carry(client: UnixStream, target: &Target) {
    let (mut said, mut told) = client.into_split();
    let Some((server, first)) = greet(&mut said, target).await else { return };
    if told.write_all(&first).await.is_err() {
        return;
    }
    let moved = Moved::new();
    let (heard, answer) = server.into_split();
    tokio::select! {
        () = up(said, answer, &moved) => {}
        () = down(heard, told, &moved) => {}
        () = moved.silence(target.kind) => {
            tracing::warn!(host = target.host, "the database says nothing; the connection is closed");
        }
    }
}

/// Dials until the server answers the client's first words, which it then holds with the answer's first
/// bytes; `None` once the client is gone. The first words ask for nothing but a session, so that they may be
/// said again.
async fn greet(said: &mut OwnedReadHalf, target: &Target) -> Option<(TcpStream, Vec<u8>)> {
    let mut hello = Vec::new();
    if !hear(said, &mut hello).await {
        return None;
    }
    let mut more = Vec::new();
    tokio::select! {
        answered = dial_until_answered(&hello, target) => Some(answered),
        // Gone, or it says more before it was answered, which no client of ours does.
        _ = hear(said, &mut more) => None,
    }
}

async fn dial_until_answered(hello: &[u8], target: &Target) -> (TcpStream, Vec<u8>) {
    let mut is_told = false;
    loop {
        match attempt(hello, target).await {
            Ok(answered) => return answered,
            Err(error) if !is_told => {
                tracing::warn!(%error, host = target.host, "the database cannot be reached; dialing again");
                is_told = true;
            }
            Err(_) => {}
        }
        clock::sleep(PAUSE).await;
    }
}

/// Whether the client said something.
async fn hear(said: &mut OwnedReadHalf, into: &mut Vec<u8>) -> bool {
    let mut piece = vec![0; PIECE];
    match said.read(&mut piece).await {
        Ok(0) | Err(_) => false,
        Ok(n) => {
            into.extend(piece.iter().take(n));
            true
        }
    }
}

async fn attempt(hello: &[u8], target: &Target) -> io::Result<(TcpStream, Vec<u8>)> {
    let mut server = target.dial().await?;
    let mut first = vec![0; PIECE];
    let exchange = async {
        server.write_all(hello).await?;
        server.read(&mut first).await
    };
    match tokio::time::timeout(FIRST_BYTE, exchange).await.map_err(io::Error::from)?? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            first.truncate(n);
            Ok((server, first))
        }
    }
}

/// When something moved last.
struct Moved {
    since: Stopwatch,
    at_ms: AtomicU64,
}

impl Moved {
    fn new() -> Self {
        Self { since: Stopwatch::start(), at_ms: AtomicU64::new(0) }
    }

    /// While the client is slow to take what the server said, the server is not silent.
    fn held(&self) {
        self.at_ms.store(u64::MAX, Ordering::Relaxed);
    }

    fn now(&self) {
        self.at_ms.store(self.since.elapsed_ms(), Ordering::Relaxed);
    }

    /// Resolves once nothing moved for too long.
    async fn silence(&self, kind: Kind) {
        if kind == Kind::Patient {
            return std::future::pending().await;
        }
        loop {
            let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
            let left = at.saturating_add(SILENCE).saturating_sub(self.since.elapsed());
            if left.is_zero() {
                return;
            }
            clock::sleep(left.min(SILENCE)).await;
        }
    }
}

async fn up(mut from: OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, moved: &Moved) {
    let mut piece = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        let Some(mut left) = piece.get(..n) else { return };
        while !left.is_empty() {
            match to.write(left).await {
                Ok(n @ 1..) => left = left.get(n..).unwrap_or_default(),
                _ => return,
            }
            moved.now();
        }
    }
}

async fn down(mut from: tokio::net::tcp::OwnedReadHalf, mut to: OwnedWriteHalf, moved: &Moved) {
    let mut piece = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        moved.held();
        let Some(piece) = piece.get(..n) else { return };
        if to.write_all(piece).await.is_err() {
            return;
        }
        moved.now();
    }
}
