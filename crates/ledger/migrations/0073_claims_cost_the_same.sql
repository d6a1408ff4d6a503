-- A claim costs the same however long the queue is. With 20,000 queued it took 2.5 s, 2.2 of them to compile a plan
-- that was estimated to be dear (PostgreSQL's default where the database is somebody else's), most of the rest to count
-- a tenant's runs again for each candidate, and to read the whole queue for what was queued without a tenant. What is
-- taken, and in which order, is as in 0061.
CREATE INDEX in_flight_without_partition ON dbos.workflow_status (queue_name, priority, created_at, workflow_uuid)
  WHERE status = 'ENQUEUED' AND queue_partition_key IS NULL;

-- No plan of it needs to read a table: one that was made while the queue was short would be kept when it is long.
CREATE OR REPLACE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer)
RETURNS TABLE (workflow_id text, name text, inputs text) LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off AS $$
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
  shares AS MATERIALIZED (
    SELECT keys.k,
           (SELECT count(*) FROM dbos.workflow_status b
             WHERE b.queue_name = p_queue AND b.status = 'PENDING' AND b.queue_partition_key = keys.k
               AND NOT EXISTS (SELECT 1 FROM app.runs r
                                WHERE r.workflow_id = b.workflow_uuid AND r.status = 'waiting_input')) AS taken
      FROM keys WHERE keys.k IS NOT NULL),
  ranked AS (
    SELECT t.id, t.priority, t.created_at,
           shares.taken + row_number() OVER (PARTITION BY shares.k ORDER BY t.priority, t.created_at, t.id) AS place
      FROM shares CROSS JOIN LATERAL (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key = shares.k
           AND (s.application_version IS NULL OR s.application_version = p_version)
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT least(v_free, greatest(v_cap - shares.taken, 0))) t
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

