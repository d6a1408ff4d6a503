//! `app.snapshots`: stored files of long-lived sandboxes. The files lie on their hosts, sealed; each key, itself sealed, is here.
//!
//! **Who destroys the key erases the files**: its bytes go in the commit that records it, and the file is unlinked after.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, LiveId, RunId, SandboxId, SnapshotId, TenantId};
use cofferdam_contracts::snapshot::{SnapshotKind, SnapshotView};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::audit::{Audit, append};
use crate::error::{OpResult, Result, id, load};
use crate::families::SnapshotRows;

/// Snapshots that one page lists.
const MAX_LISTED: i64 = 1_000;
/// Characters of a reason.
const MAX_WHY: usize = 500;

/// What the files of a snapshot lie in when they are recorded.
#[derive(Debug, Clone, Copy)]
pub enum SnapshotForm<'a> {
    /// A sealed file of this digest.
    Sealed(&'a Digest),
    /// A layer in memory, on this file system.
    Plain(&'a str),
}

impl SnapshotForm<'_> {
    fn sha256(&self) -> Option<&str> {
        match self {
            Self::Sealed(sha256) => Some(sha256.as_str()),
            Self::Plain(_) => None,
        }
    }

    fn plain(&self) -> Option<&str> {
        match self {
            Self::Sealed(_) => None,
            Self::Plain(file_system) => Some(file_system),
        }
    }
}

/// Why a layer is not held for its snapshot any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRelease {
    /// The kernel has said that its file system ended.
    Ended,
    /// It is the next life's.
    NextLife,
    /// The process that held it has ended.
    ProcessEnded,
}

impl LayerRelease {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::NextLife => "next-life",
            Self::ProcessEnded => "process-ended",
        }
    }
}

/// A layer that is held by the record, though its files are sealed or erased.
#[derive(Debug, Clone)]
pub struct RetainedLayer {
    /// Snapshot whose files the layer has.
    pub id: SnapshotId,
    /// Whether that is erased.
    pub is_erased: bool,
    /// The session of the life that it is of.
    pub session: Option<SandboxId>,
}

/// Stored files of a location that are not sealed yet.
#[derive(Debug, Clone)]
pub struct PendingSnapshot {
    /// Snapshot whose files are to be sealed.
    pub id: SnapshotId,
    /// Tenant of the snapshot, for whom its key is sealed.
    pub tenant: TenantId,
    /// The session of the life that they are of.
    pub session: Option<SandboxId>,
    /// The key of the file, sealed.
    pub sealed_key: Vec<u8>,
    /// Fingerprint of the key that it is sealed under.
    pub sealed_by: Digest,
}

/// What a sealed file came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedFile {
    /// Size of the sealed file in bytes.
    pub bytes: u64,
    /// Digest of all of them.
    pub sha256: Digest,
}

/// The files of a new snapshot, to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewSnapshotFiles<'a> {
    /// New id of the snapshot: 20 lower-case letters and digits.
    pub id: &'a SnapshotId,
    /// Long-lived sandbox whose files these are.
    pub live: &'a LiveId,
    /// The run of its life.
    pub run: &'a RunId,
    /// What it is for.
    pub kind: SnapshotKind,
    /// Whether the memory is in it.
    pub memory: bool,
    /// Its name for people.
    pub name: Option<&'a str>,
    /// The host and the directory that have the file.
    pub place: &'a str,
    /// Bytes of the sealed file; before it is sealed, what its files take at most.
    pub bytes: u64,
    /// What its files lie in.
    pub form: SnapshotForm<'a>,
    /// The key of the file, sealed.
    pub sealed_key: &'a [u8],
    /// Fingerprint of the key that it is sealed under.
    pub sealed_by: &'a Digest,
}

/// What is needed to open the files of a snapshot.
#[derive(Debug, Clone)]
pub struct StoredSnapshot {
    /// As tenants see it.
    pub view: SnapshotView,
    /// The host and the directory that have the file.
    pub place: String,
    /// Digest of the sealed file; `None`: the files are not sealed yet.
    pub sha256: Option<Digest>,
    /// The key of the file, sealed.
    pub sealed_key: Vec<u8>,
    /// Fingerprint of the key that it is sealed under.
    pub sealed_by: Digest,
}

const COLUMNS: &str =
    "id, tenant_id, live_id, kind, memory, name, template, place, bytes, sha256, sealed_key, sealed_by,
    app.ms(created_at) AS created_ms, app.ms(sealed_at) AS sealed_ms, app.ms(erased_at) AS erased_ms,
    plain IS NOT NULL AND plain_ended_at IS NULL AS is_plain";

