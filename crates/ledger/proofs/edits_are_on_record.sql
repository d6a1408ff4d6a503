-- Claim: an approver's edits are recorded field by field, as they were sent, and the plan that was approved is the edited one
-- A row means: an edit was applied that nobody sent, or sent and not recorded
SELECT e.run_id, e.gate_key, e.path, e.value, i.payload -> 'edits' AS sent
  FROM app.gate_edits e
  LEFT JOIN app.human_interactions i ON i.id = e.interaction_id
 WHERE i.id IS NULL
    OR i.outcome <> 'accepted'
    OR (NOT app.is_erased(e.run_id, 'prompt') AND e.value IS DISTINCT FROM
        i.payload -> 'edits' -> replace(replace(substr(e.path, 2), '~1', '/'), '~0', '~'))
    OR e.from_value IS NOT DISTINCT FROM e.value
 UNION ALL
SELECT p.run_id, p.gate_key, 'plan', to_jsonb(p.plan_digest), NULL
  FROM app.plan_approvals p
  JOIN app.human_gates g ON g.run_id = p.run_id AND g.gate_key = p.gate_key
 WHERE EXISTS (
       SELECT 1 FROM app.gate_edits e WHERE e.run_id = p.run_id AND e.gate_key = p.gate_key)
   AND NOT EXISTS (
       SELECT 1 FROM app.artifacts a
        WHERE a.run_id = p.run_id AND a.kind = 'plan_card'
          AND a.attempt = p.round + 1 AND a.sha256 = p.plan_digest);
