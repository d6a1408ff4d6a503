-- Claim: behind a plan gate nothing was started before exactly this plan was approved, or under a consent that is void
-- A row means: a task started without consent, before it, under a void one, or for another plan
SELECT g.run_id, s.task_key, e.started_at, p.approved_at, r.plan_digest, p.plan_digest AS approved
  FROM (SELECT DISTINCT run_id FROM app.human_gates WHERE gate_key LIKE 'approve-plan%') g
  JOIN app.runs r ON r.id = g.run_id
  JOIN app.sbx_runs s ON s.run_id = g.run_id
   -- What a person approves may be planned by an agent, which is work before the approval.
   AND NOT coalesce(s.request #> '{opencode,role}' ? 'plan', false)
  JOIN app.sbx_executions e ON e.task_key = s.task_key
  LEFT JOIN LATERAL (
       SELECT a.* FROM app.plan_approvals a
        WHERE a.run_id = g.run_id ORDER BY a.round DESC LIMIT 1) p ON true
 WHERE p.run_id IS NULL
    OR p.approved_at > e.started_at
    OR p.plan_digest IS DISTINCT FROM r.plan_digest
    OR EXISTS (
       SELECT 1 FROM app.plan_consents_void v WHERE v.run_id = p.run_id AND v.round = p.round);
