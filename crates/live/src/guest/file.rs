//! Bytes out of a sandbox's files and into them.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_sandbox::FileReader;
use cofferdam_sandbox::inside::User;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::guest::STREAM_PATIENCE;
use crate::guest::error::GuestError;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;

/// Pieces on their way out of a sandbox or into it.
const QUEUED: usize = 4;

/// Reads a file from one byte to before another, as far as it goes.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadFile {
    /// Absolute path in the sandbox of the file to read.
    pub path: String,
    /// A file with more bytes is an error.
    pub most: u64,
    /// The first byte.
    pub from: u64,
    /// The byte behind the last one.
    pub to: u64,
}

/// The bytes of a file as they come. Dropping it ends the reading.
#[derive(Debug)]
pub struct FileBytes {
    /// How many come: those that were asked for, or all of them from an agent that knows no parts.
    pub size: u64,
    /// Fewer than that: the reading broke off.
    pub pieces: mpsc::Receiver<Bytes>,
}

/// Writes a file, parents included.
#[derive(Debug, Serialize, Deserialize)]
pub struct WriteFile {
    /// Absolute path in the sandbox; an existing file is replaced.
    pub path: String,
    /// Permission bits, at most `0o777`; an existing file gets them too.
    pub mode: u32,
    /// Whose it is, and whose the parents are that are made.
    pub owner: User,
}

/// Takes bytes as they come. They are whole once `None` came; dropped without it, what was begun is removed.
#[derive(Debug)]
pub struct ByteSink<E> {
    /// Where they go.
    pub pieces: mpsc::Sender<Option<Bytes>>,
    /// What came of it.
    pub end: oneshot::Receiver<Result<(), E>>,
}

impl<E: Send + 'static> ByteSink<E> {
    /// Of what `write` does with the pieces.
    pub(crate) fn of<F>(write: impl FnOnce(mpsc::Receiver<Option<Bytes>>) -> F) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (pieces, taken) = mpsc::channel(QUEUED);
        let (told, end) = oneshot::channel();
        let writing = write(taken);
        tokio::spawn(async move {
            // Who hung up does not ask.
            let _ = told.send(writing.await);
        });
        Self { pieces, end }
    }
}

impl GuestMessage for ReadFile {
    type Reply = FileBytes;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<FileBytes, GuestError> {
        let share = held.streams(1, STREAM_PATIENCE).await.ok_or(GuestError::Busy)?;
        let Self { path, most, from, to } = self;
        let (size, reading) = held.agent.files().open_part(&path, most, from, to).await?;
        let (sender, pieces) = mpsc::channel(QUEUED);
        tokio::spawn(async move {
            pour(reading, sender).await;
            drop(share);
        });
        Ok(FileBytes { size, pieces })
    }
}

async fn pour(mut reading: FileReader, sender: mpsc::Sender<Bytes>) {
    loop {
        let next = tokio::select! {
            next = reading.next() => next,
            () = sender.closed() => return,
        };
        let Ok(Some(piece)) = next else { return };
        if sender.send(piece).await.is_err() {
            return;
        }
    }
}

impl GuestMessage for WriteFile {
    type Reply = ByteSink<GuestError>;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<ByteSink<GuestError>, GuestError> {
        let share = held.streams(1, STREAM_PATIENCE).await.ok_or(GuestError::Busy)?;
        let agent = held.agent.clone();
        Ok(ByteSink::of(|pieces| async move {
            let (_share, Self { path, mode, owner }) = (share, self);
            Ok(agent.files().pour(&path, mode, owner, pieces).await?)
        }))
    }
}
