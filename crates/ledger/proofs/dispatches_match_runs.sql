-- Claim: a dispatch is over when its run is and every attempt has answered, and agrees with it
-- A row means: a dispatch and its run disagree
SELECT m.run_id, d.id, d.status, r.status AS run_status
  FROM app.dispatches d
  JOIN app.dispatch_runs m ON m.dispatch_id = d.id
  JOIN app.runs r ON r.id = m.run_id
 WHERE (d.status = 'completed' AND r.status <> 'succeeded')
    -- A run that did not succeed may be over before its attempts have answered.
    OR (NOT app.dispatch_is_over(d.status)
        AND (r.status = 'succeeded'
          OR (app.is_over(r.status) AND NOT EXISTS (
              SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL))))
    OR (d.sandbox_effective IS NOT NULL
        AND EXISTS (
            SELECT 1 FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response ? 'agent')
        AND NOT EXISTS (
            SELECT 1 FROM app.sbx_runs s
             WHERE s.run_id = r.id
               AND (s.response #> '{agent,effective}' = d.sandbox_effective
                 OR NOT s.response ? 'agent')));
