//! `app.intent_images`: images of services, bound by their digests.
//!
//! **The first binding of a reference stands for its intent**: for each run, retry and fork of it.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::IntentId;
use serde::Serialize;
use sqlx::Row;

use crate::error::{Result, json};
use crate::families::Images;

/// A reference that an intent bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IntentImage {
    /// As the recipe names it.
    pub reference: String,
    /// The same with its digest.
    pub pinned: String,
}

impl Images<'_> {
    /// What an intent bound.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn of_intent(self, intent: &IntentId) -> Result<Vec<IntentImage>> {
        let rows = sqlx::query(
            "SELECT reference, pinned FROM app.intent_images WHERE intent_id = $1 ORDER BY reference COLLATE \"C\"",
        )
        .bind(intent.as_str())
        .fetch_all(self.pool())
        .await?;
        let image = |row: &sqlx::postgres::PgRow| {
            Ok(IntentImage { reference: row.try_get("reference")?, pinned: row.try_get("pinned")? })
        };
        rows.iter().map(image).collect()
    }

    /// Binds references for an intent and yields all that it bound: of one that it had bound before, the first binding.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn bind(self, intent: &IntentId, new: &[IntentImage]) -> Result<Vec<IntentImage>> {
        sqlx::query(
            "INSERT INTO app.intent_images (intent_id, reference, pinned, origin)
             SELECT $1, n.reference, n.pinned, $3
               FROM jsonb_to_recordset($2) AS n(reference text, pinned text)
             ON CONFLICT (intent_id, reference) DO NOTHING",
        )
        .bind(intent.as_str())
        .bind(json("intent_images", &new)?)
        .bind(Origin::EngineDbos.as_str())
        .execute(self.pool())
        .await?;
        self.of_intent(intent).await
    }
}
