-- Claim: a session ends only with a verified wipe, or by an operator's recorded settlement
-- A row means: a sandbox is called ended without evidence that it is gone, and nobody decided so
SELECT s.run_id, s.sandbox_id, s.state
  FROM app.remote_execution_sessions s
  LEFT JOIN app.secure_wipe_evidence w
         ON w.sandbox_id = s.sandbox_id AND w.wipe_status = 'verified' AND w.terminal_state = s.state
  LEFT JOIN app.wipe_settlements d
         ON d.sandbox_id = s.sandbox_id AND d.terminal_state = s.state
 WHERE app.session_is_over(s.state)
   AND w.sandbox_id IS NULL
   AND d.sandbox_id IS NULL;
