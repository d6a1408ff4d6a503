//! The stream of an agent while it falls asleep: it outlives the connection on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cofferdam_guest::sleep::{ASK, ASLEEP, CUT, WordMatcher};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, ReadBuf};
use tokio::net::UnixStream;

/// An agent that sleeps answers within some milliseconds.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// What may come of an ended connection before the agent sleeps: what its streams may have had on their way.
const MAX_LAST_BYTES: usize = 1024 * 1024;

/// Where an agent is with its sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    Awake,
    /// It was asked to, and its connection ends.
    Called,
    Asleep,
}

/// Asks until the agent says that it sleeps, and gives the stream. Its owner has a bound of time.
pub(super) async fn asleep(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
    let mut stream = UnixStream::from_std(stream)?;
    let (from, mut to) = stream.split();
    let (mut from, mut listening) = (BufReader::new(from), WordMatcher::to(ASLEEP));
    // Where the agent waits for the end of the connection, it has it.
    to.write_all(CUT).await?;
    let mut left = MAX_LAST_BYTES;
    let said = loop {
        to.write_all(ASK).await?;
        let said = async {
            while left > 0 {
                left -= 1;
                if listening.hears(from.read_u8().await?) {
                    return Ok(());
                }
            }
            Err(io::Error::from(io::ErrorKind::InvalidData))
        };
        // Otherwise what was asked was read by the connection that ended.
        if let Ok(said) = tokio::time::timeout(ASK_AGAIN, said).await {
            break said;
        }
    };
    said.map(|()| stream)
}

/// A stream that outlives the connection on it: its end is not said when the connection ends.
pub(super) struct PersistentStream(pub UnixStream);

impl AsyncRead for PersistentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PersistentStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
