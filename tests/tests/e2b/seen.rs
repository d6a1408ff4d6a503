//! What clients asked of a server: a relay between both, which reads the heads and changes nothing; and the table of it, which is
//! `docs/reference/e2b-clients.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Mutex};

use cofferdam_tests::declarations::{E2B, ENVD};
use cofferdam_tests::{Server, repository};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::reference::golden;
use crate::reference::golden::page::{begun, code, table, wrapped};

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test system the_table_of_endpoints";

/// The clients, as the table names them, and the files that each one's tests write.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("Python", &["sync", "sync-templates", "sync-network"]),
    ("Python, asynchronous", &["async", "async-templates", "async-network"]),
    ("JavaScript", &["javascript", "javascript-templates", "javascript-network"]),
    ("Command line", &["cli"]),
];
const ABOUT: &str = "What our own tests have [E2B's clients](../e2b.md) call, of [the endpoints](e2b.md). `answered`: at least once with \
    success, by the newest client; `refused`: only with an error, as intended.";

/// Whether an endpoint ever answered with success.
type Seen = Arc<Mutex<BTreeMap<String, bool>>>;

/// A relay to a server.
pub struct Relay {
    pub url: String,
    seen: Seen,
}

impl Relay {
    pub async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = server.url.split_once("://").unwrap().1.to_owned();
        let seen = Seen::default();
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&target).await {
                    tokio::spawn(carry(client, server, Arc::clone(&noted)));
                }
            }
        });
        Self { url, seen }
    }

    /// Compares what was seen with what the client's file has.
    pub fn hold(&self, client: &str) {
        let seen = self.seen.lock().unwrap();
        let lines = seen.iter().map(|(endpoint, good)| {
            format!("{endpoint} {}\n", if *good { "answered" } else { "refused" })
        });
        let path = format!("tests/e2b/served/{client}");
        let command = "this test, with UPDATE_GOLDENS=1";
        golden::hold_text(env!("CARGO_MANIFEST_DIR"), &path, &lines.collect::<String>(), command);
    }
}

async fn carry(client: TcpStream, server: TcpStream, seen: Seen) {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let (asked, mut answers) = mpsc::unbounded_channel();
    let up = tokio::spawn(relay(from_client, to_server, move |head: &str| {
        let _ = asked.send(endpoint(head));
    }));
    let down = relay(from_server, to_client, move |head: &str| {
        let status: u16 = head.get(9..12).and_then(|text| text.parse().ok()).unwrap_or(0);
        if status >= 200
            && let Ok(endpoint) = answers.try_recv()
        {
            *seen.lock().unwrap().entry(endpoint).or_default() |= status < 300;
        }
    });
    down.await;
    up.abort();
}

