-- Claim: an event is recorded once for a webhook, and acknowledged once for each time that it was asked for
-- A row means: an event is recorded twice, or called delivered without an acknowledgement
SELECT d.run_id, d.webhook_id, d.event_id, count(*) AS n
  FROM app.webhook_deliveries d
 GROUP BY d.run_id, d.webhook_id, d.event_id
HAVING count(*) > 1
 UNION ALL
SELECT d.run_id, d.webhook_id, d.event_id, k.n
  FROM app.webhook_deliveries d
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE a.ok) AS n,
              count(*) FILTER (WHERE a.ok AND a.attempt = d.attempts) AS last
         FROM app.webhook_attempts a
        WHERE a.delivery_id = d.id) k
 WHERE k.n > 1 + (SELECT count(*) FROM app.audit x WHERE x.op = 'webhook.replay' AND x.target = d.id)
    OR (d.state = 'delivered' AND k.last = 0);
