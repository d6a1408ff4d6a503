-- Claim: what was erased is nowhere: no row, no blob, no stream, no checkpoint of the engine has it
-- A row means: a content outlived its erasure
WITH flows AS (
  SELECT e.run_id, e.content, f.id
    FROM app.erasures e
    JOIN app.runs r ON r.id = e.run_id
   CROSS JOIN LATERAL (SELECT r.workflow_id AS id UNION ALL SELECT s.task_key FROM app.sbx_runs s WHERE s.run_id = r.id) f)
SELECT e.run_id, e.tenant_id, 'artifact' AS what, a.uri AS id
  FROM app.erasures e
  JOIN app.artifacts a ON a.run_id = e.run_id AND app.content_of_step(a.step_id) = e.content
 WHERE a.erased_in IS NULL
    -- The same bytes may be another run's, which still has them.
    OR EXISTS (SELECT FROM app.blobs b WHERE b.sha256 = a.sha256)
       AND NOT EXISTS (SELECT FROM app.artifacts o WHERE o.sha256 = a.sha256 AND o.inline IS NULL AND o.object_id IS NULL AND o.erased_in IS NULL)
 UNION ALL
SELECT e.run_id, e.tenant_id, 'object', o.id
  FROM app.erasures e
  JOIN app.artifacts a ON a.run_id = e.run_id AND app.content_of_step(a.step_id) = e.content
  JOIN app.stored_objects o ON o.id = a.object_id
 WHERE o.erased_at IS NULL
   AND NOT EXISTS (SELECT FROM app.artifacts x WHERE x.object_id = o.id AND x.erased_in IS NULL)
   -- A task that works may refer to it, and the next collection takes it otherwise.
   AND NOT app.object_is_wanted(o)
 UNION ALL
SELECT e.run_id, e.tenant_id, 'task', s.task_key
  FROM app.erasures e JOIN app.sbx_runs s ON s.run_id = e.run_id
 WHERE NOT CASE e.content WHEN 'prompt' THEN s.request ELSE coalesce(s.response, '{"erased":0}') END ? 'erased'
 UNION ALL
SELECT e.run_id, e.tenant_id, 'step', s.step_id
  FROM app.erasures e JOIN app.run_steps s ON s.run_id = e.run_id AND app.content_of_step(s.step_id) = e.content
 WHERE NOT s.output ? 'erased' OR s.error NOT LIKE 'erased sha256:%'
 UNION ALL
SELECT e.run_id, e.tenant_id, 'intent', i.id
  FROM app.erasures e JOIN app.runs r ON r.id = e.run_id JOIN app.intents i ON i.id = r.intent_id
 WHERE e.content = 'prompt'
   AND (jsonb_typeof(i.inputs) = 'object' OR i.goal NOT LIKE 'erased sha256:%')
   AND NOT EXISTS (SELECT FROM app.runs o WHERE o.intent_id = i.id AND NOT app.is_erased(o.id, 'prompt'))
 UNION ALL
SELECT f.run_id, NULL, 'stream', f.id FROM flows f
 WHERE f.content = 'output' AND EXISTS (SELECT FROM app.run_streams c WHERE c.run_id = f.id)
 UNION ALL
SELECT f.run_id, NULL, 'engine', f.id FROM flows f
 WHERE EXISTS (SELECT FROM dbos.operation_outputs o WHERE o.workflow_uuid = f.id)
    OR EXISTS (SELECT FROM dbos.notifications o WHERE o.destination_uuid = f.id)
    OR EXISTS (SELECT FROM dbos.streams o WHERE o.workflow_uuid = f.id)
    OR EXISTS (SELECT FROM dbos.workflow_status w
                WHERE w.workflow_uuid = f.id AND (w.inputs <> 'null' OR w.output <> 'null' OR w.error <> 'null'))
    OR f.content = 'prompt' AND EXISTS (SELECT FROM dbos.workflow_events v
                WHERE v.workflow_uuid = f.id AND v.key NOT LIKE 'ui:%:audit' AND NOT v.value::jsonb ? 'erased')
    OR f.content = 'prompt' AND EXISTS (SELECT FROM dbos.workflow_events_history v
                WHERE v.workflow_uuid = f.id AND v.key NOT LIKE 'ui:%:audit' AND NOT v.value::jsonb ? 'erased')
 UNION ALL
