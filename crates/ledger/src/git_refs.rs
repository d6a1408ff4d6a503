//! `app.intent_refs`: branches and tags of repositories, bound to their commits.
//!
//! **The first binding of a name stands for its intent**: for each run, retry and fork of it.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::IntentId;
use serde::Serialize;
use sqlx::Row;

use crate::error::{Result, json};
use crate::families::GitRefRows;

/// A name that an intent bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IntentRef {
    /// Path of the repository on the host, or its URL.
    pub source: String,
    /// Branch or tag as the recipe names it.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Full id of the commit that it stood for.
    pub commit_id: String,
}

impl GitRefRows<'_> {
    /// What an intent bound.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn of_intent(self, intent: &IntentId) -> Result<Vec<IntentRef>> {
        let rows = sqlx::query(
            "SELECT source, ref, commit_id FROM app.intent_refs WHERE intent_id = $1
              ORDER BY source COLLATE \"C\", ref COLLATE \"C\"",
        )
        .bind(intent.as_str())
        .fetch_all(self.pool())
        .await?;
        let name = |row: &sqlx::postgres::PgRow| {
            Ok(IntentRef {
                source: row.try_get("source")?,
                reference: row.try_get("ref")?,
                commit_id: row.try_get("commit_id")?,
            })
        };
        rows.iter().map(name).collect()
    }

    /// Binds names for an intent and yields all that it bound: of one that it had bound before, the first binding.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn bind(self, intent: &IntentId, new: &[IntentRef]) -> Result<Vec<IntentRef>> {
        sqlx::query(
            "INSERT INTO app.intent_refs (intent_id, source, ref, commit_id, origin)
             SELECT $1, n.source, n.ref, n.commit_id, $3
               FROM jsonb_to_recordset($2) AS n(source text, ref text, commit_id text)
             ON CONFLICT (intent_id, source, ref) DO NOTHING",
        )
        .bind(intent.as_str())
        .bind(json("intent_refs", &new)?)
        .bind(Origin::EngineDbos.as_str())
        .execute(self.pool())
        .await?;
        self.of_intent(intent).await
    }
}
