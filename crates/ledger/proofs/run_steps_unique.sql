-- Claim: a step's attempt is recorded once
-- A row means: a step attempt has two rows
SELECT run_id, step_id, attempt, count(*)
  FROM app.run_steps
 GROUP BY run_id, step_id, attempt
HAVING count(*) > 1;
