-- Claim: every physical start of a sandbox has its session
-- A row means: a sandbox was started off the record, or a start was erased
SELECT coalesce(s.run_id, x.run_id) AS run_id, coalesce(e.task_key, s.task_key) AS task_key,
       e.execution_no, e.sandbox_id AS started, s.sandbox_id AS session
  FROM app.sbx_executions e
  FULL JOIN app.remote_execution_sessions s ON s.sandbox_id = e.sandbox_id
  LEFT JOIN app.sbx_runs x ON x.task_key = e.task_key
 WHERE (e.sandbox_id IS NOT NULL OR s.sandbox_id IS NOT NULL)
   AND (s.sandbox_id IS NULL
     OR e.task_key IS NULL
     OR e.execution_no <> s.execution_no
     OR e.task_key <> s.task_key);
