-- Claim: a run with a sandbox has its egress policy of each phase on record
-- A row means: a run is over whose sandboxes had no recorded egress policy
SELECT r.id AS run_id, f.phase
  FROM app.runs r
 CROSS JOIN (VALUES ('build'), ('exec')) AS f(phase)
 WHERE app.is_over(r.status)
   AND EXISTS (SELECT 1 FROM app.remote_execution_sessions s WHERE s.run_id = r.id)
   AND NOT EXISTS (
       SELECT 1 FROM app.egress_policy_snapshots e WHERE e.run_id = r.id AND e.phase = f.phase);