fn view_of(row: &PgRow) -> Result<SnapshotView> {
    let bytes: i64 = row.try_get("bytes")?;
    Ok(SnapshotView {
        id: id("snapshots.id", row.try_get("id")?)?,
        sandbox: id("snapshots.live_id", row.try_get("live_id")?)?,
        kind: load("snapshots.kind", Value::String(row.try_get("kind")?))?,
        memory: row.try_get("memory")?,
        name: row.try_get("name")?,
        template: row.try_get("template")?,
        bytes: u64::try_from(bytes).unwrap_or(0),
        created_at: row.try_get("created_ms")?,
        sealed_at: row.try_get("sealed_ms")?,
        plain: row.try_get("is_plain")?,
        erased_at: row.try_get("erased_ms")?,
    })
}

fn digest_of(row: &PgRow) -> Result<Option<Digest>> {
    let sha256: Option<String> = row.try_get("sha256")?;
    sha256.map(|text| id("snapshots.sha256", &text)).transpose()
}

/// In the caller's transaction. `false`: the sandbox does not run any more.
pub(crate) async fn insert(
    conn: &mut PgConnection,
    new: &NewSnapshotFiles<'_>,
    audit: &Audit<'_>,
) -> Result<bool> {
    let written = sqlx::query(
        "INSERT INTO app.snapshots
                (id, tenant_id, live_id, run_id, kind, name, template, place, bytes, sha256, sealed_key, sealed_by, key_id, origin, plain,
                 sealed_at, memory)
         SELECT $1, l.tenant_id, l.id, l.run_id, $4, $5, l.template, $6, $7, $8, $9, $10, $11, l.origin, $13,
                CASE WHEN $8::text IS NOT NULL THEN clock_timestamp() END, $14
           FROM app.lives l
          WHERE l.id = $2 AND l.run_id = $3 AND l.tenant_id = $12 AND l.life = 'running'",
    )
    .bind(new.id.as_str())
    .bind(new.live.as_str())
    .bind(new.run.as_str())
    .bind(new.kind.as_str())
    .bind(new.name)
    .bind(new.place)
    .bind(i64::try_from(new.bytes).unwrap_or(i64::MAX))
    .bind(new.form.sha256())
    .bind(new.sealed_key)
    .bind(new.sealed_by.as_str())
    .bind(audit.key_id)
    .bind(audit.tenant.as_str())
    .bind(new.form.plain())
    .bind(new.memory)
    .execute(&mut *conn)
    .await?;
    append(conn, audit).await?;
    Ok(written.rows_affected() == 1)
}

