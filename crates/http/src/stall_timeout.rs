//! A connection whose peer must go on reading.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cofferdam_ambient::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long an answer may wait for its reader to take one more byte.
pub const STALL: Duration = Duration::from_secs(60);

/// Fails a write that makes no progress for [`STALL`]. A stream may be open for days, as long as
/// what is written to it is read.
pub(crate) struct StallTimeout<S> {
    stream: S,
    patience: Duration,
    stalled: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> StallTimeout<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, patience: STALL, stalled: None }
    }

    fn progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        tried: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            self.stalled = None;
            return tried;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(clock::sleep(patience)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.progress(cx, tried)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_write_vectored(cx, bytes);
        this.progress(cx, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_flush(cx);
        this.progress(cx, tried)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.progress(cx, tried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn m1_an_answer_that_nobody_reads_is_given_up_and_a_slow_reader_is_not() {
        let (mut near, far) = tokio::io::duplex(1_024);
        let patience = Duration::from_millis(400);
        let mut paced = StallTimeout { stream: far, patience, stalled: None };
        let slow = tokio::spawn(async move {
            let mut all = 0;
            let mut some = [0; 512];
            while all < 8_192 {
                clock::sleep(Duration::from_millis(20)).await;
                all += near.read(&mut some).await.unwrap();
            }
            near
        });
        // Twenty waits, together as long as the patience: each of them makes progress.
        paced.write_all(&[0; 8_192]).await.unwrap();
        let near = slow.await.unwrap();
        let error = paced.write_all(&[0; 8_192]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(near);
    }
}
