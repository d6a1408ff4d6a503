//! The agent's only clock. It does not use `cofferdam-ambient`, whose other half it would carry into
//! every sandbox.

#![expect(clippy::disallowed_methods, reason = "the one place of this binary that reads time")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A running stopwatch.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Sleeps without blocking the thread.
pub async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Sleeps where nothing else runs yet.
pub fn sleep_blocking_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// The future's output, or `None` after `ms` milliseconds.
pub async fn within_ms<F: Future>(ms: u64, future: F) -> Option<F::Output> {
    tokio::time::timeout(Duration::from_millis(ms), future).await.ok()
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
