//! `app.run_streams`: output while it happens. An adjunct, never truth: losing a chunk loses nothing
//! that an artifact does not hold.

use sqlx::Row;

use crate::error::Result;
use crate::families::Streams;

/// A piece of a run's status lines or of a task's output, for watchers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Chunk {
    /// `status`, `stdout`, `stderr`.
    pub kind: String,
    /// Text of the piece; bytes that are not text are U+FFFD.
    pub chunk: String,
    /// From 0, without gaps.
    pub seq: i32,
}

/// How far a task's output is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamEnd {
    /// The number that its next chunk has.
    pub seq: i32,
    /// Bytes of the output that are stored before that.
    pub upto: i64,
}

impl Streams<'_> {
    /// Appends a chunk of a task's output; `seq` is the writer's own count, so a replay writes nothing twice.
    /// `upto` is how many bytes of the output end with it.
    pub async fn append(
        self,
        owner: &str,
        key: &str,
        seq: i32,
        chunk: &str,
        upto: i64,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.run_streams (run_id, key, seq, chunk, upto) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT DO NOTHING",
        )
        .bind(owner)
        .bind(key)
        .bind(seq)
        // PostgreSQL text holds no NUL. What stands for bytes that are not text stands for it, too: a reader sees that the
        // chunk is not exact. The artifact keeps the bytes as they were.
        .bind(chunk.replace('\0', "\u{fffd}"))
        .bind(upto)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// How far a task's output is stored.
    pub async fn end(self, owner: &str, key: &str) -> Result<StreamEnd> {
        let row = sqlx::query(
            "SELECT seq + 1 AS seq, upto FROM app.run_streams
              WHERE run_id = $1 AND key = $2 AND upto IS NOT NULL ORDER BY seq DESC LIMIT 1",
        )
        .bind(owner)
        .bind(key)
        .fetch_optional(self.pool())
        .await?;
        match row {
            Some(row) => Ok(StreamEnd { seq: row.try_get("seq")?, upto: row.try_get("upto")? }),
            None => Ok(StreamEnd::default()),
        }
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
