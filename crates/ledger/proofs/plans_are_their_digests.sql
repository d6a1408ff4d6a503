-- Claim: the plan of a run, and the plan that was approved, is the one whose bytes have that digest
-- A row means: the plan card was exchanged, or the digest that a run or an approval names
SELECT r.id AS run_id, 'run' AS what, NULL::integer AS round, r.plan_digest
  FROM app.runs r
 WHERE r.plan_digest IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM app.artifacts a
                    WHERE a.run_id = r.id AND a.kind = 'plan_card' AND a.sha256 = r.plan_digest)
 UNION ALL
SELECT p.run_id, 'approval', p.round, p.plan_digest
  FROM app.plan_approvals p
 WHERE NOT EXISTS (SELECT 1 FROM app.artifacts a
                    WHERE a.run_id = p.run_id AND a.kind = 'plan_card' AND a.sha256 = p.plan_digest);
