//! An agent that a task has taken over, or plays.

use cofferdam_ambient::clock;
use hyper::client::conn::http2 as client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(10);
const WHILE: Duration = Duration::from_millis(200);

fn doors() -> (Doors, DuplexStream) {
    let (stream, theirs) = tokio::io::duplex(64 * 1024);
    let ended = tokio::spawn(std::future::pending());
    (Doors::over(DoorConnection { stream, ended }), theirs)
}

type Requests = client::SendRequest<Empty<Bytes>>;

async fn speak(stream: DuplexStream) -> Requests {
    let (requests, connection) =
        client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    requests
}

async fn ask(requests: &Requests, method: Method, target: &str) -> Option<Response<Incoming>> {
    let mut requests = requests.clone();
    let request = Request::builder().method(method).uri(target).body(Empty::new()).unwrap();
    requests.ready().await.ok()?;
    requests.send_request(request).await.ok()
}

type UpgradeStream = TokioIo<Upgraded>;

/// Both ends of a connection that was admitted.
async fn flow(requests: &Requests, doors: &mut Doors) -> (UpgradeStream, UpgradeStream) {
    let theirs = async {
        let response = ask(requests, Method::CONNECT, "tcp:443").await.unwrap();
        TokioIo::new(hyper::upgrade::on(response).await.unwrap())
    };
    let ours = async { doors.next().await.admit().await.unwrap() };
    tokio::join!(theirs, ours)
}

#[tokio::test]
async fn nonsense_ends_the_doors_and_nothing_else() {
    for words in [&b"SSH-2.0-x\r\n"[..], &[0; 4_096], b"GET / HTTP/1.1\r\n\r\n"] {
        let (mut doors, mut theirs) = doors();
        theirs.write_all(words).await.unwrap();
        let ended = async {
            while doors.is_open() {
                clock::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, ended).await.unwrap();
        assert!(timeout(WHILE, doors.next()).await.is_err(), "nobody comes any more");
    }
}

#[tokio::test]
async fn only_the_doors_that_we_asked_for_lead_anywhere() {
    let (mut doors, theirs) = doors();
    let requests = speak(theirs).await;
    for (target, door) in [
        ("tcp:3128", Door::Proxy),
        ("tcp:443", Door::Tls),
        ("tcp:80", Door::Http),
        ("tcp:53", Door::Dns),
        ("udp:53", Door::Dns),
    ] {
        let connect = || ask(&requests, Method::CONNECT, target);
        let admitted = async {
            let arrival = doors.next().await;
            assert_eq!(arrival.door, door, "{target}");
            arrival.admit().await
        };
        let (response, stream) = tokio::join!(connect(), admitted);
        assert!(response.unwrap().status() == StatusCode::OK && stream.is_some());
        let (response, ()) = tokio::join!(connect(), async { drop(doors.next().await) });
        assert_eq!(response.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE, "refused");
    }
    for (method, target) in [
        (Method::CONNECT, "tcp:22"),
        (Method::CONNECT, "udp:443"),
        (Method::CONNECT, "127.0.0.1:443"),
        (Method::CONNECT, "a.example:443"),
        (Method::GET, "http://tcp:443/"),
        (Method::POST, "http://guest/v1/exec"),
    ] {
        let response = ask(&requests, method, target).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{target}");
    }
    assert!(timeout(WHILE, doors.next()).await.is_err());
}

#[tokio::test]
async fn streams_that_nobody_takes_wait_and_end_with_the_doors() {
    let (doors, theirs) = doors();
    let requests = speak(theirs).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..2_000 {
        let requests = requests.clone();
        asked.spawn(async move { ask(&requests, Method::CONNECT, "tcp:443").await.is_some() });
    }
    assert!(timeout(WHILE, asked.join_next()).await.is_err(), "nobody is admitted");
    assert_eq!(doors.arrivals.len(), QUEUED, "so many wait to be looked at, the others beyond");
    drop(doors);
    while let Some(done) = timeout(SOON, asked.join_next()).await.unwrap() {
        assert!(!done.unwrap());
    }
}

#[tokio::test]
async fn bytes_that_nobody_reads_stop_their_writer_and_no_other() {
    let (mut doors, theirs) = doors();
    let requests = speak(theirs).await;
    let (mut flood, unread) = flow(&requests, &mut doors).await;
    let mut written = 0;
    while let Ok(done) = timeout(WHILE, flood.write_all(&[7; 16 * 1024])).await {
        done.unwrap();
        written += 16 * 1024;
        assert!(written < 1024 * 1024, "nobody reads it");
    }
    let (mut other, mut served) = flow(&requests, &mut doors).await;
    other.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    served.read_exact(&mut heard).await.unwrap();
    served.write_all(&heard).await.unwrap();
    other.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ping");
    // What is dropped here ends there.
    drop(unread);
    assert_eq!(timeout(SOON, flood.read(&mut heard)).await.unwrap().unwrap_or(0), 0);
}
