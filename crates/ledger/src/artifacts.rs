//! `app.artifacts` and `app.blobs`: small text inline, large files in a store, everything else once by its content.

use std::ops::Range;

use cofferdam_contracts::artifact::{
    self, ArtifactIndex, ArtifactItem, ArtifactKind, ArtifactMode, ArtifactRow, FileOmission,
};
use cofferdam_contracts::canonical::{canonical, digest_bytes};
use cofferdam_contracts::id::{Digest, RunId, TenantId};
use serde_json::{Value, json};
use sqlx::Row;

use crate::error::{LedgerError, Result, load_all};
use crate::families::Artifacts;
use crate::objects::{COLUMNS, NewObject, ObjectColumns, ObjectRow, object_of};
use crate::tasks::TaskContext;

/// Bytes up to which text is kept in the row itself: one page of the database.
pub(crate) const INLINE_BYTES: usize = 8 * 1024;

/// An artifact to be written.
#[derive(Debug, Clone)]
pub struct NewArtifact {
    /// What it is.
    pub kind: ArtifactKind,
    /// Its name, the end of its URI.
    pub name: String,
    /// Its bytes, or where they are.
    pub content: NewContent,
    /// What it is where it is a task's file.
    pub mode: ArtifactMode,
    /// Of a symbolic link where it leads, as text; its bytes are the same.
    pub target: Option<String>,
}

/// The bytes of an artifact to be written.
#[derive(Debug, Clone)]
pub enum NewContent {
    /// They are here: text up to 8 KiB is stored in the row, the rest in `app.blobs`.
    Bytes(Vec<u8>),
    /// They are in a store, whose object is put on record with the artifact.
    Object(NewObject),
}

impl NewContent {
    fn sha256(&self) -> Digest {
        match self {
            Self::Bytes(bytes) => digest_bytes(bytes),
            Self::Object(object) => object.sha256.clone(),
        }
    }

    const fn object(&self) -> Option<&NewObject> {
        match self {
            Self::Bytes(_) => None,
            Self::Object(object) => Some(object),
        }
    }
}

impl NewArtifact {
    /// One that is no link, and that nobody executes.
    #[must_use]
    pub fn plain(kind: ArtifactKind, name: impl Into<String>, bytes: Vec<u8>) -> Self {
        let content = NewContent::Bytes(bytes);
        Self { kind, name: name.into(), content, mode: ArtifactMode::File, target: None }
    }
}

/// An artifact's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactContent {
    /// Digest of the bytes.
    pub sha256: Digest,
    /// Content, from the row itself or from the blob with this digest.
    pub bytes: Vec<u8>,
    /// What it is.
    pub kind: String,
}

/// An artifact without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactHead {
    /// Digest of the bytes.
    pub sha256: Digest,
    /// What it is.
    pub kind: String,
    /// Bytes that it has.
    pub size: u64,
    /// The object of a store that has them; otherwise the database has them.
    pub object: Option<ObjectRow>,
}

/// The index (idx 0) and the artifacts (idx from 1) of one attempt, in the caller's transaction.
pub(crate) async fn artifacts_insert(
    conn: &mut sqlx::PgConnection,
    task: &TaskContext,
    artifacts: &[NewArtifact],
    omitted: Option<&FileOmission>,
) -> Result<()> {
    let index = index(task, artifacts, omitted)?;
    Rows::of(task, &index, artifacts).insert(conn, task).await
}

/// The same rows for a statement that takes no blob; `None` where there is one.
pub(crate) fn inline_rows(
    task: &TaskContext,
    artifacts: &[NewArtifact],
) -> Result<Option<Vec<Value>>> {
    let index = index(task, artifacts, None)?;
    let rows = Rows::of(task, &index, artifacts);
    if rows.blobs.iter().any(Option::is_some) || rows.objects.iter().any(Option::is_some) {
        return Ok(None);
    }
    let about = rows.kinds.iter().zip(&rows.names).zip(&rows.uris).zip(&rows.inlines);
    let all = about.zip(rows.digests.iter().zip(&rows.sizes)).enumerate();
    Ok(Some(
        all.map(|(idx, ((((kind, name), uri), inline), (sha256, size)))| {
            json!({
                "task_key": task.key, "idx": idx, "kind": kind, "name": name, "uri": uri, "inline": inline,
                "sha256": sha256, "size": size,
            })
        })
        .collect(),
    ))
}

fn place(task: &TaskContext, name: &str) -> String {
    artifact::uri(&task.run, &task.step_id, &task.key, name)
}

/// The bytes of an attempt's index.
pub(crate) fn index(
    task: &TaskContext,
    artifacts: &[NewArtifact],
    omitted: Option<&FileOmission>,
) -> Result<Vec<u8>> {
    let items = artifacts.iter().map(|new| ArtifactItem {
        kind: new.kind,
        uri: place(task, &new.name),
        sha256: new.content.sha256(),
        mode: new.mode,
        target: new.target.clone(),
    });
    let index = ArtifactIndex {
        task_key: task.key.clone(),
        provider: crate::tasks::provider(&task.work).into(),
        omitted: omitted.cloned(),
        raw_ref: place(task, "raw.json"),
        created_at: cofferdam_ambient::clock::now_ms(),
        items: items.collect(),
    };
    Ok(canonical(&index)?)
}

