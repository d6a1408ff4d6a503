-- Claim: every artifact of a finished task has the digest and the mode that its task's index lists
-- A row means: an artifact was rewritten together with its digest, or its index was
SELECT a.run_id, a.task_key, a.uri, a.sha256, i.entry ->> 'sha256' AS listed
  FROM app.artifacts x
  LEFT JOIN app.blobs b ON b.sha256 = x.sha256 AND x.inline IS NULL
 CROSS JOIN LATERAL (
       SELECT CASE WHEN x.inline IS NOT NULL OR b.bytes IS NOT NULL
                   THEN coalesce(x.inline, convert_from(b.bytes, 'UTF8'))::jsonb -> 'items' END AS items) l
  JOIN app.artifacts a ON a.task_key = x.task_key AND a.run_id = x.run_id AND a.idx > 0
  LEFT JOIN LATERAL (SELECT e.entry FROM jsonb_array_elements(l.items) e(entry)
                      WHERE e.entry ->> 'uri' = a.uri) i ON true
 WHERE x.kind = 'artifact_index'
   AND x.idx = 0
   AND x.erased_in IS NULL
   AND (a.sha256, a.kind, a.mode) IS DISTINCT FROM (i.entry ->> 'sha256', i.entry ->> 'kind', i.entry ->> 'mode');
