-- Claim: every reply in a link's name used that link up, in its time and for the plan that it was made for
-- A row means: somebody answered in a link's name without the link, or a link is called used that answered nothing
SELECT i.run_id, i.gate_key, i.key_id, l.id AS link
  FROM app.human_interactions i
  LEFT JOIN app.reply_links l ON l.interaction_id = i.id
  LEFT JOIN app.runs r ON r.id = i.run_id
  LEFT JOIN app.plan_approvals p
         ON p.run_id = i.run_id AND p.key_id = i.key_id AND p.gate_key = i.gate_key
        AND NOT EXISTS (SELECT 1 FROM app.gate_edits d WHERE d.interaction_id = i.id)
 WHERE i.key_id LIKE 'link:%'
   AND (l.id IS NULL
     OR l.run_id <> i.run_id
     OR l.gate_key <> i.gate_key
     OR l.topic <> i.topic
     OR 'link:' || l.name <> i.key_id
     OR 'link:' || l.id <> i.dedupe_key
     OR l.tenant_id <> r.tenant_id
     OR l.used_at NOT BETWEEN l.created_at AND l.expires_at
     OR (p.run_id IS NOT NULL AND p.plan_digest IS DISTINCT FROM l.plan_digest))
 UNION ALL
SELECT l.run_id, l.gate_key, l.name, l.id
  FROM app.reply_links l
 WHERE (l.used_at IS NOT NULL OR l.interaction_id IS NOT NULL)
   AND NOT EXISTS (
       SELECT 1 FROM app.human_interactions i
        WHERE i.id = l.interaction_id AND i.key_id = 'link:' || l.name);
