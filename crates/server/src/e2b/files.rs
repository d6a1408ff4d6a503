//! `/files` of envd: bytes out of a sandbox and into it.

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use cofferdam_ambient::clock;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_flows::Error;
use cofferdam_live::inside::NodeKind;
use cofferdam_live::{Account, AllGuests, ByteSink, FileBytes, GuestError, ReadFile, WriteFile};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Front;
use super::connect::{Fault, Pieces};
use super::entry::look;
use super::multipart::{Parts, Piece, boundary};
use super::packed::Unpacked;
use super::paths::{followed, is_absent, name, plain, unavailable};
use super::room::{Room, is_same};
use super::shape;

/// Bytes of one file, in either direction: more than any writable layer of a sandbox has by default.
const MAX_FILE: u64 = 4 * 1024 * 1024 * 1024;
/// Files of one request: a project, which clients send at once. What their answer says of each is kept until its end.
const MAX_FILES: usize = 10_000;
const FILE_MODE: u32 = 0o644;
/// Pieces on their way into a sandbox.
const QUEUED: usize = 4;
/// A fault of these routes alone: a sandbox has as many transfers as it can.
const BUSY: &str = "busy";
/// The agent has no room.
const NO_ROOM: u16 = 507;
/// A file cannot be written there, or broke off.
const UNWRITABLE: u16 = 409;
const CUT: u16 = 400;

/// What a request asks of files.
struct Asked {
    path: String,
    user: Option<String>,
}

fn asked(uri: &Uri) -> Asked {
    let query = uri.query().unwrap_or("");
    Asked {
        path: shape::query(query, "path").unwrap_or_default(),
        user: shape::query(query, "username"),
    }
}

/// The text that a token signs. Pure.
fn signature(path: &str, operation: &str, user: &str, token: &str, until: Option<&str>) -> String {
    let mut raw = format!("{path}:{operation}:{user}:{token}");
    if let Some(until) = until {
        raw.push(':');
        raw.push_str(until);
    }
    let hex = digest_bytes(raw.as_bytes());
    let digits = hex.as_str().as_bytes().chunks(2);
    let bytes: Vec<u8> = digits
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    format!("v1_{}", STANDARD_NO_PAD.encode(bytes))
}

/// Whether the query's signature is this token's, and still good.
fn is_signed(uri: &Uri, operation: &str, token: &str) -> Result<bool, &'static str> {
    let query = uri.query().unwrap_or("");
    let Some(given) = shape::query(query, "signature") else { return Ok(false) };
    // In a query `+` may be itself or a space; base64 has no space.
    let given = given.replace(' ', "+");
    let Asked { path, user } = asked(uri);
    let until = shape::query(query, "signature_expiration");
    let wanted =
        signature(&path, operation, user.as_deref().unwrap_or(""), token, until.as_deref());
    if !is_same(&given, &wanted) {
        return Ok(false);
    }
    match until.map(|until| until.parse::<i64>()) {
        None => Ok(true),
        Some(Ok(until)) if until.saturating_mul(1_000) > clock::now_ms() => Ok(true),
        // Clients' tests read it word by word.
        Some(_) => Err("signature is already expired"),
    }
}

/// Whether the query has a signature, good or not.
fn is_claimed(uri: &Uri) -> bool {
    shape::query(uri.query().unwrap_or(""), "signature").is_some()
}

/// The sandbox whose token signed a URL that names none.
pub(crate) async fn signer(front: &Front, uri: &Uri) -> Result<Option<Arc<Room>>, Error> {
    let fits = |token: &str| {
        ["read", "write"].iter().any(|operation| is_signed(uri, operation, token) != Ok(false))
    };
    let all = front.shared.live.ask(AllGuests).await?.into_iter();
    match all.filter(|guest| !guest.is_revoked()).find(|guest| fits(&guest.facts.token)) {
        Some(guest) => front.room(&guest.facts.id).await,
        None => Ok(None),
    }
}

