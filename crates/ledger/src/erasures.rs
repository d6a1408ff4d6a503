//! `app.erasures`: contents that went, by whom and why.
//!
//! What goes and what stays in its place is written in one function, `app.erase_runs`; triggers let nothing else through.

use std::collections::BTreeSet;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{RunId, SecretName, TenantId};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::retention::{
    Content, Erasable, ErasureCause, ErasureRow, ErasureTotals, StoredBytes,
};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::audit::{Audit, append};
use crate::error::{LedgerError, OpResult, Result};
use crate::families::Erasures;

/// Runs of one intent that an erasure takes: a run with its forks has far fewer.
const MAX_FAMILY: i64 = 1_000;
/// Erasures of a run: one of each content.
const MAX_ERASURES: i64 = 10;

pub(crate) fn count(row: &PgRow, column: &'static str) -> Result<u64> {
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
}

pub(crate) fn totals(row: &PgRow) -> Result<ErasureTotals> {
    Ok(ErasureTotals {
        runs: count(row, "runs")?,
        bytes: count(row, "bytes")?,
        blobs: count(row, "blobs")?,
    })
}

pub(crate) fn stored(
    row: &PgRow,
    counted: &'static str,
    bytes: &'static str,
) -> Result<StoredBytes> {
    Ok(StoredBytes { count: count(row, counted)?, bytes: count(row, bytes)? })
}

pub(crate) fn cause(row: &PgRow) -> Result<ErasureCause> {
    let text: String = row.try_get("cause")?;
    ErasureCause::parse(&text).ok_or(LedgerError::Row { what: "erasures.cause", why: text })
}

const ROW: &str = "SELECT e.content, e.cause, e.key_id, e.reason, e.bytes, e.removed, app.ms(e.created_at) AS at FROM app.erasures e";

fn erasure(row: &PgRow) -> Result<ErasureRow> {
    Ok(ErasureRow {
        content: row.try_get("content")?,
        cause: cause(row)?,
        key_id: row.try_get("key_id")?,
        why: row.try_get("reason")?,
        bytes: count(row, "bytes")?,
        removed: row.try_get("removed")?,
        at: row.try_get("at")?,
    })
}

/// What a reader of a content that went is told.
fn gone(row: &ErasureRow) -> Refusal {
    let at = Instant::from_ms(row.at);
    let why = format!(
        "the {} was erased at {at} by {}: {} ({} bytes; its record and hashes stay)",
        row.content, row.key_id, row.why, row.bytes
    );
    Refusal::new(ErrorCode::Erased, why).with(json!(row))
}

async fn of_run(on: impl sqlx::PgExecutor<'_>, run: &RunId) -> Result<Vec<ErasureRow>> {
    let query = format!("{ROW} WHERE e.run_id = $1 ORDER BY e.id LIMIT $2");
    let rows = sqlx::query(sqlx::AssertSqlSafe(query))
        .bind(run.as_str())
        .bind(MAX_ERASURES)
        .fetch_all(on)
        .await?;
    rows.iter().map(erasure).collect()
}

/// Refuses where the content of the run went; without a content, where either did. Under a lock of the run no erasure comes behind it.
pub(crate) async fn refuse_erased(
    on: impl sqlx::PgExecutor<'_>,
    run: &RunId,
    content: Option<Content>,
) -> OpResult<()> {
    let is_it = |row: &ErasureRow| content.is_none_or(|content| row.content == content.as_str());
    match of_run(on, run).await?.iter().find(|row| is_it(row)) {
        Some(row) => Err(gone(row).into()),
        None => Ok(()),
    }
}

/// A run whose content an erasure may take, locked.
struct FamilyRun {
    run: String,
    is_at_rest: bool,
    has_prompt: bool,
    has_output: bool,
}

