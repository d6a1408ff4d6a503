//! `app.run_streams`: output while it happens. An adjunct, never truth: losing a chunk loses nothing
//! that an artifact does not hold.

use sqlx::Row;

use crate::error::Result;
use crate::families::Streams;

/// One chunk.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Chunk {
    /// `status`, `stdout`, `stderr`.
    pub kind: String,
    /// Its text.
    pub chunk: String,
    /// From 0, without gaps.
    pub seq: i32,
}

impl Streams<'_> {
    /// Appends a task's output; `seq` is the writer's own count, so a replay writes nothing twice.
    pub async fn append(
        self,
        owner: &str,
        key: &str,
        first_seq: i32,
        chunks: &[String],
    ) -> Result<()> {
        // PostgreSQL text holds no NUL; the artifact keeps the bytes as they were.
        let chunks: Vec<String> = chunks.iter().map(|c| c.replace('\0', "")).collect();
        sqlx::query(
            "INSERT INTO app.run_streams (run_id, key, seq, chunk)
             SELECT $1, $2, $3 + (n - 1)::int, c FROM unnest($4::text[]) WITH ORDINALITY AS x(c, n)
             ON CONFLICT DO NOTHING",
        )
        .bind(owner)
        .bind(key)
        .bind(first_seq)
        .bind(&chunks)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Chunks from `from_seq` on.
    pub async fn read(
        self,
        owner: &str,
        key: &str,
        from_seq: i32,
        limit: i64,
    ) -> Result<Vec<Chunk>> {
        let rows = sqlx::query(
            "SELECT seq, chunk FROM app.run_streams WHERE run_id = $1 AND key = $2 AND seq >= $3 ORDER BY seq LIMIT $4",
        )
        .bind(owner)
        .bind(key)
        .bind(from_seq)
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Chunk {
                    kind: key.to_owned(),
                    chunk: row.try_get("chunk")?,
                    seq: row.try_get("seq")?,
                })
            })
            .collect()
    }
}
