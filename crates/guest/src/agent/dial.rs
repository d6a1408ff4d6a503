//! A byte stream from the host to a port of the sandbox's loopback.

use std::net::Ipv4Addr;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::answer::{Answer, refuse, stream};
use super::clock::within_ms;

/// Loopback answers at once, unless its listener's queue is full.
const CONNECT_MS: u64 = 5_000;
const READ_BYTES: usize = 16 * 1024;

/// `POST /v1/dial?port=`: the request's bytes go there, what comes back is the answer. Each side's
/// end is passed on; the answer's end is the end.
pub async fn dial(query: &str, mut body: Incoming) -> Response<Answer> {
    let port = query.strip_prefix("port=").and_then(|port| port.parse::<u16>().ok());
    let Some(port) = port.filter(|port| *port > 0) else {
        return refuse(StatusCode::BAD_REQUEST, "port must be 1 to 65535");
    };
    let connected = within_ms(CONNECT_MS, TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await;
    let socket = match connected {
        Some(Ok(socket)) => socket,
        Some(Err(error)) => {
            return refuse(StatusCode::BAD_GATEWAY, format!("port {port}: {error}"));
        }
        None => return refuse(StatusCode::GATEWAY_TIMEOUT, format!("port {port}: no answer")),
    };
    let (mut from, mut to) = socket.into_split();
    let (pieces, response) = stream();
    let inward = tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(bytes) = frame.into_data() else { continue };
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = tokio::select! {
                read = from.read(&mut buffer) => read.unwrap_or(0),
                () = pieces.closed() => 0,
            };
            let piece = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
            if piece.is_empty() || pieces.send(piece).await.is_err() {
                break;
            }
        }
        inward.abort();
    });
    response
}
