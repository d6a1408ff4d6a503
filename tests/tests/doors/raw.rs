//! HTTP as it is on the wire: no client's idea of headers stands between the test and the server.

use std::time::Duration;

use cofferdam_tests::Server;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest that any answer here may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    pub fn code(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// `127.0.0.1:PORT` of a server.
pub fn address(server: &Server) -> &str {
    server.url.split_once("://").expect("a URL").1
}

/// A request of exactly these headers, `Connection: close` and a length besides.
pub async fn ask(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    let mut stream = TcpStream::connect(address(server)).await.expect("it listens");
    stream.write_all(text.as_bytes()).await.expect("it is sent");
    whole(&mut stream).await
}

/// What comes until the connection is closed.
pub async fn whole(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    read.expect("an answer in time").expect("an answer");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), text: body.to_owned() }
}
