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
use tokio::sync::watch;

/// A connection over which nothing moved for so long is closed, whatever it waits for. Shorter than a request
/// may hang, longer than a commit takes on a busy disk. What waits for longer is pinged: listeners are, and
/// idle connections are better made again than found dead.
const SILENCE: Duration = Duration::from_secs(6);
/// Once a connection's question stayed unanswered for so long, others that heard nothing since it was asked are
/// given this much more: they were lost with it, and whoever uses one of them next would wait for as long again.
const SUSPECT: Duration = Duration::from_secs(1);
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
    /// At most [`SILENCE`]; then the wire closes the connection.
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
    let doubt = Arc::new(WireHealth::new());
    // With the wire, so that none of its connections outlives it.
    let mut carried = tokio::task::JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let (target, doubt) = (Arc::clone(&target), Arc::clone(&doubt));
                carried.spawn(async move { carry(client, &target, &doubt).await });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the database could not be accepted");
                clock::sleep(ACCEPT_PAUSE).await;
            }
        }
        while carried.try_join_next().is_some() {}
    }
}

async fn carry(client: UnixStream, target: &Target, doubt: &WireHealth) {
    let (mut said, mut told) = client.into_split();
    let Some((server, first)) = greet(&mut said, target).await else { return };
    if told.write_all(&first).await.is_err() {
        return;
    }
    let moved = Activity::new(doubt);
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

/// What the connections of one wire know of each other.
struct WireHealth {
    since: Stopwatch,
    /// A question that was asked then, on any of them, was not answered in time.
    unanswered_ms: watch::Sender<Option<u64>>,
}

impl WireHealth {
    fn new() -> Self {
        Self { since: Stopwatch::start(), unanswered_ms: watch::Sender::new(None) }
    }
}

/// Nothing is unanswered.
const ANSWERED: u64 = u64::MAX;

/// When something moved last, in milliseconds of the wire's own watch.
struct Activity<'a> {
    doubt: &'a WireHealth,
    at_ms: AtomicU64,
    heard_ms: AtomicU64,
    /// The first question since the server was heard, or [`ANSWERED`].
    asked_ms: AtomicU64,
}

impl<'a> Activity<'a> {
    fn new(doubt: &'a WireHealth) -> Self {
        let now = doubt.since.elapsed_ms();
        Self {
            doubt,
            at_ms: AtomicU64::new(now),
            heard_ms: AtomicU64::new(now),
            asked_ms: AtomicU64::new(ANSWERED),
        }
    }

    /// While the client is slow to take what the server said, the server is not silent.
    fn held(&self) {
        self.asked_ms.store(ANSWERED, Ordering::Relaxed);
        self.heard_ms.store(u64::MAX, Ordering::Relaxed);
        self.at_ms.store(u64::MAX, Ordering::Relaxed);
    }

    fn heard(&self) {
        let now = self.doubt.since.elapsed_ms();
        self.heard_ms.store(now, Ordering::Relaxed);
        self.at_ms.store(now, Ordering::Relaxed);
    }

    fn asked(&self) {
        let now = self.doubt.since.elapsed_ms();
        let _ = self.asked_ms.compare_exchange(ANSWERED, now, Ordering::Relaxed, Ordering::Relaxed);
        self.at_ms.store(now, Ordering::Relaxed);
    }

    /// Resolves once nothing moved for too long, or where another's silence says that this one is lost too.
    async fn silence(&self, kind: Kind) {
        if kind == Kind::Patient {
            return std::future::pending().await;
        }
        let mut doubts = self.doubt.unanswered_ms.subscribe();
        loop {
            let unanswered_ms = *doubts.borrow_and_update();
            let asked_ms = Some(self.asked_ms.load(Ordering::Relaxed)).filter(|at| *at != ANSWERED);
            let until_ms = lost_at_ms(
                self.at_ms.load(Ordering::Relaxed),
                self.heard_ms.load(Ordering::Relaxed),
                asked_ms,
                unanswered_ms,
            );
            let left_ms = until_ms.saturating_sub(self.doubt.since.elapsed_ms());
            if left_ms == 0 {
                if let Some(asked_ms) = asked_ms {
                    self.doubt.unanswered_ms.send_if_modified(|last| {
                        let is_later = last.is_none_or(|last| last < asked_ms);
                        if is_later {
                            *last = Some(asked_ms);
                        }
                        is_later
                    });
                }
                return;
            }
            let left = Duration::from_millis(left_ms).min(SILENCE);
            tokio::select! {
                () = clock::sleep(left) => {}
                _ = doubts.changed() => {}
            }
        }
    }
}

/// When a connection is called lost that moved and was heard at these times, and waits for an answer since
/// `asked_ms`, where a question of `unanswered_ms` was never answered on another one.
fn lost_at_ms(
    moved_ms: u64,
    heard_ms: u64,
    asked_ms: Option<u64>,
    unanswered_ms: Option<u64>,
) -> u64 {
    let of = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let alone = moved_ms.saturating_add(of(SILENCE));
    if unanswered_ms.is_none_or(|unanswered| heard_ms > unanswered) {
        return alone;
    }
    // Nobody waits for it: better made again than found dead.
    let with_others = asked_ms.map_or(0, |asked| asked.saturating_add(of(SUSPECT)));
    with_others.min(alone)
}

async fn up(
    mut from: OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    moved: &Activity<'_>,
) {
    let mut piece = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        let Some(mut left) = piece.get(..n) else { return };
        while !left.is_empty() {
            match to.write(left).await {
                Ok(n @ 1..) => left = left.get(n..).unwrap_or_default(),
                _ => return,
            }
            moved.asked();
        }
    }
}

async fn down(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: OwnedWriteHalf,
    moved: &Activity<'_>,
) {
    let mut piece = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        moved.held();
        let Some(piece) = piece.get(..n) else { return };
        if to.write_all(piece).await.is_err() {
            return;
        }
        moved.heard();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a2_one_unanswered_question_condemns_what_heard_nothing_since() {
        let silence = 6_000;
        // Alone: from its last movement, whichever way.
        assert_eq!(lost_at_ms(5_000, 1_000, Some(5_000), None), 5_000 + silence);
        assert_eq!(lost_at_ms(1_000, 1_000, None, None), 1_000 + silence);
        // Another's question of 2,000 was not answered: this one was used at 7,900 and is not waited for until 13,900.
        assert_eq!(lost_at_ms(7_900, 1_000, Some(7_900), Some(2_000)), 8_900);
        // It was lost at the same time, and waits for longer already.
        assert_eq!(lost_at_ms(3_000, 1_000, Some(3_000), Some(2_000)), 4_000);
        // Nobody waits for it.
        assert_eq!(lost_at_ms(1_000, 1_000, None, Some(2_000)), 0);
        // It was heard since, and so was a client that is slow to listen.
        assert_eq!(lost_at_ms(2_001, 2_001, None, Some(2_000)), 2_001 + silence);
        assert_eq!(lost_at_ms(u64::MAX, u64::MAX, None, Some(2_000)), u64::MAX);
    }
}
