-- Claim: every task attempt is a workflow of the engine, and a finished workflow has its result
-- A row means: the engine and the ledger disagree about a task
SELECT s.run_id, s.task_key, w.status, s.err_code
  FROM app.sbx_runs s
  LEFT JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key
 WHERE w.workflow_uuid IS NULL
    OR (w.status IN ('SUCCESS','ERROR','MAX_RECOVERY_ATTEMPTS_EXCEEDED') AND s.response IS NULL);
