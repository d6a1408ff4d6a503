//! The bodies that the agent answers with, and streams that go both ways.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use cofferdam_guest::frame::{self, MIN_PIECE};
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
    /// The same of whole frames, which may be joined and filled.
    Frames {
        queue: mpsc::Receiver<Bytes>,
        is_over: bool,
    },
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
            Self::Frames { queue, is_over } => {
                let first = ready!(queue.poll_recv(cx));
                let piece = first.map(|first| Ok(Frame::data(piece(first, queue))));
                *is_over = queue.is_closed() && queue.is_empty();
                Poll::Ready(piece)
            }
        }
    }

    /// Said with the last piece. The host has read what it wants by then and lets the answer go; an end
    /// that came later would meet nobody, and a library that counts such ends the connection at a thousand.
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(_) => false,
            Self::Frames { is_over, .. } => *is_over,
        }
    }
}

/// What is sent at once: no smaller than the host's library puts up with.
fn piece(first: Bytes, queue: &mut mpsc::Receiver<Bytes>) -> Bytes {
    if first.len() >= MIN_PIECE {
        return first;
    }
    let mut piece = BytesMut::from(first);
    while piece.len() < MIN_PIECE
        && let Ok(next) = queue.try_recv()
    {
        piece.extend_from_slice(&next);
    }
    frame::fill(&mut piece);
    piece.freeze()
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

/// An answer of bytes as they come through the returned queue.
pub fn stream() -> (Pieces, Response<Answer>) {
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    (sender, Response::new(Answer::Stream(receiver)))
}

/// An answer that is sent frame by frame through the returned queue.
pub fn frames() -> (Pieces, Response<Answer>) {
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    (sender, Response::new(Answer::Frames { queue: receiver, is_over: false }))
}

#[cfg(test)]
mod tests {
    use cofferdam_guest::frame::{Decoder, Kind};

    use super::*;

    /// Two and a half thousand small pieces that nobody read once were the end of a sandbox.
    #[tokio::test]
    async fn frames_are_sent_in_no_small_pieces_whether_they_come_together_or_alone() {
        let (pieces, response) = frames();
        let (mut decoder, mut seen) = (Decoder::default(), 0);
        let mut body = response.into_body();
        for crowd in [1, 3, QUEUED_FRAMES] {
            for _ in 0..crowd {
                pieces.try_send(frame::encode(Kind::Stdout, b"x")).unwrap();
            }
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() >= MIN_PIECE, "{}", piece.len());
            decoder.push(&piece);
            while let Some(frame) = decoder.next_frame().unwrap() {
                assert_eq!(frame, (Kind::Stdout, Bytes::from_static(b"x")));
                seen += 1;
            }
        }
        assert_eq!(seen, 1 + 3 + QUEUED_FRAMES);
        let large = frame::encode(Kind::Stdout, &[7; MIN_PIECE]);
        pieces.try_send(large.clone()).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), large);
        assert!(!body.is_end_stream());
        // The last piece is the end.
        for _ in 0..2 {
            pieces.try_send(large.clone()).unwrap();
        }
        drop(pieces);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), large);
        assert!(!body.is_end_stream());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), large);
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }
}
