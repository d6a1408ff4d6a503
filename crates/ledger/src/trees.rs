//! `app.intent_trees` and `app.task_trees`: host directories as they were bound by their content, and what tasks were given of them.
//!
//! **The first binding of a path stands for its intent**: for each run, retry and fork of it.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{Digest, IntentId, RunId, TaskKey, TenantId};
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::error::{LedgerError, Result, id, json};
use crate::families::Trees;

/// A host directory or file, bound by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IntentTree {
    /// Path of the host as the plan names it.
    pub source: String,
    /// SHA-256 of the content.
    pub sha256: Digest,
    /// Name of its copy.
    pub copy: Digest,
    /// Host that has the copy.
    pub host_id: String,
    /// State directory that has it.
    pub state_dir: String,
    /// Files, directories and links.
    pub entries: i64,
    /// Bytes of the files.
    pub bytes: i64,
    /// Lies in no allowed directory: only runs with the reach of the host's own admin are given it.
    pub is_host_admins: bool,
}

impl IntentTree {
    /// Whether a run with or without the reach of the host's own admin is given it.
    #[must_use]
    pub fn is_within(&self, by_host_admin: bool) -> bool {
        by_host_admin || !self.is_host_admins
    }
}

/// What an execution of a task is given of a bound path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewTaskTree<'a> {
    /// Path of the host as the plan names it.
    pub source: &'a str,
    /// SHA-256 of the content that is given.
    pub sha256: &'a Digest,
    /// Name of the copy that is given.
    pub copy: &'a Digest,
}

/// Who needs a copy, as its tenant's share sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeNeed {
    /// A run of the tenant that goes on, or a sandbox of one.
    pub is_of_now: bool,
    /// A run of the tenant that failed less than a week ago, and may be retried.
    pub is_of_retry: bool,
    /// A run of another tenant, of either kind.
    pub is_of_others: bool,
}

/// A failed run may be retried with its source for a week; after that it is started anew. In ms.
pub(crate) const RETRY_MS: i64 = 7 * 24 * 3_600_000;

/// Whether a run `r` needs what its intent bound, with [`RETRY_MS`] as `$2`. A run of which a content is erased may not be retried.
pub(crate) const NEEDS: &str = "(NOT app.is_over(r.status)
    OR (r.status <> 'succeeded'
        AND NOT EXISTS (SELECT FROM app.erasures e WHERE e.run_id = r.id)
        AND r.updated_at > clock_timestamp() - $2 * interval '1 millisecond'))";

/// What a run that is written in the same statement bound, from `$31`.
pub(crate) const BOUND_BY_RUN: &str =
    "INSERT INTO app.intent_trees (intent_id, source, sha256, copy, host_id, state_dir, entries, bytes, is_host_admins, origin)
     SELECT r.intent_id, n.source, n.sha256, n.copy, n.host_id, n.state_dir, n.entries, n.bytes, n.is_host_admins, r.origin
       FROM r CROSS JOIN jsonb_to_recordset($31) AS n(source text, sha256 text, copy text, host_id text, state_dir text,
                                                      entries bigint, bytes bigint, is_host_admins boolean)
     ON CONFLICT (intent_id, source) DO NOTHING";

