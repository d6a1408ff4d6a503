//! One file or directory of a sandbox, written by its agent.

use std::time::Duration;

use bytes::Bytes;
use cofferdam_guest::wire::User;

use super::error::{BootError, UPLOAD_MS};
use crate::agent::{Agent, AgentError};

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
    let name = || path.to_owned();
    tokio::time::timeout(Duration::from_millis(UPLOAD_MS), answer)
        .await
        .map_err(|_| BootError::Slow { path: name() })?
        .map_err(|source| BootError::Upload { path: name(), source })
}
