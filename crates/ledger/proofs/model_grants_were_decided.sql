-- Claim: a sandbox's budget of models grew only by what a person granted
-- A row means: more of a budget was granted without a decision, or counted without a grant
SELECT e.run_id, e.task_key, e.gate_key
  FROM app.model_grants e
  LEFT JOIN app.human_interactions i ON i.id = e.interaction_id
  LEFT JOIN app.model_asks a ON a.task_key = e.task_key AND a.n = e.n
 WHERE i.id IS NULL
    OR i.outcome <> 'accepted'
    OR i.run_id <> e.run_id
    OR i.gate_key <> e.gate_key
    OR a.gate_key IS DISTINCT FROM e.gate_key
    OR i.payload ->> 'choice' IS DISTINCT FROM 'yes'
    OR coalesce((i.payload #>> '{grant,calls}')::bigint, 0) <> e.calls
    OR coalesce((i.payload #>> '{grant,tokens}')::bigint, 0) <> e.tokens
    OR coalesce((i.payload #>> '{grant,micros}')::bigint, 0) <> e.micros
    OR e.granted_by <> i.key_id
 UNION ALL
SELECT c.run_id, c.task_key, c.op_key
  FROM app.model_calls c
  JOIN app.sbx_runs s ON s.task_key = c.task_key
 CROSS JOIN LATERAL (
       SELECT coalesce(s.request #> '{sandbox,spec,models,budget}', s.request #> '{agent,request,spec,models,budget}',
                       s.request #> '{opencode,request,spec,models,budget}') AS asked) q
 CROSS JOIN LATERAL (VALUES ('calls'), ('tokens'), ('micros')) m(metric)
 WHERE (c.limits #>> ARRAY['sandbox', m.metric])::numeric > (q.asked ->> m.metric)::numeric + (
       SELECT coalesce(sum(CASE m.metric WHEN 'calls' THEN g.calls WHEN 'tokens' THEN g.tokens ELSE g.micros END), 0)
         FROM app.model_grants g WHERE g.task_key = c.task_key AND g.created_at <= c.created_at);