impl Trees<'_> {
    /// What an intent bound.
    pub async fn of_intent(self, intent: &IntentId) -> Result<Vec<IntentTree>> {
        let rows = sqlx::query(
            "SELECT source, sha256, copy, host_id, state_dir, entries, bytes, is_host_admins FROM app.intent_trees
              WHERE intent_id = $1 ORDER BY source COLLATE \"C\"",
        )
        .bind(intent.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(tree_of).collect()
    }

    /// What the intent of a run bound.
    pub async fn of_run(self, run: &RunId) -> Result<Vec<IntentTree>> {
        let rows = sqlx::query(
            "SELECT t.source, t.sha256, t.copy, t.host_id, t.state_dir, t.entries, t.bytes, t.is_host_admins
               FROM app.runs r JOIN app.intent_trees t ON t.intent_id = r.intent_id
              WHERE r.id = $1 ORDER BY t.source COLLATE \"C\"",
        )
        .bind(run.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(tree_of).collect()
    }

    /// Whether the tasks of a run are given their directories as they were at one time.
    pub async fn is_binding(self, run: &RunId) -> Result<bool> {
        let found = sqlx::query_scalar("SELECT app.binds_trees($1)").bind(run.as_str());
        Ok(found.fetch_one(self.pool()).await?)
    }

    /// Binds paths for an intent and yields all that it bound: of a path that it had bound before, the first binding.
    pub async fn bind(self, intent: &IntentId, new: &[IntentTree]) -> Result<Vec<IntentTree>> {
        sqlx::query(
            "INSERT INTO app.intent_trees (intent_id, source, sha256, copy, host_id, state_dir, entries, bytes, is_host_admins, origin)
             SELECT $1, n.source, n.sha256, n.copy, n.host_id, n.state_dir, n.entries, n.bytes, n.is_host_admins, $3
               FROM jsonb_to_recordset($2) AS n(source text, sha256 text, copy text, host_id text, state_dir text,
                                                entries bigint, bytes bigint, is_host_admins boolean)
             ON CONFLICT (intent_id, source) DO NOTHING",
        )
        .bind(intent.as_str())
        .bind(json("intent_trees", &new)?)
        .bind(Origin::EngineDbos.as_str())
        .execute(self.pool())
        .await?;
        self.of_intent(intent).await
    }

    /// Notes what an execution is given, before its sandbox is made.
    pub async fn given(
        self,
        task: &TaskKey,
        execution_no: i32,
        trees: &[NewTaskTree<'_>],
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.task_trees (task_key, execution_no, source, sha256, copy, origin)
             SELECT $1, $2, n.source, n.sha256, n.copy, $4
               FROM jsonb_to_recordset($3) AS n(source text, sha256 text, copy text)
             ON CONFLICT DO NOTHING",
        )
        .bind(task.as_str())
        .bind(execution_no)
        .bind(json("task_trees", &trees)?)
        .bind(Origin::EngineDbos.as_str())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Which of these copies a run needs: one that is not over, or failed less than a week ago and may be retried.
    pub async fn needed(self, copies: &BTreeSet<Digest>) -> Result<BTreeSet<Digest>> {
        let names: Vec<&str> = copies.iter().map(Digest::as_str).collect();
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT n.copy FROM unnest($1::text[]) AS n(copy)
              WHERE EXISTS (SELECT FROM app.intent_trees t JOIN app.runs r ON r.intent_id = t.intent_id
                             WHERE t.copy = n.copy AND {NEEDS})
             UNION
             -- Given by another state directory than the one that bound it.
             SELECT g.copy FROM app.sbx_runs s JOIN app.task_trees g ON g.task_key = s.task_key
              WHERE s.response IS NULL AND g.copy = ANY ($1)"
        )))
        .bind(names)
        .bind(RETRY_MS)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(|row| id("intent_trees.copy", row.try_get("copy")?)).collect()
    }

    /// Who needs each of these copies, for a tenant that is to give some up.
    pub async fn needs(
        self,
        tenant: &TenantId,
        copies: &[&Digest],
    ) -> Result<BTreeMap<Digest, TreeNeed>> {
        let names: Vec<&str> = copies.iter().map(|copy| copy.as_str()).collect();
        let rows = sqlx::query(AssertSqlSafe(format!(
            "WITH needs AS (
               SELECT t.copy, r.tenant_id = $3 AS is_own, NOT app.is_over(r.status) AS is_of_now
                 FROM app.intent_trees t JOIN app.runs r ON r.intent_id = t.intent_id
                WHERE t.copy = ANY ($1) AND {NEEDS}
               UNION ALL
               SELECT g.copy, r.tenant_id = $3, true
                 FROM app.sbx_runs s JOIN app.task_trees g ON g.task_key = s.task_key JOIN app.runs r ON r.id = s.run_id
                WHERE s.response IS NULL AND g.copy = ANY ($1))
             SELECT copy, bool_or(is_own AND is_of_now) AS is_of_now, bool_or(is_own AND NOT is_of_now) AS is_of_retry,
                    bool_or(NOT is_own) AS is_of_others
               FROM needs GROUP BY copy"
        )))
        .bind(names)
        .bind(RETRY_MS)
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        let need = |row: &PgRow| {
            let need = TreeNeed {
                is_of_now: row.try_get("is_of_now")?,
                is_of_retry: row.try_get("is_of_retry")?,
                is_of_others: row.try_get("is_of_others")?,
            };
            Ok((id("intent_trees.copy", row.try_get("copy")?)?, need))
        };
        rows.iter().map(need).collect()
    }
}

fn tree_of(row: &PgRow) -> Result<IntentTree> {
    let tree = IntentTree {
        source: row.try_get("source")?,
        sha256: id("intent_trees.sha256", row.try_get("sha256")?)?,
        copy: id("intent_trees.copy", row.try_get("copy")?)?,
        host_id: row.try_get("host_id")?,
        state_dir: row.try_get("state_dir")?,
        entries: row.try_get("entries")?,
        bytes: row.try_get("bytes")?,
        is_host_admins: row.try_get("is_host_admins")?,
    };
    match tree.entries >= 1 {
        true => Ok(tree),
        false => {
            Err(LedgerError::Row { what: "intent_trees.entries", why: tree.entries.to_string() })
        }
    }
}
