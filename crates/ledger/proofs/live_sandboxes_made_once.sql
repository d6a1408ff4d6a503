-- Claim: each life of a long-lived sandbox is made at most once, by its own run, and ends with it
-- A row means: a sandbox was made anew, is another run's, outlived its run, is paused without its files, or stayed paused after its kill
SELECT l.run_id, l.id, l.tenant_id
  FROM app.live_sandboxes l
  JOIN app.runs r ON r.id = l.run_id
 WHERE (SELECT count(*) FROM app.remote_execution_sessions s
         WHERE s.run_id = l.run_id AND s.attestation IS NOT NULL) > 1
    OR (l.sandbox_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM app.remote_execution_sessions s
         WHERE s.sandbox_id = l.sandbox_id AND s.run_id = l.run_id AND s.executor_id = l.executor_id))
    OR (l.ended_at IS NULL AND l.paused_at IS NULL AND app.is_over(r.status) AND NOT EXISTS (
        SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL))
    OR (l.ended_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL))
    OR (l.ended_at IS NULL AND l.paused_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM app.snapshots p
         WHERE p.id = l.snapshot_id AND p.tenant_id = l.tenant_id AND p.live_id = l.id AND p.erased_at IS NULL))
    OR (l.ended_at IS NULL AND l.ending_at IS NOT NULL AND l.paused_at IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL));
