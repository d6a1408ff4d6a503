//! Bytes into a sandbox.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use cofferdam_live::inside::NodeKind;
use cofferdam_live::{Account, ByteSink, GuestError, WriteFile};
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer;
use crate::connect::fault::Fault;
use crate::envd::call::FilesCall;
use crate::envd::entry::look;
use crate::envd::files::form::{MultipartError, Parts, Piece, boundary};
use crate::envd::files::gzip::UploadBody;
use crate::envd::files::transfer::{MAX_FILE, unopened, wide};
use crate::envd::paths::{followed, name, plain, unavailable};
use crate::envd::state::Envd;

/// Files of one request: a project, which clients send at once. What their answer says of each is kept until its end.
const MAX_FILES: usize = 10_000;
const FILE_MODE: u32 = 0o644;
/// The agent has no room.
const NO_ROOM: u16 = 507;
/// A file cannot be written there, or broke off.
const UNWRITABLE: u16 = 409;
const CUT: u16 = 400;

/// A file that was written.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileAnswer {
    path: String,
    name: String,
    /// Always `file`: only regular files are uploaded.
    #[serde(rename = "type")]
    kind: &'static str,
}

/// A file that is being written. Dropped before its end, it is cut off, and gone if it was new.
struct FileWriter {
    sink: ByteSink<GuestError>,
    plain: String,
    size: u64,
}

impl FileWriter {
    async fn begin(envd: &Envd, path: &str, who: Account) -> Result<Self, Fault> {
        let plain = plain(path, who)?;
        if path.is_empty() || plain == "/" {
            return Err(Fault::argument("path is missing"));
        }
        let guest = &envd.guest;
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

    async fn end(self) -> Result<FileAnswer, Fault> {
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
        let name = name(&self.plain).to_owned();
        Ok(FileAnswer { path: self.plain, name, kind: "file" })
    }
}

/// Answers `POST /files`: writes the body, or each file of a form, into the sandbox.
pub(crate) async fn upload(call: FilesCall) -> Result<Response<Body>, Fault> {
    let FilesCall { envd, account: who, path, request } = call;
    let (envd, path) = (&*envd, path.as_str());
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
    let mut body = UploadBody::of(body, is_packed);
    let written = match boundary(kind) {
        Some(boundary) => several(envd, path, who, &mut body, &boundary).await,
        None if kind.starts_with("application/octet-stream") => {
            one(envd, path, who, &mut body).await.map(|one| vec![one])
        }
        None => Err(Fault::argument(
            "send multipart/form-data with fields `file`, or application/octet-stream",
        )),
    };
    if written.is_err() {
        body.drain().await;
    }
    Ok(answer::json_of(200, &written?))
}

async fn one(
    envd: &Envd,
    path: &str,
    who: Account,
    body: &mut UploadBody,
) -> Result<FileAnswer, Fault> {
    let mut writing = FileWriter::begin(envd, path, who).await?;
    while let Some(bytes) = body.next().await? {
        writing.put(bytes).await?;
    }
    writing.end().await
}

async fn several(
    envd: &Envd,
    path: &str,
    who: Account,
    body: &mut UploadBody,
    boundary: &str,
) -> Result<Vec<FileAnswer>, Fault> {
    let malformed = |why: MultipartError| Fault::argument(why.to_string());
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
                    writing = Some(FileWriter::begin(envd, &named, who).await?);
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
        false => Err(malformed(MultipartError::Cut)),
    }
}
