-- Claim: a gate is escalated once, after its deadline, and by its own workflow
-- A row means: a gate was escalated early, twice, or without the workflow that does it
SELECT j.run_id, j.gate_key, j.created_at, g.escalated_at
  FROM app.gate_journal j
  JOIN app.human_gates g ON g.run_id = j.run_id AND g.gate_key = j.gate_key
 WHERE j.event = 'escalated'
   AND (g.escalated_at IS NULL
     OR j.created_at < g.escalated_at
     OR g.escalated_at < g.created_at + make_interval(secs => g.ttl_s)
     OR NOT EXISTS (
        SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = g.escalation_workflow_id));
