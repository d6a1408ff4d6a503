//! The hash of an answer that passes: short pieces at once, long ones on another thread, a batch at a time.
//!
//! ```text
//! piece -> short, and nothing waits: hashed here
//!       \-> batch (512 KiB, 64 pieces) -> the one before is done? -> another thread; the stream goes on
//!                                      \-> not yet: the stream waits
//! ```
//! A stream holds at most one batch that is hashed and one that is gathered: a hash that lags slows its stream.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::task::{self, JoinError, JoinHandle};

/// A piece up to this size is hashed at once: that takes less time than to hand it over.
const SHORT_BYTES: usize = 4 * 1024;
/// Bytes of a batch: some 400 microseconds of another thread, many times what it takes to wake that up.
const BATCH_BYTES: usize = 512 * 1024;
/// Pieces of a batch: each may hold a whole buffer of its connection.
const BATCH_PIECES: usize = 64;

/// The hash so far, wherever it is.
#[derive(Debug)]
enum State {
    Here(Sha256),
    There(JoinHandle<Sha256>),
    /// The thread that had it is gone.
    Lost,
}

/// The hash of one answer.
#[derive(Debug)]
pub(crate) struct AnswerHash {
    state: State,
    batch: Vec<Bytes>,
    batch_bytes: usize,
}

impl AnswerHash {
    pub(crate) fn new() -> Self {
        Self { state: State::Here(Sha256::new()), batch: Vec::new(), batch_bytes: 0 }
    }

    /// Adds the next piece; waits only where the thread is more than a batch behind.
    pub(crate) async fn push(&mut self, piece: &Bytes) {
        if let State::Here(hash) = &mut self.state
            && self.batch.is_empty()
            && piece.len() <= SHORT_BYTES
        {
            hash.update(piece);
            return;
        }
        self.batch.push(piece.clone());
        self.batch_bytes = self.batch_bytes.saturating_add(piece.len());
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_PIECES {
            self.hand_over().await;
        }
    }

    async fn hand_over(&mut self) {
        let Some(mut hash) = self.fetch().await else { return };
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        self.state = State::There(task::spawn_blocking(move || {
            batch.iter().for_each(|piece| hash.update(piece));
            hash
        }));
    }

    /// The hash of all but the batch that is gathered.
    async fn fetch(&mut self) -> Option<Sha256> {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Here(hash) => Some(hash),
            State::There(job) => {
                let lost = |error: &JoinError| tracing::error!(%error, "an answer's hash was lost");
                job.await.inspect_err(lost).ok()
            }
            State::Lost => None,
        }
    }

    /// The hash of all that was added; `None` where its thread was lost.
    pub(crate) async fn end(&mut self) -> Option<[u8; 32]> {
        let mut hash = self.fetch().await?;
        self.batch.iter().for_each(|piece| hash.update(piece));
        Some(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_hash_is_that_of_all_pieces_in_their_order() {
        let text: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        for sizes in
            [&[100][..], &[16_384], &[4_096, 4_097, 1], &[300_000, 7, 20_000], &[3_000_000]]
        {
            let mut hash = AnswerHash::new();
            let (mut rest, mut sizes) = (Bytes::from(text.clone()), sizes.iter().cycle());
            while !rest.is_empty() {
                let size = rest.len().min(*sizes.next().unwrap());
                hash.push(&rest.split_to(size)).await;
                assert!(hash.batch_bytes < BATCH_BYTES && hash.batch.len() < BATCH_PIECES);
            }
            assert_eq!(hash.end().await, Some(Sha256::digest(&text).into()));
        }
        assert_eq!(AnswerHash::new().end().await, Some(Sha256::digest(b"").into()));
    }

    #[tokio::test]
    async fn short_pieces_are_hashed_where_they_are_and_long_ones_elsewhere() {
        let mut hash = AnswerHash::new();
        for _ in 0..10_000 {
            hash.push(&Bytes::from_static(b"data: a token\n\n")).await;
            assert!(matches!(hash.state, State::Here(_)) && hash.batch.is_empty());
        }
        hash.push(&Bytes::from(vec![7; BATCH_BYTES])).await;
        assert!(matches!(hash.state, State::There(_)));
        // What comes after it keeps its place.
        hash.push(&Bytes::from_static(b"x")).await;
        assert_eq!(hash.batch.len(), 1);
    }
}
