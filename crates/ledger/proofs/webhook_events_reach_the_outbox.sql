-- Claim: every gate that opened and every run that ended while a webhook asked for it has its delivery
-- A row means: something happened and a webhook was never told
SELECT e.run_id, w.id, e.type, e.gate_key
  FROM app.webhooks w
  JOIN LATERAL (
       SELECT 'gate.opened' AS type, g.run_id, g.gate_key, g.created_at AS at
         FROM app.human_gates g
        WHERE g.tenant_id = w.tenant_id
        UNION ALL
       SELECT 'run.terminal', r.id, NULL, r.finished_at
         FROM app.runs r
        WHERE r.tenant_id = w.tenant_id AND r.finished_at IS NOT NULL) e ON e.type = ANY (w.events)
 -- A webhook that was made or removed at about that time may have been seen, or not.
 WHERE e.at > w.created_at + interval '10 seconds'
   AND (w.removed_at IS NULL OR e.at < w.removed_at - interval '10 seconds')
   AND NOT EXISTS (
       SELECT 1 FROM app.webhook_deliveries d
        WHERE d.webhook_id = w.id AND d.event_type = e.type
          AND d.run_id = e.run_id AND d.gate_key IS NOT DISTINCT FROM e.gate_key);
