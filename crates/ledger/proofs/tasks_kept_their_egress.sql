-- Claim: every sandbox began with exactly what its run's egress policy of the phase says; app.live_networks has later changes
-- A row means: a task ran with another policy than the one on record, or the one on record was changed
SELECT s.run_id, s.task_key, f.phase, s.effective -> f.field AS ran_with, e.policy
  FROM app.sbx_runs s
 CROSS JOIN (VALUES ('build', 'buildNet'), ('exec', 'net')) AS f(phase, field)
  LEFT JOIN app.egress_policy_snapshots e ON e.run_id = s.run_id AND e.phase = f.phase
 WHERE s.effective IS NOT NULL
   AND (e.run_id IS NULL
     OR e.policy_digest <> app.policy_digest(e.policy)
     OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(e.policy) p
         WHERE p = coalesce(s.effective -> f.field, '"none"')));
