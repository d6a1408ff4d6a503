-- Claim: a gate is decided by its quorum or its veto, by people who may, and silence decides as the recipe says
-- A row means: a gate was decided by too few, by its own submitter, or against its recipe
SELECT g.run_id, g.gate_key, d.decision, c.yes, c.no, g.spec
  FROM app.human_gates g
  JOIN app.runs r ON r.id = g.run_id
  JOIN app.intents n ON n.id = r.intent_id
  JOIN dbos.workflow_events e
    ON e.workflow_uuid = g.workflow_id AND e.key = 'decision:' || g.gate_key
 CROSS JOIN LATERAL (SELECT e.value::jsonb ->> 'decision' AS decision) d
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE v.choice = 'yes') AS yes,
              count(*) FILTER (WHERE v.choice = 'no') AS no,
              bool_or(v.voter IN (r.key_id, n.key_id) OR v.authority IN (r.key_id, n.key_id)) AS own
         FROM app.gate_votes v
        WHERE v.run_id = g.run_id AND v.gate_key = g.gate_key) c
 CROSS JOIN LATERAL (
       SELECT CASE jsonb_typeof(g.spec) WHEN 'object' THEN g.spec ELSE '{}'::jsonb END AS law) s
 CROSS JOIN LATERAL (
       SELECT coalesce((s.law ->> 'quorum')::int, 1) AS quorum,
              coalesce((s.law ->> 'veto')::boolean, true) AS veto) q
 WHERE (g.state = 'timed_out'
        AND (d.decision = 'yes')
            IS DISTINCT FROM (coalesce(s.law -> 'on_timeout' ->> 'then', 'deny') = 'approve'))
    OR (g.state IN ('received','resolved') AND d.decision = 'yes'
        AND (c.yes < q.quorum OR (c.no > 0 AND q.veto)))
    OR (g.state IN ('received','resolved') AND d.decision = 'no'
        AND c.no < CASE WHEN q.veto THEN 1 ELSE q.quorum END)
    OR (s.law ->> 'self_approval' = 'deny' AND c.own);
