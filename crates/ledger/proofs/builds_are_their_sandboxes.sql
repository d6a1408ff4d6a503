-- Claim: a build of a template lasts no longer than its sandbox, and what a tag names is ready and has that sandbox's files
-- A row means: a build is under way that nothing runs, a build has files of another sandbox or tenant, or a template has none
SELECT l.run_id, b.id, b.template_id
  FROM app.template_builds b
  LEFT JOIN app.live_sandboxes l ON l.id = b.live_id
  LEFT JOIN app.snapshots s ON s.id = b.snapshot_id
 WHERE l.tenant_id <> b.tenant_id
    OR (b.status = 'building' AND (l.id IS NULL OR l.ended_at IS NOT NULL))
    OR (b.status = 'ready' AND (s.id IS NULL OR s.kind <> 'template' OR s.live_id <> b.live_id OR s.tenant_id <> b.tenant_id))
    OR (EXISTS (SELECT 1 FROM app.template_tags g JOIN app.templates t ON t.id = g.template_id AND t.deleted_at IS NULL
                 WHERE g.build_id = b.id)
        AND (b.status <> 'ready' OR s.erased_at IS NOT NULL))
UNION ALL
SELECT s.run_id, NULL, s.id
  FROM app.snapshots s
 WHERE s.kind = 'template' AND NOT EXISTS (SELECT 1 FROM app.template_builds b WHERE b.snapshot_id = s.id);
