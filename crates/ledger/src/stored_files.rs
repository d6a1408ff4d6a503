//! Rows of which each has one sealed file on a host: the key of a row is destroyed first, then its file is removed.

use cofferdam_contracts::id::SnapshotId;
use sqlx::AssertSqlSafe;

use crate::Ledger;
use crate::error::{Result, id};

/// A table whose rows have a sealed file each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredFileTable {
    /// Files of sandboxes and of templates.
    Snapshots,
    /// Archives that clients sent for the COPY steps of a template.
    Uploads,
}

impl StoredFileTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Snapshots => "app.snapshots",
            Self::Uploads => "app.template_files",
        }
    }
}

/// A state directory, as rows name it.
#[derive(Debug, Clone, Copy)]
pub struct StateDirectory<'a> {
    /// Id of its host.
    pub host: &'a str,
    /// Its absolute path.
    pub path: &'a str,
}

/// A stored file, as its row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFileRow {
    /// The file's id.
    pub id: SnapshotId,
    /// What it is kept as: `pause`, `snapshot`, `template`, `layer` or `archive`.
    pub kind: String,
    /// The sandbox that it is of; the template of an archive.
    pub of: String,
    /// Whether its row says that it was missing before.
    pub is_missing: bool,
}

/// The rows of one of these tables.
#[derive(Debug, Clone, Copy)]
pub struct StoredFileRows<'a> {
    ledger: &'a Ledger,
    table: StoredFileTable,
}

impl Ledger {
    /// Rows of which each has one sealed file.
    #[must_use]
    pub fn stored_files(&self, table: StoredFileTable) -> StoredFileRows<'_> {
        StoredFileRows { ledger: self, table }
    }

    /// Gives everything of a state directory that had another path, or was another host's, its new location; how many stored files.
    pub async fn state_directory_moves(
        &self,
        from: StateDirectory<'_>,
        to: StateDirectory<'_>,
    ) -> Result<i64> {
        let moved = sqlx::query_scalar("SELECT app.state_directory_moves($1, $2, $3, $4)");
        let moved = moved.bind(from.host).bind(from.path).bind(to.host).bind(to.path);
        Ok(moved.fetch_one(self.pool()).await?)
    }
}

impl StoredFileRows<'_> {
    /// Rows of a location whose key is destroyed and whose file was not yet looked for.
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
    pub async fn record_removal(self, file: &SnapshotId) -> Result<()> {
        let plain = match self.table {
            StoredFileTable::Snapshots => {
                ", plain_ended_at = CASE WHEN plain IS NOT NULL THEN COALESCE(plain_ended_at, clock_timestamp()) END,
                   plain_end = CASE WHEN plain IS NOT NULL THEN COALESCE(plain_end, 'process-ended') END"
            }
            StoredFileTable::Uploads => "",
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

    /// Gives rows of these ids the location at which their files were found; how many had another one. Rows of another host where a
    /// worker is alive stay: what is here is a copy of its files.
    pub async fn set_location(self, place: &str, ids: &[SnapshotId]) -> Result<i64> {
        let ids: Vec<&str> = ids.iter().map(SnapshotId::as_str).collect();
        let query = format!(
            "SELECT coalesce(sum(app.kept_files_move(p.place, $1, $2)), 0)::bigint
               FROM (SELECT DISTINCT place FROM {} WHERE id = ANY ($2) AND place <> $1 AND gone_at IS NULL) p
              WHERE split_part(p.place, ':', 1) = split_part($1, ':', 1) OR NOT EXISTS (
                    SELECT 1 FROM app.executors e
                     WHERE e.state = 'live' AND e.heartbeat_at > clock_timestamp() - interval '10 seconds'
                       AND e.host_id = split_part(p.place, ':', 1))",
            self.table.name()
        );
        let moved = sqlx::query_scalar(AssertSqlSafe(query)).bind(place).bind(ids);
        Ok(moved.fetch_one(self.ledger.pool()).await?)
    }

    /// Rows of a location whose files are sealed and not erased.
    pub async fn stored_at(self, place: &str) -> Result<Vec<StoredFileRow>> {
        let (columns, sealed) = match self.table {
            StoredFileTable::Snapshots => ("kind, live_id", "AND sealed_at IS NOT NULL"),
            StoredFileTable::Uploads => ("'archive', template_id", ""),
        };
        let query = format!(
            "SELECT id, {columns}, missing_at IS NOT NULL FROM {}
              WHERE place = $1 AND erased_at IS NULL {sealed} ORDER BY created_at, id",
            self.table.name()
        );
        let rows: Vec<(String, String, String, bool)> =
            sqlx::query_as(AssertSqlSafe(query)).bind(place).fetch_all(self.ledger.pool()).await?;
        let read = |(file, kind, of, is_missing): (String, String, String, bool)| {
            Ok(StoredFileRow { id: id("a sealed file's id", &file)?, kind, of, is_missing })
        };
        rows.into_iter().map(read).collect()
    }

    /// Which of these files no row knows, erased or not.
    pub async fn unknown(self, ids: &[SnapshotId]) -> Result<Vec<SnapshotId>> {
        let texts: Vec<&str> = ids.iter().map(SnapshotId::as_str).collect();
        let query = format!(
            "SELECT f.id FROM unnest($1::text[]) f(id) WHERE NOT EXISTS (SELECT 1 FROM {} k WHERE k.id = f.id)",
            self.table.name()
        );
        let all: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query))
            .bind(texts)
            .fetch_all(self.ledger.pool())
            .await?;
        all.iter().map(|text| id("a sealed file's id", text)).collect()
    }

    /// Records whether a row's file was missing when it was looked for.
    pub async fn looked_for(self, file: &SnapshotId, is_missing: bool) -> Result<()> {
        let query = format!(
            "UPDATE {} SET missing_at = CASE WHEN $2 THEN coalesce(missing_at, clock_timestamp()) END
              WHERE id = $1 AND erased_at IS NULL AND (missing_at IS NOT NULL) <> $2",
            self.table.name()
        );
        let looked = sqlx::query(AssertSqlSafe(query)).bind(file.as_str()).bind(is_missing);
        looked.execute(self.ledger.pool()).await?;
        Ok(())
    }

    /// Gives up a row whose file is lost: what went on from it ends with this reason. `false`: a life that goes on from it is
    /// not over yet.
    pub async fn record_loss(self, file: &SnapshotId, why: &str) -> Result<bool> {
        let query = match self.table {
            StoredFileTable::Snapshots => "SELECT app.kept_files_lost($1, $2)",
            StoredFileTable::Uploads => {
                "WITH lost AS (UPDATE app.template_files SET sealed_key = NULL, erased_at = clock_timestamp()
                                WHERE id = $1 AND erased_at IS NULL RETURNING tenant_id, id),
                      told AS (INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, origin)
                               SELECT tenant_id, 'adopt', 'adopt', 'upload.lost', id, $2, 'manual' FROM lost)
                 SELECT EXISTS (SELECT 1 FROM lost)"
            }
        };
        let lost = sqlx::query_scalar(query).bind(file.as_str()).bind(why);
        Ok(lost.fetch_one(self.ledger.pool()).await?)
    }
}
