-- Claim: a gate accepts at most one reply, and every published decision has one or a timeout
-- A row means: a gate took two answers, or a decision came from nowhere
SELECT g.run_id, g.workflow_id, g.gate_key, count(i.id) AS accepted, g.state
  FROM app.human_gates g
  LEFT JOIN app.human_interactions i
         ON i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key
        AND i.topic = g.topic AND i.outcome = 'accepted'
 GROUP BY g.run_id, g.workflow_id, g.gate_key, g.state
HAVING count(i.id) > 1
    OR (count(i.id) = 0 AND g.state <> 'timed_out' AND EXISTS (
        SELECT 1 FROM dbos.workflow_events e
         WHERE e.workflow_uuid = g.workflow_id AND e.key = 'decision:' || g.gate_key))
    OR (count(i.id) = 0 AND g.state IN ('received','resolved'));
