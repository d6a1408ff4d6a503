-- What each queued task of a run waits for, with how many of its tenant are before it: one look at the 200 that come first for all of
-- them, since a run of a thousand tasks is looked at four times a second. `app.place_before` says as much of one workflow.
CREATE FUNCTION app.task_places(p_run text) RETURNS TABLE (task_key text, why text) LANGUAGE plpgsql STABLE AS $$
DECLARE
  c_most constant integer := 200;
  v_is_served boolean := EXISTS (SELECT 1 FROM app.executors e WHERE e.state = 'live');
BEGIN
  RETURN QUERY
  WITH queued AS MATERIALIZED (
    SELECT s.task_key AS id, w.queue_name AS queue, app.partition_tenant(w.queue_partition_key) AS tenant
      FROM app.sbx_runs s JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key
     WHERE s.run_id = p_run AND s.response IS NULL AND w.status = 'ENQUEUED'),
  ahead AS (
    SELECT f.id, f.before FROM (SELECT DISTINCT x.queue, x.tenant FROM queued x) q
     CROSS JOIN LATERAL (
       SELECT o.workflow_uuid AS id, row_number() OVER (ORDER BY o.priority, o.created_at, o.workflow_uuid) - 1 AS before
         FROM dbos.workflow_status o
        WHERE o.queue_name = q.queue AND o.status = 'ENQUEUED' AND o.queue_partition_key IS NOT NULL
          AND app.partition_tenant(o.queue_partition_key) = q.tenant
        ORDER BY o.priority, o.created_at, o.workflow_uuid LIMIT c_most) f)
  SELECT q.id, CASE WHEN NOT v_is_served THEN 'a worker: none is live'
                    WHEN q.tenant IS NULL OR a.before = 0 THEN 'a place'
                    WHEN a.before IS NULL THEN 'a place: many before you'
                    ELSE format('a place: %s before you', a.before) END
    FROM queued q LEFT JOIN ahead a ON a.id = q.id;
END $$;
