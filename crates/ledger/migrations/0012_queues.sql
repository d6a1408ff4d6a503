-- Workers, their leader, and the queues: everything that decides which process executes which workflow.

CREATE TABLE app.executors (
  id           text PRIMARY KEY,
  host_id      text NOT NULL,
  pid          integer NOT NULL,
  app_version  text NOT NULL,
  state        text NOT NULL DEFAULT 'live' CHECK (state IN ('live','dead','left')),
  started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at     timestamptz
);
CREATE INDEX executors_live ON app.executors (heartbeat_at) WHERE state = 'live';

-- The leader holds a lease in this row: until when, by this database's clock, and in which term. It needs no
-- lock and no connection, so a host that is lost without a word stops leading when its lease is over.
CREATE TABLE app.leader (
  only_one    boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  executor_id text NOT NULL,
  term        bigint NOT NULL CHECK (term >= 1),
  until       timestamptz NOT NULL
);

-- The term in which this executor leads from now on, or still does; NULL while another one leads. A lease
-- that is over, or whose holder is not alive, is free. An executor that takes it from another begins a new term.
CREATE FUNCTION app.lead(p_executor text, p_lease_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_term bigint;
BEGIN
  -- Without a lock: those who do not lead only read.
  IF EXISTS (SELECT 1 FROM app.leader l JOIN app.executors e ON e.id = l.executor_id AND e.state = 'live'
              WHERE l.executor_id <> p_executor AND l.until >= clock_timestamp()) THEN
    RETURN NULL;
  END IF;
  INSERT INTO app.leader AS l (executor_id, term, until)
  SELECT e.id, 1, clock_timestamp() + make_interval(secs => p_lease_ms / 1000.0)
    FROM app.executors e WHERE e.id = p_executor AND e.state = 'live'
  ON CONFLICT (only_one) DO UPDATE
     SET executor_id = excluded.executor_id, until = excluded.until,
         term = l.term + CASE WHEN l.executor_id = excluded.executor_id THEN 0 ELSE 1 END
   WHERE l.executor_id = excluded.executor_id OR l.until < clock_timestamp()
      OR NOT EXISTS (SELECT 1 FROM app.executors o WHERE o.id = l.executor_id AND o.state = 'live')
  RETURNING l.term INTO v_term;
  RETURN v_term;
END $$;

-- The fence of everything that a leader does: each of its statements asks again.
CREATE FUNCTION app.leads(p_executor text, p_term bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM app.leader
                  WHERE executor_id = p_executor AND term = p_term AND until > clock_timestamp())
$$;

-- Puts an executor's workflows back on their queues and wakes the dispatchers; how many.
CREATE FUNCTION app.give_back(p_executor text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_given bigint := 0;
  v_queue text;
  v_count bigint;
BEGIN
  FOR v_queue, v_count IN
    WITH given AS (
      UPDATE dbos.workflow_status
         SET status = 'ENQUEUED', started_at_epoch_ms = NULL, owner_xid = NULL,
             updated_at = app.ms(clock_timestamp())
       WHERE status = 'PENDING' AND executor_id = p_executor AND queue_name IS NOT NULL
      RETURNING queue_name)
    SELECT queue_name, count(*) FROM given GROUP BY queue_name
  LOOP
    PERFORM pg_notify('cofferdam', 'q:' || v_queue);
    v_given := v_given + v_count;
  END LOOP;
  RETURN v_given;
END $$;

-- Ends an executor; how many workflows it had, NULL where it had ended before.
CREATE FUNCTION app.executor_end(p_executor text, p_state text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.executors SET state = p_state, ended_at = clock_timestamp()
   WHERE id = p_executor AND state = 'live';
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  RETURN app.give_back(p_executor);
END $$;

-- The leader's turn, in one statement, so that a leader that is lost in the middle of it holds nothing:
-- executors that were silent for so long are dead, and what lies under an executor that is not alive goes
-- back to its queue, however it came there. With `p_dead_after_ms` NULL no executor is declared dead.
CREATE FUNCTION app.take_over(p_leader text, p_term bigint, p_dead_after_ms bigint)
RETURNS TABLE (executor_id text, is_new boolean, workflows bigint) LANGUAGE plpgsql AS $$
DECLARE
  v_id text;
BEGIN
  IF NOT app.leads(p_leader, p_term) THEN
    RETURN;
  END IF;
  -- The engine's listeners send themselves no word: one that hears nothing for seconds is on a lost
  -- connection, and is closed. This word names no waiter.
  PERFORM pg_notify('dbos_notifications_channel', 'cofferdam');
  FOR v_id IN
    UPDATE app.executors e SET state = 'dead', ended_at = clock_timestamp()
     WHERE e.state = 'live' AND e.id <> p_leader
       AND e.heartbeat_at < clock_timestamp() - make_interval(secs => p_dead_after_ms / 1000.0)
    RETURNING e.id
  LOOP
    RETURN QUERY SELECT v_id, true, app.give_back(v_id);
  END LOOP;
  FOR v_id IN
    SELECT DISTINCT w.executor_id FROM dbos.workflow_status w
      LEFT JOIN app.executors e ON e.id = w.executor_id AND e.state = 'live'
     WHERE w.status = 'PENDING' AND w.queue_name IS NOT NULL AND w.executor_id IS NOT NULL AND e.id IS NULL
  LOOP
    RETURN QUERY SELECT v_id, false, app.give_back(v_id);
  END LOOP;
END $$;

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

-- A workflow is queued, pending and done within milliseconds, and each change leaves a dead entry in the
-- small indexes that a claim reads. With the defaults, vacuum would remove them when a fifth of all rows
-- ever written had changed; a claim at 20,000 finished runs then takes twice as long as at 100.
ALTER TABLE dbos.workflow_status
  SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The tenant of a partition key: `acme/ci` is a label of `acme`, whose id has no slash.
CREATE FUNCTION app.partition_tenant(p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT split_part(p_key, '/', 1)
$$;

-- What a claim reads: each tenant's queue in its order, and how much of it is running.
CREATE INDEX in_flight_by_tenant ON dbos.workflow_status
  (queue_name, status, app.partition_tenant(queue_partition_key), priority, created_at, workflow_uuid)
  WHERE status IN ('ENQUEUED','PENDING') AND queue_partition_key IS NOT NULL;
CREATE INDEX in_flight_without_partition ON dbos.workflow_status (queue_name, priority, created_at, workflow_uuid)
  WHERE status = 'ENQUEUED' AND queue_partition_key IS NULL;

-- Takes queued workflows for one executor: the dispatcher's only statement.
--
-- A queue without partitions is first come, first served within a priority. A partitioned queue gives
-- every tenant at most `partition_concurrency` running workflows over the whole fleet and interleaves
-- tenants by how much each already has, so that a flood of one tenant delays that tenant alone, under however many
-- partition keys it queues. A run that waits for a person takes no share. Work without a partition is served beside
-- them. Claims of one queue are serialised by an advisory lock, which makes the caps exact.
--
-- A claim is fenced by its executor's state: a dead executor gets nothing. The executor's row is locked with
-- the claim, so that a claim and a declaration of death come one after the other: either the declaration gives
-- back what was claimed, or the claim finds the executor dead.
--
-- `owner_xid` is cleared: the engine then lets the very next start of the row run it, and no later start can
-- come, because the row is no longer ENQUEUED. The attempt counter stays below the engine's limit of 100,
-- because a run that waits at its gate may outlive any number of restarts; lost task executions have a limit of
-- their own, counted in app.sbx_executions.
--
-- The caller says how much of the queue it runs already; the queue's `worker_concurrency` row says how much one
-- worker may run, so that the limit can change while workers run. Without such a limit a claim takes at most 64.
--
-- A claim costs the same however long the queue is, and however many keys it has: shares are counted once a tenant, each lateral read stops at
-- its limit, and compilation of plans and sequential scans are off (a plan that was made while the queue was
-- short would be kept when it is long).
CREATE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer)
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

-- Whether a session whose worker is gone waits for the worker that takes its task over: until then nobody
-- ends its sandbox. Beyond the providers' own term, and where nobody will take the task over, it is an orphan.
CREATE FUNCTION app.session_outlives(s app.remote_execution_sessions) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT s.remote IS NOT NULL AND s.ended_at IS NULL AND s.wipe_looks = 0
     AND EXISTS (SELECT 1 FROM app.executors e WHERE e.id = s.executor_id AND e.state <> 'live'
                    AND e.ended_at > clock_timestamp() - interval '150 seconds')
     AND EXISTS (SELECT 1 FROM app.sbx_runs t JOIN dbos.workflow_status w ON w.workflow_uuid = t.task_key
                  WHERE t.task_key = s.task_key AND t.response IS NULL
                    AND w.status IN ('PENDING','ENQUEUED','DELAYED'))
     AND NOT EXISTS (SELECT 1 FROM app.sbx_executions x WHERE x.task_key = s.task_key
                        AND x.sandbox_id IS NOT NULL AND x.execution_no > s.execution_no)
$$;