/// Artifacts column by column, as `unnest` takes them.
#[derive(Default)]
pub(crate) struct Rows<'a> {
    pub kinds: Vec<&'static str>,
    pub names: Vec<String>,
    pub uris: Vec<String>,
    pub inlines: Vec<Option<&'a str>>,
    pub blobs: Vec<Option<&'a [u8]>>,
    pub digests: Vec<String>,
    pub sizes: Vec<i64>,
    pub modes: Vec<Option<&'static str>>,
    /// Ids of objects that have the bytes.
    pub objects: Vec<Option<&'a str>>,
    /// The objects of those that the store has.
    pub stored: ObjectColumns<'a>,
}

impl<'a> Rows<'a> {
    /// The index and what it lists.
    pub(crate) fn of(task: &TaskContext, index: &'a [u8], artifacts: &'a [NewArtifact]) -> Self {
        let mut rows = Self::default();
        rows.push(ArtifactKind::ArtifactIndex, "index.json", place(task, "index.json"), index);
        for new in artifacts {
            let uri = place(task, &new.name);
            match &new.content {
                NewContent::Bytes(bytes) => rows.push(new.kind, &new.name, uri, bytes),
                NewContent::Object(object) => rows.push_object(new.kind, &new.name, uri, object),
            }
        }
        rows.stored = ObjectColumns::of(artifacts.iter().filter_map(|new| new.content.object()));
        let modes = artifacts.iter().map(|new| new.mode);
        let modes = std::iter::once(ArtifactMode::File).chain(modes);
        rows.modes = modes.map(|mode| (!mode.is_file()).then(|| mode.as_str())).collect();
        rows
    }

    fn push(&mut self, kind: ArtifactKind, name: &str, uri: String, bytes: &'a [u8]) {
        // PostgreSQL text holds no NUL, so such a file is a blob however small.
        let text = (bytes.len() <= INLINE_BYTES && !bytes.contains(&0))
            .then(|| std::str::from_utf8(bytes).ok())
            .flatten();
        self.kinds.push(kind.as_str());
        self.names.push(name.to_owned());
        self.uris.push(uri);
        self.blobs.push(text.is_none().then_some(bytes));
        self.inlines.push(text);
        self.digests.push(digest_bytes(bytes).into());
        self.sizes.push(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.objects.push(None);
    }

    fn push_object(&mut self, kind: ArtifactKind, name: &str, uri: String, object: &'a NewObject) {
        self.kinds.push(kind.as_str());
        self.names.push(name.to_owned());
        self.uris.push(uri);
        self.blobs.push(None);
        self.inlines.push(None);
        self.digests.push(object.sha256.as_str().to_owned());
        self.sizes.push(i64::try_from(object.size).unwrap_or(i64::MAX));
        self.objects.push(Some(object.id.as_str()));
    }

    async fn insert(self, conn: &mut sqlx::PgConnection, task: &TaskContext) -> Result<()> {
        sqlx::query(
            "WITH x AS (
               SELECT * FROM unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::text[], $11::bigint[], $12::text[],
                                    $13::text[])
                 WITH ORDINALITY AS x(kind, name, uri, inline, blob, sha256, size, mode, object_id, n)),
             o AS (
               INSERT INTO app.stored_objects (id, tenant_id, store, sha256, size, sealed_key, sealed_by)
               SELECT o.id, r.tenant_id, o.store, o.sha256, o.size, o.sealed_key, o.sealed_by
                 FROM app.runs r CROSS JOIN unnest($14::text[], $15::text[], $16::text[], $17::bigint[], $18::bytea[], $19::text[])
                   AS o(id, store, sha256, size, sealed_key, sealed_by)
                WHERE r.id = $1 ON CONFLICT DO NOTHING),
             b AS (
               INSERT INTO app.blobs (sha256, bytes)
               SELECT DISTINCT ON (sha256) sha256, blob FROM x WHERE blob IS NOT NULL ON CONFLICT DO NOTHING)
             INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, mode, object_id, origin)
             SELECT $1, $2, $3, $4, (n - 1)::int, kind, name, uri, inline, sha256, size, mode, object_id, 'engine-dbos' FROM x
             ON CONFLICT DO NOTHING",
        )
        .bind(task.run.as_str())
        .bind(task.step_id.as_str())
        .bind(task.key.as_str())
        .bind(i32::try_from(task.attempt).unwrap_or(i32::MAX))
        .bind(&self.kinds)
        .bind(&self.names)
        .bind(&self.uris)
        .bind(&self.inlines)
        .bind(&self.blobs)
        .bind(&self.digests)
        .bind(&self.sizes)
        .bind(&self.modes)
        .bind(&self.objects)
        .bind(&self.stored.ids)
        .bind(&self.stored.stores)
        .bind(&self.stored.digests)
        .bind(&self.stored.sizes)
        .bind(&self.stored.keys)
        .bind(&self.stored.sealed_by)
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// The mode of a row that has none.
pub(crate) fn plain() -> String {
    ArtifactMode::File.as_str().to_owned()
}

