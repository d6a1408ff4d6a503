-- Claim: a gate escalates once
-- A row means: a gate has two escalations
SELECT g.run_id, w.workflow_uuid, count(*)
  FROM dbos.workflow_status w
  JOIN app.human_gates g ON g.escalation_workflow_id = w.workflow_uuid
 WHERE w.workflow_uuid LIKE 'esc:%'
 GROUP BY g.run_id, w.workflow_uuid
HAVING count(*) > 1;
