//! A stream that outlives the connection on it: its end is not said when the connection ends.
//!
//! A kernel that went on from a stored one may give no notice of what comes on the host's stream. So from then on the stream
//! is also looked at.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream as Socket;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::clock::sleep_ms;

/// Between two looks: what a call of the host waits at most.
const LOOK_MS: u64 = 5;

type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct PersistentStream {
    stream: UnixStream,
    /// The same stream, where it is looked at.
    looked_at: Option<Socket>,
    reads: Pause,
    writes: Pause,
}

impl PersistentStream {
    /// `looks`: whether there may be no notice.
    pub fn of(socket: &Socket, looks: bool) -> io::Result<Self> {
        let looked_at = looks.then(|| socket.try_clone()).transpose()?;
        let stream = UnixStream::from_std(socket.try_clone()?)?;
        Ok(Self { stream, looked_at, reads: pause(), writes: pause() })
    }
}

fn pause() -> Pause {
    Box::pin(sleep_ms(LOOK_MS))
}

/// What a call gives whenever a pause is over, and otherwise nothing yet.
fn look(
    pauses: &mut Pause,
    cx: &mut Context<'_>,
    mut call: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    while pauses.as_mut().poll(cx).is_ready() {
        *pauses = pause();
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return Poll::Ready(done),
        }
    }
    Poll::Pending
}

impl AsyncRead for PersistentStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(done) = Pin::new(&mut this.stream).poll_read(cx, buffer) {
            return Poll::Ready(done);
        }
        let Some(mut socket) = this.looked_at.as_ref() else { return Poll::Pending };
        let read = look(&mut this.reads, cx, || socket.read(buffer.initialize_unfilled()));
        read.map(|read| read.map(|count| buffer.advance(count)))
    }
}

impl AsyncWrite for PersistentStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(done) = Pin::new(&mut this.stream).poll_write(cx, bytes) {
            return Poll::Ready(done);
        }
        let Some(mut socket) = this.looked_at.as_ref() else { return Poll::Pending };
        look(&mut this.writes, cx, || socket.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(done) = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces) {
            return Poll::Ready(done);
        }
        let Some(mut socket) = this.looked_at.as_ref() else { return Poll::Pending };
        look(&mut this.writes, cx, || socket.write_vectored(pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
