//! Nodes of a sandbox's file system: looked at, made, moved, removed. Paths are absolute and plain.

use std::sync::Arc;

use cofferdam_sandbox::inside::{Entry, User};
use serde::{Deserialize, Serialize};

use crate::guest::error::GuestError;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;

/// What is at a path; a symbolic link at its end is described, not followed.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatFile {
    /// Absolute path in the sandbox of the node to describe.
    pub path: String,
}

/// A directory's entries, sorted by name.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListDirectory {
    /// Absolute path in the sandbox of the directory to list.
    pub path: String,
    /// More than this are an error.
    pub most: u64,
}

/// Makes a directory and its parents.
#[derive(Debug, Serialize, Deserialize)]
pub struct MakeDirectory {
    /// Absolute path in the sandbox; an existing directory gets the mode and owner.
    pub path: String,
    /// Permission bits of the last directory, at most `0o1777`; its new parents get `0o755`.
    pub mode: u32,
    /// Whose it is.
    pub owner: Option<User>,
}

/// Moves a node.
#[derive(Debug, Serialize, Deserialize)]
pub struct RenameFile {
    /// Absolute path in the sandbox of the node to move.
    pub from: String,
    /// Its new one.
    pub to: String,
}

/// Removes a node.
#[derive(Debug, Serialize, Deserialize)]
pub struct RemoveFile {
    /// Absolute path in the sandbox of the node to remove.
    pub path: String,
    /// All that is below it, too.
    pub recursive: bool,
}

impl GuestMessage for StatFile {
    type Reply = Entry;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<Entry, GuestError> {
        Ok(held.agent.files().stat(&self.path).await?)
    }
}

impl GuestMessage for ListDirectory {
    type Reply = Vec<Entry>;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<Vec<Entry>, GuestError> {
        Ok(held.agent.files().list(&self.path, self.most).await?)
    }
}

impl GuestMessage for MakeDirectory {
    type Reply = ();

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<(), GuestError> {
        Ok(held.agent.files().mkdir(&self.path, self.mode, self.owner).await?)
    }
}

impl GuestMessage for RenameFile {
    type Reply = ();

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<(), GuestError> {
        Ok(held.agent.files().rename(&self.from, &self.to).await?)
    }
}

impl GuestMessage for RemoveFile {
    type Reply = ();

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<(), GuestError> {
        Ok(held.agent.files().remove(&self.path, self.recursive).await?)
    }
}
