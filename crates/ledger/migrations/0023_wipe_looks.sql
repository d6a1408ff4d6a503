-- A wipe that could not be verified is looked at again: each look is a row of its own, and at most
-- one of them says `verified`. The session counts its looks and says when the next one is due.
ALTER TABLE app.secure_wipe_evidence ADD COLUMN look integer NOT NULL DEFAULT 1 CHECK (look >= 1);
ALTER TABLE app.secure_wipe_evidence DROP CONSTRAINT secure_wipe_evidence_pkey;
ALTER TABLE app.secure_wipe_evidence ADD PRIMARY KEY (sandbox_id, look);
CREATE UNIQUE INDEX wipe_verified_once ON app.secure_wipe_evidence (sandbox_id) WHERE wipe_status = 'verified';

ALTER TABLE app.remote_execution_sessions ADD COLUMN wipe_looks integer NOT NULL DEFAULT 0;
ALTER TABLE app.remote_execution_sessions ADD COLUMN wipe_next_at timestamptz;
UPDATE app.remote_execution_sessions s SET wipe_looks = 1, wipe_next_at = clock_timestamp()
 WHERE s.state = 'REMOTE_WIPE_VERIFYING' AND s.ended_at IS NULL
   AND EXISTS (SELECT 1 FROM app.secure_wipe_evidence w WHERE w.sandbox_id = s.sandbox_id);

-- What a run waits for before it may end, and what an operator looks at: both are few.
CREATE INDEX sessions_unended ON app.remote_execution_sessions (task_key) WHERE ended_at IS NULL;
CREATE INDEX sessions_held ON app.remote_execution_sessions (run_id)
  WHERE state = 'REMOTE_WIPE_VERIFYING' AND wipe_looks > 0;