/// The run, and where its prompt is to go every run of its intent, in the order in which every erasure locks: a fork that is made
/// meanwhile holds the intent. One more than there may be.
async fn family_lock(
    conn: &mut sqlx::PgConnection,
    run: &RunId,
    what: Erasable,
) -> Result<Vec<FamilyRun>> {
    sqlx::query(
        "SELECT FROM app.intents i JOIN app.runs r ON r.intent_id = i.id WHERE r.id = $1 FOR NO KEY UPDATE OF i",
    )
    .bind(run.as_str())
    .execute(&mut *conn)
    .await?;
    let locked: Vec<String> = sqlx::query_scalar(
        "SELECT r.id FROM app.runs r
          WHERE r.id = $1 OR ($2 AND r.intent_id = (SELECT o.intent_id FROM app.runs o WHERE o.id = $1))
          ORDER BY r.id LIMIT $3 FOR UPDATE",
    )
    .bind(run.as_str())
    .bind(what != Erasable::Output)
    .bind(MAX_FAMILY.saturating_add(1))
    .fetch_all(&mut *conn)
    .await?;
    // A statement of its own, which sees what was committed before the locks were had.
    let rows = sqlx::query(
        "SELECT r.id, app.is_at_rest(r.id) AS is_at_rest, NOT app.is_erased(r.id, 'prompt') AS has_prompt,
                NOT app.is_erased(r.id, 'output') AS has_output
           FROM app.runs r WHERE r.id = ANY ($1) ORDER BY r.id",
    )
    .bind(locked)
    .fetch_all(conn)
    .await?;
    let read = |row: &PgRow| -> Result<FamilyRun> {
        Ok(FamilyRun {
            run: row.try_get("id")?,
            is_at_rest: row.try_get("is_at_rest")?,
            has_prompt: row.try_get("has_prompt")?,
            has_output: row.try_get("has_output")?,
        })
    };
    rows.iter().map(read).collect()
}

/// Refuses a family that works, or that is too large for one transaction.
fn admit(family: &[FamilyRun]) -> std::result::Result<(), Refusal> {
    if let Some(busy) = family.iter().find(|one| !one.is_at_rest) {
        let why = format!(
            "run {} is not at rest: it, a task, a sandbox, a wipe or a webhook of it is open; cancel it or wait",
            busy.run
        );
        return Err(Refusal::new(ErrorCode::StateConflict, why));
    }
    match i64::try_from(family.len()).is_ok_and(|runs| runs <= MAX_FAMILY) {
        true => Ok(()),
        false => {
            let why = format!("more than {MAX_FAMILY} runs share this prompt");
            Err(Refusal::new(ErrorCode::PolicyViolation, why))
        }
    }
}

