-- Claim: a run ends by itself only after every one of its sandboxes is provably gone, or settled
-- A row means: a run ended while a session of it had not
SELECT s.run_id, s.sandbox_id, s.state, r.status
  FROM app.remote_execution_sessions s
  JOIN app.runs r ON r.id = s.run_id
 -- A canceled run is over at once; its sandboxes follow.
 WHERE app.is_over(r.status)
   AND r.status <> 'canceled'
   AND (s.ended_at IS NULL OR s.ended_at > r.finished_at);
