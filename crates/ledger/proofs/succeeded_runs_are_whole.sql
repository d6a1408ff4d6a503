-- Claim: a run succeeded only if the last attempt of each of its tasks did, or it was skipped
-- A row means: a run is called a success although a task failed or is missing
SELECT r.id AS run_id, l.step_id, l.err_code
  FROM app.runs r
  JOIN app.latest_sbx_runs l ON l.run_id = r.id
 WHERE r.status = 'succeeded'
   AND l.err_code IS DISTINCT FROM 'NONE'
   -- One that failed before a retry, and that the retry had no use for.
   AND NOT EXISTS (
       SELECT 1 FROM app.graph_skips k
        WHERE k.run_id = r.id AND k.step_id = l.step_id
          AND k.life = (SELECT count(*) FROM app.run_retries t WHERE t.run_id = r.id))
 UNION ALL
SELECT r.id, 'ExecuteST:' || g.name, NULL
  FROM app.runs r
  JOIN app.graph_groups g ON g.run_id = r.id
 WHERE r.status = 'succeeded'
   AND NOT EXISTS (
       SELECT 1 FROM app.graph_ends e
        WHERE e.run_id = r.id AND e.name = g.name AND e.outcome <> 'failed'
          AND e.life = (SELECT count(*) FROM app.run_retries t WHERE t.run_id = r.id))
 UNION ALL
SELECT r.id, 'ExecuteST', NULL
  FROM app.runs r
 WHERE r.status = 'succeeded'
   AND NOT EXISTS (
       SELECT 1 FROM app.run_steps s
        WHERE s.run_id = r.id AND s.step_id = 'ExecuteST' AND s.status = 'ok');
