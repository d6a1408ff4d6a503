-- What a queued workflow waits for, looked for among the 200 that come first of those before it: a list of 500 runs asks for each,
-- and how many others wait is for other tenants to decide.
CREATE OR REPLACE FUNCTION app.place_before(p_workflow text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  c_most constant bigint := 200;
  v dbos.workflow_status;
  v_tenant text;
  v_before bigint;
  v_seen bigint;
BEGIN
  SELECT * INTO v FROM dbos.workflow_status w WHERE w.workflow_uuid = p_workflow AND w.status = 'ENQUEUED';
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF NOT EXISTS (SELECT 1 FROM app.executors e WHERE e.state = 'live') THEN
    RETURN 'a worker: none is live';
  END IF;
  SELECT r.tenant_id INTO v_tenant FROM app.runs r WHERE r.workflow_id = p_workflow;
  SELECT count(*), count(*) FILTER (
           WHERE v.queue_partition_key IS NOT NULL
              OR (SELECT r.tenant_id FROM app.runs r WHERE r.workflow_id = b.workflow_uuid) = v_tenant)
    INTO v_seen, v_before FROM (
    SELECT o.workflow_uuid FROM dbos.workflow_status o
     WHERE o.queue_name = v.queue_name AND o.status = 'ENQUEUED'
       AND app.partition_tenant(o.queue_partition_key) IS NOT DISTINCT FROM app.partition_tenant(v.queue_partition_key)
       AND (o.priority, o.created_at, o.workflow_uuid) < (v.priority, v.created_at, v.workflow_uuid)
     LIMIT c_most) b;
  RETURN CASE WHEN v_seen = c_most THEN 'a place: many before you'
              WHEN v_before = 0 THEN 'a place'
              ELSE format('a place: %s before you', v_before) END;
END $$;
