-- Claim: a running task used no name beyond its list that a person had not granted to that phase of it
-- A row means: a name was granted without a decision, or used without a grant
SELECT e.run_id, e.task_key, e.phase, e.name
  FROM app.egress_grants e
  LEFT JOIN app.human_interactions i ON i.id = e.interaction_id
  LEFT JOIN app.egress_asks a
         ON a.task_key = e.task_key AND a.phase = e.phase AND a.name = e.name
 WHERE i.id IS NULL
    OR i.outcome <> 'accepted'
    OR i.run_id <> e.run_id
    OR i.gate_key <> e.gate_key
    OR a.gate_key IS DISTINCT FROM e.gate_key
    OR a.run_id IS DISTINCT FROM e.run_id
    OR i.payload ->> 'choice' IS DISTINCT FROM 'yes'
    OR i.payload #>> '{grant,name}' IS DISTINCT FROM e.name
    OR (i.payload #>> '{grant,until}')::bigint IS DISTINCT FROM app.ms(e.until)
    OR e.created_at < i.created_at
    OR e.granted_by <> i.key_id
 UNION ALL
SELECT s.run_id, s.task_key, x ->> 'phase', x ->> 'name'
  FROM app.sbx_runs s
 CROSS JOIN LATERAL jsonb_array_elements(coalesce(s.effective -> 'granted', '[]')) x
  LEFT JOIN app.egress_grants e
         ON e.task_key = s.task_key AND e.phase = x ->> 'phase' AND e.name = x ->> 'name'
 WHERE e.task_key IS NULL
    OR app.ms(e.until) <> (x ->> 'until')::bigint
    OR e.gate_key <> x ->> 'gate'
    OR e.created_at > s.finished_at;
