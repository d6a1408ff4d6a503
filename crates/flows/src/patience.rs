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

/// How often a statement that was sent again may meet the row of its own first copy.
const MOST_TWINS: u32 = 8;

/// Runs `operation` until it answers, or the database has been away for ten minutes.
///
/// A connection that was cut tells nothing of its statement: the server may still run it while the second copy begins. The second then
/// waits at a unique key and loses to what the first committed. Asked once more it sees that row: the start of a task then reads back what
/// it would have written. Another process that goes on with the workflow is not covered.
///
/// # Errors
/// Those of the operation, but for a database that is away; that one, too, after ten minutes.
pub async fn patiently<T, E, F, Fut>(mut operation: F) -> Result<T>
where
    E: Into<Error>,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let waited = Stopwatch::start();
    let mut pause_ms = FIRST_PAUSE_MS;
    let (mut is_repeated, mut twins) = (false, 0_u32);
    loop {
        match operation().await.map_err(Into::into) {
            Err(Error::Ledger(LedgerError::Unavailable(error))) if waited.elapsed() < PATIENCE => {
                is_repeated = true;
                tracing::warn!(%error, "the database is away; waiting for it");
                clock::sleep(Duration::from_millis(pause_ms)).await;
                pause_ms = (pause_ms * 2).min(MAX_PAUSE_MS);
            }
            Err(Error::Ledger(error))
                if is_repeated && twins < MOST_TWINS && error.is_unique_violation() =>
            {
                twins += 1;
                tracing::warn!(%error, "the first copy of this statement was still under way; asking again");
                clock::sleep(Duration::from_millis(FIRST_PAUSE_MS)).await;
            }
            other => return other,
        }
    }
}
