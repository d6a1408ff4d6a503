-- Claim: a run that is not over is queued, delayed for a time to come, or in the hands of a live worker, and so is each of its tasks
-- A row means: a run or a task waits for nobody: it will never end
SELECT x.run_id, x.workflow, w.status AS engine, w.executor_id, e.state, e.heartbeat_at
  FROM (SELECT r.id AS run_id, r.workflow_id AS workflow
          FROM app.runs r
         WHERE NOT app.is_over(r.status)
         UNION ALL
        SELECT r.id, s.task_key
          FROM app.runs r
          JOIN app.sbx_runs s ON s.run_id = r.id
         WHERE NOT app.is_over(r.status) AND s.response IS NULL) x
  JOIN dbos.workflow_status w ON w.workflow_uuid = x.workflow
  LEFT JOIN app.executors e ON e.id = w.executor_id
 WHERE (w.status = 'PENDING'
        AND CASE WHEN e.id IS NULL
                 THEN w.updated_at < app.ms(clock_timestamp() - interval '1 minute')
                 ELSE coalesce(e.ended_at, e.heartbeat_at) < clock_timestamp() - interval '1 minute' END)
    OR (w.status = 'DELAYED'
        AND w.delay_until_epoch_ms < app.ms(clock_timestamp() - interval '1 minute'));
