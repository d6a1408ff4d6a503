-- A claim is fenced by its executor's state: one that was declared dead, or has left, is given nothing. The
-- executor's row is locked with the claim, so that a claim and a declaration of death are one after the
-- other: either the declaration gives back what was claimed, or the claim finds the executor dead.
--
-- Runs are claimed like tasks, by tenant: each has a share of the fleet, in turn with the others. A run that
-- waits for a person has no share. What was queued without a tenant is served beside them. All else is as in 0017.
CREATE OR REPLACE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer)
RETURNS TABLE (workflow_id text, name text, inputs text) LANGUAGE plpgsql AS $$
DECLARE
  v_now bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
  v_cap integer;
  v_free integer;
BEGIN
  IF NOT EXISTS (
       SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED') THEN
    RETURN;
  END IF;
  SELECT q.partition_concurrency, coalesce(q.worker_concurrency - p_running, 64) INTO v_cap, v_free
    FROM dbos.queues q WHERE q.name = p_queue;
  v_free := coalesce(v_free, 64);
  IF v_free <= 0 THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('cofferdam.claim.' || p_queue, 0));
  PERFORM 1 FROM app.executors e WHERE e.id = p_executor AND e.state = 'live' FOR SHARE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF v_cap IS NULL THEN
    RETURN QUERY
    WITH picked AS (
      SELECT s.workflow_uuid AS id FROM dbos.workflow_status s
      WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED'
        AND (s.application_version IS NULL OR s.application_version = p_version)
      ORDER BY s.priority, s.created_at LIMIT v_free)
    UPDATE dbos.workflow_status w
       SET status = 'PENDING', executor_id = p_executor, owner_xid = NULL, started_at_epoch_ms = v_now,
           updated_at = v_now, application_version = p_version,
           recovery_attempts = least(w.recovery_attempts + 1, 100),
           workflow_deadline_epoch_ms = coalesce(w.workflow_deadline_epoch_ms, v_now + w.workflow_timeout_ms)
      FROM picked WHERE w.workflow_uuid = picked.id AND w.status = 'ENQUEUED'
    RETURNING w.workflow_uuid, w.name, w.inputs;
    RETURN;
  END IF;
  RETURN QUERY
  WITH RECURSIVE keys AS (
    (SELECT s.queue_partition_key AS k FROM dbos.workflow_status s
      WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NOT NULL
      ORDER BY s.queue_partition_key LIMIT 1)
    UNION ALL
    SELECT (SELECT s.queue_partition_key FROM dbos.workflow_status s
             WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key > keys.k
             ORDER BY s.queue_partition_key LIMIT 1)
      FROM keys WHERE keys.k IS NOT NULL),
  ranked AS (
    SELECT t.id, t.priority, t.created_at,
           (SELECT count(*) FROM dbos.workflow_status b
             WHERE b.queue_name = p_queue AND b.status = 'PENDING' AND b.queue_partition_key = keys.k
               AND NOT EXISTS (SELECT 1 FROM app.runs r
                                WHERE r.workflow_id = b.workflow_uuid AND r.status = 'waiting_input'))
           + row_number() OVER (PARTITION BY keys.k ORDER BY t.priority, t.created_at, t.id) AS place
      FROM keys CROSS JOIN LATERAL (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key = keys.k
           AND (s.application_version IS NULL OR s.application_version = p_version)
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT v_free) t
     WHERE keys.k IS NOT NULL
    UNION ALL
    SELECT t.id, t.priority, t.created_at, row_number() OVER (ORDER BY t.priority, t.created_at, t.id)
      FROM (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NULL
           AND (s.application_version IS NULL OR s.application_version = p_version)
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT v_free) t),
  picked AS (
    SELECT r.id FROM ranked r WHERE r.place <= v_cap
    ORDER BY r.priority, r.place, r.created_at LIMIT v_free)
  UPDATE dbos.workflow_status w
     SET status = 'PENDING', executor_id = p_executor, owner_xid = NULL, started_at_epoch_ms = v_now,
         updated_at = v_now, application_version = p_version,
         recovery_attempts = least(w.recovery_attempts + 1, 100),
         workflow_deadline_epoch_ms = coalesce(w.workflow_deadline_epoch_ms, v_now + w.workflow_timeout_ms)
    FROM picked WHERE w.workflow_uuid = picked.id AND w.status = 'ENQUEUED'
  RETURNING w.workflow_uuid, w.name, w.inputs;
END $$;

-- A tenant's runs that the whole fleet works on at a time: enough to keep its machines busy, few enough that the
-- memory of a worker does not grow with the queue.
UPDATE dbos.queues SET partition_concurrency = 128 WHERE name = 'intentQ' AND partition_concurrency IS NULL;
