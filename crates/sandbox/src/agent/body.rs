//! The bodies that the host sends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

/// One piece, or pieces as they come.
#[derive(Debug)]
pub(super) enum RequestBody {
    Whole(Option<Bytes>),
    Stream(Receiver<Bytes>),
    /// Pieces of what is whole only once `None` came: a queue that ends without it breaks the request off.
    Counted(Receiver<Option<Bytes>>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream(pieces) => pieces.poll_recv(cx).map(|b| b.map(|b| Ok(Frame::data(b)))),
            Self::Counted(pieces) => pieces.poll_recv(cx).map(|piece| match piece {
                Some(piece) => piece.map(|b| Ok(Frame::data(b))),
                None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Stream(_) | Self::Counted(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Self::Stream(_) | Self::Counted(_) => SizeHint::default(),
        }
    }
}
