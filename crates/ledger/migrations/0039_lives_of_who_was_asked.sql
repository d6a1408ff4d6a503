-- A life is claimed by the process that was asked for it: what makes it is in that process's memory alone. Its task, or the run
-- that is to queue that, is queued under the executor that is to have it, and no other executor claims what waits so for one that
-- is alive. Of one that is not, every other takes it, and ends it.
--
-- What was claimed before and is queued again (`recovery_attempts`) is anybody's, whatever executor its row still names.

DROP FUNCTION app.enqueue_quietly(text, text, text, text, text, integer, text, text, text, bigint, text);

-- The row of `app.enqueue`, of which nobody is told. With `p_executor` it is that one's to claim; `p_taken`: it is claimed already.
CREATE FUNCTION app.enqueue_quietly(p_id text, p_name text, p_inputs text, p_queue text, p_partition text, p_priority integer,
                                    p_dedup text, p_version text, p_parent text, p_delay_ms bigint, p_executor text, p_taken boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_now bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
  IF p_queue = 'sbxQ' AND (p_partition IS NULL OR btrim(p_partition) = '') THEN
    RAISE EXCEPTION 'sbxQ needs a partition key' USING ERRCODE = 'check_violation';
  END IF;
  INSERT INTO dbos.workflow_status (workflow_uuid, status, name, inputs, queue_name, queue_partition_key,
    priority, deduplication_id, application_version, application_name, serialization, created_at, updated_at,
    recovery_attempts, parent_workflow_id, owner_xid, delay_until_epoch_ms, executor_id, started_at_epoch_ms)
  VALUES (p_id, CASE WHEN p_taken THEN 'PENDING' WHEN p_delay_ms > 0 THEN 'DELAYED' ELSE 'ENQUEUED' END,
    p_name, p_inputs, p_queue, p_partition, p_priority, p_dedup, p_version, 'cofferdam', 'rust_serde', v_now, v_now,
    CASE WHEN p_taken THEN 1 ELSE 0 END, p_parent, NULL,
    CASE WHEN p_delay_ms > 0 THEN v_now + p_delay_ms END, p_executor, CASE WHEN p_taken THEN v_now END)
  ON CONFLICT (workflow_uuid) DO NOTHING;
  RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION app.enqueue(p_id text, p_name text, p_inputs text, p_queue text, p_partition text,
                                       p_priority integer, p_dedup text, p_version text, p_parent text, p_delay_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT app.enqueue_quietly(p_id, p_name, p_inputs, p_queue, p_partition, p_priority, p_dedup, p_version, p_parent,
                             p_delay_ms, NULL, false) THEN
    RETURN false;
  END IF;
  PERFORM pg_notify('cofferdam', 'q:' || p_queue);
  RETURN true;
END $$;

-- As in 0012, but for what waits for another executor.
CREATE OR REPLACE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer)
RETURNS TABLE (workflow_id text, name text, inputs text) LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off AS $$
DECLARE
  v_now bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
  v_cap integer;
  v_free integer;
BEGIN
  IF NOT EXISTS (
       SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED'
          AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
               SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))) THEN
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
        AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
             SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))
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
  WITH RECURSIVE tenants AS (
    (SELECT app.partition_tenant(s.queue_partition_key) AS tenant FROM dbos.workflow_status s
      WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NOT NULL
      ORDER BY app.partition_tenant(s.queue_partition_key) LIMIT 1)
    UNION ALL
    SELECT (SELECT app.partition_tenant(s.queue_partition_key) FROM dbos.workflow_status s
             WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NOT NULL
               AND app.partition_tenant(s.queue_partition_key) > tenants.tenant
             ORDER BY app.partition_tenant(s.queue_partition_key) LIMIT 1)
      FROM tenants WHERE tenants.tenant IS NOT NULL),
  shares AS MATERIALIZED (
    SELECT tenants.tenant,
           (SELECT count(*) FROM dbos.workflow_status b
             WHERE b.queue_name = p_queue AND b.status = 'PENDING' AND b.queue_partition_key IS NOT NULL
               AND app.partition_tenant(b.queue_partition_key) = tenants.tenant
               AND NOT EXISTS (SELECT 1 FROM app.runs r
                                WHERE r.workflow_id = b.workflow_uuid AND r.status = 'waiting_input')) AS taken
      FROM tenants WHERE tenants.tenant IS NOT NULL),
  ranked AS (
    SELECT t.id, t.priority, t.created_at,
           shares.taken + row_number() OVER (PARTITION BY shares.tenant ORDER BY t.priority, t.created_at, t.id) AS place
      FROM shares CROSS JOIN LATERAL (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NOT NULL
           AND app.partition_tenant(s.queue_partition_key) = shares.tenant
           AND (s.application_version IS NULL OR s.application_version = p_version)
           AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
                SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT least(v_free, greatest(v_cap - shares.taken, 0))) t
    UNION ALL
    SELECT t.id, t.priority, t.created_at, row_number() OVER (ORDER BY t.priority, t.created_at, t.id)
      FROM (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NULL
           AND (s.application_version IS NULL OR s.application_version = p_version)
           AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
                SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))
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

