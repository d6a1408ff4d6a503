-- Claim: one effect, one key
-- A row means: a task key stands for two effects
SELECT s.run_id, s.task_key, count(*)
  FROM app.sbx_runs s
  JOIN app.sbx_runs same ON same.task_key = s.task_key
 GROUP BY s.run_id, s.task_key
HAVING count(*) > 1;
