-- Claim: a gate is decided once
-- A row means: a gate has two decisions
SELECT r.id AS run_id, e.workflow_uuid, e.key, count(*)
  FROM dbos.workflow_events e
  JOIN app.runs r ON r.workflow_id = e.workflow_uuid
 WHERE e.key LIKE 'decision:%'
 GROUP BY r.id, e.workflow_uuid, e.key
HAVING count(*) > 1;
