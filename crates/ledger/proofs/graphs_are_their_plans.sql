-- Claim: a run waits as its plan says: its task groups and what they need are the plan's, and each of its tasks is in one
-- A row means: a group, a need or a task was added, exchanged or taken away
WITH planned AS (
  SELECT DISTINCT r.id AS run_id, x.value->>'name' AS name, coalesce(x.value->'needs', '[]') AS needs
    FROM app.runs r
    JOIN app.artifacts a ON a.run_id = r.id AND a.kind = 'plan_card' AND a.sha256 = r.plan_digest
    LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
   CROSS JOIN LATERAL jsonb_array_elements(coalesce(a.inline, convert_from(b.bytes, 'UTF8'))::jsonb #> '{graph,groups}') x
   WHERE EXISTS (SELECT FROM app.graph_groups g WHERE g.run_id = r.id))
SELECT coalesce(g.run_id, p.run_id) AS run_id, coalesce(g.name, p.name) AS task_group, p.needs AS planned, g.needs AS found
  FROM app.graph_groups g
  FULL JOIN planned p ON p.run_id = g.run_id AND p.name = g.name
 WHERE g.name IS NULL OR p.name IS NULL OR p.needs <> to_jsonb(g.needs)
 UNION ALL
SELECT s.run_id, s.step_id, NULL, NULL
  FROM app.sbx_runs s
 WHERE EXISTS (SELECT FROM app.graph_groups g WHERE g.run_id = s.run_id)
   AND NOT EXISTS (SELECT FROM app.graph_tasks t WHERE t.run_id = s.run_id AND t.step_id = s.step_id);
