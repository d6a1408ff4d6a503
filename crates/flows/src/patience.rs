//! Waiting out a lost database inside a step, so that an outage delays work and never fails it.

use std::future::Future;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};

use cofferdam_ledger::LedgerError;

use crate::error::{Error, Result};

/// How long a step waits for its database before it gives the workflow back to recovery. Longer
/// than a failover or a restart; the workflow stays PENDING, so nothing is lost after it either.
const PATIENCE: Duration = Duration::from_secs(600);
const FIRST_PAUSE_MS: u64 = 50;
const MAX_PAUSE_MS: u64 = 2_000;

/// Runs `operation` until it answers, or the database has been away for [`PATIENCE`].
pub(crate) async fn patiently<T, E, F, Fut>(mut operation: F) -> Result<T>
where
    E: Into<Error>,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let waited = Stopwatch::start();
    let mut pause_ms = FIRST_PAUSE_MS;
    loop {
        match operation().await.map_err(Into::into) {
            Err(Error::Ledger(LedgerError::Unavailable(error))) if waited.elapsed() < PATIENCE => {
                tracing::warn!(%error, "the database is away; waiting for it");
                clock::sleep(Duration::from_millis(pause_ms)).await;
                pause_ms = (pause_ms * 2).min(MAX_PAUSE_MS);
            }
            other => return other,
        }
    }
}
