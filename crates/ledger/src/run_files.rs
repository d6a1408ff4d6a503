//! Files of a run, in pages: those of `app.artifacts` that its tasks declared, of each task's last attempt that ended.

use cofferdam_contracts::id::{RunId, TaskKey, TenantId};
use cofferdam_contracts::run_file::{FILES, RunFile};
use serde_json::json;
use sqlx::Row;

use crate::artifacts::plain;
use crate::error::{LedgerError, Result, load};
use crate::families::Artifacts;
use crate::objects::{COLUMNS, ObjectRow, object_of};

/// Where a page of files ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePosition {
    step_id: String,
    idx: i32,
}

/// A file of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// The file as callers see it.
    pub file: RunFile,
    /// Its bytes, where they were asked for and are few enough.
    pub bytes: Option<Vec<u8>>,
    /// The object of a store that has its bytes; otherwise the database has them.
    pub object: Option<ObjectRow>,
    /// Where it stands: the next page begins after it.
    pub position: FilePosition,
}

/// Names of files, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNames {
    /// Number of the files.
    pub count: u64,
    /// Bytes of their names, and of the names of their steps for each.
    pub bytes: u64,
}

/// Which files a page has.
#[derive(Debug, Clone, Copy)]
pub struct FileQuery<'a> {
    /// The run whose files are asked for.
    pub run: &'a RunId,
    /// One task alone, by its name.
    pub task: Option<&'a str>,
    /// Files after this one.
    pub after: Option<&'a FilePosition>,
    /// Files at most.
    pub most: i64,
    /// Files up to so many bytes come with them; 0: none does.
    pub with_bytes: i64,
}

/// `$2` to `$6`: task, step and index of the file before the first, number, bytes that come along. A link's target is its bytes.
fn page() -> String {
    format!(
        "WITH l AS (
       SELECT s.step_id, s.task_key, s.task_name, s.attempt FROM app.last_ended_attempts s
        WHERE s.run_id = $1 AND ($3::text IS NULL OR s.step_id >= $3)),
     p AS (
       SELECT l.step_id, l.task_key, l.task_name, l.attempt, a.idx, a.name, a.uri, a.inline, a.sha256, a.size, a.mode,
              a.object_id, app.ms(a.created_at) AS at
         FROM l JOIN app.artifacts a ON a.task_key = l.task_key AND a.run_id = $1
        WHERE a.kind = 'file' AND a.erased_in IS NULL AND starts_with(a.name, 'files/') AND ($2::text IS NULL OR l.task_name = $2)
          AND ($3::text IS NULL OR (l.step_id, a.idx) > ($3, $4))
        ORDER BY l.step_id, a.idx LIMIT $5)
     SELECT p.step_id, p.task_key, p.task_name, p.attempt, p.idx, p.name, p.uri, p.sha256, p.size, p.mode, p.at, {COLUMNS},
            CASE WHEN p.mode = '120000' OR ($6 > 0 AND p.size <= $6)
                 THEN coalesce(convert_to(p.inline, 'UTF8'), b.bytes) END AS bytes
       FROM p LEFT JOIN app.blobs b ON b.sha256 = p.sha256 AND p.inline IS NULL AND (p.mode = '120000' OR p.size <= $6)
       LEFT JOIN app.stored_objects o ON o.id = p.object_id
      ORDER BY p.step_id, p.idx"
    )
}

