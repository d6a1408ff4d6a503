//! Wall time, elapsed time and sleep.

#![expect(clippy::disallowed_methods, reason = "this is the module that the determinism law names")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch; negative only on a host whose clock is before 1970.
#[must_use]
pub fn now_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    }
}

/// A running stopwatch: elapsed time is measured here and nowhere else.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Whole milliseconds since the start.
    #[must_use]
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Sleeps without blocking the thread.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Sleeps and blocks the thread: only for code that runs before or beside the runtime.
pub fn sleep_blocking(duration: Duration) {
    std::thread::sleep(duration);
}