/// `GET` and `POST /files`.
pub(crate) async fn answer(room: &Room, request: Request<Incoming>) -> Response<Body> {
    let operation = match *request.method() {
        Method::GET => "read",
        Method::POST => "write",
        _ => return shape::error(405, "/files takes GET and POST"),
    };
    let has_token = room.opens(request.headers());
    if !has_token {
        match is_signed(request.uri(), operation, &room.guest.facts.token) {
            Ok(true) if !room.guest.is_revoked() => {}
            Ok(_) if is_claimed(request.uri()) => return shape::error(401, "invalid signature"),
            Ok(_) => return shape::error(401, "an access token or a signature is needed"),
            Err(why) => return shape::error(401, why),
        }
    }
    let Asked { path, user } = asked(request.uri());
    // A signature is for the user that it names, or for the default one.
    let who = match user.is_some() || !has_token {
        true => room.account(user.as_deref()),
        false => room.acting(request.headers()),
    };
    let who = match who {
        Ok(who) => who,
        Err(fault) => return shape::error(401, fault.message),
    };
    let done = match operation {
        "read" => read(room, &path, who, request.headers()).await,
        _ => write(room, &path, who, request).await,
    };
    done.unwrap_or_else(|fault| refused(&fault))
}

/// A transfer that did not begin.
fn unopened(error: &GuestError) -> Fault {
    let fault = unavailable(error);
    if *error == GuestError::Busy { Fault { code: BUSY, ..fault } } else { fault }
}

/// A fault in the form of these routes, which is not Connect's.
fn refused(fault: &Fault) -> Response<Body> {
    let status = match fault.code {
        "invalid_argument" => 400,
        "not_found" => 404,
        "unavailable" => 502,
        BUSY => 429,
        "resource_exhausted" => 507,
        "out_of_range" => 413,
        "deadline_exceeded" => 408,
        _ => 500,
    };
    shape::error(status, fault.message.clone())
}

async fn read(
    room: &Room,
    path: &str,
    who: Account,
    headers: &HeaderMap,
) -> Result<Response<Body>, Fault> {
    let guest = &room.guest;
    let plain = plain(path, who)?;
    let real = followed(guest, &plain, true).await?;
    let (entry, real) = look(guest, &real)
        .await?
        .ok_or_else(|| Fault::missing(format!("path '{plain}' does not exist")))?;
    if entry.kind != NodeKind::File {
        return Err(Fault::argument(format!("path '{plain}' is not a file")));
    }
    let size = entry.size;
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let (from, to) = match range.map(|text| span(text, size)) {
        None | Some(Span::Whole) => (0, size),
        Some(Span::Part(from, to)) => (from, to),
        Some(Span::Beyond) => {
            let mut response = shape::error(416, format!("the file has {size} bytes"));
            set(&mut response, header::CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(response);
        }
    };
    // The kernel's own files, of `/proc` for one, say that they are empty: how many bytes they have is known once they are read.
    let to = if size == 0 { MAX_FILE } else { to };
    let part = ReadFile { path: real, most: MAX_FILE, from, to };
    let opened = guest.ask(part).await;
    let FileBytes { size: coming, pieces } = opened.map_err(|error| match error {
        GuestError::Refused { status: 413, error } => Fault::new("out_of_range", error),
        error if is_absent(&error) => Fault::missing(format!("path '{plain}' does not exist")),
        error => unopened(&error),
    })?;
    let (to, size) = if size == 0 { (coming, coming) } else { (to, size) };
    // An agent from before parts were known sends the file from its beginning.
    let first = match coming {
        coming if coming == to - from => 0,
        coming if coming == size => from,
        _ => return Err(Fault::new("unavailable", format!("path '{plain}' changes right now"))),
    };
    let (sender, receiver) = mpsc::channel(QUEUED);
    tokio::spawn(pour(pieces, first..first + (to - from), sender));
    let mut response =
        Response::new(Body::new(Exact { pieces: Pieces(receiver), left: to - from }));
    if to - from != size {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let last = to.saturating_sub(1);
        set(&mut response, header::CONTENT_RANGE, &format!("bytes {from}-{last}/{size}"));
    }
    set(&mut response, header::CONTENT_TYPE, "application/octet-stream");
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    let shown = name(&plain).replace(['"', '\\'], "_");
    set(&mut response, header::CONTENT_DISPOSITION, &format!("inline; filename=\"{shown}\""));
    Ok(response)
}

fn set(response: &mut Response<Body>, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Span {
    Whole,
    /// From the first byte to the one behind the last.
    Part(u64, u64),
    Beyond,
}

/// One range of a file of this size. More than one, or another unit, is as if none were asked for. Pure.
fn span(text: &str, size: u64) -> Span {
    let Some((from, to)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Span::Whole;
    };
    let (from, to) = match (from.trim().parse::<u64>(), to.trim().parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => (from, to.saturating_add(1).min(size)),
        (Ok(from), Err(_)) if to.trim().is_empty() => (from, size),
        (Err(_), Ok(last)) if from.trim().is_empty() => (size.saturating_sub(last), size),
        _ => return Span::Whole,
    };
    if from >= to { Span::Beyond } else { Span::Part(from, to) }
}

/// A body whose length is known: one that breaks off is seen by its reader.
struct Exact {
    pieces: Pieces,
    left: u64,
}

impl hyper::body::Body for Exact {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        let piece = std::task::ready!(std::pin::Pin::new(&mut self.pieces).poll_frame(cx));
        let Some(Ok(frame)) = piece else {
            let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return std::task::Poll::Ready((self.left > 0).then(|| Err(cut())));
        };
        if let Some(bytes) = frame.data_ref() {
            self.left = self.left.saturating_sub(wide(bytes.len()));
        }
        std::task::Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.left)
    }
}

