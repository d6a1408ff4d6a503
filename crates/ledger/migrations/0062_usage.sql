-- What a tenant may use at once and a minute, beside what it may store; who is served next; and what each tenant used, by day (UTC).

-- What a task asks for, whatever kind of work it is: cores, MiB of writable layer and of memory, with the defaults of `limits`. A text
-- that the engine stores asks for nothing.
CREATE FUNCTION app.task_asks(p_work jsonb, OUT cpu numeric, OUT disk_mb bigint, OUT mem_mb bigint)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_limits jsonb := coalesce(p_work #> '{sandbox,limits}', p_work #> '{live,request,limits}', p_work #> '{agent,request,limits}',
                             p_work #> '{opencode,request,limits}', p_work #> '{patched,request,limits}');
  v_is_text boolean := p_work ? 'value';
BEGIN
  cpu := CASE WHEN v_is_text THEN 0 ELSE coalesce((v_limits ->> 'cpu')::numeric, 1) END;
  disk_mb := CASE WHEN v_is_text THEN 0 ELSE coalesce((v_limits ->> 'diskMB')::bigint, 512) END;
  mem_mb := CASE WHEN v_is_text THEN 0 ELSE coalesce((v_limits ->> 'memMB')::bigint, 512) END;
END $$;

-- The same as columns: claims read them of every task that waits or runs, and they stay when what was asked for is erased. NULL in
-- rows that had ended before.
ALTER TABLE app.sbx_runs ADD COLUMN cpu numeric, ADD COLUMN disk_mb bigint, ADD COLUMN mem_mb bigint;
CREATE FUNCTION app.sbx_runs_ask() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  SELECT a.cpu, a.disk_mb, a.mem_mb INTO NEW.cpu, NEW.disk_mb, NEW.mem_mb FROM app.task_asks(NEW.request) a;
  RETURN NEW;
END $$;
CREATE TRIGGER sbx_runs_ask BEFORE INSERT ON app.sbx_runs FOR EACH ROW EXECUTE FUNCTION app.sbx_runs_ask();
UPDATE app.sbx_runs s SET cpu = a.cpu, disk_mb = a.disk_mb, mem_mb = a.mem_mb
  FROM (SELECT t.task_key, k.* FROM app.sbx_runs t CROSS JOIN LATERAL app.task_asks(t.request) k WHERE t.response IS NULL) a
 WHERE s.task_key = a.task_key;

-- Whether anything is said of quotas at all: asked by every claim, and most installations say nothing.
CREATE INDEX config_of_quotas ON app.dynamic_config (tenant_id, key, version DESC)
  WHERE key IN ('quota.cpu', 'quota.disk_mb', 'quota.starts_per_minute', 'quota.tenants');
CREATE FUNCTION app.has_quotas() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM app.dynamic_config c
                  WHERE c.key IN ('quota.cpu', 'quota.disk_mb', 'quota.starts_per_minute', 'quota.tenants'));
END $$;

