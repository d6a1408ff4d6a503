//! One file or directory of a sandbox, written by its agent.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_guest::wire::User;

use tokio::sync::mpsc;

use super::error::{BootError, UPLOAD_MS};
use crate::agent::{Agent, AgentError};
use crate::spec::input::InputPieces;

/// Pieces that wait for the agent.
const AHEAD: usize = 2;
/// A large file has more time: it is taken at 8 MB/s at least.
const LEAST_BYTES_PER_MS: u64 = 8_000;

/// Writes a file for this user, or root, or fails once the agent has taken longer than a file may.
pub(super) async fn put(
    agent: &Agent,
    path: &str,
    mode: u32,
    owner: Option<User>,
    bytes: Bytes,
) -> Result<(), BootError> {
    within(path, agent.files().put_for(path, mode, owner, bytes)).await
}

/// Writes a file whose content comes in pieces, for this user or root. Where they end early, the agent removes what it began.
pub(super) async fn pour(
    agent: &Agent,
    path: &str,
    mode: u32,
    owner: Option<User>,
    content: &InputPieces,
) -> Result<(), BootError> {
    let unread =
        |words: String| BootError::Read { path: path.to_owned(), source: io::Error::other(words) };
    let mut pieces =
        content.take().ok_or_else(|| unread("its content was taken before".to_owned()))?;
    let (sender, counted) = mpsc::channel(AHEAD);
    let owner = owner.unwrap_or(User { uid: 0, gid: 0 });
    // The queue ends with this block: without its last word the agent takes the file for broken off.
    let size = content.size();
    let feed = async move {
        let mut left = size;
        while let Some(piece) = pieces.recv().await {
            let piece = piece?;
            let count = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            left = left
                .checked_sub(count)
                .ok_or_else(|| "it has more bytes than its size".to_owned())?;
            if sender.send(Some(piece)).await.is_err() {
                // The agent says why.
                return Ok(());
            }
        }
        match left {
            0 => {
                let _ = sender.send(None).await;
                Ok(())
            }
            _ => Err("it has fewer bytes than its size".to_owned()),
        }
    };
    let more = size.checked_div(LEAST_BYTES_PER_MS).unwrap_or(0);
    let poured = within_ms(
        path,
        UPLOAD_MS.saturating_add(more),
        agent.files().pour(path, mode, owner, counted),
    );
    let (fed, poured) = tokio::join!(feed, poured);
    fed.map_err(unread)?;
    poured
}

/// Makes a directory for this user, or fails as [`put`] does.
pub(super) async fn put_dir(
    agent: &Agent,
    path: &str,
    mode: u32,
    owner: User,
) -> Result<(), BootError> {
    within(path, agent.files().mkdir(path, mode, Some(owner))).await
}

async fn within<T>(
    path: &str,
    answer: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, BootError> {
    within_ms(path, UPLOAD_MS, answer).await
}

async fn within_ms<T>(
    path: &str,
    limit_ms: u64,
    answer: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, BootError> {
    let name = || path.to_owned();
    tokio::time::timeout(Duration::from_millis(limit_ms), answer)
        .await
        .map_err(|_| BootError::Slow { path: name() })?
        .map_err(|source| BootError::Upload { path: name(), source })
}
