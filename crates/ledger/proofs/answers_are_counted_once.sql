-- Claim: every answer that counts is one vote of one key, for one authority, and says what was recorded
-- A row means: a vote without its answer, an answer without its vote, or one person counted twice
SELECT v.run_id, v.gate_key, v.voter, i.outcome, v.choice
  FROM app.gate_votes v
  LEFT JOIN app.human_interactions i ON i.id = v.interaction_id
 WHERE i.id IS NULL
    OR i.outcome NOT IN ('accepted','voted')
    OR i.key_id <> v.voter
    OR i.run_id <> v.run_id
    OR i.gate_key <> v.gate_key
    OR v.choice <> CASE WHEN i.payload ->> 'choice' = 'yes'
                          OR i.payload ->> 'approved' = 'true'
                          OR i.payload ->> 'decision' IN ('yes','approve','approved')
                        THEN 'yes' ELSE 'no' END
 UNION ALL
SELECT i.run_id, i.gate_key, i.key_id, i.outcome, NULL
  FROM app.human_interactions i
 WHERE i.outcome IN ('accepted','voted')
   AND NOT EXISTS (SELECT 1 FROM app.gate_votes v WHERE v.interaction_id = i.id)
 UNION ALL
SELECT v.run_id, v.gate_key, v.authority, count(*)::text, NULL
  FROM app.gate_votes v
 GROUP BY v.run_id, v.gate_key, v.authority
HAVING count(*) > 1;
