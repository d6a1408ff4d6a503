-- Takes queued workflows for one executor: the dispatcher's only statement.
--
-- A queue without partitions is first come, first served within a priority. A partitioned queue
-- gives every partition at most `partition_concurrency` running workflows over the whole fleet and
-- interleaves partitions by how much each already has, so that a flood of one tenant delays that
-- tenant alone. Claims of one queue are serialised by an advisory lock, which makes the caps exact.
--
-- `owner_xid` is cleared: the engine then lets the very next start of the row run it (and no later
-- one can come, since the row is no longer ENQUEUED). The attempt counter stays below the engine's
-- limit of 100, because a run that waits at its gate may outlive any number of restarts; lost task
-- executions have a limit of their own, counted in app.sbx_executions.
--
-- The caller says how much of the queue it runs already; the queue's `worker_concurrency` row says how
-- much one worker may run, so that the limit can change while workers run. Without such a limit a
-- claim takes at most 64.
CREATE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer)
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
             WHERE b.queue_name = p_queue AND b.status = 'PENDING' AND b.queue_partition_key = keys.k)
           + row_number() OVER (PARTITION BY keys.k ORDER BY t.priority, t.created_at, t.id) AS place
      FROM keys CROSS JOIN LATERAL (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key = keys.k
           AND (s.application_version IS NULL OR s.application_version = p_version)
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT v_free) t
     WHERE keys.k IS NOT NULL),
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

-- A workflow is queued, pending and done within milliseconds, and each change leaves a dead entry in the
-- small indexes that a claim reads. By default they would be taken away when a fifth of all rows that
-- ever were has changed; a claim at 20,000 finished runs then takes twice as long as at 100.
ALTER TABLE dbos.workflow_status
  SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