/// Passes the bytes of a span on.
async fn pour(mut pieces: mpsc::Receiver<Bytes>, span: Range<u64>, sender: mpsc::Sender<Bytes>) {
    let Range { start: from, end: to } = span;
    let mut at = 0;
    while at < to {
        let next = tokio::select! {
            next = pieces.recv() => next,
            () = sender.closed() => return,
        };
        let Some(mut piece) = next else { return };
        let end = at + wide(piece.len());
        if end > to {
            piece.truncate(usize::try_from(to - at).unwrap_or(usize::MAX));
        }
        if from > at {
            let skip = usize::try_from(from - at).unwrap_or(usize::MAX);
            piece = piece.split_off(skip.min(piece.len()));
        }
        at = end;
        if !piece.is_empty() && sender.send(piece).await.is_err() {
            return;
        }
    }
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A file that is being written. Dropped before its end, it is cut off, and gone if it was new.
struct Writing {
    sink: ByteSink<GuestError>,
    plain: String,
    size: u64,
}

impl Writing {
    async fn begin(room: &Room, path: &str, who: Account) -> Result<Self, Fault> {
        let plain = plain(path, who)?;
        if path.is_empty() || plain == "/" {
            return Err(Fault::argument("path is missing"));
        }
        let guest = &room.guest;
        let real = followed(guest, &plain, true).await?;
        if look(guest, &real).await?.is_some_and(|(entry, _)| entry.kind == NodeKind::Dir) {
            return Err(Fault::argument(format!("path is a directory: {plain}")));
        }
        let file = WriteFile { path: real, mode: FILE_MODE, owner: who.user };
        let sink = guest.ask(file).await.map_err(|error| unopened(&error))?;
        Ok(Self { sink, plain, size: 0 })
    }

    async fn put(&mut self, bytes: Bytes) -> Result<(), Fault> {
        self.size = self.size.saturating_add(wide(bytes.len()));
        if self.size > MAX_FILE {
            return Err(Fault::new("out_of_range", format!("a file has at most {MAX_FILE} bytes")));
        }
        // Where nobody takes it, the end says why.
        let _ = self.sink.pieces.send(Some(bytes)).await;
        Ok(())
    }

    async fn end(self) -> Result<Value, Fault> {
        let _ = self.sink.pieces.send(None).await;
        let done =
            self.sink.end.await.map_err(|_| Fault::new("internal", "the writing was stopped"))?;
        done.map_err(|error| match error {
            GuestError::Refused { status: NO_ROOM, error } => Fault::new(
                "resource_exhausted",
                format!("not enough disk space available: {error}"),
            ),
            GuestError::Refused { status: UNWRITABLE | CUT, error } => Fault::argument(error),
            error => unavailable(&error),
        })?;
        Ok(json!({"path": self.plain, "name": name(&self.plain), "type": "file"}))
    }
}

async fn write(
    room: &Room,
    path: &str,
    who: Account,
    request: Request<Incoming>,
) -> Result<Response<Body>, Fault> {
    let (parts, body) = request.into_parts();
    if let Some(name) = parts.headers.keys().find(|name| name.as_str().starts_with("x-metadata-")) {
        return Err(Fault::argument(format!("{name}: metadata of files is not kept here")));
    }
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is_packed = match text(header::CONTENT_ENCODING) {
        None | Some("identity") => false,
        Some("gzip") => true,
        Some(other) => {
            return Err(Fault::argument(format!("content encoding {other:?} is not gzip")));
        }
    };
    let kind = text(header::CONTENT_TYPE).unwrap_or("");
    let mut body = Unpacked::of(body, is_packed);
    let written = match boundary(kind) {
        Some(boundary) => several(room, path, who, &mut body, &boundary).await,
        None if kind.starts_with("application/octet-stream") => {
            one(room, path, who, &mut body).await.map(|one| vec![one])
        }
        None => Err(Fault::argument(
            "send multipart/form-data with fields `file`, or application/octet-stream",
        )),
    };
    if written.is_err() {
        body.drain().await;
    }
    Ok(shape::json_of(200, &Value::Array(written?)))
}

async fn one(room: &Room, path: &str, who: Account, body: &mut Unpacked) -> Result<Value, Fault> {
    let mut writing = Writing::begin(room, path, who).await?;
    while let Some(bytes) = body.next().await? {
        writing.put(bytes).await?;
    }
    writing.end().await
}

async fn several(
    room: &Room,
    path: &str,
    who: Account,
    body: &mut Unpacked,
    boundary: &str,
) -> Result<Vec<Value>, Fault> {
    let malformed = |why: super::multipart::Malformed| Fault::argument(why.to_string());
    let mut parts = Parts::new(boundary);
    let (mut written, mut writing) = (Vec::new(), None);
    while let Some(bytes) = body.next().await? {
        parts.push(&bytes);
        while let Some(piece) = parts.next().map_err(malformed)? {
            match (piece, writing.as_mut()) {
                (Piece::Part { name, file }, _) if name == "file" => {
                    if written.len() >= MAX_FILES {
                        return Err(Fault::argument(format!(
                            "more than {MAX_FILES} files in one request"
                        )));
                    }
                    let named =
                        if path.is_empty() { file.unwrap_or_default() } else { path.to_owned() };
                    writing = Some(Writing::begin(room, &named, who).await?);
                }
                (Piece::Part { .. }, _) | (_, None) => {}
                (Piece::Bytes(bytes), Some(writing)) => writing.put(bytes).await?,
                (Piece::End, Some(_)) => {
                    if let Some(whole) = writing.take() {
                        written.push(whole.end().await?);
                    }
                }
            }
        }
    }
    match parts.is_over() {
        true => Ok(written),
        false => Err(malformed(super::multipart::Malformed::Cut)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_clients() {
        // Python: "v1_" + b64(sha256("/a:read::tok")).rstrip("=").
        let wanted = signature("/a", "read", "", "tok", None);
        assert_eq!(wanted, "v1_2/gNbgFPxFSqkheS/SD0NHlzA121E/nxkOtc/ovxeoI");
        assert_ne!(signature("/a", "write", "", "tok", None), wanted);
        assert_ne!(signature("/a", "read", "", "tok", Some("9")), wanted);
        let uri = |more: &str| -> Uri { format!("/files?path=%2Fa&{more}").parse().unwrap() };
        let given = wanted.replace('+', "%2B").replace('/', "%2F");
        assert_eq!(is_signed(&uri(&format!("signature={given}")), "read", "tok"), Ok(true));
        assert_eq!(is_signed(&uri(&format!("signature={given}")), "write", "tok"), Ok(false));
        assert_eq!(is_signed(&uri(&format!("signature={given}")), "read", "other"), Ok(false));
        assert_eq!(is_signed(&uri(""), "read", "tok"), Ok(false));
        let old =
            signature("/a", "read", "", "tok", Some("1")).replace('+', "%2B").replace('/', "%2F");
        let expired = uri(&format!("signature={old}&signature_expiration=1"));
        assert_eq!(is_signed(&expired, "read", "tok"), Err("signature is already expired"));
    }

    #[test]
    fn a_range_is_within_the_file() {
        for (text, wanted) in [
            ("bytes=0-3", Span::Part(0, 4)),
            ("bytes=5-", Span::Part(5, 10)),
            ("bytes=-4", Span::Part(6, 10)),
            ("bytes=8-99", Span::Part(8, 10)),
            ("bytes=10-", Span::Beyond),
            ("bytes=3-1", Span::Whole),
            ("bytes=0-1,3-4", Span::Whole),
            ("lines=1-2", Span::Whole),
        ] {
            assert_eq!(span(text, 10), wanted, "{text}");
        }
    }
}