-- What is left for this executor, as its claim sees it.
CREATE OR REPLACE FUNCTION app.claim_and_look(p_queue text, p_executor text, p_version text, p_running integer)
RETURNS TABLE (workflow_id text, name text, inputs text) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT c.workflow_id, c.name, c.inputs FROM app.claim(p_queue, p_executor, p_version, p_running) c;
  IF EXISTS (
       SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED'
          AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
               SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))) THEN
    RETURN QUERY SELECT NULL::text, NULL::text, NULL::text;
  END IF;
END $$;

-- As in 0035: what waits for another executor does not wait before this one's.
CREATE OR REPLACE FUNCTION app.may_take_own(p_tenant text, p_executor text) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  v_cap integer;
  v_worker integer;
BEGIN
  SELECT q.partition_concurrency, q.worker_concurrency INTO v_cap, v_worker FROM dbos.queues q WHERE q.name = 'sbxQ';
  IF p_executor IS NULL OR NOT pg_try_advisory_xact_lock(hashtextextended('cofferdam.claim.sbxQ', 0)) THEN
    RETURN false;
  END IF;
  PERFORM 1 FROM app.executors e WHERE e.id = p_executor AND e.state = 'live' FOR SHARE;
  IF NOT FOUND OR EXISTS (
       SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = 'sbxQ' AND s.status = 'ENQUEUED'
          AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
               SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))) THEN
    RETURN false;
  END IF;
  RETURN coalesce(v_worker > (
    SELECT count(*) FROM dbos.workflow_status b
     WHERE b.queue_name = 'sbxQ' AND b.status = 'PENDING' AND b.executor_id = p_executor), true)
   AND coalesce(v_cap > (
    SELECT count(*) FROM dbos.workflow_status b
     WHERE b.queue_name = 'sbxQ' AND b.status = 'PENDING' AND b.queue_partition_key IS NOT NULL
       AND app.partition_tenant(b.queue_partition_key) = p_tenant), true);
END $$;

-- As in 0035: what is queued is `p_executor`'s to claim. Whether it has claimed the task at once, where `takes` of the opening
-- lets it.
CREATE OR REPLACE FUNCTION app.life_begin(p_intent jsonb, p_run jsonb, p_opening jsonb, p_executor text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  r app.runs := jsonb_populate_record(NULL::app.runs, p_run);
  t app.sbx_runs := jsonb_populate_record(NULL::app.sbx_runs, p_opening->'task');
  c app.artifacts := jsonb_populate_record(NULL::app.artifacts, p_opening->'card');
  taken boolean;
BEGIN
  INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, connectors, intent_hash, key_id, origin)
  SELECT i.id, i.tenant_id, i.goal, i.inputs, i.constraints, i.connectors, i.intent_hash, i.key_id, i.origin
    FROM jsonb_populate_record(NULL::app.intents, p_intent) i;
  INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, execution_mode, recipe_id, recipe_v, recipe_hash, intent_hash,
                        trace_id, budget, timeout_ms, partition_key, priority, retry_count, retry_of, app_version, origin,
                        key_id, asked_by, mode_wanted)
  VALUES (r.id, r.intent_id, r.workflow_id, r.tenant_id, r.execution_mode, r.recipe_id, r.recipe_v, r.recipe_hash, r.intent_hash,
          r.trace_id, r.budget, r.timeout_ms, r.partition_key, r.priority, r.retry_count, r.retry_of, r.app_version, r.origin,
          r.key_id, r.asked_by, r.mode_wanted);
  IF p_opening IS NULL THEN
    PERFORM app.enqueue_quietly(r.workflow_id, 'run', 'null', 'intentQ', r.tenant_id, r.priority, NULL, r.app_version, NULL, 0,
                                p_executor, false);
    PERFORM pg_notify('cofferdam', 'q:intentQ');
    RETURN false;
  END IF;
  -- It only waits for its task's end: beside all limits, when nothing else is to be done.
  PERFORM app.enqueue_quietly(r.workflow_id, 'run', 'null', 'liveQ', r.tenant_id, r.priority, NULL, r.app_version, NULL, 0, NULL,
                              false);
  INSERT INTO app.run_steps (run_id, step_id, attempt, status, output, origin)
  VALUES (r.id, 'CompileST', 1, 'ok', p_opening->'output', 'engine-dbos');
  INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
  VALUES (r.id, 'CompileST', c.task_key, 1, 0, 'plan_card', 'plan.json', c.uri, c.inline, c.sha256, octet_length(c.inline),
          'engine-dbos');
  UPDATE app.runs SET plan_digest = c.sha256, last_step = 'CompileST', status = 'running' WHERE id = r.id;
  INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
  VALUES (r.id, t.step_id, t.task_key, 1, t.task_name, t.provider, t.request, 'engine-dbos');
  INSERT INTO app.egress_policy_snapshots
    (run_id, phase, policy, policy_digest, source, policy_key, policy_version, approver, origin)
  SELECT r.id, x.phase, x.policy, app.policy_digest(x.policy), x.source, x.policy_key, x.policy_version, x.approver,
         'engine-dbos'
    FROM jsonb_populate_recordset(NULL::app.egress_policy_snapshots, p_opening->'snapshots') x;
  taken := coalesce((p_opening->>'takes')::boolean, true) AND app.may_take_own(r.tenant_id, p_executor);
  PERFORM app.enqueue_quietly(t.task_key, 'task', 'null', 'sbxQ', r.partition_key, r.priority, NULL, r.app_version,
                              r.workflow_id, 0, p_executor, taken);
  IF NOT taken THEN
    PERFORM pg_notify('cofferdam', 'q:sbxQ');
  END IF;
  RETURN taken;
