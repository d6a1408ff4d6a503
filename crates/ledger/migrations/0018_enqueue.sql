-- Puts a workflow on a queue in the caller's transaction, in the engine's own row format, and wakes
-- the dispatchers when that transaction commits. Nothing happens where the id exists already.
CREATE FUNCTION app.enqueue(p_id text, p_name text, p_inputs text, p_queue text, p_partition text,
                            p_priority integer, p_dedup text, p_version text, p_parent text, p_delay_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_now bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
  IF p_queue = 'sbxQ' AND (p_partition IS NULL OR btrim(p_partition) = '') THEN
    RAISE EXCEPTION 'sbxQ needs a partition key' USING ERRCODE = 'check_violation';
  END IF;
  INSERT INTO dbos.workflow_status (workflow_uuid, status, name, inputs, queue_name, queue_partition_key,
    priority, deduplication_id, application_version, application_name, serialization, created_at, updated_at,
    recovery_attempts, parent_workflow_id, owner_xid, delay_until_epoch_ms)
  VALUES (p_id, CASE WHEN p_delay_ms > 0 THEN 'DELAYED' ELSE 'ENQUEUED' END, p_name, p_inputs, p_queue,
    p_partition, p_priority, p_dedup, p_version, 'cofferdam', 'rust_serde', v_now, v_now, 0, p_parent, NULL,
    CASE WHEN p_delay_ms > 0 THEN v_now + p_delay_ms END)
  ON CONFLICT (workflow_uuid) DO NOTHING;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM pg_notify('cofferdam', 'q:' || p_queue);
  RETURN true;
END $$;
