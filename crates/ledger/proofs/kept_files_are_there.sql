-- Claim: the file of everything that is kept was found at its place at the last look
-- A row means: a snapshot, a paused sandbox, a template or an archive cannot be opened, since its file is missing
SELECT s.run_id, s.tenant_id, s.id, s.kind, s.place, s.missing_at
  FROM app.snapshots s
 WHERE s.missing_at IS NOT NULL AND s.erased_at IS NULL
UNION ALL
SELECT NULL, f.tenant_id, f.id, 'archive', f.place, f.missing_at
  FROM app.template_files f
 WHERE f.missing_at IS NOT NULL AND f.erased_at IS NULL;
