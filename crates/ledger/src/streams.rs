//! `app.run_streams`: output while it happens. An adjunct, never truth: losing a chunk loses nothing
//! that an artifact does not hold.

use cofferdam_contracts::id::RunId;
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

/// A chunk of a task's output, to be stored.
#[derive(Debug, Clone, Copy)]
pub struct NewChunk<'a> {
    /// The attempt's key.
    pub task: &'a str,
    /// `stdout` or `stderr`.
    pub key: &'a str,
    /// The writer's own count from 0, so a replay writes nothing twice.
    pub seq: i32,
    /// Text of the chunk.
    pub text: &'a str,
    /// Bytes of the output that end with it.
    pub upto: i64,
    /// The run whose watchers are woken; `None`: they find it at their next look.
    pub wakes: Option<&'a str>,
}

/// A chunk of some task of a run, for who watches all of them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TaskChunk {
    /// The attempt's key.
    pub task: String,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// Text of the chunk; bytes that are not text are U+FFFD.
    pub chunk: String,
    /// From 0, without gaps within its stream.
    pub seq: i32,
    /// When it was stored, ms since the epoch.
    pub at: i64,
}

/// Chunks of one stream in one read of all.
const EACH_PAGE: i64 = 64;
/// Chunks of one read of all streams.
const ALL_PAGE: i64 = 256;

/// What of a run's streams is read.
#[derive(Debug, Clone, Copy)]
pub struct AllStreamsLook {
    /// Of streams without a cursor, chunks that were stored then (ms since the epoch) or later; 0: all.
    pub from_ms: i64,
    /// Tasks that ended more than 10 s ago, too: on the first and on the last look.
    pub is_whole: bool,
}

/// How far a watcher of all tasks of a run is in one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamCursor {
    /// The attempt's key.
    pub task: String,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The number of the next chunk.
    pub next: i32,
}

impl Streams<'_> {
    /// Appends a chunk of a task's output, and wakes its watchers in the same statement.
    pub async fn append(self, chunk: NewChunk<'_>) -> Result<()> {
        sqlx::query(
            "WITH i AS (
               INSERT INTO app.run_streams (run_id, key, seq, chunk, upto) VALUES ($1, $2, $3, $4, $5)
               ON CONFLICT DO NOTHING)
             SELECT pg_notify('cofferdam', 'o:' || $6) WHERE $6 IS NOT NULL",
        )
        .bind(chunk.task)
        .bind(chunk.key)
        .bind(chunk.seq)
        // PostgreSQL text holds no NUL. What stands for bytes that are not text stands for it, too: a reader sees that the
        // chunk is not exact. The artifact keeps the bytes as they were.
        .bind(chunk.text.replace('\0', "\u{fffd}"))
        .bind(chunk.upto)
        .bind(chunk.wakes)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Says to the run's workers that somebody watches its output, so that they give it out more often.
    pub async fn watch(self, run: &RunId) -> Result<()> {
        sqlx::query("SELECT pg_notify('cofferdam', 'v:' || $1)")
            .bind(run.as_str())
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Chunks of all tasks of a run beyond these cursors: at most 64 of each stream and 256 of all, in the order of their storage.
    pub async fn read_all(
        self,
        run: &RunId,
        cursors: &[StreamCursor],
        look: AllStreamsLook,
    ) -> Result<Vec<TaskChunk>> {
        let tasks: Vec<&str> = cursors.iter().map(|cursor| cursor.task.as_str()).collect();
        let streams: Vec<&str> = cursors.iter().map(|cursor| cursor.stream.as_str()).collect();
        let nexts: Vec<i32> = cursors.iter().map(|cursor| cursor.next).collect();
        let rows = sqlx::query(
            "SELECT s.task_key, k.key, c.seq, c.chunk, app.ms(c.created_at) AS at
               FROM app.sbx_runs s CROSS JOIN (VALUES ('stdout'), ('stderr')) AS k (key)
               LEFT JOIN unnest($2::text[], $3::text[], $4::integer[]) AS p (task, key, next)
                 ON p.task = s.task_key AND p.key = k.key
              CROSS JOIN LATERAL (
                SELECT x.seq, x.chunk, x.created_at FROM app.run_streams x
                 WHERE x.run_id = s.task_key AND x.key = k.key AND x.seq >= coalesce(p.next, 0)
                   AND (p.next IS NOT NULL OR $6 = 0 OR x.created_at >= to_timestamp($6::float8 / 1000))
                 ORDER BY x.seq LIMIT $5) c
              WHERE s.run_id = $1
                AND ($7 OR s.response IS NULL OR s.finished_at >= clock_timestamp() - interval '10 seconds')
              ORDER BY c.created_at, s.task_key, k.key, c.seq LIMIT $8",
        )
        .bind(run.as_str())
        .bind(tasks)
        .bind(streams)
        .bind(nexts)
        .bind(EACH_PAGE)
        .bind(look.from_ms)
        .bind(look.is_whole)
        .bind(ALL_PAGE)
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(TaskChunk {
                    task: row.try_get("task_key")?,
                    stream: row.try_get("key")?,
                    chunk: row.try_get("chunk")?,
                    seq: row.try_get("seq")?,
                    at: row.try_get("at")?,
                })
            })
            .collect()
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
