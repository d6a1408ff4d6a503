-- Runs that are not over: the leader looks for those that nobody ends, each few seconds.
CREATE INDEX runs_open ON app.runs (workflow_id)
  WHERE status NOT IN ('succeeded','failed','canceled','retries_exceeded');
