-- Claim: a layer that outlived its sandbox is on record with the snapshot of its pause, which is sealed or erased within ten minutes, and ended within an hour after
-- A row means: files of a tenant stay in memory unsealed, or nothing says what became of them
SELECT w.run_id, w.sandbox_id, p.id
  FROM (SELECT e.run_id, e.sandbox_id, c ->> 'subject' AS layer
          FROM app.secure_wipe_evidence e, jsonb_array_elements(e.evidence -> 'checks') c
         WHERE e.method = 'layer-kept' AND c ->> 'kind' = 'layer') w
  LEFT JOIN app.snapshots p ON w.layer LIKE p.plain || ' %'
 WHERE p.id IS NULL
UNION ALL
SELECT p.run_id, NULL, p.id
  FROM app.snapshots p
 WHERE p.sealed_at IS NULL AND p.erased_at IS NULL AND p.created_at < clock_timestamp() - interval '10 minutes'
UNION ALL
SELECT p.run_id, NULL, p.id
  FROM app.snapshots p
 WHERE p.plain IS NOT NULL AND p.plain_ended_at IS NULL AND p.erased_at IS NULL AND p.sealed_at < clock_timestamp() - interval '70 minutes'
UNION ALL
SELECT p.run_id, NULL, p.id
  FROM app.snapshots p
 WHERE p.plain IS NOT NULL AND p.plain_ended_at IS NULL AND p.gone_at IS NOT NULL;
