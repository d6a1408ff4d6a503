-- Claim: a reply counts once
-- A row means: a reply was recorded twice
SELECT run_id, workflow_id, gate_key, topic, dedupe_key, count(*)
  FROM app.human_interactions
 GROUP BY run_id, workflow_id, gate_key, topic, dedupe_key
HAVING count(*) > 1;
