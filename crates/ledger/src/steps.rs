//! `app.run_steps`, and the plan that CompileST leaves.

use cofferdam_contracts::config::ConfigRow;
use cofferdam_contracts::id::{Digest, RunId, TaskKey};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::sandbox::SessionState;
use cofferdam_contracts::step::{StepRow, TaskPhase};
use serde_json::{Value, json};
use sqlx::Row;

use crate::error::{Result, load_all};
use crate::families::Steps;
use crate::runs::{CONTEXT, RunContext, context_of};
use crate::{config, recipes};

/// What CompileST commits.
#[derive(Debug, Clone)]
pub struct CompileRecord<'a> {
    /// Run that was compiled and gets the plan's digest.
    pub run: &'a RunId,
    /// Names the compilation as an effect.
    pub task_key: &'a TaskKey,
    /// The plan's canonical text.
    pub plan: &'a str,
    /// SHA-256 of the plan's canonical text.
    pub digest: &'a Digest,
    /// Where the plan card is.
    pub uri: &'a str,
    /// 1 for the first compilation; each further one, and each edit, has the next.
    pub attempt: u32,
    /// A summary for readers.
    pub output: Value,
}

/// What a compilation begins with.
#[derive(Debug, Clone)]
pub struct CompileContext {
    /// The plan's text, where CompileST committed one already: as it was before anybody edited its inputs.
    pub plan: Option<String>,
    /// The recipe, where it is stored.
    pub recipe: Option<Recipe>,
    /// The configuration in force.
    pub config: Vec<ConfigRow>,
}

