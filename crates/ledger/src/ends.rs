//! The end of an attempt: result, artifacts, the session's end and its wipe evidence commit together.

use cofferdam_contracts::gate::Origin;
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::{SandboxRequest, WipeStatus};
use sqlx::Row;

use crate::artifacts::{Rows, artifacts_insert, index};
use crate::budgets::budget_answers_take;
use crate::dispatch_end::{canceled_answer, dispatch_settle};
use crate::error::{Result, id, json};
use crate::executors::LeaderTerm;
use crate::families::Tasks;
use crate::grants::{answers_take, asks_lock};
use crate::sessions::attestation_json;
use crate::tasks::{TaskContext, TaskEnd, terminal_state};
use crate::test_reports::{NewReport, ReportColumns};

/// Everything that the usual end writes. `s` and `w` are a session whose wipe is verified; where an earlier look
/// had failed, that is told on record.
const END: &str = "WITH u AS (
       UPDATE app.sbx_runs SET response = $2, err_code = $3, metrics = $4, effective = $5, canceled = $6,
              finished_at = clock_timestamp()
        WHERE task_key = $1 AND response IS NULL AND NOT EXISTS (
              SELECT 1 FROM app.sbx_executions x JOIN app.executors e ON e.id = x.worker
               WHERE x.task_key = $1 AND x.execution_no = $7 AND e.state = 'dead') RETURNING run_id, step_id, attempt),
     x AS (
       SELECT u.run_id, u.step_id, u.attempt, x.*
         FROM u CROSS JOIN unnest($9::text[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::text[], $15::bigint[], $27::text[],
                                        $28::text[])
           WITH ORDINALITY AS x(kind, name, uri, inline, blob, sha256, size, mode, object_id, n)),
     o AS (
       INSERT INTO app.stored_objects (id, tenant_id, store, sha256, size, sealed_key, sealed_by)
       SELECT o.id, r.tenant_id, o.store, o.sha256, o.size, o.sealed_key, o.sealed_by
         FROM u JOIN app.runs r ON r.id = u.run_id
        CROSS JOIN unnest($29::text[], $30::text[], $31::text[], $32::bigint[], $33::bytea[], $34::text[])
           AS o(id, store, sha256, size, sealed_key, sealed_by)
       ON CONFLICT DO NOTHING),
     b AS (
       INSERT INTO app.blobs (sha256, bytes)
       SELECT DISTINCT ON (sha256) sha256, blob FROM x WHERE blob IS NOT NULL ON CONFLICT DO NOTHING),
     a AS (
       INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, mode, object_id,
                                  origin)
       SELECT run_id, step_id, $1, attempt, (n - 1)::int, kind, name, uri, inline, sha256, size, mode, object_id, 'engine-dbos'
         FROM x
       ON CONFLICT DO NOTHING),
     t AS (
       INSERT INTO app.test_reports (run_id, step_id, task_key, attempt, idx, path, kind, report, sha256, origin)
       SELECT u.run_id, u.step_id, $1, u.attempt, (r.n - 1)::int, r.path, r.kind, r.report::jsonb, r.sha256, 'engine-dbos'
         FROM u CROSS JOIN unnest($23::text[], $24::text[], $25::text[], $26::text[])
           WITH ORDINALITY AS r(path, kind, report, sha256, n)
       ON CONFLICT DO NOTHING),
     s AS (
       UPDATE app.remote_execution_sessions
          SET state = $17, ended_at = clock_timestamp(), wipe_looks = wipe_looks + 1, wipe_next_at = NULL,
              attestation = coalesce($22, attestation), class = coalesce($22->>'class', class),
              runtime = coalesce($22->>'runtime', runtime),
              runtime_version = coalesce($22->>'runtimeVersion', runtime_version)
        WHERE sandbox_id = $16 AND ended_at IS NULL
       RETURNING sandbox_id, run_id, task_key, tenant_id, executor_id, wipe_looks),
     w AS (
       INSERT INTO app.secure_wipe_evidence
         (sandbox_id, run_id, task_key, look, terminal_state, wipe_timestamp, wipe_status, reason, method, evidence, origin)
       SELECT sandbox_id, run_id, task_key, wipe_looks, $17, to_timestamp($18::float8 / 1000), 'verified', $19, $20, $21,
              'engine-dbos' FROM s),
     l AS (
       INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, origin)
       SELECT tenant_id, 'worker', executor_id, 'wipe.verified', sandbox_id, 'a later look verified the wipe', 'engine-dbos'
         FROM s WHERE wipe_looks > 1)
     SELECT EXISTS (SELECT FROM u) AS written, pg_notify('cofferdam', 't:' || $8) AS told,
            (SELECT pg_notify('cofferdam', 'w:' || run_id) FROM s WHERE wipe_looks > 1) AS released";

