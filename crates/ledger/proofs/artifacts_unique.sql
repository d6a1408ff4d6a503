-- Claim: an artifact's place is taken once
-- A row means: two artifacts stand at one place
SELECT run_id, step_id, task_key, attempt, idx, count(*)
  FROM app.artifacts
 GROUP BY run_id, step_id, task_key, attempt, idx
HAVING count(*) > 1;
