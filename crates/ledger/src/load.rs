//! What waits, and what gets done: reads for whoever watches a tenant's work.

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::ops::{QueueDepth, Throughput};
use sqlx::Row;

use crate::error::Result;
use crate::families::Queues;

impl Queues<'_> {
    /// A tenant's work by queue, also where there is none.
    pub async fn depth(self, tenant: &TenantId) -> Result<Vec<QueueDepth>> {
        let rows = sqlx::query(
            "WITH mine AS (
               SELECT w.queue_name, w.status, w.created_at FROM dbos.workflow_status w
                 JOIN app.runs r ON r.workflow_id = w.workflow_uuid
                WHERE r.tenant_id = $1 AND w.status IN ('ENQUEUED','DELAYED','PENDING')
               UNION ALL
               SELECT w.queue_name, w.status, w.created_at FROM dbos.workflow_status w
                 JOIN app.sbx_runs s ON s.task_key = w.workflow_uuid JOIN app.runs r ON r.id = s.run_id
                WHERE r.tenant_id = $1 AND w.status IN ('ENQUEUED','DELAYED','PENDING')
               UNION ALL
               SELECT w.queue_name, w.status, w.created_at FROM dbos.workflow_status w
                 JOIN app.human_gates g ON g.escalation_workflow_id = w.workflow_uuid
                WHERE g.tenant_id = $1 AND w.status IN ('ENQUEUED','DELAYED','PENDING'))
             SELECT q.name, count(m.status) FILTER (WHERE m.status <> 'PENDING') AS enqueued,
                    count(m.status) FILTER (WHERE m.status = 'PENDING') AS pending,
                    app.ms(clock_timestamp()) - min(m.created_at) FILTER (WHERE m.status <> 'PENDING') AS oldest
               FROM dbos.queues q LEFT JOIN mine m ON m.queue_name = q.name
              WHERE q.name IN ('intentQ','sbxQ','controlQ') GROUP BY q.name ORDER BY q.name",
        )
        .bind(tenant.as_str())
        .fetch_all(self.pool())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(QueueDepth {
                    queue_name: row.try_get("name")?,
                    enqueued: row.try_get("enqueued")?,
                    pending: row.try_get("pending")?,
                    oldest_age_ms: row.try_get::<Option<i64>, _>("oldest")?.map(|ms| ms.max(0)),
                })
            })
            .collect()
    }

    /// What of a tenant's work began and ended in the last seconds.
    pub async fn throughput(self, tenant: &TenantId, window_s: i64) -> Result<Throughput> {
        let row = sqlx::query(
            "WITH w AS (SELECT clock_timestamp() - make_interval(secs => $2) AS since)
             SELECT (SELECT count(*) FROM app.runs r, w WHERE r.tenant_id = $1 AND r.created_at > w.since) AS started,
                    f.finished, f.succeeded,
                    (SELECT count(*) FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id, w
                      WHERE r.tenant_id = $1 AND s.finished_at > w.since) AS tasks
               FROM (SELECT count(*) AS finished, count(*) FILTER (WHERE r.status = 'succeeded') AS succeeded
                       FROM app.runs r, w WHERE r.tenant_id = $1 AND r.finished_at > w.since) f",
        )
        .bind(tenant.as_str())
        .bind(f64::from(u32::try_from(window_s).unwrap_or(u32::MAX)))
        .fetch_one(self.pool())
        .await?;
        Ok(Throughput {
            window_s,
            runs_started: row.try_get("started")?,
            runs_finished: row.try_get("finished")?,
            runs_succeeded: row.try_get("succeeded")?,
            tasks_finished: row.try_get("tasks")?,
        })
    }
}
