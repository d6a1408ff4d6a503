//! Rows of which each has one sealed file on a host: the key of a row is destroyed first, then its file is removed.

use cofferdam_contracts::id::SnapshotId;
use sqlx::AssertSqlSafe;

use crate::Ledger;
use crate::error::{Result, id};

/// A table of such rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptTable {
    /// Files of sandboxes and of templates.
    Snapshots,
    /// Archives that clients sent for the COPY steps of a template.
    Uploads,
}

impl KeptTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Snapshots => "app.snapshots",
            Self::Uploads => "app.template_files",
        }
    }
}

/// The rows of one such table.
#[derive(Debug, Clone, Copy)]
pub struct KeptFileRows<'a> {
    ledger: &'a Ledger,
    table: KeptTable,
}

impl Ledger {
    /// Rows of which each has one sealed file.
    #[must_use]
    pub fn kept_files(&self, table: KeptTable) -> KeptFileRows<'_> {
        KeptFileRows { ledger: self, table }
    }
}

impl KeptFileRows<'_> {
    /// Rows of a place whose key is destroyed and whose file was not yet looked for.
    pub async fn erased(self, place: &str) -> Result<Vec<SnapshotId>> {
        let query = format!(
            "SELECT id FROM {} WHERE place = $1 AND erased_at IS NOT NULL AND gone_at IS NULL",
            self.table.name()
        );
        let all: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query))
            .bind(place)
            .fetch_all(self.ledger.pool())
            .await?;
        all.iter().map(|text| id("a sealed file's id", text)).collect()
    }

    /// Records that the file of an erased row was looked for, and is gone. A layer that nobody said the end of went with its process.
    pub async fn gone(self, file: &SnapshotId) -> Result<()> {
        let plain = match self.table {
            KeptTable::Snapshots => {
                ", plain_ended_at = CASE WHEN plain IS NOT NULL THEN COALESCE(plain_ended_at, clock_timestamp()) END,
                   plain_end = CASE WHEN plain IS NOT NULL THEN COALESCE(plain_end, 'process-ended') END"
            }
            KeptTable::Uploads => "",
        };
        let query = format!(
            "UPDATE {} SET gone_at = clock_timestamp(){plain} WHERE id = $1 AND erased_at IS NOT NULL AND gone_at IS NULL",
            self.table.name()
        );
        sqlx::query(AssertSqlSafe(query)).bind(file.as_str()).execute(self.ledger.pool()).await?;
        Ok(())
    }

    /// Whether a file of this id is recorded, erased or not.
    pub async fn is_recorded(self, file: &SnapshotId) -> Result<bool> {
        let query = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE id = $1)", self.table.name());
        let found = sqlx::query_scalar(AssertSqlSafe(query)).bind(file.as_str());
        Ok(found.fetch_one(self.ledger.pool()).await?)
    }
}