impl Artifacts<'_> {
    /// A page of a run's files, by step and path. `encode` writes a link's target as text.
    pub async fn files(
        self,
        query: FileQuery<'_>,
        encode: fn(&[u8]) -> String,
    ) -> Result<Vec<StoredFile>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(page()))
            .bind(query.run.as_str())
            .bind(query.task)
            .bind(query.after.map(|after| after.step_id.as_str()))
            .bind(query.after.map(|after| after.idx))
            .bind(query.most)
            .bind(query.with_bytes)
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(|row| stored(row, encode)).collect()
    }

    /// Files that an attempt left, by path, where the tenant owns it. `encode` writes a link's target as text.
    pub async fn attempt_files(
        self,
        tenant: &TenantId,
        task: &TaskKey,
        most: i64,
        encode: fn(&[u8]) -> String,
    ) -> Result<Vec<StoredFile>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT a.step_id, a.task_key, s.task_name, a.attempt, a.idx, a.name, a.uri, a.sha256, a.size, a.mode,
                    app.ms(a.created_at) AS at, {COLUMNS},
                    CASE WHEN a.mode = '120000' THEN coalesce(convert_to(a.inline, 'UTF8'), b.bytes) END AS bytes
               FROM app.artifacts a
               JOIN app.sbx_runs s ON s.task_key = a.task_key
               JOIN app.runs r ON r.id = a.run_id
               LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.mode = '120000'
               LEFT JOIN app.stored_objects o ON o.id = a.object_id
              WHERE a.task_key = $1 AND r.tenant_id = $2 AND a.kind = 'file' AND a.erased_in IS NULL AND starts_with(a.name, 'files/')
              ORDER BY a.idx LIMIT $3"
        )))
        .bind(task.as_str())
        .bind(tenant.as_str())
        .bind(most)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(|row| stored(row, encode)).collect()
    }

    /// Names of a run's files, or of those of one task, of `most` files at most.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn names(self, run: &RunId, task: Option<&str>, most: i64) -> Result<FileNames> {
        let (count, bytes): (i64, i64) = sqlx::query_as(
            "SELECT count(*), coalesce(sum(f.bytes), 0)::bigint FROM (
               SELECT octet_length(a.name) + octet_length(s.step_id) AS bytes
                 FROM app.last_ended_attempts s JOIN app.artifacts a ON a.task_key = s.task_key AND a.run_id = $1
                WHERE s.run_id = $1 AND ($2::text IS NULL OR s.task_name = $2)
                  AND a.kind = 'file' AND a.erased_in IS NULL AND starts_with(a.name, 'files/') LIMIT $3) f",
        )
        .bind(run.as_str())
        .bind(task)
        .bind(most)
        .fetch_one(self.pool())
        .await?;
        let number = |of: i64| u64::try_from(of).unwrap_or(0);
        Ok(FileNames { count: number(count), bytes: number(bytes) })
    }

    /// How many tasks a run has: steps that are or were in a sandbox.
    pub async fn tasks(self, run: &RunId) -> Result<u64> {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT step_id) FROM app.sbx_runs WHERE run_id = $1",
        )
        .bind(run.as_str())
        .fetch_one(self.pool())
        .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

fn stored(row: &sqlx::postgres::PgRow, encode: fn(&[u8]) -> String) -> Result<StoredFile> {
    let name: String = row.try_get("name")?;
    let path = name.strip_prefix(FILES).ok_or_else(|| LedgerError::Row {
        what: "artifacts.name",
        why: "the name of a file begins with files/".to_owned(),
    })?;
    let mode = row.try_get::<Option<String>, _>("mode")?;
    let is_link = mode.as_deref() == Some("120000");
    let bytes: Option<Vec<u8>> = row.try_get("bytes")?;
    let position = FilePosition { step_id: row.try_get("step_id")?, idx: row.try_get("idx")? };
    let mut value = json!({
        "task": row.try_get::<String, _>("task_name")?,
        "stepId": position.step_id,
        "taskKey": row.try_get::<String, _>("task_key")?,
        "attempt": row.try_get::<i32, _>("attempt")?,
        "path": path,
        "mode": mode.unwrap_or_else(plain),
        "sha256": row.try_get::<String, _>("sha256")?,
        "size": row.try_get::<i64, _>("size")?,
        "uri": row.try_get::<String, _>("uri")?,
        "createdAt": row.try_get::<i64, _>("at")?,
    });
    if let (true, Some(target), Some(fields)) = (is_link, &bytes, value.as_object_mut()) {
        fields.insert("target".into(), encode(target).into());
    }
    Ok(StoredFile { file: load("artifacts", value)?, bytes, object: object_of(row)?, position })
}
