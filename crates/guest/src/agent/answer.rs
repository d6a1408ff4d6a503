//! The bodies that the agent answers with, and streams that go both ways.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use cofferdam_guest::wire::Refusal;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

/// Frames on their way to the host. A slow host stops the senders, never grows the agent: eight
/// frames are at most 512 KiB.
const QUEUED_FRAMES: usize = 8;
/// One read of a stream that is an answer.
const READ_BYTES: usize = 16 * 1024;

/// Where an answer's pieces are put.
pub type Pieces = mpsc::Sender<Bytes>;

/// One piece, or pieces as they come.
pub enum Answer {
    Whole(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream(queue) => queue.poll_recv(cx).map(|b| b.map(|b| Ok(Frame::data(b)))),
        }
    }
}

/// A JSON answer.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Answer> {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Answer::Whole(Some(bytes.into())));
    *response.status_mut() = status;
    response
}

/// A refusal in words.
pub fn refuse(status: StatusCode, error: impl Into<String>) -> Response<Answer> {
    json(status, &Refusal { error: error.into() })
}

/// An empty answer: done.
pub fn done() -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Carries a request's body to its end, and passes that on.
pub async fn inward(mut body: Incoming, mut to: impl AsyncWrite + Unpin) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else { continue };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Carries what is read into an answer, until it ends or nobody takes it any more.
pub async fn outward(mut from: impl AsyncRead + Unpin, pieces: Pieces) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            () = pieces.closed() => 0,
        };
        let piece = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        if piece.is_empty() || pieces.send(piece).await.is_err() {
            return;
        }
    }
}

/// An answer that is sent frame by frame through the returned queue.
pub fn stream() -> (Pieces, Response<Answer>) {
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    (sender, Response::new(Answer::Stream(receiver)))
}
