-- Claim: every content that is absent was erased on record: by whom, when and why
-- A row means: bytes, a request, a result or a prompt is gone and no erasure of its run says so
SELECT a.run_id, 'artifact' AS what, a.uri AS id
  FROM app.artifacts a
  LEFT JOIN app.erasures e ON e.id = a.erased_in
 WHERE a.erased_in IS NOT NULL
   AND (e.run_id IS DISTINCT FROM a.run_id OR e.content <> app.content_of_step(a.step_id))
 UNION ALL
SELECT a.run_id, 'artifact without bytes', a.uri
  FROM app.artifacts a
 WHERE a.inline IS NULL AND a.erased_in IS NULL
   AND CASE WHEN a.object_id IS NULL THEN NOT EXISTS (SELECT FROM app.blobs b WHERE b.sha256 = a.sha256)
            ELSE EXISTS (SELECT FROM app.stored_objects o WHERE o.id = a.object_id AND o.erased_at IS NOT NULL) END
 UNION ALL
SELECT s.run_id, c.content, s.task_key
  FROM app.sbx_runs s CROSS JOIN LATERAL (VALUES ('prompt', s.request), ('output', s.response)) c(content, value)
 WHERE c.value ? 'erased' AND NOT app.is_erased(s.run_id, c.content)
 UNION ALL
SELECT s.run_id, 'step', s.step_id
  FROM app.run_steps s
 WHERE s.output ? 'erased' AND NOT app.is_erased(s.run_id, app.content_of_step(s.step_id))
 UNION ALL
SELECT r.id, 'intent', i.id
  FROM app.intents i JOIN app.runs r ON r.intent_id = i.id
 WHERE jsonb_typeof(i.inputs) <> 'object' AND NOT app.is_erased(r.id, 'prompt')
 UNION ALL
SELECT r.run_id, 'report', r.path
  FROM app.test_reports r
 WHERE r.report ? 'erased' AND NOT app.is_erased(r.run_id, 'output')
 UNION ALL
SELECT g.run_id, 'graph event', g.life || '/' || g.seq
  FROM app.graph_events g
 WHERE app.is_tombstone(g.event) AND NOT app.is_erased(g.run_id, 'output')
 UNION ALL
SELECT r.id, 'run', r.recipe_id
  FROM app.runs r
 WHERE r.erased_at IS NOT NULL AND NOT (app.is_erased(r.id, 'prompt') AND app.is_erased(r.id, 'output'));
