-- Claim: a task's key is the hash of its intent, run, step, attempt and request
-- A row means: what was run is not what the task's key was made of
SELECT s.run_id, s.task_key, s.step_id, s.attempt, h.key AS actual
  FROM app.sbx_runs s
  JOIN app.runs r ON r.id = s.run_id
 CROSS JOIN LATERAL (
       SELECT app.canonical_digest(jsonb_build_object(
                'intentId', r.intent_id, 'runId', s.run_id, 'stepId', s.step_id, 'attempt', s.attempt,
                'request', s.request)) AS key) h
 WHERE h.key <> s.task_key
   -- What was run is gone; its hash stays (content_is_gone_on_record).
   AND NOT (s.request ? 'erased' AND app.is_erased(s.run_id, 'prompt'));