impl Steps<'_> {
    /// The step, the plan card and the run's plan digest, in one statement. A replay changes nothing.
    pub async fn compiled(self, c: &CompileRecord<'_>) -> Result<()> {
        let mut conn = self.pool().acquire().await?;
        compiled_insert(&mut conn, c).await
    }

    /// The text of the plan with this digest, as CompileST or an edit left it.
    pub async fn plan(self, run: &RunId, digest: &Digest) -> Result<Option<String>> {
        Ok(sqlx::query_scalar(
            "SELECT coalesce(a.inline, convert_from(b.bytes, 'UTF8'))
               FROM app.artifacts a LEFT JOIN app.blobs b USING (sha256)
              WHERE a.run_id = $1 AND a.step_id = 'CompileST' AND a.kind = 'plan_card' AND a.sha256 = $2",
        )
        .bind(run.as_str())
        .bind(digest.as_str())
        .fetch_optional(self.pool())
        .await?)
    }

    /// What CompileST reads, in one statement: the run of a workflow, and what its plan is made of. `None` where no run
    /// has that workflow.
    pub async fn compile_context(
        self,
        workflow: &str,
    ) -> Result<Option<(RunContext, CompileContext)>> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "WITH run AS ({CONTEXT})
             SELECT run.*,
                    (SELECT coalesce(a.inline, convert_from(b.bytes, 'UTF8'))
                       FROM app.artifacts a LEFT JOIN app.blobs b USING (sha256)
                      WHERE a.run_id = run.id AND a.step_id = 'CompileST' AND a.kind = 'plan_card'
                      ORDER BY a.attempt LIMIT 1) AS plan,
                    {} AS recipe, {} AS config
               FROM run",
            recipes::version_json("run.tenant_id", "run.recipe_id", "NULL", "run.recipe_hash"),
            config::rows_json("$2", "run.tenant_id", "$3")
        )))
        .bind(workflow)
        .bind(config::host())
        .bind(config::known())
        .fetch_optional(self.pool())
        .await?;
        row.map(|row| {
            let given = CompileContext {
                plan: row.try_get("plan")?,
                recipe: recipes::version_of(row.try_get("recipe")?)?,
                config: config::rows_of(row.try_get("config")?)?,
            };
            Ok((context_of(&row)?, given))
        })
        .transpose()
    }

    /// A diagnosis beside a step: a blocked budget, a recipe that does not compile.
    pub async fn diagnostic(
        self,
        run: &RunId,
        step: &str,
        key: &TaskKey,
        text: &str,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
             SELECT $1, $2, $3, 1, 0, 'json_diagnostic', 'diagnostic.json',
                    'artifact://run/' || $1 || '/step/' || $2 || '/task/' || $3 || '/diagnostic.json',
                    $4, encode(sha256(convert_to($4, 'UTF8')), 'hex'), octet_length($4), 'engine-dbos'
             ON CONFLICT DO NOTHING",
        )
        .bind(run.as_str())
        .bind(step)
        .bind(key.as_str())
        .bind(text)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// A run's steps and its tasks' attempts, in order.
    pub async fn list(self, run: &RunId) -> Result<Vec<StepRow>> {
        let rows = sqlx::query(
            "SELECT x.*, ARRAY(SELECT a.uri FROM app.artifacts a
                               WHERE a.run_id = $1 AND a.step_id = x.step_id AND a.attempt = x.attempt
                                 AND (x.task_key IS NULL OR a.task_key = x.task_key) ORDER BY a.idx) AS refs
               FROM (
             SELECT s.step_id, s.attempt, s.status, s.output, s.error, app.ms(s.finished_at) AS at,
                    NULL::text AS task_key, s.step_id AS name, NULL::text AS waits_for, NULL::text AS session,
                    (SELECT min(o.started_at_epoch_ms) FROM app.runs r
                       JOIN dbos.operation_outputs o ON o.workflow_uuid = r.workflow_id
                      WHERE r.id = $1 AND split_part(o.function_name, '#', 1) = s.step_id) AS started
               FROM app.run_steps s WHERE s.run_id = $1
             UNION ALL
             SELECT s.step_id, s.attempt,
                    CASE WHEN s.canceled THEN 'canceled' WHEN t.why IS NOT NULL THEN 'queued' WHEN s.err_code IS NULL THEN 'running'
                         WHEN s.err_code = 'NONE' THEN 'ok' ELSE 'failed' END,
                    jsonb_build_object('errCode', s.err_code, 'exit', s.response->'exit', 'metrics', s.metrics,
                                       'sandboxRef', s.response->'sandboxRef', 'effective', s.effective,
                                       'limitsReached', coalesce(s.response->'limitsReached', '[]'),
                                       'cache', s.response->'cache')
                      || jsonb_strip_nulls(jsonb_build_object('droppedBytes', s.response->'droppedBytes',
                                         'unmatched', s.response->'unmatched', 'omitted', s.response->'omitted',
                                         'services', nullif(s.response->'services', '[]'))),
                    s.response->>'cause', app.ms(coalesce(s.finished_at, s.created_at)), s.task_key, s.task_name, coalesce(p.why, t.why),
                    CASE WHEN s.response IS NULL AND t.why IS NULL THEN
                      (SELECT x.state FROM app.remote_execution_sessions x
                        WHERE x.task_key = s.task_key AND x.ended_at IS NULL ORDER BY x.execution_no DESC LIMIT 1) END,
                    (SELECT app.ms(min(e.started_at)) FROM app.sbx_executions e WHERE e.task_key = s.task_key)
               FROM app.sbx_runs s LEFT JOIN LATERAL (SELECT app.task_waits_for(s.task_key) AS why) t ON s.response IS NULL
                    LEFT JOIN app.task_places($1) p ON p.task_key = s.task_key
              WHERE s.run_id = $1
             UNION ALL
             SELECT * FROM app.graph_tasks_left($1)) x
             ORDER BY x.at, x.step_id, x.attempt LIMIT 20000",
        )
        .bind(run.as_str())
        .fetch_all(self.pool())
        .await?;
        load_all("run_steps", &rows, |row| {
            let session: Option<String> = row.try_get("session")?;
            let phase = session.as_deref().and_then(SessionState::parse).and_then(TaskPhase::of);
            Ok(json!({
                "stepId": row.try_get::<String, _>("step_id")?,
                "stepID": row.try_get::<String, _>("step_id")?,
                "name": row.try_get::<String, _>("name")?,
                "startedAt": row.try_get::<Option<i64>, _>("started")?,
                "phase": phase,
                "waitsFor": row.try_get::<Option<String>, _>("waits_for")?,
                "artifactRefs": row.try_get::<Vec<String>, _>("refs")?,
                "attempt": row.try_get::<i32, _>("attempt")?,
                "status": row.try_get::<String, _>("status")?,
                "output": row.try_get::<Option<Value>, _>("output")?,
                "error": row.try_get::<Option<String>, _>("error")?,
                "at": row.try_get::<i64, _>("at")?,
                "taskKey": row.try_get::<Option<String>, _>("task_key")?,
            }))
        })
    }
}

/// One statement. An attempt beyond the first is an edited plan.
pub(crate) async fn compiled_insert(
    conn: &mut sqlx::PgConnection,
    c: &CompileRecord<'_>,
) -> Result<()> {
    sqlx::query(
            "WITH st AS (
               INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin)
               VALUES ($1, 'CompileST', $7, 'ok', $2, 'engine-dbos') ON CONFLICT DO NOTHING),
             b AS (
               INSERT INTO app.blobs (sha256, bytes) SELECT $3, convert_to($4, 'UTF8')
                WHERE octet_length($4) > 8192 ON CONFLICT DO NOTHING),
             a AS (
               INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
               VALUES ($1, 'CompileST', $5, $7, 0, 'plan_card', 'plan.json', $6,
                       CASE WHEN octet_length($4) <= 8192 THEN $4 END, $3, octet_length($4), 'engine-dbos')
               ON CONFLICT DO NOTHING)
             UPDATE app.runs SET plan_digest = $3, last_step = 'CompileST',
                    status = CASE status WHEN 'queued' THEN 'running' ELSE status END WHERE id = $1",
        )
        .bind(c.run.as_str())
        .bind(&c.output)
        .bind(c.digest.as_str())
        .bind(c.plan)
        .bind(c.task_key.as_str())
        .bind(c.uri)
        .bind(i32::try_from(c.attempt).unwrap_or(i32::MAX))
        .execute(conn)
        .await?;
    Ok(())
}
