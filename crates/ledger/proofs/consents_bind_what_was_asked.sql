-- Claim: a consent is bound to the five digests that its gate showed, unless its approver edited the plan
-- A row means: a consent is bound to something that nobody was shown
SELECT p.run_id, p.round, p.plan_digest, g.bindings
  FROM app.plan_approvals p
  JOIN app.human_gates g ON g.run_id = p.run_id AND g.gate_key = p.gate_key
 WHERE g.bindings IS NOT NULL
   AND NOT EXISTS (
       SELECT 1 FROM app.gate_edits e WHERE e.run_id = p.run_id AND e.gate_key = p.gate_key)
   AND (p.plan_digest, p.sandbox_digest, p.egress_digest, p.image_digest, p.budget_digest)
       IS DISTINCT FROM
       (g.bindings ->> 'plan', g.bindings ->> 'sandbox', g.bindings ->> 'egress',
        g.bindings ->> 'image', g.bindings ->> 'budget');
