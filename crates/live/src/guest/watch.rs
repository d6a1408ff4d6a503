//! Changes of a sandbox's directories as they come.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_sandbox::WatchStream;
use cofferdam_sandbox::inside::Change;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::guest::STREAM_PATIENCE;
use crate::guest::error::GuestError;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;

/// Changes on their way to who watches. Those that wait are kept, and weighed, where they come from.
const QUEUED: usize = 16;

/// Watches directories from this moment on. Dropping what gives the changes ends it.
#[derive(Debug, Serialize, Deserialize)]
pub struct WatchDirectories {
    /// Absolute paths in the sandbox of the directories to watch.
    pub paths: Vec<String>,
    /// Whether it waits for a stream where all are in use.
    pub waits: bool,
}

impl GuestMessage for WatchDirectories {
    type Reply = mpsc::Receiver<Change>;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<mpsc::Receiver<Change>, GuestError> {
        let patience = if self.waits { STREAM_PATIENCE } else { Duration::ZERO };
        let share = held.streams(1, patience).await.ok_or(GuestError::Busy)?;
        let paths: Vec<&str> = self.paths.iter().map(String::as_str).collect();
        let watching = held.agent.files().watch(&paths, u64::MAX).await?;
        let (sender, changes) = mpsc::channel(QUEUED);
        tokio::spawn(async move {
            forward(watching, sender).await;
            drop(share);
        });
        Ok(changes)
    }
}

async fn forward(mut watching: WatchStream, sender: mpsc::Sender<Change>) {
    loop {
        // An agent that was taken over may leave a question open for ever: who hung up does not wait for it.
        let next = tokio::select! {
            next = watching.next() => next,
            () = sender.closed() => return,
        };
        let Ok(Some(change)) = next else { return };
        if sender.send(change).await.is_err() {
            return;
        }
    }
}
