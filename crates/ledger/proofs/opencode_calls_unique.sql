-- Claim: a provider operation is recorded once
-- A row means: an operation key stands for two calls
SELECT c.run_id, c.op_key, count(*)
  FROM app.opencode_calls c
  JOIN app.opencode_calls same ON same.op_key = c.op_key
 GROUP BY c.run_id, c.op_key
HAVING count(*) > 1;
