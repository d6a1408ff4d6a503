-- Claim: a call of a model is on record once, in a session, and ends with it
-- A row means: a key stands for two calls, a call has no session, or one is on its way although its session is over
SELECT c.run_id, c.op_key, c.sandbox_id, c.n, c.outcome
  FROM app.model_calls c
  LEFT JOIN app.remote_execution_sessions s
         ON s.sandbox_id = c.sandbox_id AND s.task_key = c.task_key AND s.run_id = c.run_id AND s.tenant_id = c.tenant_id
 WHERE s.sandbox_id IS NULL
    OR (c.outcome IS NULL AND app.session_is_over(s.state))
    OR (SELECT count(*) FROM app.model_calls d
         WHERE d.op_key = c.op_key OR (d.sandbox_id = c.sandbox_id AND d.n = c.n)) > 1;
