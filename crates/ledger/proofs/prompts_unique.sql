-- Claim: a prompt is emitted once
-- A row means: a gate has a phantom prompt
SELECT r.id AS run_id, h.workflow_uuid, h.key, count(*)
  FROM dbos.workflow_events_history h
  JOIN app.runs r ON r.workflow_id = h.workflow_uuid
 WHERE h.key LIKE 'ui:%'
   AND h.key NOT LIKE '%:result'
   AND h.key NOT LIKE '%:audit'
 GROUP BY r.id, h.workflow_uuid, h.key
HAVING count(*) > 1;
