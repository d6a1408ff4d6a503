//! One file of a sandbox, written by its agent.

use std::time::Duration;

use bytes::Bytes;
use cofferdam_guest::wire::User;

use super::error::{BootError, UPLOAD_MS};
use crate::agent::Agent;

/// Writes a file for this user, or root, or fails once the agent has taken longer than a file may.
pub(super) async fn put(
    agent: &Agent,
    path: &str,
    mode: u32,
    owner: Option<User>,
    bytes: Bytes,
) -> Result<(), BootError> {
    let limit = Duration::from_millis(UPLOAD_MS);
    let name = || path.to_owned();
    tokio::time::timeout(limit, agent.put_for(path, mode, owner, bytes))
        .await
        .map_err(|_| BootError::Slow { path: name() })?
        .map_err(|source| BootError::Upload { path: name(), source })
}