impl Artifacts<'_> {
    /// A run's artifacts, in order, latest attempts only.
    pub async fn list(self, run: &RunId) -> Result<Vec<ArtifactRow>> {
        let rows = sqlx::query(
            "SELECT step_id, task_key, attempt, idx, kind, name, uri, sha256, size, mode, app.ms(created_at) AS at
               FROM app.latest_artifacts WHERE run_id = $1 ORDER BY step_id, task_key, idx LIMIT 100000",
        )
        .bind(run.as_str())
        .fetch_all(self.pool())
        .await?;
        load_all("artifacts", &rows, |row| {
            Ok(json!({
                "stepId": row.try_get::<String, _>("step_id")?,
                "taskKey": row.try_get::<String, _>("task_key")?,
                "attempt": row.try_get::<i32, _>("attempt")?,
                "idx": row.try_get::<i32, _>("idx")?,
                "kind": row.try_get::<String, _>("kind")?,
                "name": row.try_get::<String, _>("name")?,
                "uri": row.try_get::<String, _>("uri")?,
                "sha256": row.try_get::<String, _>("sha256")?,
                "size": row.try_get::<i64, _>("size")?,
                "mode": row.try_get::<Option<String>, _>("mode")?.unwrap_or_else(plain),
                "createdAt": row.try_get::<i64, _>("at")?,
            }))
        })
    }

    /// What a URI names, if the tenant owns its run.
    pub async fn head(self, tenant: &TenantId, uri: &str) -> Result<Option<ArtifactHead>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT a.sha256, a.kind, a.size, {COLUMNS} FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id
               LEFT JOIN app.stored_objects o ON o.id = a.object_id
              WHERE a.uri = $1 AND r.tenant_id = $2 AND a.erased_in IS NULL ORDER BY a.attempt DESC LIMIT 1"
        )))
        .bind(uri)
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            Ok(ArtifactHead {
                sha256: crate::error::id("artifacts.sha256", row.try_get("sha256")?)?,
                kind: row.try_get("kind")?,
                size: u64::try_from(row.try_get::<i64, _>("size")?).unwrap_or(0),
                object: object_of(&row)?,
            })
        })
        .transpose()
    }

    /// Some bytes of what has this digest behind a URI, if the tenant owns its run and no store has them; those beyond its end are
    /// left out.
    pub async fn part(
        self,
        tenant: &TenantId,
        uri: &str,
        sha256: &Digest,
        bytes: Range<u64>,
    ) -> Result<Option<Vec<u8>>> {
        let whole = |n: u64| i32::try_from(n).unwrap_or(i32::MAX);
        let part: Option<Option<Vec<u8>>> = sqlx::query_scalar(
            "SELECT substring(coalesce(convert_to(a.inline, 'UTF8'), b.bytes) FROM $4 FOR $5) FROM app.artifacts a
               JOIN app.runs r ON r.id = a.run_id LEFT JOIN app.blobs b ON b.sha256 = a.sha256
              WHERE a.uri = $1 AND r.tenant_id = $2 AND a.sha256 = $3 AND a.object_id IS NULL AND a.erased_in IS NULL
              ORDER BY a.attempt DESC LIMIT 1",
        )
        .bind(uri)
        .bind(tenant.as_str())
        .bind(sha256.as_str())
        // SQL counts from 1.
        .bind(whole(bytes.start.saturating_add(1)))
        .bind(whole(bytes.end.saturating_sub(bytes.start)))
        .fetch_optional(self.pool())
        .await?;
        Ok(part.map(Option::unwrap_or_default))
    }

    /// The bytes behind a URI, if the tenant owns its run. Those of an object are its store's to give, and an error here: nothing
    /// takes them for an empty file.
    pub async fn read(self, tenant: &TenantId, uri: &str) -> Result<Option<ArtifactContent>> {
        let row = sqlx::query(
            "SELECT a.sha256, a.kind, a.inline, a.object_id, b.bytes FROM app.artifacts a
               JOIN app.runs r ON r.id = a.run_id LEFT JOIN app.blobs b ON b.sha256 = a.sha256
              WHERE a.uri = $1 AND r.tenant_id = $2 AND a.erased_in IS NULL ORDER BY a.attempt DESC LIMIT 1",
        )
        .bind(uri)
        .bind(tenant.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let inline: Option<String> = row.try_get("inline")?;
            if row.try_get::<Option<String>, _>("object_id")?.is_some() {
                let why = "the bytes are in an artifact store".to_owned();
                return Err(LedgerError::Row { what: "artifacts.object_id", why });
            }
            let bytes = match inline {
                Some(text) => text.into_bytes(),
                None => row.try_get::<Option<Vec<u8>>, _>("bytes")?.unwrap_or_default(),
            };
            Ok(ArtifactContent {
                sha256: crate::error::id("artifacts.sha256", row.try_get("sha256")?)?,
                bytes,
                kind: row.try_get("kind")?,
            })
        })
        .transpose()
    }
}