/// Attempts without an answer whose workflow is over or gone, held until the end of the transaction. A canceled one is its worker's to
/// answer for as long as a session of it is open.
const LEFT_OPEN: &str = "SELECT s.task_key, coalesce('its workflow ended as ' || w.status || ' without a result', 'its workflow is gone') AS why
         FROM app.sbx_runs s LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key
        WHERE s.response IS NULL AND app.leads($1, $2)
          AND CASE WHEN w.workflow_uuid IS NULL THEN app.ms(s.created_at) ELSE w.updated_at END < app.ms(clock_timestamp()) - $3
          AND (w.workflow_uuid IS NULL OR w.status IN ('SUCCESS','ERROR','MAX_RECOVERY_ATTEMPTS_EXCEEDED')
               OR w.status = 'CANCELLED' AND NOT EXISTS (
                  SELECT 1 FROM app.remote_execution_sessions x WHERE x.task_key = s.task_key AND x.ended_at IS NULL))
        ORDER BY s.task_key LIMIT 100 FOR NO KEY UPDATE OF s";

/// Their answers, but for those that a worker began before they were held. `$3`: the answer of one of which nothing is known.
const LEFT_OPEN_ANSWERED: &str = "WITH u AS (
       UPDATE app.sbx_runs s SET err_code = 'CMD_NONZERO', canceled = true, finished_at = clock_timestamp(),
              response = $3 || jsonb_build_object('taskKey', s.task_key, 'cause', o.why)
         FROM unnest($1::text[], $2::text[]) AS o(task_key, why)
        WHERE s.task_key = o.task_key AND s.response IS NULL AND NOT EXISTS (
              SELECT 1 FROM app.remote_execution_sessions x
                JOIN dbos.workflow_status w ON w.workflow_uuid = x.task_key AND w.status = 'CANCELLED'
               WHERE x.task_key = s.task_key AND x.ended_at IS NULL)
       RETURNING s.run_id, s.task_key, o.why)
     SELECT u.run_id, u.task_key, u.why FROM u
      CROSS JOIN LATERAL pg_notify('cofferdam', 't:' || u.run_id) ORDER BY u.task_key";

/// An attempt that was answered because its workflow will not do it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleAttempt {
    /// Key of the attempt in `app.sbx_runs`, which is answered as canceled.
    pub task: TaskKey,
    /// Run of the attempt; the run's dispatch is settled in the same transaction.
    pub run: RunId,
    /// Why, in words.
    pub why: String,
}

