-- Claim: what webhooks are told happened, to their own tenant, and is what they asked for
-- A row means: a delivery tells of something that did not happen, or tells it to the wrong one
SELECT d.run_id, w.tenant_id, d.id, d.event_type, d.gate_key
  FROM app.webhook_deliveries d
  LEFT JOIN app.webhooks w ON w.id = d.webhook_id
  LEFT JOIN app.runs r ON r.id = d.run_id
  LEFT JOIN app.human_gates g
         ON g.run_id = d.run_id AND g.gate_key = d.gate_key AND g.topic = d.topic
 WHERE w.id IS NULL
    OR r.id IS NULL
    OR r.tenant_id <> w.tenant_id
    OR NOT d.event_type = ANY (w.events)
    OR (d.gate_key IS NULL) <> (d.event_type = 'run.terminal')
    OR (d.event_type LIKE 'gate.%' AND (g.run_id IS NULL OR d.occurred_at < g.created_at))
    OR (d.event_type = 'gate.decided' AND NOT EXISTS (
        SELECT 1 FROM app.human_interactions i
         WHERE i.run_id = d.run_id AND i.gate_key = d.gate_key AND i.outcome = 'accepted'))
    OR (d.event_type IN ('gate.timed_out','gate.escalated') AND g.escalation_workflow_id IS NULL)
    -- A run that was resumed or retried has ended before, although it may be open now.
    OR (d.event_type = 'run.terminal' AND r.finished_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM app.audit a
         WHERE a.op IN ('resume','retry') AND a.target = r.workflow_id));
