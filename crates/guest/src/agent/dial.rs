//! A byte stream from the host to a port of the sandbox's loopback.

use std::net::Ipv4Addr;

use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use tokio::net::TcpStream;

use super::answer::{Answer, inward, outward, refuse, stream};
use super::clock::within_ms;

/// Loopback answers at once, unless its listener's queue is full.
const CONNECT_MS: u64 = 5_000;

/// `POST /v1/dial?port=`: the request's bytes go there, what comes back is the answer. Each side's
/// end is passed on; the answer's end is the end.
pub async fn dial(query: &str, body: Incoming) -> Response<Answer> {
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
    let (from, to) = socket.into_split();
    let (pieces, response) = stream();
    let inward = tokio::spawn(inward(body, to));
    tokio::spawn(async move {
        outward(from, pieces).await;
        inward.abort();
    });
    response
}