-- The quotas in force for a tenant; NULL: no bound. The host's value for this tenant by name stands before its value for every
-- tenant, and the tenant's own only lowers it.
CREATE FUNCTION app.quotas(p_tenant text, OUT cpu numeric, OUT disk_mb numeric, OUT starts numeric) LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF NOT app.has_quotas() THEN
    RETURN;
  END IF;
  WITH newest AS (
    SELECT DISTINCT ON (c.tenant_id, c.key) c.tenant_id = '*' AS is_hosts, c.key, c.value
      FROM app.dynamic_config c
     WHERE c.tenant_id IN ('*', p_tenant)
       AND c.key IN ('quota.cpu', 'quota.disk_mb', 'quota.starts_per_minute', 'quota.tenants')
     ORDER BY c.tenant_id, c.key, c.version DESC),
  said AS (
    SELECT k.field, least(
             coalesce((SELECT (n.value -> p_tenant ->> k.field)::numeric FROM newest n WHERE n.is_hosts AND n.key = 'quota.tenants'),
                      (SELECT (n.value #>> '{}')::numeric FROM newest n WHERE n.is_hosts AND n.key = k.key)),
             (SELECT (n.value #>> '{}')::numeric FROM newest n WHERE NOT n.is_hosts AND n.key = k.key)) AS most
      FROM (VALUES ('quota.cpu', 'cpu'), ('quota.disk_mb', 'diskMB'), ('quota.starts_per_minute', 'startsPerMinute')) k(key, field))
  SELECT max(most) FILTER (WHERE field = 'cpu'), max(most) FILTER (WHERE field = 'diskMB'),
         max(most) FILTER (WHERE field = 'startsPerMinute') INTO cpu, disk_mb, starts FROM said;
END $$;

-- What the start of a task takes of its tenant's quotas. What no quota will ever hold takes nothing: it is not kept in its queue, and
-- ends where it begins, with the reason.
CREATE FUNCTION app.quota_cost(p_cpu numeric, p_disk_mb bigint, p_cpu_most numeric, p_disk_most numeric,
                               OUT cpu numeric, OUT disk_mb numeric, OUT starts numeric)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_counts boolean := p_cpu > 0 AND NOT coalesce(p_cpu > p_cpu_most, false) AND NOT coalesce(p_disk_mb > p_disk_most, false);
BEGIN
  cpu := CASE WHEN v_counts THEN p_cpu ELSE 0 END;
  disk_mb := CASE WHEN v_counts THEN p_disk_mb ELSE 0 END;
  starts := CASE WHEN v_counts THEN 1 ELSE 0 END;
END $$;

-- What a tenant with a quota of starts has taken out of its bucket, which holds as many as it may make a minute and fills at that rate:
-- so many starts were missing at that instant, in µs since the epoch.
CREATE TABLE app.start_meters (
  tenant_id text PRIMARY KEY,
  missing   numeric NOT NULL CHECK (missing >= 0),
  at_us     bigint NOT NULL
) WITH (fillfactor = 50);

CREATE FUNCTION app.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- How many starts are missing now. More than all are never missing, whatever the quota was; none are where the clock was set back by
-- more than the minute in which all come back.
CREATE FUNCTION app.starts_missing(p_tenant text, p_most numeric) RETURNS numeric LANGUAGE sql STABLE AS $$
  SELECT coalesce((
    SELECT greatest(0, least(m.missing, p_most) - greatest(0, app.now_us() - m.at_us) * p_most / 60000000)
      FROM app.start_meters m WHERE m.tenant_id = p_tenant AND m.at_us <= app.now_us() + 60000000), 0)
$$;

-- The quotas of a tenant and what is left of them; NULL: no bound. What has a sandbox counts from its claim to its end, long-lived
-- ones too, and one that was canceled until it is gone. Exact for whoever holds the turn of the claims of `sbxQ`.
CREATE FUNCTION app.quota_left(p_tenant text, OUT is_bound boolean, OUT cpu_most numeric, OUT disk_most numeric, OUT starts_most numeric,
                               OUT cpu numeric, OUT disk_mb numeric, OUT starts numeric)
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  v_cpu numeric;
  v_disk numeric;
BEGIN
  SELECT q.cpu, q.disk_mb, q.starts INTO cpu_most, disk_most, starts_most FROM app.quotas(p_tenant) q;
  is_bound := num_nonnulls(cpu_most, disk_most, starts_most) > 0;
  IF num_nonnulls(cpu_most, disk_most) > 0 THEN
    SELECT coalesce(sum(k.cpu), 0), coalesce(sum(k.disk_mb), 0) INTO v_cpu, v_disk FROM (
      SELECT s.cpu, s.disk_mb FROM unnest(ARRAY['sbxQ', 'liveQ']) q(name)
        JOIN dbos.workflow_status b ON b.queue_name = q.name AND b.status = 'PENDING' AND b.queue_partition_key IS NOT NULL
         AND app.partition_tenant(b.queue_partition_key) = p_tenant
       CROSS JOIN LATERAL (SELECT r.cpu, r.disk_mb FROM app.sbx_runs r WHERE r.task_key = b.workflow_uuid LIMIT 1) s
      UNION ALL
      -- Its workflow is over, and it is not gone yet. One whose task is queued again counts by that.
      SELECT s.cpu, s.disk_mb FROM app.remote_execution_sessions x
       CROSS JOIN LATERAL (SELECT r.cpu, r.disk_mb FROM app.sbx_runs r WHERE r.task_key = x.task_key LIMIT 1) s
       WHERE x.ended_at IS NULL AND x.tenant_id = p_tenant AND NOT EXISTS (
             SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = x.task_key AND w.status IN ('PENDING', 'ENQUEUED', 'DELAYED'))) k;
    -- A quota that was lowered has nothing left, and never less.
    cpu := CASE WHEN cpu_most IS NOT NULL THEN greatest(0, cpu_most - v_cpu) END;
    disk_mb := CASE WHEN disk_most IS NOT NULL THEN greatest(0, disk_most - v_disk) END;
  END IF;
  IF starts_most IS NOT NULL THEN
    starts := floor(starts_most - app.starts_missing(p_tenant, starts_most));
  END IF;
END $$;

-- Takes starts out of a tenant's bucket. As `app.quota_left`, in the turn of the claims.
CREATE FUNCTION app.starts_taken(p_tenant text, p_count numeric, p_most numeric) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.start_meters AS m (tenant_id, missing, at_us)
  SELECT p_tenant, app.starts_missing(p_tenant, p_most) + p_count, app.now_us() WHERE p_count > 0 AND p_most IS NOT NULL
  ON CONFLICT (tenant_id) DO UPDATE SET missing = excluded.missing, at_us = excluded.at_us
$$;

-- Takes what a task needs of its tenant's quotas, in the turn of the claims; false: not enough is left.
CREATE FUNCTION app.quota_take(p_tenant text, p_work jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  q record;
  c record;
BEGIN
  SELECT * INTO q FROM app.quota_left(p_tenant);
  IF NOT q.is_bound THEN
    RETURN true;
  END IF;
  SELECT k.* INTO c FROM app.task_asks(p_work) a CROSS JOIN LATERAL app.quota_cost(a.cpu, a.disk_mb, q.cpu_most, q.disk_most) k;
  IF NOT coalesce(c.cpu <= q.cpu, true) OR NOT coalesce(c.disk_mb <= q.disk_mb, true) OR NOT coalesce(c.starts <= q.starts, true) THEN
    RETURN false;
  END IF;
  PERFORM app.starts_taken(p_tenant, c.starts, q.starts_most);
  RETURN true;
END $$;

-- Why a tenant's quotas will never hold a task, as metric, quota and what it asks for; NULL: they may.
CREATE FUNCTION app.quota_never(p_tenant text, p_cpu numeric, p_disk_mb bigint) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_cpu > q.cpu THEN ARRAY['cpu', q.cpu::text, p_cpu::text]
              WHEN p_disk_mb > q.disk_mb THEN ARRAY['disk_mb', q.disk_mb::text, p_disk_mb::text] END
    FROM app.quotas(p_tenant) q
$$;

-- As in 0039, and: what its tenant's quotas do not hold stays queued, in the tenant's order, so that what is large is not overtaken
-- for ever by what is small. A tenant of whom nothing runs gets its first task before the second of any other, whatever its lane:
-- no tenant's interactive flood keeps another's batch out. Otherwise lanes come first, and then who has least.
CREATE OR REPLACE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer)
RETURNS TABLE (workflow_id text, name text, inputs text) LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off AS $$
DECLARE
  v_now bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
  v_cap integer;
  v_free integer;
  v_has_quotas boolean := p_queue = 'sbxQ' AND app.has_quotas();
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
                                WHERE r.workflow_id = b.workflow_uuid AND r.status = 'waiting_input')) AS taken,
           coalesce(q.is_bound, false) AS is_bound, q.cpu_most, q.disk_most, q.starts_most, q.cpu, q.disk_mb, q.starts
      FROM tenants LEFT JOIN LATERAL (SELECT l.* FROM app.quota_left(tenants.tenant) l WHERE v_has_quotas) q ON true
     WHERE tenants.tenant IS NOT NULL),
  waiting AS (
    SELECT t.id, t.priority, t.created_at, shares.*, c.starts AS start_cost,
           row_number() OVER w AS n, sum(c.cpu) OVER w AS cpu_sum, sum(c.disk_mb) OVER w AS disk_sum, sum(c.starts) OVER w AS start_sum
      FROM shares CROSS JOIN LATERAL (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NOT NULL
           AND app.partition_tenant(s.queue_partition_key) = shares.tenant
           AND (s.application_version IS NULL OR s.application_version = p_version)
           AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
                SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT least(v_free, greatest(v_cap - shares.taken, 0))) t
      LEFT JOIN LATERAL (
        SELECT k.* FROM app.sbx_runs s CROSS JOIN LATERAL app.quota_cost(s.cpu, s.disk_mb, shares.cpu_most, shares.disk_most) k
         WHERE shares.is_bound AND s.task_key = t.id LIMIT 1) c ON true
    WINDOW w AS (PARTITION BY shares.tenant ORDER BY t.priority, t.created_at, t.id ROWS UNBOUNDED PRECEDING)),
  ranked AS (
    SELECT t.id, t.priority, t.created_at, t.taken + t.n AS place, t.tenant, t.start_cost, t.starts_most
      FROM waiting t
     WHERE coalesce(t.cpu_sum <= t.cpu, true) AND coalesce(t.disk_sum <= t.disk_mb, true) AND coalesce(t.start_sum <= t.starts, true)
    UNION ALL
    SELECT t.id, t.priority, t.created_at, row_number() OVER (ORDER BY t.priority, t.created_at, t.id), NULL, NULL, NULL
      FROM (
        SELECT s.workflow_uuid AS id, s.priority, s.created_at FROM dbos.workflow_status s
         WHERE s.queue_name = p_queue AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NULL
           AND (s.application_version IS NULL OR s.application_version = p_version)
           AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
                SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))
         ORDER BY s.priority, s.created_at, s.workflow_uuid LIMIT v_free) t),
  picked AS MATERIALIZED (
    SELECT r.* FROM ranked r WHERE r.place <= v_cap
    ORDER BY p_queue = 'sbxQ' AND r.place > 1, r.priority, r.place, r.created_at, r.id LIMIT v_free),
  metered AS MATERIALIZED (
    SELECT app.starts_taken(p.tenant, sum(p.start_cost), p.starts_most) FROM picked p
     WHERE p.starts_most IS NOT NULL GROUP BY p.tenant, p.starts_most)
  UPDATE dbos.workflow_status w
     SET status = 'PENDING', executor_id = p_executor, owner_xid = NULL, started_at_epoch_ms = v_now,
         updated_at = v_now, application_version = p_version,
         recovery_attempts = least(w.recovery_attempts + 1, 100),
         workflow_deadline_epoch_ms = coalesce(w.workflow_deadline_epoch_ms, v_now + w.workflow_timeout_ms)
    FROM picked LEFT JOIN (SELECT count(*) AS n FROM metered) m ON true
   WHERE w.workflow_uuid = picked.id AND w.status = 'ENQUEUED' AND m.n >= 0
  RETURNING w.workflow_uuid, w.name, w.inputs;
END $$;

-- Which quota keeps a tenant's tasks back, and how many of them are before the first that it keeps: looked for among so many that come
-- first. No row where none does.
CREATE FUNCTION app.quota_waits(p_tenant text, p_most integer DEFAULT 200) RETURNS TABLE (before bigint, why text) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  q record;
BEGIN
  SELECT * INTO q FROM app.quota_left(p_tenant);
  IF NOT q.is_bound THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH first AS (
    SELECT o.workflow_uuid AS id, o.priority, o.created_at FROM dbos.workflow_status o
     WHERE o.queue_name = 'sbxQ' AND o.status = 'ENQUEUED' AND o.queue_partition_key IS NOT NULL
       AND app.partition_tenant(o.queue_partition_key) = p_tenant
     ORDER BY o.priority, o.created_at, o.workflow_uuid LIMIT p_most),
  sums AS (
    SELECT row_number() OVER w - 1 AS before, sum(c.cpu) OVER w AS cpu, sum(c.disk_mb) OVER w AS disk_mb, sum(c.starts) OVER w AS starts
      FROM first f LEFT JOIN LATERAL (
        SELECT k.* FROM app.sbx_runs s CROSS JOIN LATERAL app.quota_cost(s.cpu, s.disk_mb, q.cpu_most, q.disk_most) k
         WHERE s.task_key = f.id LIMIT 1) c ON true
    WINDOW w AS (ORDER BY f.priority, f.created_at, f.id ROWS UNBOUNDED PRECEDING))
  SELECT s.before, CASE WHEN s.cpu > q.cpu THEN 'cpu' WHEN s.disk_mb > q.disk_mb THEN 'disk' ELSE 'starts' END
    FROM sums s WHERE s.cpu > q.cpu OR s.disk_mb > q.disk_mb OR s.starts > q.starts ORDER BY s.before LIMIT 1;
END $$;

-- As in 0039, and tasks that a quota of their own tenant keeps back keep no other tenant from what a claim would give it.
CREATE OR REPLACE FUNCTION app.may_take_own(p_tenant text, p_executor text) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  v_cap integer;
  v_worker integer;
  v_tenant text;
BEGIN
  SELECT q.partition_concurrency, q.worker_concurrency INTO v_cap, v_worker FROM dbos.queues q WHERE q.name = 'sbxQ';
  IF p_executor IS NULL OR NOT pg_try_advisory_xact_lock(hashtextextended('cofferdam.claim.sbxQ', 0)) THEN
    RETURN false;
  END IF;
  PERFORM 1 FROM app.executors e WHERE e.id = p_executor AND e.state = 'live' FOR SHARE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF EXISTS (
       SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = 'sbxQ' AND s.status = 'ENQUEUED'
          AND (s.executor_id IS NULL OR s.recovery_attempts > 0 OR s.executor_id = p_executor OR NOT EXISTS (
               SELECT 1 FROM app.executors x WHERE x.id = s.executor_id AND x.state = 'live'))) THEN
    IF NOT app.has_quotas() OR EXISTS (
         SELECT 1 FROM dbos.workflow_status s
          WHERE s.queue_name = 'sbxQ' AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NULL) THEN
      RETURN false;
    END IF;
    LOOP
      SELECT min(app.partition_tenant(s.queue_partition_key)) INTO v_tenant FROM dbos.workflow_status s
       WHERE s.queue_name = 'sbxQ' AND s.status = 'ENQUEUED' AND s.queue_partition_key IS NOT NULL
         AND (v_tenant IS NULL OR app.partition_tenant(s.queue_partition_key) > v_tenant);
      EXIT WHEN v_tenant IS NULL;
      IF v_tenant = p_tenant OR NOT EXISTS (SELECT 1 FROM app.quota_waits(v_tenant, 1)) THEN
        RETURN false;
      END IF;
    END LOOP;
  END IF;
  RETURN coalesce(v_worker > (
    SELECT count(*) FROM dbos.workflow_status b
     WHERE b.queue_name = 'sbxQ' AND b.status = 'PENDING' AND b.executor_id = p_executor), true)
   AND coalesce(v_cap > (
    SELECT count(*) FROM dbos.workflow_status b
     WHERE b.queue_name = 'sbxQ' AND b.status = 'PENDING' AND b.queue_partition_key IS NOT NULL
       AND app.partition_tenant(b.queue_partition_key) = p_tenant), true);
END $$;

-- As in 0039, and a task is claimed at once only where its tenant's quotas hold it.
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
  taken := coalesce((p_opening->>'takes')::boolean, true) AND app.may_take_own(r.tenant_id, p_executor)
           AND app.quota_take(r.tenant_id, t.request);
  PERFORM app.enqueue_quietly(t.task_key, 'task', 'null', 'sbxQ', r.partition_key, r.priority, NULL, r.app_version,
                              r.workflow_id, 0, p_executor, taken);
  IF NOT taken THEN
    PERFORM pg_notify('cofferdam', 'q:sbxQ');
  END IF;
  RETURN taken;
END $$;

-- As in 0047, and a task that a quota of its tenant keeps back says which.
CREATE OR REPLACE FUNCTION app.place_before(p_workflow text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  c_most constant bigint := 200;
  v dbos.workflow_status;
  v_tenant text;
  v_before bigint;
  v_seen bigint;
  v_what text;
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
  IF v.queue_name = 'sbxQ' AND v.queue_partition_key IS NOT NULL THEN
    SELECT q.why INTO v_what FROM app.quota_waits(app.partition_tenant(v.queue_partition_key)) q WHERE q.before <= v_before;
  END IF;
  v_what := coalesce(v_what, 'a place');
  RETURN CASE WHEN v_seen = c_most THEN v_what || ': many before you'
              WHEN v_before = 0 THEN v_what
              ELSE format('%s: %s before you', v_what, v_before) END;
END $$;

-- As in 0055, with the quota that keeps each back.
CREATE OR REPLACE FUNCTION app.task_places(p_run text) RETURNS TABLE (task_key text, why text) LANGUAGE plpgsql STABLE AS $$
DECLARE
  c_most constant integer := 200;
  v_is_served boolean := EXISTS (SELECT 1 FROM app.executors e WHERE e.state = 'live');
BEGIN
  RETURN QUERY
  WITH queued AS MATERIALIZED (
    SELECT s.task_key AS id, w.queue_name AS queue, app.partition_tenant(w.queue_partition_key) AS tenant
      FROM app.sbx_runs s JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key
     WHERE s.run_id = p_run AND s.response IS NULL AND w.status = 'ENQUEUED'),
  kept AS MATERIALIZED (
    SELECT x.queue, x.tenant, k.before, k.why FROM (SELECT DISTINCT y.queue, y.tenant FROM queued y) x
      LEFT JOIN LATERAL (SELECT z.* FROM app.quota_waits(x.tenant) z WHERE x.queue = 'sbxQ' AND x.tenant IS NOT NULL) k ON true),
  ahead AS (
    SELECT f.id, f.before FROM kept q
     CROSS JOIN LATERAL (
       SELECT o.workflow_uuid AS id, row_number() OVER (ORDER BY o.priority, o.created_at, o.workflow_uuid) - 1 AS before
         FROM dbos.workflow_status o
        WHERE o.queue_name = q.queue AND o.status = 'ENQUEUED' AND o.queue_partition_key IS NOT NULL
          AND app.partition_tenant(o.queue_partition_key) = q.tenant
        ORDER BY o.priority, o.created_at, o.workflow_uuid LIMIT c_most) f)
  SELECT q.id, CASE WHEN NOT v_is_served THEN 'a worker: none is live'
                    WHEN q.tenant IS NULL OR a.before = 0 THEN w.what
                    WHEN a.before IS NULL THEN w.what || ': many before you'
                    ELSE format('%s: %s before you', w.what, a.before) END
    FROM queued q LEFT JOIN ahead a ON a.id = q.id
    LEFT JOIN kept ON kept.queue = q.queue AND kept.tenant IS NOT DISTINCT FROM q.tenant
   CROSS JOIN LATERAL (SELECT CASE WHEN kept.before <= coalesce(a.before, c_most) THEN kept.why ELSE 'a place' END AS what) w;
END $$;

-- When a session that waited on its worker, for memory or for another's build, had room: before that it was no sandbox, and used
-- nothing. Where the worker's word was lost, the first that is known of the sandbox says it. And the memory that it asked for, which
-- stays when what was asked for is erased.
ALTER TABLE app.remote_execution_sessions ADD COLUMN admitted_at timestamptz, ADD COLUMN mem_mb bigint;
CREATE FUNCTION app.session_admitted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.admitted_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER sessions_admitted BEFORE UPDATE OF attestation ON app.remote_execution_sessions
  FOR EACH ROW WHEN (OLD.attestation IS NULL AND NEW.attestation IS NOT NULL AND OLD.waits_for IS NOT NULL)
  EXECUTE FUNCTION app.session_admitted();
CREATE FUNCTION app.session_asks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  SELECT coalesce(s.mem_mb, a.mem_mb) INTO NEW.mem_mb FROM app.sbx_runs s CROSS JOIN LATERAL app.task_asks(s.request) a
   WHERE s.task_key = NEW.task_key;
  RETURN NEW;
END $$;
CREATE TRIGGER sessions_ask BEFORE INSERT ON app.remote_execution_sessions FOR EACH ROW EXECUTE FUNCTION app.session_asks();
UPDATE app.remote_execution_sessions x SET mem_mb = a.mem_mb
  FROM app.sbx_runs s CROSS JOIN LATERAL app.task_asks(s.request) a WHERE s.task_key = x.task_key;

-- What each tenant used, by day (UTC): sums that the end of each sandbox, each answer of a task, each set of artifacts and each call
-- of a model adds to, in its own transaction. In parts, one for each connection: no two transactions ever wait for the same one. The
-- leader folds those of days that are over into part 0.
-- `sandbox_ms` is wall time; `memory_mb_ms` what was asked for, by wall time; `sent_bytes` bodies for providers of models.
CREATE TABLE app.usage_parts (
  tenant_id    text NOT NULL,
  day          date NOT NULL,
  part         integer NOT NULL,
  starts       bigint NOT NULL DEFAULT 0,
  sandbox_ms   bigint NOT NULL DEFAULT 0,
  core_ms      bigint NOT NULL DEFAULT 0,
  memory_mb_ms bigint NOT NULL DEFAULT 0,
  stored_bytes bigint NOT NULL DEFAULT 0,
  sent_bytes   bigint NOT NULL DEFAULT 0,
  model_calls  bigint NOT NULL DEFAULT 0,
  model_tokens bigint NOT NULL DEFAULT 0,
  model_micros bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, day, part)
) WITH (fillfactor = 50);
CREATE INDEX usage_by_day ON app.usage_parts (day, tenant_id);
CREATE INDEX usage_to_fold ON app.usage_parts (day) WHERE part <> 0;

CREATE FUNCTION app.usage_add(u app.usage_parts) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app.usage_parts AS p
  VALUES (u.tenant_id, u.day, pg_backend_pid(), coalesce(u.starts, 0), coalesce(u.sandbox_ms, 0), coalesce(u.core_ms, 0),
          coalesce(u.memory_mb_ms, 0), coalesce(u.stored_bytes, 0), coalesce(u.sent_bytes, 0), coalesce(u.model_calls, 0),
          coalesce(u.model_tokens, 0), coalesce(u.model_micros, 0))
  ON CONFLICT (tenant_id, day, part) DO UPDATE
     SET starts = p.starts + excluded.starts, sandbox_ms = p.sandbox_ms + excluded.sandbox_ms, core_ms = p.core_ms + excluded.core_ms,
         memory_mb_ms = p.memory_mb_ms + excluded.memory_mb_ms, stored_bytes = p.stored_bytes + excluded.stored_bytes,
         sent_bytes = p.sent_bytes + excluded.sent_bytes, model_calls = p.model_calls + excluded.model_calls,
         model_tokens = p.model_tokens + excluded.model_tokens, model_micros = p.model_micros + excluded.model_micros
$$;

-- Folds some parts of days that are over; how many. Only the leader calls it: nobody else touches part 0, and it waits for no part
-- that a connection adds to.
CREATE FUNCTION app.usage_fold(p_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_folded bigint;
BEGIN
  WITH old AS MATERIALIZED (
    SELECT p.tenant_id, p.day, p.part FROM app.usage_parts p
     WHERE p.part <> 0 AND p.day < (clock_timestamp() AT TIME ZONE 'UTC')::date - 1
     ORDER BY p.day LIMIT p_most FOR UPDATE SKIP LOCKED),
  gone AS (
    DELETE FROM app.usage_parts p USING old o WHERE (p.tenant_id, p.day, p.part) = (o.tenant_id, o.day, o.part) RETURNING p.*),
  kept AS (
    INSERT INTO app.usage_parts AS p
    SELECT g.tenant_id, g.day, 0, sum(g.starts), sum(g.sandbox_ms), sum(g.core_ms), sum(g.memory_mb_ms), sum(g.stored_bytes),
           sum(g.sent_bytes), sum(g.model_calls), sum(g.model_tokens), sum(g.model_micros)
      FROM gone g GROUP BY g.tenant_id, g.day
    ON CONFLICT (tenant_id, day, part) DO UPDATE
       SET starts = p.starts + excluded.starts, sandbox_ms = p.sandbox_ms + excluded.sandbox_ms, core_ms = p.core_ms + excluded.core_ms,
           memory_mb_ms = p.memory_mb_ms + excluded.memory_mb_ms, stored_bytes = p.stored_bytes + excluded.stored_bytes,
           sent_bytes = p.sent_bytes + excluded.sent_bytes, model_calls = p.model_calls + excluded.model_calls,
           model_tokens = p.model_tokens + excluded.model_tokens, model_micros = p.model_micros + excluded.model_micros)
  SELECT count(*) INTO v_folded FROM gone;
  RETURN v_folded;
END $$;

CREATE FUNCTION app.usage_day(p_at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (p_at AT TIME ZONE 'UTC')::date
$$;

-- A time by days (UTC), in ms; the first is the day of the start. The sum is the whole. A clock that was set back makes none.
CREATE FUNCTION app.usage_spans(p_from timestamptz, p_to timestamptz) RETURNS TABLE (day date, ms bigint, is_first boolean)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT d::date, app.ms(least(greatest(p_from, p_to), (d + interval '1 day') AT TIME ZONE 'UTC')) - app.ms(greatest(p_from, d AT TIME ZONE 'UTC')),
         d = date_trunc('day', p_from AT TIME ZONE 'UTC')
    FROM generate_series(date_trunc('day', p_from AT TIME ZONE 'UTC'), greatest(p_from, p_to) AT TIME ZONE 'UTC', interval '1 day') d
$$;

-- What the sandbox of a session used, by days, up to `p_to`. A session without an attestation never had one.
CREATE FUNCTION app.session_usage(s app.remote_execution_sessions, p_to timestamptz) RETURNS SETOF app.usage_parts LANGUAGE sql STABLE AS $$
  SELECT s.tenant_id, d.day, 0, d.is_first::int::bigint, d.ms, 0::bigint, d.ms * s.mem_mb, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint
    FROM app.usage_spans(coalesce(s.admitted_at, s.created_at), p_to) d
   WHERE s.attestation IS NOT NULL
$$;

CREATE FUNCTION app.session_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.usage_add(u) FROM app.session_usage(NEW, NEW.ended_at) u;
  RETURN NULL;
END $$;
CREATE TRIGGER sessions_used AFTER UPDATE OF ended_at ON app.remote_execution_sessions
  FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION app.session_used();

CREATE FUNCTION app.task_used() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  u app.usage_parts;
BEGIN
  u.core_ms := (NEW.metrics ->> 'cpuMs')::bigint;
  IF u.core_ms > 0 THEN
    u.day := app.usage_day(NEW.finished_at);
    SELECT r.tenant_id INTO u.tenant_id FROM app.runs r WHERE r.id = NEW.run_id;
    PERFORM app.usage_add(u);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER sbx_runs_used AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL) EXECUTE FUNCTION app.task_used();

CREATE FUNCTION app.artifacts_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.usage_add(ROW(x.tenant_id, x.day, 0, 0, 0, 0, 0, x.bytes, 0, 0, 0, 0)::app.usage_parts)
     FROM (SELECT r.tenant_id, app.usage_day(a.created_at) AS day, sum(a.size)::bigint AS bytes
             FROM added a JOIN app.runs r ON r.id = a.run_id GROUP BY 1, 2) x;
  RETURN NULL;
END $$;
CREATE TRIGGER artifacts_used AFTER INSERT ON app.artifacts REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION app.artifacts_used();

-- A call that was sent and has its outcome. What was set aside counts where it is not known what was paid.
CREATE FUNCTION app.model_call_used() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  u app.usage_parts;
BEGIN
  u.tenant_id := NEW.tenant_id;
  u.day := app.usage_day(NEW.ended_at);
  u.sent_bytes := NEW.request_bytes;
  u.model_calls := 1;
  u.model_tokens := NEW.tokens;
  u.model_micros := NEW.micros;
  PERFORM app.usage_add(u);
  RETURN NULL;
END $$;
CREATE TRIGGER model_calls_used AFTER UPDATE OF outcome ON app.model_calls
  FOR EACH ROW WHEN (OLD.outcome IS NULL AND NEW.outcome <> 'refused') EXECUTE FUNCTION app.model_call_used();

-- What is on record already.
INSERT INTO app.usage_parts (tenant_id, day, part, starts, sandbox_ms, core_ms, memory_mb_ms, stored_bytes, sent_bytes, model_calls,
                             model_tokens, model_micros)
SELECT x.tenant_id, x.day, 0, sum(x.starts), sum(x.sandbox_ms), sum(x.core_ms), sum(x.memory_mb_ms), sum(x.stored_bytes),
       sum(x.sent_bytes), sum(x.model_calls), sum(x.model_tokens), sum(x.model_micros)
  FROM (
    SELECT u.* FROM app.remote_execution_sessions s CROSS JOIN LATERAL app.session_usage(s, s.ended_at) u WHERE s.ended_at IS NOT NULL
    UNION ALL
    SELECT r.tenant_id, app.usage_day(t.finished_at), 0, 0, 0, (t.metrics ->> 'cpuMs')::bigint, 0, 0, 0, 0, 0, 0
      FROM app.sbx_runs t JOIN app.runs r ON r.id = t.run_id
     WHERE t.response IS NOT NULL AND (t.metrics ->> 'cpuMs')::bigint > 0 AND t.finished_at IS NOT NULL
    UNION ALL
    SELECT r.tenant_id, app.usage_day(a.created_at), 0, 0, 0, 0, 0, a.size, 0, 0, 0, 0
      FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id
    UNION ALL
    SELECT c.tenant_id, app.usage_day(c.ended_at), 0, 0, 0, 0, 0, 0, c.request_bytes, 1, c.tokens, c.micros
      FROM app.model_calls c WHERE c.outcome <> 'refused') x
 GROUP BY x.tenant_id, x.day;

-- What is settled, by tenant and day.
CREATE VIEW app.usage_days AS
  SELECT tenant_id, day, sum(starts)::bigint AS starts, sum(sandbox_ms)::bigint AS sandbox_ms, sum(core_ms)::bigint AS core_ms,
         sum(memory_mb_ms)::bigint AS memory_mb_ms, sum(stored_bytes)::bigint AS stored_bytes, sum(sent_bytes)::bigint AS sent_bytes,
         sum(model_calls)::bigint AS model_calls, sum(model_tokens)::bigint AS model_tokens, sum(model_micros)::bigint AS model_micros
    FROM app.usage_parts GROUP BY tenant_id, day;

-- The same with what sandboxes that are up used until now.
CREATE VIEW app.usage_now AS
  SELECT * FROM app.usage_parts
  UNION ALL
  SELECT u.* FROM app.remote_execution_sessions s CROSS JOIN LATERAL app.session_usage(s, clock_timestamp()) u WHERE s.ended_at IS NULL;
