-- Claim: a finished task's index lists exactly its artifacts
-- A row means: an artifact was added to, or lost from, a finished task
SELECT s.run_id, s.task_key, f.artifacts, f.listed
  FROM app.sbx_runs s
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE a.idx > 0) AS artifacts,
              count(*) FILTER (WHERE a.idx = 0) AS indexes,
              max(CASE WHEN a.idx = 0 AND a.inline IS NOT NULL
                       THEN jsonb_array_length(a.inline::jsonb -> 'items') END) AS listed
         FROM app.artifacts a
        WHERE a.task_key = s.task_key) f
 WHERE s.response IS NOT NULL
   AND NOT (s.canceled AND s.response ->> 'sandboxRef' = '')
   -- An index that is too long to stand inline is a blob, whose bytes `artifact_bytes_match` compares.
   AND (f.indexes = 0 OR f.artifacts <> f.listed);
