//! The end of a long-lived sandbox, as its tenant asks for it: on record before it has happened.
//!
//! ```text
//! paused -> ended     requested, preparing, running, pausing -> ending --its task's answer--> ended
//! ```
//! What is ending neither starts nor is paused, and has no next life. A pause that is on record before is ended as soon as its wipe is.

use cofferdam_contracts::id::LiveId;
use cofferdam_contracts::life::LifeState;
use serde_json::Value;

use crate::audit::{Audit, append};
use crate::error::{Result, load};
use crate::families::LiveRows;

/// Those that can be told to end.
const UNENDED: [LifeState; 5] = [
    LifeState::Requested,
    LifeState::Preparing,
    LifeState::Running,
    LifeState::Pausing,
    LifeState::Paused,
];

impl LiveRows<'_> {
    /// Records that a sandbox of the audit's tenant ends. Its processes, and the files of a paused one, are still to be taken away. Gives
    /// the state that it was in; `None`: it was ending or over, or there is none of this id.
    ///
    /// # Errors
    /// The database.
    pub async fn end(self, live: &LiveId, audit: &Audit<'_>) -> Result<Option<LifeState>> {
        self.end_of(live, audit, &UNENDED).await
    }

    /// As [`LiveRows::end`], of a paused sandbox alone: one whose last life is still being wiped ends with that. `false`: it is not
    /// paused, or is ending already.
    ///
    /// # Errors
    /// The database.
    pub async fn end_paused(self, live: &LiveId, audit: &Audit<'_>) -> Result<bool> {
        let paused = [LifeState::Pausing, LifeState::Paused];
        Ok(self.end_of(live, audit, &paused).await?.is_some())
    }

    async fn end_of(
        self,
        live: &LiveId,
        audit: &Audit<'_>,
        of: &[LifeState],
    ) -> Result<Option<LifeState>> {
        let of: Vec<&str> = of.iter().map(|state| state.as_str()).collect();
        let mut tx = self.pool().begin().await?;
        let was: Option<String> = sqlx::query_scalar("SELECT app.live_end($1, $2, $3)")
            .bind(live.as_str())
            .bind(audit.tenant.as_str())
            .bind(of)
            .fetch_one(&mut *tx)
            .await?;
        let Some(was) = was else { return Ok(None) };
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(Some(load("lives.life", Value::String(was))?))
    }
}
