//! The way of an answer's pieces to their client: short ones at once, large ones together where more is there already.
//!
//! A stream of tokens has short pieces, and each passes as it comes. A large answer is there faster than it is passed on:
//! its pieces go in one wake-up and one write.

use bytes::Bytes;
use cofferdam_sandbox::ModelCut;
use tokio::sync::mpsc;

/// A piece of this size is part of a large answer. An event of a stream has some 100 bytes.
const LARGE_BYTES: usize = 8 * 1024;
/// Bytes that are passed on together: what one write takes.
const TOGETHER_BYTES: usize = 128 * 1024;

/// One answer's way, with what waits for the piece behind it.
pub(crate) struct Pipe<'a> {
    to: &'a mpsc::Sender<Result<Bytes, ModelCut>>,
    held: Vec<Bytes>,
    bytes: usize,
}

impl<'a> Pipe<'a> {
    pub(crate) const fn new(to: &'a mpsc::Sender<Result<Bytes, ModelCut>>) -> Self {
        Self { to, held: Vec::new(), bytes: 0 }
    }

    /// Whether something waits.
    pub(crate) const fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes the next piece; passes on unless it is large and there is room for more. `false`: the client has gone.
    pub(crate) async fn push(&mut self, piece: Bytes) -> bool {
        let is_large = piece.len() >= LARGE_BYTES;
        self.bytes = self.bytes.saturating_add(piece.len());
        self.held.push(piece);
        if is_large && self.bytes < TOGETHER_BYTES {
            return true;
        }
        self.flush().await
    }

    /// Passes on what waits. `false`: the client has gone.
    pub(crate) async fn flush(&mut self) -> bool {
        self.bytes = 0;
        for piece in self.held.drain(..) {
            if self.to.send(Ok(piece)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Ends the answer before its end.
    pub(crate) async fn cut(&mut self) {
        self.flush().await;
        // An error means that the client has gone.
        let _ = self.to.send(Err(ModelCut)).await;
    }

    /// Returns when the client has gone.
    pub(crate) async fn closed(&self) {
        self.to.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn short_pieces_pass_at_once_and_large_ones_together() {
        let (to, mut from) = mpsc::channel(64);
        let mut pipe = Pipe::new(&to);
        assert!(pipe.push(Bytes::from_static(b"data: a token\n\n")).await);
        assert!(from.try_recv().is_ok() && !pipe.holds());
        let large = Bytes::from(vec![7; 16 * 1024]);
        for _ in 0..7 {
            assert!(pipe.push(large.clone()).await && pipe.holds());
        }
        assert!(from.try_recv().is_err(), "they wait for the next one");
        assert!(pipe.push(large.clone()).await);
        assert_eq!((from.len(), pipe.holds()), (8, false));
        while from.try_recv().is_ok() {}
        // A short piece takes what waits with it, in order.
        assert!(pipe.push(large.clone()).await);
        assert!(pipe.push(Bytes::from_static(b"end")).await);
        assert_eq!(from.try_recv().unwrap().unwrap().len(), large.len());
        assert_eq!(&from.try_recv().unwrap().unwrap()[..], b"end");
        assert!(pipe.push(large.clone()).await);
        pipe.cut().await;
        assert!(from.try_recv().unwrap().is_ok() && from.try_recv().unwrap().is_err());
        drop(from);
        assert!(!pipe.push(Bytes::from_static(b"x")).await);
    }
}
