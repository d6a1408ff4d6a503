//! The port of a virtual machine, as a stream both ways.
//!
//! ```text
//! host's buffers  [a][b][c]   one edge of the poll; each read gives one buffer, whatever it has room for
//! read -> a, read -> b, read -> c, read -> "would block": only then is the next edge waited for
//! ```
//! A runtime's own pipe takes a read that did not fill its buffer for the last one and waits for the
//! next edge. Here that would leave `b` and `c` lying until the host says something else, which it may
//! never do: it waits for the answer to them. The same holds for a write, of which the port takes
//! 32 KiB at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use super::poll_fd::polled;

/// An open port.
#[derive(Debug)]
pub struct Port(UnixStream);

impl Port {
    /// Takes the port over, within a runtime.
    pub fn new(device: OwnedFd) -> io::Result<Self> {
        polled(device).map(Self)
    }
}

/// Interrupted, or empty or full for now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let room = buffer.initialize_unfilled();
            match self.0.try_io(Interest::READABLE, || Ok(rustix::io::read(&self.0, room)?)) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_io(Interest::WRITABLE, || Ok(rustix::io::write(&self.0, bytes)?)) {
                Err(error) if is_passing(&error) => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// The driver keeps nothing back.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A port has one end for both ways: it is closed when it is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::agent::clock::within_ms;

    /// Far beyond what a busy machine needs for two reads.
    const PATIENCE_MS: u64 = 20_000;

    /// Packets are what a port's buffers are: one for each read, and one edge for all that lie there.
    #[tokio::test]
    async fn what_lies_behind_a_short_read_is_read_without_another_edge() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        for packet in ["one", "two", "three"] {
            rustix::io::write(&theirs, packet.as_bytes()).unwrap();
        }
        let mut port = Port::new(ours).unwrap();
        let mut heard = [0; 11];
        let read = within_ms(PATIENCE_MS, port.read_exact(&mut heard)).await;
        assert_eq!(read.expect("the second packet was never read").unwrap(), 11);
        assert_eq!(&heard, b"onetwothree");
        // Empty now: a further packet is an edge, and the end is one too.
        let more = async {
            tokio::task::yield_now().await;
            rustix::io::write(&theirs, b"four").unwrap();
            drop(theirs);
        };
        let mut rest = Vec::new();
        let both = async { tokio::join!(port.read_to_end(&mut rest), more) };
        within_ms(PATIENCE_MS, both).await.expect("the end was never read").0.unwrap();
        assert_eq!(rest, b"four");
    }

    #[tokio::test]
    async fn a_port_that_is_full_is_written_to_when_it_has_room_again() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        let (mut near, mut far) = (Port::new(ours).unwrap(), Port::new(theirs).unwrap());
        let sent = vec![7; 3_000_000];
        let mut heard = vec![0; sent.len()];
        let both = async { tokio::join!(near.write_all(&sent), far.read_exact(&mut heard)) };
        let (written, read) = within_ms(PATIENCE_MS, both).await.expect("it stalled");
        written.unwrap();
        read.unwrap();
        assert_eq!(heard, sent);
    }
}
