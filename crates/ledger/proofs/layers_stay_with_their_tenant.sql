-- Claim: a layer of builds is whole, of its tenant, and used by builds of that tenant alone
-- A row means: a layer is of another tenant than its files, build or user, is kept for no build, or was used by a build that began before it
SELECT s.run_id, l.snapshot_id, l.build_id
  FROM app.template_layers l
  JOIN app.snapshots s ON s.id = l.snapshot_id
  JOIN app.template_builds b ON b.id = l.build_id
 WHERE l.tenant_id <> s.tenant_id OR l.tenant_id <> b.tenant_id OR s.kind NOT IN ('layer','template') OR s.sealed_at IS NULL
    OR s.live_id IS DISTINCT FROM b.live_id OR (s.kind = 'template' AND s.id IS DISTINCT FROM b.snapshot_id)
UNION ALL
SELECT s.run_id, s.id, NULL
  FROM app.snapshots s
 WHERE s.kind = 'layer' AND NOT EXISTS (SELECT 1 FROM app.template_layers l WHERE l.snapshot_id = s.id)
UNION ALL
SELECT v.run_id, b.layer_id, b.id
  FROM app.template_builds b
  LEFT JOIN app.live_sandboxes v ON v.id = b.live_id
  LEFT JOIN app.template_layers l ON l.snapshot_id = b.layer_id
 WHERE b.layer_id IS NOT NULL
   AND (l.snapshot_id IS NULL OR l.tenant_id <> b.tenant_id OR l.steps <> b.cached OR v.created_at < l.created_at);
