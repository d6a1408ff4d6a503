-- Claim: who answered a gate is the same in the reply, in the vote, in the approval and in what the gate's journal says, and no approval is older than its reply
-- A row means: an approval was backdated, or given in another's name
SELECT p.run_id, p.gate_key, 'approval' AS what, p.key_id, i.key_id AS replied, p.approved_at, i.created_at
  FROM app.plan_approvals p
  JOIN app.human_interactions i
    ON i.run_id = p.run_id AND i.gate_key = p.gate_key AND i.outcome = 'accepted'
 WHERE p.key_id <> i.key_id
    -- One statement writes both, each with its own look at the clock.
    OR p.approved_at < i.created_at - interval '1 second'
 UNION ALL
SELECT v.run_id, v.gate_key, 'vote', v.voter, i.key_id, v.created_at, i.created_at
  FROM app.gate_votes v
  JOIN app.human_interactions i ON i.id = v.interaction_id
 WHERE v.voter <> i.key_id
 UNION ALL
SELECT i.run_id, i.gate_key, 'journal', h.value::jsonb ->> 'actor', i.key_id,
       to_timestamp((h.value::jsonb ->> 'at')::bigint / 1000.0), i.created_at
  FROM app.human_interactions i
  JOIN dbos.workflow_events_history h
    ON h.workflow_uuid = i.workflow_id AND h.key = 'ui:' || i.gate_key || ':audit'
 WHERE i.outcome = 'accepted'
   AND h.value::jsonb ->> 'event' = 'received'
   AND h.value::jsonb ->> 'actor' IS DISTINCT FROM i.key_id;