impl SnapshotRows<'_> {
    /// Whether files are kept that open with a key of secrets alone.
    pub async fn has_sealed(self) -> Result<bool> {
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM app.snapshots WHERE sealed_key IS NOT NULL)",
        )
        .fetch_one(self.pool())
        .await?;
        Ok(found)
    }

    /// Puts on record that the files of a pause cannot be sealed, and why: they are lost with the process that has them.
    pub async fn unsealable(
        self,
        tenant: &TenantId,
        snapshot: &SnapshotId,
        why: &str,
    ) -> Result<()> {
        let why: String = why.replace('\0', "").chars().take(MAX_WHY).collect();
        let mut tx = self.pool().begin().await?;
        let entry = Audit {
            tenant,
            key_id: "worker",
            actor: "worker",
            op: "sandbox.unsealable",
            target: snapshot.as_str(),
            reason: &why,
            detail: None,
        };
        append(&mut tx, &entry).await?;
        Ok(tx.commit().await?)
    }

    /// Records the files of a running sandbox, which goes on. `false`: it does not run any more.
    pub async fn add(self, new: &NewSnapshotFiles<'_>, audit: &Audit<'_>) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if !insert(&mut tx, new, audit).await? {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }

    /// Records the files of a running sandbox and that it is paused, or nothing at all. `false`: it does not run any more.
    pub async fn pause(self, new: &NewSnapshotFiles<'_>, audit: &Audit<'_>) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if !insert(&mut tx, new, audit).await? {
            return Ok(false);
        }
        let paused = sqlx::query(
            "UPDATE app.live_sandboxes SET paused_at = clock_timestamp(), snapshot_id = $1
              WHERE id = $2 AND run_id = $3 AND num_nonnulls(ending_at, paused_at, ended_at) = 0",
        )
        .bind(new.id.as_str())
        .bind(new.live.as_str())
        .bind(new.run.as_str())
        .execute(&mut *tx)
        .await?;
        if paused.rows_affected() != 1 {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }

    /// Records that stored files are in a sealed file, and why nowhere else; `None`: their layer stays. `false`: they were before, or
    /// are erased.
    pub async fn sealed(
        self,
        snapshot: &SnapshotId,
        file: &SealedFile,
        end: Option<LayerRelease>,
    ) -> Result<bool> {
        let query =
            "UPDATE app.snapshots SET sealed_at = clock_timestamp(), bytes = $2, sha256 = $3,
                                      plain_ended_at = COALESCE(plain_ended_at, CASE WHEN $4::text IS NOT NULL THEN clock_timestamp() END),
                                      plain_end = COALESCE(plain_end, $4)
                      WHERE id = $1 AND sealed_at IS NULL AND erased_at IS NULL";
        let sealed = sqlx::query(query)
            .bind(snapshot.as_str())
            .bind(i64::try_from(file.bytes).unwrap_or(i64::MAX))
            .bind(file.sha256.as_str())
            .bind(end.map(LayerRelease::as_str))
            .execute(self.pool())
            .await?;
        Ok(sealed.rows_affected() == 1)
    }

    /// Records that a layer is not held any more, and why.
    pub async fn layer_release(self, snapshot: &SnapshotId, why: LayerRelease) -> Result<()> {
        let query = "UPDATE app.snapshots SET plain_ended_at = clock_timestamp(), plain_end = $2
                      WHERE id = $1 AND plain IS NOT NULL AND plain_ended_at IS NULL AND gone_at IS NULL
                        AND ($2 = 'next-life' OR sealed_at IS NOT NULL OR erased_at IS NOT NULL)";
        let ended = sqlx::query(query).bind(snapshot.as_str()).bind(why.as_str());
        ended.execute(self.pool()).await?;
        Ok(())
    }

    /// Layers of a location that are held by the record, though their files are sealed or erased; of erased ones alone, where that
    /// is asked for.
    pub async fn retained_layers(
        self,
        place: &str,
        erased_alone: bool,
    ) -> Result<Vec<RetainedLayer>> {
        let rows: Vec<(String, bool, Option<String>)> = sqlx::query_as(
            "SELECT s.id, s.erased_at IS NOT NULL, (SELECT max(x.sandbox_id) FROM app.remote_execution_sessions x WHERE x.run_id = s.run_id)
               FROM app.snapshots s
              WHERE s.place = $1 AND s.plain IS NOT NULL AND s.plain_ended_at IS NULL AND s.gone_at IS NULL
                AND (s.erased_at IS NOT NULL OR s.sealed_at IS NOT NULL AND NOT $2)",
        )
        .bind(place)
        .bind(erased_alone)
        .fetch_all(self.pool())
        .await?;
        let read = |(snapshot, is_erased, session): (String, bool, Option<String>)| {
            let session = session.map(|text| id("sessions.sandbox_id", &text)).transpose()?;
            Ok(RetainedLayer { id: id("snapshots.id", &snapshot)?, is_erased, session })
        };
        rows.into_iter().map(read).collect()
    }

    /// Stored files of a location that are neither sealed nor erased; of one snapshot, where it is named.
    pub async fn unsealed(
        self,
        place: &str,
        only: Option<&SnapshotId>,
    ) -> Result<Vec<PendingSnapshot>> {
        let rows = sqlx::query(
            "SELECT s.id, s.tenant_id, s.sealed_key, s.sealed_by,
                    (SELECT max(x.sandbox_id) FROM app.remote_execution_sessions x WHERE x.run_id = s.run_id) AS session
               FROM app.snapshots s
              WHERE s.place = $1 AND s.sealed_at IS NULL AND s.erased_at IS NULL AND ($2::text IS NULL OR s.id = $2)",
        )
        .bind(place)
        .bind(only.map(SnapshotId::as_str))
        .fetch_all(self.pool())
        .await?;
        let read = |row: &PgRow| {
            let session: Option<String> = row.try_get("session")?;
            Ok(PendingSnapshot {
                id: id("snapshots.id", row.try_get("id")?)?,
                tenant: id("snapshots.tenant_id", row.try_get("tenant_id")?)?,
                session: session.map(|text| id("sessions.sandbox_id", &text)).transpose()?,
                sealed_key: row.try_get("sealed_key")?,
                sealed_by: id("snapshots.sealed_by", row.try_get("sealed_by")?)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Records that stored files were lost before they were sealed: their sandbox has ended, and what there is of them is
    /// to be removed. `false`: a life of it is not over yet.
    pub async fn record_loss(self, snapshot: &SnapshotId, why: &str) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let ended = sqlx::query(
            "UPDATE app.live_sandboxes l SET ended_at = clock_timestamp(), end_reason = $2
              WHERE snapshot_id = $1 AND paused_at IS NOT NULL AND ended_at IS NULL
                AND (SELECT v.life FROM app.lives v WHERE v.id = l.id) = 'paused'",
        )
        .bind(snapshot.as_str())
        .bind(why)
        .execute(&mut *tx)
        .await?;
        if ended.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query(
            "INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason)
             SELECT tenant_id, key_id, 'worker', 'snapshot.lost', id, $2 FROM app.snapshots WHERE id = $1",
        )
        .bind(snapshot.as_str())
        .bind(why)
        .execute(&mut *tx)
        .await?;
        let query = "UPDATE app.snapshots SET sealed_key = NULL, erased_at = clock_timestamp() WHERE id = $1 AND erased_at IS NULL";
        sqlx::query(query).bind(snapshot.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What opens stored files of a tenant; `None`: there are none of this id, or they are erased.
    pub async fn stored_snapshot(
        self,
        tenant: &TenantId,
        snapshot: &SnapshotId,
    ) -> Result<Option<StoredSnapshot>> {
        let query = format!(
            "SELECT {COLUMNS} FROM app.snapshots WHERE id = $1 AND tenant_id = $2 AND erased_at IS NULL"
        );
        let row = sqlx::query(AssertSqlSafe(query))
            .bind(snapshot.as_str())
            .bind(tenant.as_str())
            .fetch_optional(self.pool())
            .await?;
        row.map(|row| {
            Ok(StoredSnapshot {
                view: view_of(&row)?,
                place: row.try_get("place")?,
                sha256: digest_of(&row)?,
                sealed_key: row.try_get("sealed_key")?,
                sealed_by: id("snapshots.sealed_by", row.try_get("sealed_by")?)?,
            })
        })
        .transpose()
    }

    /// A tenant's snapshots that are kept, newest first; of one sandbox, where it is named.
    pub async fn list(self, tenant: &TenantId, live: Option<&LiveId>) -> Result<Vec<SnapshotView>> {
        let query = format!(
            "SELECT {COLUMNS} FROM app.snapshots
              WHERE tenant_id = $1 AND erased_at IS NULL AND ($2::text IS NULL OR live_id = $2)
              ORDER BY created_at DESC, id DESC LIMIT $3"
        );
        let rows = sqlx::query(AssertSqlSafe(query))
            .bind(tenant.as_str())
            .bind(live.map(LiveId::as_str))
            .bind(MAX_LISTED)
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(view_of).collect()
    }

    /// Destroys the key of a tenant's snapshot. One that a sandbox is paused into is refused.
    pub async fn erase(self, snapshot: &SnapshotId, audit: &Audit<'_>) -> OpResult<()> {
        let mut tx = self.pool().begin().await?;
        let kind: Option<String> = sqlx::query_scalar(
            "SELECT kind FROM app.snapshots WHERE id = $1 AND tenant_id = $2 AND erased_at IS NULL FOR UPDATE",
        )
        .bind(snapshot.as_str())
        .bind(audit.tenant.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        match kind.as_deref() {
            None => return Err(Refusal::not_found("snapshot").into()),
            Some("pause") => {
                let why =
                    "a paused sandbox goes on from this snapshot: kill or resume that sandbox";
                return Err(Refusal::new(ErrorCode::StateConflict, why).into());
            }
            Some("template") => {
                let why = "these are the files of a template: delete that template";
                return Err(Refusal::new(ErrorCode::StateConflict, why).into());
            }
            Some(_) => {}
        }
        let query = "UPDATE app.snapshots SET sealed_key = NULL, erased_at = clock_timestamp() WHERE id = $1";
        sqlx::query(query).bind(snapshot.as_str()).execute(&mut *tx).await?;
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Destroys the keys of pauses that no paused or resuming sandbox needs any more.
    pub async fn erase_unneeded(self) -> Result<()> {
        sqlx::query(
            "UPDATE app.snapshots s SET sealed_key = NULL, erased_at = clock_timestamp()
              WHERE s.kind = 'pause' AND s.erased_at IS NULL AND NOT EXISTS (
                    SELECT 1 FROM app.live_sandboxes l
                     WHERE l.snapshot_id = s.id AND l.ended_at IS NULL
                       AND (l.paused_at IS NOT NULL OR l.started_at IS NULL))",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Whether files of this id are on record as sealed, erased or not.
    pub async fn is_sealed(self, snapshot: &SnapshotId) -> Result<bool> {
        let query =
            "SELECT EXISTS (SELECT 1 FROM app.snapshots WHERE id = $1 AND sealed_at IS NOT NULL)";
        Ok(sqlx::query_scalar(query).bind(snapshot.as_str()).fetch_one(self.pool()).await?)
    }
}
