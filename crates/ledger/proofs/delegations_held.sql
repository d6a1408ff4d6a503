-- Claim: who answered in another's place held that other's delegation, or link, at that time
-- A row means: a vote rests on a delegation that was another's, expired or ended
SELECT v.run_id, v.gate_key, v.voter, v.authority, d.id
  FROM app.gate_votes v
  JOIN app.runs r ON r.id = v.run_id
  LEFT JOIN app.gate_delegations d ON d.id = v.delegation_id
  LEFT JOIN app.gate_delegation_ends x ON x.delegation_id = d.id
 WHERE v.voter <> v.authority
   AND CASE WHEN v.voter LIKE 'link:%'
            THEN NOT EXISTS (
                 SELECT 1 FROM app.reply_links l
                  WHERE l.interaction_id = v.interaction_id AND l.key_id = v.authority)
            ELSE d.id IS NULL
              OR d.from_key <> v.authority
              OR d.to_key <> v.voter
              OR d.tenant_id <> r.tenant_id
              OR d.expires_at < v.created_at
              OR d.created_at > v.created_at
              OR x.ended_at < v.created_at
       END;