impl Erasures<'_> {
    /// What went of a run.
    pub async fn of(self, run: &RunId) -> Result<Vec<ErasureRow>> {
        of_run(self.pool(), run).await
    }

    /// Refuses where the content of the run went; without a content, where either did.
    ///
    /// # Errors
    /// `erased`, or the ledger does not answer.
    pub async fn refuse(self, run: &RunId, content: Option<Content>) -> OpResult<()> {
        refuse_erased(self.pool(), run, content).await
    }

    /// What a reader of an artifact that is not there is told: that its bytes went, or that there was none.
    ///
    /// # Errors
    /// The ledger does not answer.
    pub async fn missing_artifact(self, tenant: &TenantId, uri: &str) -> Result<Refusal> {
        let query = format!(
            "{ROW} JOIN app.artifacts a ON a.erased_in = e.id JOIN app.runs r ON r.id = a.run_id
              WHERE a.uri = $1 AND r.tenant_id = $2 ORDER BY a.attempt DESC LIMIT 1"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(uri)
            .bind(tenant.as_str())
            .fetch_optional(self.pool())
            .await?;
        let found = row.as_ref().map(erasure).transpose()?;
        Ok(found.as_ref().map_or_else(|| Refusal::not_found("artifact"), gone))
    }

    /// Erases a run's content with its record, in one transaction. A prompt is that of every run of its intent.
    ///
    /// # Errors
    /// `erased` where nothing of it is left, `state_conflict` where a run is not at rest.
    pub async fn erase(
        self,
        run: &RunId,
        what: Erasable,
        audit: &Audit<'_>,
    ) -> OpResult<ErasureTotals> {
        let mut tx = self.patient().begin().await?;
        let family = family_lock(&mut tx, run, what).await?;
        admit(&family)?;
        let is_own = |one: &&FamilyRun| one.run == run.as_str();
        let ids = |runs: Vec<&FamilyRun>| -> Vec<String> {
            runs.into_iter().map(|one| one.run.clone()).collect()
        };
        let prompts: Vec<&FamilyRun> = match what {
            Erasable::Output => Vec::new(),
            Erasable::Prompt | Erasable::Run => family.iter().collect(),
        };
        let outputs: Vec<&FamilyRun> = match what {
            Erasable::Prompt => Vec::new(),
            Erasable::Output | Erasable::Run => family.iter().filter(is_own).collect(),
        };
        let due: BTreeSet<&str> = prompts
            .iter()
            .filter(|one| one.has_prompt)
            .chain(outputs.iter().filter(|one| one.has_output))
            .map(|one| one.run.as_str())
            .collect();
        if due.is_empty() {
            drop(tx);
            let content = match what {
                Erasable::Prompt => Some(Content::Prompt),
                Erasable::Output => Some(Content::Output),
                Erasable::Run => None,
            };
            self.refuse(run, content).await?;
            return Err(Refusal::not_found("content").into());
        }
        let row = sqlx::query(
            "SELECT runs, bytes, blobs FROM app.erase_runs($1, $2, 'asked', $3, $4, 'api-shim')",
        )
        .bind(ids(prompts))
        .bind(ids(outputs))
        .bind(audit.key_id)
        .bind(audit.reason)
        .fetch_one(&mut *tx)
        .await?;
        let erased = totals(&row)?;
        if usize::try_from(erased.runs).ok() != Some(due.len()) {
            let why = "a fork of the run goes on behind its recorded steps and has copies of them: erase the output of that fork first, \
                       or the run whole";
            return Err(Refusal::new(ErrorCode::StateConflict, why).into());
        }
        append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(erased)
    }

    /// Destroys the bytes of a secret in force, and puts their hash on record.
    ///
    /// # Errors
    /// `erased` where it was erased before, `not_found` where there is none.
    pub async fn erase_secret(
        self,
        tenant: &TenantId,
        name: &SecretName,
        audit: &Audit<'_>,
    ) -> OpResult<ErasureTotals> {
        let mut tx = self.pool().begin().await?;
        let bytes: Option<i64> = sqlx::query_scalar(
            "WITH held AS (
               SELECT version, sealed FROM app.secrets
                WHERE tenant_id = $1 AND name = $2 AND retired_at IS NULL FOR UPDATE),
             gone AS (
               UPDATE app.secrets s SET sealed = NULL, retired_at = clock_timestamp() FROM held h
                WHERE s.tenant_id = $1 AND s.name = $2 AND s.version = h.version)
             INSERT INTO app.erasures (tenant_id, content, secret, cause, key_id, reason, bytes, removed, origin)
             SELECT $1, 'secret', $2, 'asked', $3, $4, octet_length(h.sealed),
                    jsonb_build_object('version', h.version, 'bytes', octet_length(h.sealed),
                                       'sha256', encode(sha256(h.sealed), 'hex')), 'api-shim'
               FROM held h RETURNING bytes",
        )
        .bind(tenant.as_str())
        .bind(name.as_str())
        .bind(audit.key_id)
        .bind(audit.reason)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(bytes) = bytes else {
            drop(tx);
            let query = format!(
                "{ROW} WHERE e.tenant_id = $1 AND e.secret = $2 ORDER BY e.id DESC LIMIT 1"
            );
            let row = sqlx::query(sqlx::AssertSqlSafe(query))
                .bind(tenant.as_str())
                .bind(name.as_str())
                .fetch_optional(self.pool())
                .await?;
            let found = row.as_ref().map(erasure).transpose()?;
            return Err(found.as_ref().map_or_else(|| Refusal::not_found("secret"), gone).into());
        };
        append(&mut tx, audit).await?;
        tx.commit().await?;
        let bytes = u64::try_from(bytes).unwrap_or(0);
        Ok(ErasureTotals { runs: 0, bytes, blobs: 0 })
    }
}
