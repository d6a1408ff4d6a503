-- Claim: the result of a task has the exit status, the error and the violations that its raw.json has
-- A row means: a result was changed after its task ended
SELECT s.run_id, s.task_key, s.response -> 'exit' AS exit, w.raw -> 'exit' AS raw_exit,
       s.response -> 'violations' AS violations, w.raw -> 'violations' AS raw_violations
  FROM app.sbx_runs s
  JOIN app.artifacts a ON a.task_key = s.task_key AND a.run_id = s.run_id AND a.kind = 'raw'
  LEFT JOIN app.blobs b ON b.sha256 = a.sha256 AND a.inline IS NULL
 CROSS JOIN LATERAL (
       SELECT CASE WHEN a.inline IS NOT NULL OR b.bytes IS NOT NULL
                   THEN coalesce(a.inline, convert_from(b.bytes, 'UTF8'))::jsonb END AS raw) w
 WHERE s.response IS NOT NULL
   AND w.raw IS NOT NULL
   AND ((s.response -> 'exit', s.response -> 'errCode', s.response -> 'violations')
          IS DISTINCT FROM (w.raw -> 'exit', w.raw -> 'errCode', w.raw -> 'violations')
        OR s.err_code IS DISTINCT FROM s.response ->> 'errCode');
