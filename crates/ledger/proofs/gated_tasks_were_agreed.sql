-- Claim: no task behind a gate of its graph started before that gate's yes, and a yes is bound to what the tasks before it left
-- A row means: a task started without a yes or before it, with files that were not agreed to, or a gate is bound to something else
WITH starts AS (
  SELECT t.run_id, t.group_name, t.step_id, s.task_key, s.request, x.started_at,
         (SELECT count(*) FROM app.run_retries r WHERE r.run_id = t.run_id AND r.created_at <= s.created_at) AS life
    FROM app.graph_groups g
    JOIN app.graph_tasks t ON t.run_id = g.run_id AND t.group_name = g.name
    JOIN app.sbx_runs s ON s.run_id = t.run_id AND s.step_id = t.step_id
    JOIN app.sbx_executions x ON x.task_key = s.task_key
   WHERE g.is_gated),
-- The last attempt of each task that a gate's group needs, when the gate was opened.
lasts AS (
  SELECT e.run_id, e.life, e.group_name, l.task_key, n.is_late
    FROM app.graph_gates e
    JOIN app.graph_groups g ON g.run_id = e.run_id AND g.name = e.group_name
    JOIN app.graph_groups n ON n.run_id = e.run_id AND n.name = ANY (g.needs)
    JOIN app.graph_tasks t ON t.run_id = e.run_id AND t.group_name = n.name
   CROSS JOIN LATERAL (
         SELECT s.task_key FROM app.sbx_runs s
          WHERE s.run_id = t.run_id AND s.step_id = t.step_id AND s.created_at <= e.created_at
          ORDER BY s.attempt DESC LIMIT 1) l
   WHERE NOT EXISTS (
         SELECT FROM app.graph_skips k WHERE k.run_id = t.run_id AND k.step_id = t.step_id AND k.life = e.life))
SELECT s.run_id, s.step_id, s.task_key, e.gate_key, s.started_at, a.created_at AS answered_at
  FROM starts s
  LEFT JOIN app.graph_gates e ON e.run_id = s.run_id AND e.life = s.life AND e.group_name = s.group_name
  LEFT JOIN app.graph_answers a ON a.run_id = e.run_id AND a.life = e.life AND a.group_name = e.group_name
  LEFT JOIN app.human_gates h ON h.run_id = e.run_id AND h.gate_key = e.gate_key
 WHERE a.choice IS DISTINCT FROM 'yes'
    OR a.created_at > s.started_at
    OR h.run_id IS NULL
    OR h.decided_at > a.created_at
    OR EXISTS (
       SELECT FROM jsonb_path_query(s.request, '$.sandbox.filesIn[*].uri') f(uri)
        CROSS JOIN LATERAL (SELECT substring(f.uri #>> '{}' FROM '^artifacts://.*?/task/([a-f0-9]{64})/') AS key) k
        WHERE k.key IS NOT NULL AND NOT k.key = ANY (e.task_keys))
 UNION ALL
SELECT a.run_id, a.group_name, NULL, e.gate_key, NULL, a.created_at
  FROM app.graph_answers a
  JOIN app.graph_gates e ON e.run_id = a.run_id AND e.life = a.life AND e.group_name = a.group_name
  JOIN app.human_gates h ON h.run_id = e.run_id AND h.gate_key = e.gate_key
 WHERE (a.choice = 'yes' AND NOT app.is_agreed(h))
    OR (a.choice = 'no' AND app.is_agreed(h))
 UNION ALL
SELECT e.run_id, e.group_name, NULL, e.gate_key, NULL, NULL
  FROM app.graph_gates e
 WHERE e.digest IS DISTINCT FROM app.graph_bound_digest(e.run_id, e.group_name, e.task_keys)
    OR EXISTS (
       SELECT FROM unnest(e.task_keys) k(key)
        WHERE NOT EXISTS (SELECT FROM lasts l WHERE (l.run_id, l.life, l.group_name, l.task_key) = (e.run_id, e.life, e.group_name, k.key)))
    -- Tasks that an earlier life's output made may be none of this life's.
    OR EXISTS (
       SELECT FROM lasts l
        WHERE (l.run_id, l.life, l.group_name) = (e.run_id, e.life, e.group_name) AND NOT l.is_late
          AND NOT l.task_key = ANY (e.task_keys));
