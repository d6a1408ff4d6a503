-- Claim: a dispatch's sandbox_spec is the one that it was created with
-- A row means: what was asked for was changed afterwards
SELECT m.run_id, m.tenant_id, d.id, m.spec_hash, d.sandbox_spec
  FROM app.dispatches d
  LEFT JOIN app.dispatch_runs m ON m.dispatch_id = d.id
 WHERE m.dispatch_id IS NULL
    OR (d.sandbox_spec IS NULL) <> (m.spec_hash IS NULL)
    OR d.sandbox_spec IS DISTINCT FROM m.spec_canonical::jsonb
    OR encode(sha256(convert_to(m.spec_canonical, 'UTF8')), 'hex') IS DISTINCT FROM m.spec_hash;
