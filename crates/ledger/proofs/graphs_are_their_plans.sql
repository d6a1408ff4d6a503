-- Claim: a run waits as its plan says: its task groups, what they need and whose tasks they are, are the plan's
-- A row means: a group, a need or a task's group was added, exchanged or taken away
WITH cards AS (
  SELECT DISTINCT r.id AS run_id, t.text
    FROM app.runs r
    JOIN app.artifacts a ON a.run_id = r.id AND a.kind = 'plan_card' AND a.sha256 = r.plan_digest
    LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
   CROSS JOIN LATERAL (SELECT coalesce(a.inline, convert_from(b.bytes, 'UTF8')) AS text) t
   -- Most plans have none, and are not parsed.
   WHERE strpos(t.text, '"graph":') > 0
     AND EXISTS (SELECT FROM app.sbx_runs s WHERE s.run_id = r.id)),
graphs AS (SELECT run_id, text::jsonb AS plan FROM cards WHERE text::jsonb ? 'graph'),
planned AS (
  SELECT g.run_id, x.value->>'name' AS name, coalesce(x.value->'needs', '[]') AS needs, x.value ? 'fanout' AS is_late,
         x.value->'gate' AS gate
    FROM graphs g CROSS JOIN LATERAL jsonb_array_elements(g.plan #> '{graph,groups}') x),
members AS (
  SELECT g.run_id, x.value->>'name' AS name, x.value->>'group' AS group_name
    FROM graphs g CROSS JOIN LATERAL jsonb_array_elements(g.plan->'tasks') x)
SELECT coalesce(g.run_id, p.run_id) AS run_id, coalesce(g.name, p.name) AS task_group, p.needs AS planned, g.needs AS found
  FROM (SELECT g.* FROM app.graph_groups g WHERE NOT app.is_erased(g.run_id, 'prompt')) g
  FULL JOIN planned p ON p.run_id = g.run_id AND p.name = g.name
 WHERE g.name IS NULL OR p.name IS NULL OR p.needs <> to_jsonb(g.needs) OR p.is_late <> g.is_late
    OR (p.gate IS NOT NULL) <> g.is_gated
 UNION ALL
-- A gate has the rules that the plan says.
SELECT e.run_id, e.group_name, p.gate, ARRAY[h.spec::text]
  FROM app.graph_gates e
  JOIN planned p ON p.run_id = e.run_id AND p.name = e.group_name
  LEFT JOIN app.human_gates h ON h.run_id = e.run_id AND h.gate_key = e.gate_key
 WHERE h.spec IS DISTINCT FROM p.gate
 UNION ALL
SELECT coalesce(t.run_id, m.run_id), coalesce(t.name, m.name), to_jsonb(m.group_name), ARRAY[t.group_name]
  FROM (SELECT t.* FROM app.graph_tasks t
          JOIN app.graph_groups g ON g.run_id = t.run_id AND g.name = t.group_name
         WHERE NOT g.is_late AND NOT app.is_erased(g.run_id, 'prompt')) t
  FULL JOIN members m ON m.run_id = t.run_id AND m.name = t.name
 WHERE t.name IS NULL OR m.name IS NULL OR t.group_name <> m.group_name
 UNION ALL
SELECT s.run_id, s.step_id, NULL, NULL
  FROM app.sbx_runs s
 WHERE EXISTS (SELECT FROM app.graph_groups g WHERE g.run_id = s.run_id)
   AND NOT EXISTS (SELECT FROM app.graph_tasks t WHERE t.run_id = s.run_id AND t.step_id = s.step_id)
 UNION ALL
-- The plan is erased: what it said is the digest that its erasure took down.
SELECT e.run_id, 'erased', to_jsonb(e.graph_digest), ARRAY[app.graph_digest(e.run_id)]
  FROM app.erasures e
 WHERE e.content = 'prompt'
   AND e.graph_digest IS DISTINCT FROM
       CASE WHEN EXISTS (SELECT FROM app.graph_groups g WHERE g.run_id = e.run_id) THEN app.graph_digest(e.run_id) END;
