-- Claim: every decision acted on the reply that was recorded, and carries its hash
-- A row means: what the workflow acted on is not what was recorded
SELECT g.run_id, g.workflow_id, g.gate_key, i.payload_hash,
       e.value::jsonb ->> 'payloadHash' AS acted_on, i.payload,
       e.value::jsonb -> 'payload' AS acted_on_payload
  FROM app.human_gates g
  JOIN app.human_interactions i
    ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key AND i.outcome = 'accepted'
  JOIN dbos.workflow_events e
    ON e.workflow_uuid = g.workflow_id AND e.key = 'ui:' || g.gate_key || ':result'
 WHERE e.value::jsonb ->> 'payloadHash' IS DISTINCT FROM i.payload_hash
    OR (e.value::jsonb -> 'payload' IS DISTINCT FROM i.payload AND NOT app.is_erased(g.run_id, 'prompt'));
