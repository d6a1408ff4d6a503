-- Claim: every test report is of a file that its attempt left: an artifact with its path and digest; without a file there are no totals
-- A row means: a report was added or given another file, or its file is gone
SELECT r.run_id, r.task_key, r.path, r.sha256
  FROM app.test_reports r
 WHERE CASE WHEN r.sha256 IS NULL
            THEN r.report ? 'totals' OR r.report ? 'coverage' OR NOT r.report ? 'fault'
            ELSE NOT EXISTS (
                 SELECT FROM app.artifacts a
                  WHERE (a.run_id, a.step_id, a.task_key, a.attempt) = (r.run_id, r.step_id, r.task_key, r.attempt)
                    AND (a.kind, a.name, a.sha256) = ('file', 'files/' || r.path, r.sha256)) END
    OR NOT EXISTS (
       SELECT FROM app.sbx_runs s
        WHERE (s.run_id, s.step_id, s.task_key, s.attempt) = (r.run_id, r.step_id, r.task_key, r.attempt)
          AND s.response IS NOT NULL);
