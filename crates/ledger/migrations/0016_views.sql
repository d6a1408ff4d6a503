-- Latest wins: what a reader wants to see of an append-only history.
CREATE VIEW app.latest_run_steps AS
  SELECT DISTINCT ON (run_id, step_id) * FROM app.run_steps ORDER BY run_id, step_id, attempt DESC;
CREATE VIEW app.latest_sbx_runs AS
  SELECT DISTINCT ON (run_id, step_id) * FROM app.sbx_runs ORDER BY run_id, step_id, attempt DESC;
CREATE VIEW app.latest_artifacts AS
  SELECT a.* FROM app.artifacts a
  JOIN (SELECT run_id, step_id, max(attempt) AS attempt FROM app.artifacts GROUP BY 1, 2) l
    USING (run_id, step_id, attempt);
