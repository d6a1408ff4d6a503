-- Claim: a session without a verified wipe ended by one audited decision over exactly the failed evidence that is on record
-- A row means: a settlement has no failed evidence, another one than was decided on, no audit row, or a verified wipe beside it
SELECT d.run_id, d.sandbox_id, d.actor, d.evidence_look, w.wipe_status, s.state
  FROM app.wipe_settlements d
  LEFT JOIN app.remote_execution_sessions s ON s.sandbox_id = d.sandbox_id
  LEFT JOIN app.secure_wipe_evidence w ON w.sandbox_id = d.sandbox_id AND w.look = d.evidence_look
 WHERE s.state IS DISTINCT FROM d.terminal_state
    OR w.wipe_status IS DISTINCT FROM 'failed'
    OR app.evidence_digest(w.evidence) IS DISTINCT FROM d.evidence_digest
    OR EXISTS (
       SELECT 1 FROM app.secure_wipe_evidence v
        WHERE v.sandbox_id = d.sandbox_id
          AND (v.wipe_status = 'verified' OR v.look > d.evidence_look))
    OR NOT EXISTS (
       SELECT 1 FROM app.audit a
        WHERE a.op = 'session.settle' AND a.target = d.sandbox_id
          AND a.tenant_id = d.tenant_id AND a.key_id = d.key_id AND a.reason = d.reason);
