-- Claim: a gate is asked again only where the consent before it was void, or its edit had no plan
-- A row means: a second round was opened although the first consent held, or a void consent differs in nothing
SELECT g.run_id, g.gate_key, g.round
  FROM app.human_gates g
 WHERE g.round > 1
   AND EXISTS (
       SELECT 1 FROM app.plan_approvals p WHERE p.run_id = g.run_id AND p.round = g.round - 1)
   AND NOT EXISTS (
       SELECT 1 FROM app.plan_consents_void v WHERE v.run_id = g.run_id AND v.round = g.round - 1)
 UNION ALL
SELECT v.run_id, p.gate_key, v.round
  FROM app.plan_consents_void v
  JOIN app.plan_approvals p ON p.run_id = v.run_id AND p.round = v.round
 WHERE (v.bindings ->> 'plan', v.bindings ->> 'sandbox', v.bindings ->> 'egress',
        v.bindings ->> 'image', v.bindings ->> 'budget')
       IS NOT DISTINCT FROM
       (p.plan_digest, p.sandbox_digest, p.egress_digest, p.image_digest, p.budget_digest);
