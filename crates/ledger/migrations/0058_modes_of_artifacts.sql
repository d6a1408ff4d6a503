-- What a file of a task is, as git writes modes: executable, a symbolic link (its bytes are its target), an empty directory.
-- NULL is a plain file, as every artifact was.
ALTER TABLE app.artifacts ADD COLUMN mode text CHECK (mode IN ('100755','120000','040000'));

CREATE OR REPLACE VIEW app.latest_artifacts AS
  SELECT a.* FROM app.artifacts a
  JOIN (SELECT run_id, step_id, max(attempt) AS attempt FROM app.artifacts GROUP BY 1, 2) l
    USING (run_id, step_id, attempt);