/// Passes bytes on, and shows each message's head.
async fn relay(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut shown: impl FnMut(&str),
) {
    let (mut messages, mut buffer) = (Messages::default(), vec![0; 64 * 1024]);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        messages.push(&buffer[..count], &mut shown);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// HTTP/1.1 messages of one direction, as far as telling one from the next takes.
#[derive(Default)]
struct Messages {
    kept: Vec<u8>,
    at: At,
}

#[derive(Default, Clone, Copy)]
enum At {
    #[default]
    Head,
    Body(usize),
    Size,
    Chunk(usize),
    Trailer,
}

impl Messages {
    fn push(&mut self, bytes: &[u8], shown: &mut impl FnMut(&str)) {
        self.kept.extend_from_slice(bytes);
        loop {
            match self.at {
                At::Body(0) => self.at = At::Head,
                At::Chunk(0) => self.at = At::Size,
                At::Body(left) | At::Chunk(left) => {
                    let count = left.min(self.kept.len());
                    if count == 0 {
                        return;
                    }
                    self.kept.drain(..count);
                    let left = left - count;
                    self.at = match self.at {
                        At::Body(_) => At::Body(left),
                        _ => At::Chunk(left),
                    };
                }
                At::Head | At::Size | At::Trailer => {
                    let end: &[u8] =
                        if matches!(self.at, At::Head) { b"\r\n\r\n" } else { b"\r\n" };
                    let found = self.kept.windows(end.len()).position(|window| window == end);
                    let Some(found) = found else { return };
                    let text: Vec<u8> = self.kept.drain(..found + end.len()).collect();
                    let text = String::from_utf8_lossy(&text[..found]).into_owned();
                    self.at = match self.at {
                        At::Head => {
                            shown(&text);
                            body_of(&text)
                        }
                        At::Size => {
                            let size = text.split(';').next().unwrap().trim();
                            match usize::from_str_radix(size, 16).unwrap_or(0) {
                                0 => At::Trailer,
                                size => At::Chunk(size + 2),
                            }
                        }
                        _ if text.is_empty() => At::Head,
                        _ => At::Trailer,
                    };
                }
            }
        }
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let lines = head.split("\r\n").skip(1);
    lines
        .filter_map(|line| line.split_once(':'))
        .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then(|| value.trim()))
}

fn body_of(head: &str) -> At {
    match header(head, "transfer-encoding") {
        Some(coding) if coding.eq_ignore_ascii_case("chunked") => At::Size,
        _ => At::Body(header(head, "content-length").and_then(|n| n.parse().ok()).unwrap_or(0)),
    }
}

/// An endpoint as the table has it: ids by their name, services inside as one.
fn endpoint(head: &str) -> String {
    let mut line = head.split("\r\n").next().unwrap_or_default().split(' ');
    let (method, target) = (line.next().unwrap_or_default(), line.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let host = header(head, "host").unwrap_or_default();
    if host.split_once('.').is_some_and(|(label, _)| label.contains('-')) {
        return format!("{method} of a service inside");
    }
    let port = header(head, "e2b-sandbox-port").unwrap_or("49983");
    let is_envd = header(head, "e2b-sandbox-id").is_some() && port == "49983"
        || target.contains("signature=");
    // Some name a sandbox, or carry a signature, in calls of the control plane too.
    match ENVD.template(method, path).filter(|_| is_envd) {
        Some(path) => format!("{method} {path} (envd)"),
        None => format!("{method} {}", E2B.template(method, path).unwrap_or(path)),
    }
}

/// The table: an endpoint, and for each client whether its test got an answer, only refusals, or did not ask.
fn served() -> String {
    let read = |(_, files): &(&str, &[&str])| {
        let mut all = BTreeMap::<String, String>::new();
        for file in *files {
            let path = repository().join("tests/tests/e2b/served").join(file);
            let text = fs::read_to_string(path).unwrap_or_default();
            for (endpoint, how) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
                // Answered by one of its tests is answered.
                let known = all.entry(endpoint.to_owned()).or_insert_with(|| how.to_owned());
                if how == "answered" {
                    how.clone_into(known);
                }
            }
        }
        all
    };
    let seen = CLIENTS.each_ref().map(read);
    let endpoints: BTreeSet<&String> = seen.iter().flat_map(BTreeMap::keys).collect();
    let rows = endpoints.into_iter().map(|endpoint| {
        let how = |client: &BTreeMap<String, String>| {
            client.get(endpoint).map_or("-", String::as_str).to_owned()
        };
        let [python, later, javascript, cli] = seen.each_ref().map(how);
        [code(endpoint), python, later, javascript, cli]
    });
    let [python, later, javascript, cli] = CLIENTS.map(|(name, _)| name);
    table(["Endpoint", python, later, javascript, cli], &rows.collect::<Vec<_>>())
}

#[test]
fn the_table_of_endpoints_is_what_the_clients_tests_used() {
    let page = begun("Endpoints that E2B's clients use", WRITES)
        + &wrapped(ABOUT, "", "")
        + "\n"
        + &served();
    let path = "../docs/reference/e2b-clients.md";
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), path, &page, WRITES);
}

#[test]
fn messages_are_told_apart_wherever_they_are_cut() {
    let bytes = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                  2\r\nGE\r\n0\r\n\r\nGET /c HTTP/1.1\r\n\r\n";
    for step in 1..bytes.len() {
        let (mut messages, mut heads) = (Messages::default(), Vec::new());
        for piece in bytes.chunks(step) {
            messages.push(piece, &mut |head: &str| heads.push(endpoint(head)));
        }
        assert_eq!(heads, ["POST /a", "POST /b", "GET /c"], "{step}");
    }
}
