-- Claim: every execution of a task was given of each host directory the content that its intent bound, which is the one that its plan names
-- A row means: a task saw another content, or one that is not on record
SELECT s.run_id, s.task_key, b.source, b.sha256 AS planned, i.sha256 AS bound, t.execution_no, t.sha256 AS given
  FROM app.sbx_runs s
  JOIN app.runs r ON r.id = s.run_id
 CROSS JOIN LATERAL app.bound_sources(s.request) b
  LEFT JOIN app.intent_trees i ON i.intent_id = r.intent_id AND i.source = b.source
  LEFT JOIN app.task_trees t ON t.task_key = s.task_key AND t.source = b.source
 WHERE i.sha256 IS DISTINCT FROM b.sha256
    OR t.sha256 <> b.sha256
    -- What was given is on record before its sandbox is made.
    OR (s.err_code = 'NONE' AND NOT EXISTS (
         SELECT FROM app.task_trees x
          WHERE x.task_key = s.task_key AND x.source = b.source
            AND x.execution_no = (SELECT max(e.execution_no) FROM app.sbx_executions e WHERE e.task_key = s.task_key)))
 UNION ALL
-- Content that no plan names.
SELECT s.run_id, t.task_key, t.source, NULL, NULL, t.execution_no, t.sha256
  FROM app.task_trees t
  JOIN app.sbx_runs s ON s.task_key = t.task_key
 WHERE NOT EXISTS (SELECT FROM app.bound_sources(s.request) b WHERE b.source = t.source)
 UNION ALL
-- What should have been bound, and was given as it was then.
SELECT s.run_id, s.task_key, u.source, NULL, NULL, NULL, NULL
  FROM app.sbx_runs s
 CROSS JOIN LATERAL app.unbound_sources(s.request) u
 WHERE s.err_code IN ('NONE', 'CMD_NONZERO', 'OOM') AND app.binds_trees(s.run_id);
