-- Claim: a run succeeded only if the last attempt of each of its tasks did
-- A row means: a run is called a success although a task failed or is missing
SELECT r.id AS run_id, l.step_id, l.err_code
  FROM app.runs r
  JOIN app.latest_sbx_runs l ON l.run_id = r.id
 WHERE r.status = 'succeeded'
   AND l.err_code IS DISTINCT FROM 'NONE'
 UNION ALL
SELECT r.id, 'ExecuteST', NULL
  FROM app.runs r
 WHERE r.status = 'succeeded'
   AND NOT EXISTS (
       SELECT 1 FROM app.run_steps s
        WHERE s.run_id = r.id AND s.step_id = 'ExecuteST' AND s.status = 'ok');
