//! A sealer, and what is said to it and by it.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::layer::sealer::{Said, Sealer, order_of};

/// A sealer that is listened to.
pub(crate) struct Line {
    sealer: Option<Sealer>,
    said: tokio::io::Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Line {
    pub(crate) fn of(sealer: Sealer) -> io::Result<Self> {
        let ours = sealer.orders.try_clone()?;
        ours.set_nonblocking(true)?;
        let (said, orders) = UnixStream::from_std(ours)?.into_split();
        Ok(Self { sealer: Some(sealer), said: BufReader::new(said).lines(), orders })
    }

    /// What it says next; `None`: it has ended.
    pub(crate) async fn said(&mut self) -> Option<Said> {
        let line = self.said.next_line().await.ok().flatten()?;
        Said::parse(&line)
    }

    /// Whether the order is given: it stands before whatever this process does next. One that has ended is heard to.
    pub(crate) async fn order(&mut self, hold: bool) -> bool {
        self.orders.write_all(&order_of(hold)).await.is_ok()
    }

    pub(crate) async fn end(mut self) {
        let sealer = self.sealer.take();
        drop(self);
        if let Some(sealer) = sealer {
            sealer.ended().await;
        }
    }
}

/// What one says next, where there is one.
pub(crate) async fn heard(line: &mut Option<Line>) -> Option<Said> {
    match line {
        Some(line) => line.said().await,
        None => None,
    }
}
