-- Claim: each firing of a schedule or hook has one run or one reason, and each run that one started has its firing
-- A row means: a firing or its run is gone or was exchanged, or a run was started in a trigger's name by something else
WITH wrong AS (
  SELECT f.trigger_id, f.event, f.run_id
    FROM app.firings f
    LEFT JOIN app.triggers t ON t.id = f.trigger_id
    LEFT JOIN app.runs r ON r.id = f.run_id
   WHERE t.id IS NULL
      OR CASE f.state
           WHEN 'started' THEN r.id IS NULL OR f.reason IS NOT NULL OR r.tenant_id <> t.tenant_id OR r.key_id <> t.key_id
                OR r.recipe_hash <> t.recipe_hash OR r.retry_of IS NOT NULL
                OR r.origin <> CASE t.kind WHEN 'schedule' THEN 'engine-dbos' ELSE 'webhook-ci' END
           WHEN 'pending' THEN f.run_id IS NOT NULL OR f.reason IS NOT NULL OR t.kind <> 'schedule' OR t.state <> 'active'
           ELSE f.run_id IS NOT NULL OR f.reason IS NULL
         END
   UNION ALL
  SELECT min(f.trigger_id), min(f.event), f.run_id FROM app.firings f
   WHERE f.run_id IS NOT NULL GROUP BY f.run_id HAVING count(*) > 1
   UNION ALL
  SELECT t.id, NULL, NULL FROM app.triggers t
   WHERE t.firings - t.folded <> (SELECT count(*) FROM app.firings f WHERE f.trigger_id = t.id)
   UNION ALL
  SELECT NULL, NULL, r.id FROM app.runs r
   WHERE r.origin IN ('engine-dbos', 'webhook-ci') AND NOT EXISTS (SELECT FROM app.firings f WHERE f.run_id = r.id))
SELECT w.run_id, w.trigger_id, w.event, coalesce(t.tenant_id, r.tenant_id) AS tenant_id
  FROM wrong w
  LEFT JOIN app.triggers t ON t.id = w.trigger_id
  LEFT JOIN app.runs r ON r.id = w.run_id;
