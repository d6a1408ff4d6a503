//! What a token of a sandbox opened ends when the token does: a command's stream, a watch, a transfer, a tunnel.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use cofferdam_live::Guest;
use hyper::body::{Body as _, Frame, SizeHint};

use crate::answer;

const REVOKED: &str = "the key that this sandbox's tokens were made for is revoked";

/// An answer that was asked for with a token of the sandbox: refused where the token ends before it is there, and cut off
/// where that happens later. What comes with a token that has ended is refused by whoever answers.
pub(crate) async fn while_open(
    guest: &Guest,
    answer: impl Future<Output = Response<Body>>,
) -> Response<Body> {
    if guest.is_revoked() {
        return answer.await;
    }
    let sandbox = guest.clone();
    let mut revoked: RevocationFuture = Box::pin(async move { sandbox.revoked().await });
    let response = tokio::select! {
        biased;
        response = answer => response,
        () = &mut revoked => return answer::error(401, REVOKED),
    };
    // A tunnel has no body; who runs it ends it.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS || response.body().is_end_stream() {
        return response;
    }
    response.map(|body| Body::new(Revocable { body, revoked }))
}

type RevocationFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A body that breaks off when the token is revoked.
struct Revocable {
    body: Body,
    revoked: RevocationFuture,
}

impl hyper::body::Body for Revocable {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(REVOKED)))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
