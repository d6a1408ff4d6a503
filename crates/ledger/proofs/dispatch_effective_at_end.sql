-- Claim: a dispatch with a spec has an effective policy if and only if it is over
-- A row means: an end without what was enforced, or what was enforced before an end
SELECT m.run_id, m.tenant_id, d.id, d.status, d.sandbox_effective IS NOT NULL AS effective
  FROM app.dispatches d
  JOIN app.dispatch_runs m ON m.dispatch_id = d.id
 WHERE (d.sandbox_effective IS NOT NULL AND NOT app.dispatch_is_over(d.status))
    OR (m.run_id IS NOT NULL AND app.dispatch_is_over(d.status)
        AND (d.sandbox_effective IS NULL) <> (d.sandbox_spec IS NULL));
