//! Tokens of reply links that were none: how many are heard.

use std::sync::{Mutex, PoisonError};

/// Tokens a minute that may be none before guessing is called that. A guess costs one HMAC and no
/// statement; this bounds what a guesser hears, and never a link that is one.
const MAX_GUESSES: u32 = 60;
const WINDOW_MS: i64 = 60_000;

/// Tokens that were none, in the current minute.
#[derive(Debug, Default)]
pub(crate) struct Guesses(Mutex<(i64, u32)>);

impl Guesses {
    /// Counts one more; `false` beyond the bound.
    pub(crate) fn another(&self, now_ms: i64) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now_ms - seen.0 >= WINDOW_MS || now_ms < seen.0 {
            *seen = (now_ms, 0);
        }
        seen.1 = seen.1.saturating_add(1);
        seen.1 <= MAX_GUESSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_counted_by_the_minute() {
        let guesses = Guesses::default();
        for _ in 0..MAX_GUESSES {
            assert!(guesses.another(1_000_000));
        }
        assert!(!guesses.another(1_000_001));
        assert!(guesses.another(1_060_000), "a new minute");
        assert!(guesses.another(5), "a clock that was put back");
    }
}
