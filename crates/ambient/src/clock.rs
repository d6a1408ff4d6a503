//! Wall time, elapsed time and sleep.

#![expect(clippy::disallowed_methods, reason = "this is the module that the determinism law names")]

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment of the wall clock and of the monotonic one.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    epoch_ms: i64,
    at: Instant,
}

/// Read once from this host's wall clock, then from the database's; carried on by the monotonic clock.
static ANCHOR: Mutex<Option<Anchor>> = Mutex::new(None);

/// A difference that two readings of one clock have anyway.
const SAME_MS: u64 = 50;

/// Milliseconds since the Unix epoch, by the clock that this process last agreed on; negative only where that
/// is before 1970. It goes on by the monotonic clock: a wall clock that jumps moves nothing.
#[must_use]
pub fn now_ms() -> i64 {
    let mut anchor = ANCHOR.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = || Anchor { epoch_ms: wall_ms(), at: Instant::now() };
    anchor.get_or_insert_with(fresh).now_ms()
}

/// Milliseconds since the Unix epoch by this host's own wall clock, which stamps its files.
#[must_use]
pub fn host_ms() -> i64 {
    wall_ms()
}

/// What another clock shows at this moment, by which this process goes from now on: whoever shares a
/// database shares its clock.
pub fn agree(epoch_ms: i64) {
    let mut anchor = ANCHOR.lock().unwrap_or_else(PoisonError::into_inner);
    // The time that an answer takes is no reason to go back and forth.
    if anchor.is_none_or(|own| own.now_ms().abs_diff(epoch_ms) > SAME_MS) {
        *anchor = Some(Anchor { epoch_ms, at: Instant::now() });
    }
}

impl Anchor {
    fn now_ms(self) -> i64 {
        self.epoch_ms.saturating_add(whole_ms(self.at.elapsed()))
    }
}

fn whole_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// This host's wall clock.
fn wall_ms() -> i64 {
    let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => whole_ms(since),
        Err(before) => -whole_ms(before.duration()),
    };
    wall.saturating_add(jumped_ms())
}

/// By how much a test says that the wall clock is wrong. A shipped build has no such thing.
#[cfg(debug_assertions)]
fn jumped_ms() -> i64 {
    let file = crate::env::var("COFFERDAM_CLOCK_JUMP");
    let text = file.and_then(|path| std::fs::read_to_string(path).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(not(debug_assertions))]
fn jumped_ms() -> i64 {
    0
}

/// A running stopwatch: elapsed time is measured here and nowhere else.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Begins to measure now, by the monotonic clock.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_jumps_moves_nothing_and_the_agreed_one_counts() {
        let before = now_ms();
        assert!(before.abs_diff(wall_ms()) < 10_000);
        let elsewhere = before + 7_200_000;
        agree(elsewhere);
        assert!((elsewhere..elsewhere + 10_000).contains(&now_ms()), "by the agreed clock");
        agree(elsewhere + 20);
        assert!(now_ms() < elsewhere + 10_000, "a little is the same");
        agree(before);
        assert!((before..before + 20_000).contains(&now_ms()), "and back again");
    }
}
