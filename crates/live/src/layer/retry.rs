//! Sealers that failed: another one is tried, later each time, and in the end none.

use std::sync::Arc;
use std::time::Duration;

use crate::layer::sealer::SealInput;

/// After the first one that failed; after each further one twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// Sealers of one layer. After the last one's end, half an hour after the first one's, none is tried any more: what keeps it from
/// being sealed does not pass by itself.
pub(crate) const TRIES: u32 = 12;

/// The sealers of one layer, until one of them has sealed it.
#[derive(Debug)]
pub(crate) struct Tries {
    /// What each of them is given.
    pub given: Arc<SealInput>,
    /// Why the last one failed.
    pub why: String,
    failed: u32,
}

impl Tries {
    /// Before the first one failed.
    pub(crate) fn of(given: Arc<SealInput>) -> Self {
        Self { given, why: "it ended".to_owned(), failed: 0 }
    }

    /// One more failed: when another is due; `None`: never. `is_wanted`: a life has the layer or waits for it.
    pub(crate) fn fail(&mut self, is_wanted: bool) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        pause(self.failed, is_wanted)
    }
}

/// When another is due after so many; `None`: never. Pure.
fn pause(failed: u32, is_wanted: bool) -> Option<Duration> {
    if failed >= TRIES {
        return None;
    }
    // What has the last copy of its files besides this process may be gone with it, and the next life waits for it.
    if is_wanted && failed <= 1 {
        return Some(Duration::ZERO);
    }
    Some(PAUSE.saturating_mul(2_u32.saturating_pow(failed.saturating_sub(1))))
}

#[cfg(test)]
impl Tries {
    /// With so many more to fail.
    pub(crate) fn with_left(given: Arc<SealInput>, left: u32) -> Self {
        Self { failed: TRIES - left, ..Self::of(given) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3f7_sealers_that_fail_come_later_each_time_and_have_an_end() {
        let all: Vec<Duration> = (1..).map_while(|failed| pause(failed, false)).collect();
        assert_eq!((all.len(), all[0]), (11, PAUSE));
        assert!(all.windows(2).all(|two| two[1] == two[0] * 2));
        let half_an_hour = Duration::from_secs(30 * 60);
        assert!(all.iter().sum::<Duration>() > half_an_hour);
        assert_eq!(pause(TRIES, true), None);
        // Who waits for the layer waits no longer than for one of them.
        assert_eq!((pause(1, true), pause(2, true)), (Some(Duration::ZERO), Some(PAUSE * 2)));
    }
}
