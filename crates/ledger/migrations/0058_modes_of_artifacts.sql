-- What a file of a task is, as git writes modes: executable, a symbolic link (its bytes are its target), an empty directory.
-- NULL is a plain file, as every artifact was.
ALTER TABLE app.artifacts ADD COLUMN mode text CHECK (mode IN ('100755','120000','040000'));

-- What a run's tasks left at last: of each step the last attempt that ended, also one that left nothing.
CREATE VIEW app.last_ended_attempts AS
  SELECT DISTINCT ON (run_id, step_id) * FROM app.sbx_runs
   WHERE response IS NOT NULL ORDER BY run_id, step_id, attempt DESC;

CREATE OR REPLACE VIEW app.latest_artifacts AS
  SELECT a.* FROM app.artifacts a
  JOIN (SELECT run_id, step_id, max(attempt) AS attempt FROM app.artifacts GROUP BY 1, 2) l
    USING (run_id, step_id, attempt);
