-- Claim: every result comes from a recorded start
-- A row means: a task has a result although it was never started
SELECT s.run_id, s.task_key, s.err_code
  FROM app.sbx_runs s
 WHERE s.response IS NOT NULL
   AND NOT s.canceled
   AND NOT EXISTS (SELECT 1 FROM app.sbx_executions e WHERE e.task_key = s.task_key);
