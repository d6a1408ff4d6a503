//! `app.patch_applies`: where patches of runs were written.

use cofferdam_contracts::id::RunId;
use cofferdam_contracts::patch::{ApplyRecord, ApplyRow, GitId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{LedgerError, Result, id};
use crate::families::Applies;

/// Rows of one run that are listed: one for each branch that a person agreed to.
const MAX_ROWS: i64 = 1_000;
const COLUMNS: &str = "a.run_id, a.approved_in, a.step_id, a.patch_sha256, a.repo, a.branch, a.base, a.commit_id, a.tree_id, a.key_id, \
                       app.ms(a.written_at) AS written";

impl Applies<'_> {
    /// Writes that a run's patch was written under this approval, once; the row that stands. `None`: nobody agreed in that
    /// run.
    pub async fn record(
        self,
        run: &RunId,
        key_id: &str,
        new: &ApplyRecord,
    ) -> Result<Option<ApplyRow>> {
        sqlx::query(
            "INSERT INTO app.patch_applies
               (approved_in, run_id, step_id, patch_sha256, repo, branch, base, commit_id, key_id, tree_id)
             SELECT r.id, $2, $3, $4, $5, $6, $7, $8, $9, $10 FROM app.runs r
              WHERE r.id = $1 AND r.status = 'succeeded'
                AND EXISTS (SELECT 1 FROM app.plan_approvals p WHERE p.run_id = r.id)
             ON CONFLICT (approved_in) DO NOTHING",
        )
        .bind(new.approved_in.as_str())
        .bind(run.as_str())
        .bind(new.task.as_str())
        .bind(new.patch.as_str())
        .bind(&new.repo)
        .bind(&new.branch)
        .bind(new.base.as_str())
        .bind(new.commit.as_str())
        .bind(key_id)
        .bind(new.tree.as_ref().map(GitId::as_str))
        .execute(self.pool())
        .await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM app.patch_applies a WHERE a.approved_in = $1"
        )))
        .bind(new.approved_in.as_str())
        .fetch_optional(self.pool())
        .await?;
        row.as_ref().map(row_of).transpose()
    }

    /// Where a run's patches were written, in order.
    pub async fn list(self, run: &RunId) -> Result<Vec<ApplyRow>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM app.patch_applies a WHERE a.run_id = $1 ORDER BY a.written_at LIMIT $2"
        )))
        .bind(run.as_str())
        .bind(MAX_ROWS)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(row_of).collect()
    }
}

fn row_of(row: &PgRow) -> Result<ApplyRow> {
    let commit = |name: &str| -> Result<GitId> {
        let text: String = row.try_get(name)?;
        GitId::parse(&text).map_err(|why| LedgerError::Row { what: "patch_applies", why })
    };
    Ok(ApplyRow {
        run_id: id("patch_applies.run_id", row.try_get("run_id")?)?,
        written: ApplyRecord {
            approved_in: id("patch_applies.approved_in", row.try_get("approved_in")?)?,
            task: id("patch_applies.step_id", row.try_get("step_id")?)?,
            patch: id("patch_applies.patch_sha256", row.try_get("patch_sha256")?)?,
            repo: row.try_get("repo")?,
            branch: row.try_get("branch")?,
            base: commit("base")?,
            tree: row
                .try_get::<Option<String>, _>("tree_id")?
                .map(|_| commit("tree_id"))
                .transpose()?,
            commit: commit("commit_id")?,
        },
        by: row.try_get("key_id")?,
        at: row.try_get("written")?,
    })
}