END $$;

-- As in 0006, but for the task of a life.
CREATE OR REPLACE FUNCTION app.round_enqueue(p_run text, p_parent text, p_partition text, p_priority integer, p_version text,
                                  p_executor text, p_quota_mb bigint, p_tasks jsonb, p_snapshots jsonb,
                                  p_values jsonb, p_artifacts jsonb)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_now bigint := app.ms(clock_timestamp());
  v_kept text[] := '{}';
BEGIN
  INSERT INTO app.sbx_runs (run_id, step_id, task_key, attempt, task_name, provider, request, origin)
  SELECT p_run, x.step_id, x.task_key, x.attempt, x.task_name, x.provider, x.request, 'engine-dbos'
    FROM jsonb_to_recordset(p_tasks) AS x(step_id text, task_key text, attempt integer, task_name text,
                                          provider text, request jsonb)
  ON CONFLICT DO NOTHING;
  INSERT INTO app.egress_policy_snapshots
    (run_id, phase, policy, policy_digest, source, policy_key, policy_version, approver, origin)
  SELECT p_run, x.phase, x.policy, app.policy_digest(x.policy), x.source, x.policy_key, x.policy_version,
         x.approver, 'engine-dbos'
    FROM jsonb_to_recordset(p_snapshots) AS x(phase text, policy jsonb, source text, policy_key text,
                                              policy_version integer, approver text)
  ON CONFLICT DO NOTHING;
  IF p_values <> '[]'
     AND EXISTS (SELECT 1 FROM app.executors e WHERE e.id = p_executor AND e.state = 'live' FOR SHARE)
     AND NOT EXISTS (SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = p_parent AND w.status = 'CANCELLED')
     AND (SELECT app.blobs_over_quota(r.tenant_id, p_quota_mb) FROM app.runs r WHERE r.id = p_run) IS NULL THEN
    WITH kept AS (
      INSERT INTO dbos.workflow_status (workflow_uuid, status, name, inputs, output, queue_name, queue_partition_key,
        priority, application_version, application_name, serialization, created_at, updated_at, started_at_epoch_ms,
        completed_at, executor_id, recovery_attempts, parent_workflow_id)
      SELECT v.task_key, 'SUCCESS', 'task', 'null', v.output, 'sbxQ', p_partition, p_priority, p_version, 'cofferdam',
             'rust_serde', v_now, v_now, v_now, v_now, p_executor, 1, p_parent
        FROM jsonb_to_recordset(p_values) AS v(task_key text, output text)
      ON CONFLICT (workflow_uuid) DO NOTHING RETURNING workflow_uuid)
    SELECT coalesce(array_agg(workflow_uuid), '{}') INTO v_kept FROM kept;
    INSERT INTO app.sbx_executions (task_key, execution_no, worker)
    SELECT k, 1, p_executor FROM unnest(v_kept) k;
    UPDATE app.sbx_runs s
       SET response = v.response, err_code = v.err_code, metrics = v.metrics, finished_at = clock_timestamp()
      FROM jsonb_to_recordset(p_values) AS v(task_key text, response jsonb, err_code text, metrics jsonb)
     WHERE s.task_key = v.task_key AND s.task_key = ANY (v_kept);
    INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, inline, sha256, size, origin)
    SELECT p_run, s.step_id, s.task_key, s.attempt, a.idx, a.kind, a.name, a.uri, a.inline, a.sha256, a.size, 'engine-dbos'
      FROM jsonb_to_recordset(p_artifacts) AS a(task_key text, idx integer, kind text, name text, uri text,
                                                inline text, sha256 text, size bigint)
      JOIN app.sbx_runs s ON s.task_key = a.task_key
     WHERE s.task_key = ANY (v_kept);
  END IF;
  -- One that is over has its workflow already. Who queues the task of a life was asked for it.
  IF (SELECT bool_or(app.enqueue_quietly(x.task_key, 'task', 'null', 'sbxQ', p_partition, p_priority, NULL, p_version, p_parent, 0,
                                         CASE WHEN x.request ? 'live' THEN p_executor END, false))
        FROM jsonb_to_recordset(p_tasks) AS x(task_key text, request jsonb) WHERE NOT x.task_key = ANY (v_kept)) THEN
    PERFORM pg_notify('cofferdam', 'q:sbxQ');
  END IF;
  RETURN v_kept;
END $$;
