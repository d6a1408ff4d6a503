//! Bytes out of a sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::{Buf as _, Bytes};
use cofferdam_http::ByteRange;
use cofferdam_live::inside::NodeKind;
use cofferdam_live::{FileBytes, GuestError, ReadFile};
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::answer;
use crate::connect::fault::Fault;
use crate::envd::call::FilesCall;
use crate::envd::entry::look;
use crate::envd::files::transfer::{MAX_FILE, unopened, wide};
use crate::envd::paths::{followed, is_absent, name, plain};

/// Answers `GET /files`: the bytes of a regular file, or one range of them.
pub(crate) async fn download(call: FilesCall) -> Result<Response<Body>, Fault> {
    let FilesCall { envd, account: who, path, request } = call;
    let (path, headers) = (path.as_str(), request.headers());
    let guest = &envd.guest;
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
    let (from, to) = match range.map(|text| ByteRange::of(text, size)) {
        None | Some(ByteRange::Whole) => (0, size),
        Some(ByteRange::Part { from, to }) => (from, to),
        Some(ByteRange::Beyond) => {
            let mut response = answer::error(416, format!("the file has {size} bytes"));
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
    let skip = match coming {
        coming if coming == to - from => 0,
        coming if coming == size => from,
        _ => return Err(Fault::new("unavailable", format!("path '{plain}' changes right now"))),
    };
    let mut response = Response::new(Body::new(Exact { pieces, skip, left: to - from }));
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

/// A body whose length is known, cut from pieces: one that breaks off is seen by its reader.
struct Exact {
    pieces: mpsc::Receiver<Bytes>,
    /// Bytes before the first one that is wanted.
    skip: u64,
    left: u64,
}

impl Exact {
    /// What of a piece is wanted.
    fn cut(&mut self, mut piece: Bytes) -> Bytes {
        let skipped = wide(piece.len()).min(self.skip);
        self.skip -= skipped;
        piece.advance(usize::try_from(skipped).unwrap_or(usize::MAX));
        piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= wide(piece.len());
        piece
    }
}

impl hyper::body::Body for Exact {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        while self.left > 0 {
            let Some(piece) = ready!(self.pieces.poll_recv(cx)) else {
                return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
            };
            let wanted = self.cut(piece);
            if !wanted.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(wanted))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_cut_from_pieces_however_they_come() {
        for step in 1..=11 {
            for (from, to) in [(0usize, 10usize), (3, 7), (9, 10), (0, 1), (10, 10)] {
                let (_, pieces) = mpsc::channel(1);
                let (skip, left) = (wide(from), wide(to - from));
                let mut body = Exact { pieces, skip, left };
                let cut = b"0123456789".chunks(step);
                let found: Vec<u8> =
                    cut.flat_map(|piece| body.cut(Bytes::copy_from_slice(piece))).collect();
                assert_eq!(found, b"0123456789"[from..to], "{step}: {from} {to}");
                assert_eq!(body.left, 0);
            }
        }
    }
}