impl Tasks<'_> {
    /// Answers attempts that no workflow answers any more, for longer than `grace_ms`: their run goes on to its own end, and where that
    /// was over, the record is whole again. Only for the leader.
    pub async fn close_left_open(
        self,
        lead: &LeaderTerm,
        grace_ms: i64,
    ) -> Result<Vec<StaleAttempt>> {
        let mut tx = self.pool().begin().await?;
        let found: Vec<(String, String)> = sqlx::query_as(LEFT_OPEN)
            .bind(lead.executor.as_str())
            .bind(lead.term)
            .bind(grace_ms)
            .fetch_all(&mut *tx)
            .await?;
        let (keys, whys): (Vec<String>, Vec<String>) = found.into_iter().unzip();
        let rows = sqlx::query(LEFT_OPEN_ANSWERED)
            .bind(keys)
            .bind(whys)
            .bind(canceled_answer("")?)
            .fetch_all(&mut *tx)
            .await?;
        let mut closed = Vec::with_capacity(rows.len());
        for row in &rows {
            let left = StaleAttempt {
                task: id("sbx_runs.task_key", row.try_get("task_key")?)?,
                run: id("sbx_runs.run_id", row.try_get("run_id")?)?,
                why: row.try_get("why")?,
            };
            dispatch_settle(&mut tx, &left.run).await?;
            closed.push(left);
        }
        tx.commit().await?;
        Ok(closed)
    }

    /// Result, artifacts, terminal session and wipe evidence in one transaction. `false`: the
    /// attempt had ended already (another worker was faster), or this execution's worker was declared
    /// dead: then what it saw may be its successor taking its sandbox away, and only the session's
    /// end is written.
    pub async fn finish(self, end: &TaskEnd<'_>) -> Result<bool> {
        self.sessions().run_of_mode(end).await?;
        let asks = end.task.work.request().is_some_and(SandboxRequest::asks);
        let sent = matches!(end.task.work, Work::Agent(_));
        let failed = end.evidence.is_some_and(|e| e.status != WipeStatus::Verified);
        match asks || sent || failed {
            true => self.finish_in_steps(end, asks).await,
            false => self.finish_at_once(end).await,
        }
    }

    async fn finish_at_once(self, end: &TaskEnd<'_>) -> Result<bool> {
        let (task, result, wipe) = (end.task, end.result, end.evidence);
        let index = index(task, end.artifacts, end.result.omitted.as_ref())?;
        let rows = Rows::of(task, &index, end.artifacts);
        let reports = ReportColumns::of(end.reports)?;
        let row = sqlx::query(END)
            .bind(task.key.as_str())
            .bind(json("sbx_runs.response", result)?)
            .bind(result.err_code.as_str())
            .bind(json("sbx_runs.metrics", &result.metrics)?)
            .bind(end.effective.map(|e| json("sbx_runs.effective", e)).transpose()?)
            .bind(end.canceled)
            .bind(task.execution_no)
            .bind(task.run.as_str())
            .bind(&rows.kinds)
            .bind(&rows.names)
            .bind(&rows.uris)
            .bind(&rows.inlines)
            .bind(&rows.blobs)
            .bind(&rows.digests)
            .bind(&rows.sizes)
            .bind(wipe.map(|w| w.sandbox_id.as_str()))
            .bind(terminal_state(end.canceled, result.err_code).as_str())
            .bind(wipe.map(|w| w.wiped_at_ms))
            .bind(wipe.map(|w| w.reason.as_str()))
            .bind(wipe.map(|w| w.method.as_str()))
            .bind(wipe.map(|w| json("secure_wipe_evidence.evidence", w)).transpose()?)
            .bind(attestation_json(end.attestation)?)
            .bind(&reports.paths)
            .bind(&reports.kinds)
            .bind(&reports.reports)
            .bind(&reports.digests)
            .bind(&rows.modes)
            .bind(&rows.objects)
            .bind(&rows.stored.ids)
            .bind(&rows.stored.stores)
            .bind(&rows.stored.digests)
            .bind(&rows.stored.sizes)
            .bind(&rows.stored.keys)
            .bind(&rows.stored.sealed_by)
            .fetch_one(self.pool())
            .await?;
        Ok(row.try_get("written")?)
    }

    /// The same for a task that has questions open, for a dispatch, which ends with its task, and for a wipe that
    /// failed, which is told on record.
    async fn finish_in_steps(self, end: &TaskEnd<'_>, asks: bool) -> Result<bool> {
        let task = end.task;
        let mut tx = self.pool().begin().await?;
        if asks {
            // Gates before the task, as a cancel of the run locks them.
            asks_lock(&mut tx, &task.key).await?;
        }
        // The notification goes out with the commit, for a session's end too.
        let row = sqlx::query(
            "WITH u AS (
               UPDATE app.sbx_runs SET response = $2, err_code = $3, metrics = $4, effective = $5, canceled = $6,
                      finished_at = clock_timestamp()
                WHERE task_key = $1 AND response IS NULL AND NOT EXISTS (
                      SELECT 1 FROM app.sbx_executions x JOIN app.executors e ON e.id = x.worker
                       WHERE x.task_key = $1 AND x.execution_no = $7 AND e.state = 'dead') RETURNING 1)
             SELECT EXISTS (SELECT FROM u) AS written, pg_notify('cofferdam', 't:' || $8) AS told",
        )
        .bind(task.key.as_str())
        .bind(json("sbx_runs.response", end.result)?)
        .bind(end.result.err_code.as_str())
        .bind(json("sbx_runs.metrics", &end.result.metrics)?)
        .bind(end.effective.map(|e| json("sbx_runs.effective", e)).transpose()?)
        .bind(end.canceled)
        .bind(task.execution_no)
        .bind(task.run.as_str())
        .fetch_one(&mut *tx)
        .await?;
        let written = row.try_get("written")?;
        if written {
            if asks {
                answers_take(&mut tx, &task.key).await?;
                budget_answers_take(&mut tx, &task.key).await?;
            }
            artifacts_insert(&mut tx, task, end.artifacts, end.result.omitted.as_ref()).await?;
            reports_insert(&mut tx, task, end.reports).await?;
            if matches!(task.work, Work::Agent(_)) {
                dispatch_settle(&mut tx, &task.run).await?;
            }
        }
        if let Some(evidence) = end.evidence {
            let terminal = terminal_state(end.canceled, end.result.err_code);
            let (attested, origin) = (end.attestation, Origin::EngineDbos);
            crate::sessions::session_close(&mut tx, evidence, terminal, attested, origin).await?;
        }
        tx.commit().await?;
        Ok(written)
    }
}

/// The reports of one attempt, in the caller's transaction; nothing where there are none.
async fn reports_insert(
    conn: &mut sqlx::PgConnection,
    task: &TaskContext,
    reports: &[NewReport],
) -> Result<()> {
    if reports.is_empty() {
        return Ok(());
    }
    let columns = ReportColumns::of(reports)?;
    sqlx::query(
        "INSERT INTO app.test_reports (run_id, step_id, task_key, attempt, idx, path, kind, report, sha256, origin)
         SELECT $1, $2, $3, $4, (n - 1)::int, path, kind, report::jsonb, sha256, 'engine-dbos'
           FROM unnest($5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY AS x(path, kind, report, sha256, n)
         ON CONFLICT DO NOTHING",
    )
    .bind(task.run.as_str())
    .bind(task.step_id.as_str())
    .bind(task.key.as_str())
    .bind(i32::try_from(task.attempt).unwrap_or(i32::MAX))
    .bind(&columns.paths)
    .bind(&columns.kinds)
    .bind(&columns.reports)
    .bind(&columns.digests)
    .execute(conn)
    .await?;
    Ok(())
}
