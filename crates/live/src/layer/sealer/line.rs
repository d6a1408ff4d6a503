//! A sealer whose words are awaited.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::Sealer;
use super::message::SealerMessage;
use super::orders::{GO_ON, HOLD};

/// A sealer, and both directions of its socket.
#[derive(Debug)]
pub(crate) struct Line {
    sealer: Sealer,
    said: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Line {
    pub(crate) fn of(sealer: Sealer) -> io::Result<Self> {
        let ours = sealer.orders.try_clone()?;
        ours.set_nonblocking(true)?;
        let (said, orders) = UnixStream::from_std(ours)?.into_split();
        Ok(Self { sealer, said: BufReader::new(said).lines(), orders })
    }

    /// What the sealer says next; `None`: it has ended.
    pub(crate) async fn said(&mut self) -> Option<SealerMessage> {
        let line = self.said.next_line().await.ok().flatten()?;
        SealerMessage::parse(&line)
    }

    /// Whether the order is given: it stands before whatever this process does next. What a sealer that has ended said is still heard.
    pub(crate) async fn order(&mut self, hold: bool) -> bool {
        let order = if hold { HOLD } else { GO_ON };
        self.orders.write_all(&[order]).await.is_ok()
    }

    /// Ends the sealer, and waits until it has ended.
    pub(crate) async fn end(self) {
        let Self { sealer, said, orders } = self;
        drop((said, orders));
        sealer.ended().await;
    }
}