SELECT e.run_id, e.tenant_id, 'gate', x.id
  FROM app.erasures e
 CROSS JOIN LATERAL (
       SELECT g.gate_key AS id FROM app.human_gates g
        WHERE g.run_id = e.run_id AND (NOT g.form ? 'erased' OR NOT app.is_tombstone(g.parts) OR NOT app.is_tombstone(g.inputs))
       UNION ALL SELECT i.gate_key FROM app.human_interactions i WHERE i.run_id = e.run_id AND NOT i.payload ? 'erased'
       UNION ALL SELECT d.gate_key FROM app.gate_edits d WHERE d.run_id = e.run_id AND NOT app.is_tombstone(d.value)
       UNION ALL SELECT v.round::text FROM app.plan_consents_void v WHERE v.run_id = e.run_id AND NOT app.is_tombstone(v.difference)
       UNION ALL SELECT p.round::text FROM app.plan_approvals p WHERE p.run_id = e.run_id AND NOT app.is_tombstone(p.parts)) x
 WHERE e.content = 'prompt'
 UNION ALL
SELECT e.run_id, e.tenant_id, 'call of a model', c.op_key
  FROM app.erasures e JOIN app.opencode_calls c ON c.run_id = e.run_id
 WHERE CASE e.content WHEN 'prompt' THEN NOT c.request ? 'erased' OR c.prompt NOT LIKE 'erased sha256:%'
                      ELSE NOT c.response ? 'erased' OR c.raw NOT LIKE 'erased sha256:%' OR NOT app.is_tombstone(c.structured)
                        OR NOT app.is_tombstone(c.tool_calls) OR c.error NOT LIKE 'erased sha256:%' END
 UNION ALL
SELECT e.run_id, e.tenant_id, 'body of a model', c.op_key
  FROM app.erasures e
  JOIN app.model_calls c ON c.run_id = e.run_id
  LEFT JOIN app.model_bodies b ON b.op_key = c.op_key AND (b.side = 'request') = (e.content = 'prompt')
  LEFT JOIN app.prompt_answers a ON a.call_key = c.op_key AND e.content = 'output'
 WHERE b.body NOT LIKE 'erased sha256:%' OR substring(a.body FROM 1 FOR 14) <> 'erased sha256:'::bytea
 UNION ALL
SELECT e.run_id, e.tenant_id, x.what, x.id
  FROM app.erasures e
 CROSS JOIN LATERAL (
       SELECT 'report' AS what, t.path AS id FROM app.test_reports t WHERE t.run_id = e.run_id AND NOT t.report ? 'erased'
       UNION ALL SELECT 'graph', g.seq::text FROM app.graph_events g WHERE g.run_id = e.run_id AND NOT app.is_tombstone(g.event)
       UNION ALL SELECT 'graph', k.step_id FROM app.graph_skips k WHERE k.run_id = e.run_id AND k.detail NOT LIKE 'erased sha256:%'
       UNION ALL SELECT 'graph', n.name FROM app.graph_ends n WHERE n.run_id = e.run_id AND n.detail NOT LIKE 'erased sha256:%'
       UNION ALL SELECT 'run', r.recipe_id FROM app.runs r WHERE r.id = e.run_id AND r.error NOT LIKE 'erased sha256:%'
       UNION ALL SELECT 'live sandbox', l.id FROM app.live_sandboxes l
        WHERE l.run_id = e.run_id AND (l.program_failed NOT LIKE 'erased sha256:%' OR l.end_reason NOT LIKE 'erased sha256:%')
       UNION ALL SELECT 'template', b.id FROM app.live_sandboxes l JOIN app.template_builds b ON b.live_id = l.id
        WHERE l.run_id = e.run_id AND (b.reason NOT LIKE 'erased sha256:%'
              OR EXISTS (SELECT FROM app.template_logs t WHERE t.build_id = b.id AND t.message NOT LIKE 'erased sha256:%'))
       UNION ALL SELECT 'call of a model', c.op_key FROM app.model_calls c WHERE c.run_id = e.run_id AND c.why NOT LIKE 'erased sha256:%') x
 WHERE e.content = 'output'
 UNION ALL
SELECT e.run_id, e.tenant_id, 'dispatch', m.dispatch_id
  FROM app.erasures e JOIN app.dispatch_runs m ON m.run_id = e.run_id
 WHERE e.content = 'prompt' AND NOT m.request ? 'erased'
 UNION ALL
SELECT e.run_id, e.tenant_id, 'live sandbox', l.id
  FROM app.erasures e JOIN app.live_sandboxes l ON l.run_id = e.run_id
 WHERE e.content = 'prompt' AND NOT l.metadata ? 'erased'
 UNION ALL
SELECT NULL, e.tenant_id, 'secret', e.secret
  FROM app.erasures e
  JOIN app.secrets s ON s.tenant_id = e.tenant_id AND s.name = e.secret AND s.version <= (e.removed ->> 'version')::integer
 WHERE e.content = 'secret' AND s.sealed IS NOT NULL;
