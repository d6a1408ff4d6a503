//! The last words of what holds a sandbox.

use std::time::Duration;

use tokio::task::JoinHandle;

/// What is kept of what the runtime and the agent say on standard error: their last words.
pub(crate) const LOG_BYTES: usize = 8 * 1024;
/// A runtime whose container is dead has this long to clean up after it, and to end what it says.
pub(crate) const RUNTIME_END_MS: u64 = 5_000;

/// Of what is kept and what comes, the last bytes.
pub(crate) fn keep_last(kept: &mut Vec<u8>, bytes: &[u8], most: usize) {
    kept.extend_from_slice(bytes);
    let excess = kept.len().saturating_sub(most);
    kept.drain(..excess);
}

/// What was said at last, once everything that could say more has ended.
pub(crate) async fn said(log: JoinHandle<String>) -> String {
    let limit = Duration::from_millis(RUNTIME_END_MS);
    match tokio::time::timeout(limit, log).await {
        Ok(Ok(said)) if !said.trim().is_empty() => said.trim().to_owned(),
        _ => "it said nothing".to_owned(),
    }
}
