-- Claim: no task of a graph started before each task group that it needs had ended, and no group ended before its tasks
-- A row means: a task began while one that it needs was open, or a group is called over whose task was not
SELECT t.run_id, t.step_id, s.task_key, n.name AS task_group, x.started_at AS at, e.ended_at
  FROM app.graph_tasks t
  JOIN app.graph_groups g ON g.run_id = t.run_id AND g.name = t.group_name
  JOIN app.sbx_runs s ON s.run_id = t.run_id AND s.step_id = t.step_id
  JOIN app.sbx_executions x ON x.task_key = s.task_key
 CROSS JOIN unnest(g.needs) AS n(name)
  -- The group's end in the life of the run that queued the attempt.
  LEFT JOIN app.graph_ends e ON e.run_id = t.run_id AND e.name = n.name
   AND e.life = (SELECT count(*) FROM app.run_retries r WHERE r.run_id = t.run_id AND r.created_at <= s.created_at)
 WHERE e.ended_at IS NULL OR e.ended_at > x.started_at
 UNION ALL
SELECT e.run_id, t.step_id, s.task_key, e.name, s.finished_at, e.ended_at
  FROM app.graph_ends e
  -- A fan-out may get its tasks in a later life.
  JOIN app.graph_tasks t ON t.run_id = e.run_id AND t.group_name = e.name AND t.created_at <= e.ended_at
  LEFT JOIN app.sbx_runs s ON s.run_id = t.run_id AND s.step_id = t.step_id
   AND e.life >= (SELECT count(*) FROM app.run_retries r WHERE r.run_id = t.run_id AND r.created_at <= s.created_at)
 WHERE CASE WHEN s.task_key IS NULL
            THEN NOT EXISTS (SELECT FROM app.graph_skips k
                              WHERE k.run_id = t.run_id AND k.step_id = t.step_id AND k.life = e.life)
            ELSE s.finished_at IS NULL OR s.finished_at > e.ended_at END;
