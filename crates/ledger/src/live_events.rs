//! The history of a long-lived sandbox, as its row and the audit have it.

use cofferdam_contracts::id::{LiveId, TenantId};
use sqlx::Row;

use crate::error::Result;
use crate::families::LiveRows;

/// Events of one sandbox that are listed; its latest.
const MAX_EVENTS: i64 = 1_000;

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveEvent {
    /// When, in ms since the epoch.
    pub at: i64,
    /// `created`, `started`, `pause`, `resume`, `snapshot`, `network`, `program` (its template's failed) or `ended`.
    pub event: String,
    /// Why, as far as it is on record.
    pub reason: String,
    /// The key that did it; `None`: no caller did.
    pub key_id: Option<String>,
}

impl LiveRows<'_> {
    /// Everything that is on record of a tenant's sandbox, in order; the start is that of its current life.
    pub async fn events(self, tenant: &TenantId, live: &LiveId) -> Result<Vec<LiveEvent>> {
        let rows = sqlx::query(
            "SELECT app.ms(at) AS at_ms, event, reason, key_id FROM (
               SELECT e.*, row_number() OVER (ORDER BY at DESC, step DESC) AS back FROM (
                 SELECT created_at AS at, 1 AS step, 'created' AS event, '' AS reason, key_id
                   FROM app.live_sandboxes WHERE id = $1 AND tenant_id = $2
                 UNION ALL SELECT started_at, 3, 'started', '', NULL
                   FROM app.live_sandboxes WHERE id = $1 AND tenant_id = $2 AND started_at IS NOT NULL
                 UNION ALL SELECT created_at, 2, split_part(op, '.', 2), reason, key_id
                   FROM app.audit WHERE target = $1 AND tenant_id = $2
                    AND op IN ('sandbox.pause', 'sandbox.resume', 'sandbox.snapshot')
                 UNION ALL SELECT coalesce(settled_at, created_at), 2, 'network',
                          concat_ws(': ', coalesce(outcome, 'open'), requested #>> '{}', why), key_id
                   FROM app.live_networks WHERE live_id = $1 AND tenant_id = $2
                 UNION ALL SELECT program_failed_at, 4, 'program', program_failed, NULL
                   FROM app.live_sandboxes WHERE id = $1 AND tenant_id = $2 AND program_failed IS NOT NULL
                 UNION ALL SELECT ended_at, 5, 'ended', end_reason, NULL
                   FROM app.live_sandboxes WHERE id = $1 AND tenant_id = $2 AND ended_at IS NOT NULL) e) n
              WHERE back <= $3 ORDER BY back DESC",
        )
        .bind(live.as_str())
        .bind(tenant.as_str())
        .bind(MAX_EVENTS)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(LiveEvent {
                    at: row.try_get("at_ms")?,
                    event: row.try_get("event")?,
                    reason: row.try_get("reason")?,
                    key_id: row.try_get("key_id")?,
                })
            })
            .collect()
    }
}
