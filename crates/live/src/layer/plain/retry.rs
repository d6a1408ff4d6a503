//! Sealers that failed: another one is tried, later each time, and in the end none.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ledger::failpoint::shortened;

use super::{SealStart, Sealer, Tending, blocking};
use cofferdam_flows::patiently;

use crate::layer::sealer_line::Line;

/// After the first one that failed; after each further one twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// Sealers of one layer. After the last one's end, half an hour after the first one's, none is tried any more: what keeps it from
/// being sealed does not pass by itself.
const TRIES: u32 = 12;

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

impl Tending {
    /// The sealer says why it has not sealed.
    pub(crate) fn not_yet(&mut self, why: String) {
        let snapshot = &self.kept.id;
        tracing::error!(%snapshot, why, "the files of a paused sandbox are not sealed yet");
        self.why = why;
    }

    /// The sealer has ended, and has not sealed.
    pub(crate) async fn failed(&mut self) {
        if let Some(line) = self.line.take() {
            line.end().await;
        }
        self.failed = self.failed.saturating_add(1);
        match pause(self.failed, self.is_lent || self.lending.is_some()) {
            Some(pause) => self.due = (Stopwatch::start(), shortened("sealer.retry", pause)),
            None => self.unsealable().await,
        }
    }

    pub(crate) async fn start_anew(&mut self) {
        let held = self.is_lent || self.lending.is_some();
        let Some(given) = self.given.clone() else { return };
        let start = if held { SealStart::Held } else { SealStart::Soon };
        let started = blocking(move || Sealer::start(&given, start)).await;
        match started.and_then(Line::of) {
            Ok(line) => self.line = Some(line),
            Err(error) => {
                let snapshot = &self.kept.id;
                tracing::error!(%snapshot, %error, "the files of a paused sandbox have no sealer");
                self.why = error.to_string();
                self.failed().await;
            }
        }
    }

    /// Whether no sealer is tried any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.failed >= TRIES && self.sealed.is_none()
    }

    /// It stays in memory, as long as this process runs: a resume has it until then. That is on record, with the reason.
    async fn unsealable(&mut self) {
        self.given = None;
        let (snapshot, tenant, why) = (&self.kept.id, &self.tenant, &self.why);
        tracing::error!(%snapshot, why, tries = TRIES, "the files of a paused sandbox cannot be sealed: they are lost with this process");
        let ledger = &self.live.0.ledger;
        let told = patiently(|| ledger.snapshots().unsealable(tenant, snapshot, why)).await;
        if let Err(error) = told {
            tracing::error!(%snapshot, %error, "and that is not on record");
        }
        if self.lending.is_some() {
            self.lend().await;
        }
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
