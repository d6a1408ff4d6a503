--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: app; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA app;


--
-- Name: dbos; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA dbos;


--
-- Name: answer_used(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.answer_used() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM app.bytes_used(r.tenant_id, octet_length(NEW.payload::text)) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;


--
-- Name: blob_used(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.blob_used() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM app.bytes_used(r.tenant_id, NEW.size) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;


--
-- Name: blobs_over_quota(text, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.blobs_over_quota(p_tenant text, p_default_mb bigint) RETURNS bigint[]
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
  used  bigint;
  quota bigint;
BEGIN
  SELECT sum(bytes) INTO used FROM app.blob_usage_parts WHERE tenant_id = p_tenant;
  IF used IS NULL OR used = 0 THEN
    RETURN NULL;
  END IF;
  SELECT min(coalesce(v.mb, p_default_mb)) INTO quota FROM (
    SELECT (SELECT CASE WHEN c.value <> 'null' THEN (c.value #>> '{}')::bigint END FROM app.dynamic_config c
             WHERE c.tenant_id = t.id AND c.key = 'quota.blobs_mb' ORDER BY c.version DESC LIMIT 1) AS mb, t.id
      FROM unnest(ARRAY['*', p_tenant]) AS t(id)) v
   WHERE v.mb IS NOT NULL OR v.id = '*';
  IF used / 1048576 < quota THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[quota, used / 1048576];
END $$;


--
-- Name: bytes_used(text, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.bytes_used(p_tenant text, p_bytes bigint) RETURNS void
    LANGUAGE sql
    AS $$
  INSERT INTO app.blob_usage_parts (tenant_id, part, bytes) VALUES (p_tenant, pg_backend_pid() % 16, p_bytes)
  ON CONFLICT (tenant_id, part) DO UPDATE SET bytes = app.blob_usage_parts.bytes + EXCLUDED.bytes
$$;


--
-- Name: claim(text, text, text, integer); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.claim(p_queue text, p_executor text, p_version text, p_running integer) RETURNS TABLE(workflow_id text, name text, inputs text)
    LANGUAGE plpgsql
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
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


--
-- Name: database_identity(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.database_identity() RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_oid text := (SELECT oid::text FROM pg_database WHERE datname = current_database());
BEGIN
  RETURN (SELECT system_identifier::text FROM pg_control_system()) || '/' || v_oid;
EXCEPTION WHEN insufficient_privilege THEN
  -- A provider may keep the identifier of its servers to itself.
  RETURN '/' || v_oid;
END $$;


--
-- Name: dependency_cache_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dependency_cache_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.state = 'evicted' OR (OLD.state = 'doomed' AND NEW.state = 'ready')
     OR (NEW.org_id, NEW.repo_id, NEW.lock_hash, NEW.key, NEW.host_id, NEW.state_dir, NEW.digest, NEW.bytes,
         NEW.files, NEW.created_by, NEW.created_at)
        IS DISTINCT FROM
        (OLD.org_id, OLD.repo_id, OLD.lock_hash, OLD.key, OLD.host_id, OLD.state_dir, OLD.digest, OLD.bytes,
         OLD.files, OLD.created_by, OLD.created_at) THEN
    RAISE EXCEPTION 'dependency_cache_index % only goes from ready to evicted', OLD.entry_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: dispatch_ends_with_its_run(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatch_ends_with_its_run() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_run text := to_jsonb(NEW) ->> TG_ARGV[0];
BEGIN
  IF EXISTS (SELECT 1 FROM app.dispatch_runs m
               JOIN app.dispatches d ON d.id = m.dispatch_id
               JOIN app.runs r ON r.id = m.run_id
              WHERE m.run_id = v_run AND NOT app.dispatch_is_over(d.status) AND app.is_over(r.status)
                AND NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = v_run AND s.response IS NULL)) THEN
    RAISE EXCEPTION 'the dispatch of run % ends with it', v_run USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;


--
-- Name: dispatch_follow_run(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatch_follow_run() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  UPDATE app.dispatches d SET status = 'running',
         started_at = floor(extract(epoch FROM clock_timestamp()))::bigint
    FROM app.dispatch_runs m WHERE m.run_id = NEW.id AND d.id = m.dispatch_id AND d.status = 'spawned';
  RETURN NULL;
END $$;


--
-- Name: dispatch_is_over(text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatch_is_over(p_status text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT p_status IN ('completed','failed','timeout','cancelled')
$$;


--
-- Name: dispatch_limit(text, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatch_limit(p_key text, p_default bigint) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
  SELECT coalesce((SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN (value #>> '{}')::bigint END
                     FROM app.dynamic_config WHERE key = p_key AND tenant_id = '*'
                    ORDER BY version DESC LIMIT 1), p_default)
$$;


--
-- Name: dispatch_limits(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatch_limits() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
  d app.dispatches;
  v_parent app.dispatches;
  v_limit bigint;
  v_live bigint;
BEGIN
  IF NEW.run_id IS NULL THEN
    RETURN NEW;
  END IF;
  SELECT * INTO d FROM app.dispatches WHERE id = NEW.dispatch_id;
  IF d.parent_id IS NOT NULL THEN
    SELECT p.* INTO v_parent FROM app.dispatches p JOIN app.dispatch_runs r ON r.dispatch_id = p.id
     WHERE p.id = d.parent_id AND r.tenant_id = NEW.tenant_id;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the parent dispatch was not found' USING ERRCODE = 'CF003';
    END IF;
    IF d.spawn_depth <> v_parent.spawn_depth + 1 THEN
      RAISE EXCEPTION 'a child is one deeper than its parent' USING ERRCODE = 'restrict_violation';
    END IF;
  ELSIF d.spawn_depth <> 0 THEN
    RAISE EXCEPTION 'a dispatch without a parent has depth 0' USING ERRCODE = 'restrict_violation';
  END IF;
  v_limit := app.dispatch_limit('dispatch.max_spawn_depth', 5);
  IF d.spawn_depth > v_limit THEN
    RAISE EXCEPTION 'spawn depth %, the limit is %', d.spawn_depth, v_limit USING ERRCODE = 'CF001';
  END IF;
  IF d.scope_id IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('cofferdam.scope.' || NEW.tenant_id || '/' || d.scope_id, 0));
    v_limit := app.dispatch_limit('dispatch.max_live_per_scope', 256);
    SELECT count(*) INTO v_live FROM app.dispatches o JOIN app.dispatch_runs r ON r.dispatch_id = o.id
     WHERE o.scope_id = d.scope_id AND r.tenant_id = NEW.tenant_id AND o.status IN ('spawned','running')
       AND o.id <> d.id;
    IF v_live >= v_limit THEN
      RAISE EXCEPTION 'the scope has % live dispatches, the limit is %', v_live, v_limit USING ERRCODE = 'CF002';
    END IF;
  END IF;
  RETURN NEW;
END $$;


--
-- Name: dispatch_runs_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatch_runs_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION 'the origin of dispatch % stays', OLD.dispatch_id USING ERRCODE = 'restrict_violation';
END $$;


--
-- Name: dispatches_are_owned(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatches_are_owned() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM app.dispatch_runs r WHERE r.dispatch_id = NEW.id) THEN
    RAISE EXCEPTION 'dispatch % belongs to nobody', NEW.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;


--
-- Name: dispatches_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.dispatches_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.sandbox_effective IS NOT NULL AND NOT app.dispatch_is_over(NEW.status) THEN
      RAISE EXCEPTION 'dispatch % has an effective policy before its end', NEW.id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF NOT app.dispatch_is_over(OLD.status) THEN
      RAISE EXCEPTION 'dispatch % is still %', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
  END IF;
  IF NEW.sandbox_spec IS DISTINCT FROM OLD.sandbox_spec THEN
    RAISE EXCEPTION 'dispatch % keeps the sandbox_spec that it was created with', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  IF ROW(NEW.id, NEW.agent_type, NEW.project_dir, NEW.prompt_hash, NEW.sandbox, NEW.scope_id, NEW.parent_id,
         NEW.spawn_depth, NEW.parent_dispatch_id, NEW.created_at)
     IS DISTINCT FROM
     ROW(OLD.id, OLD.agent_type, OLD.project_dir, OLD.prompt_hash, OLD.sandbox, OLD.scope_id, OLD.parent_id,
         OLD.spawn_depth, OLD.parent_dispatch_id, OLD.created_at) THEN
    RAISE EXCEPTION 'dispatch % keeps its identity', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  IF app.dispatch_is_over(OLD.status) AND NEW.status <> OLD.status THEN
    RAISE EXCEPTION 'dispatch % is % and stays so', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
  END IF;
  IF NEW.sandbox_effective IS DISTINCT FROM OLD.sandbox_effective AND (
       OLD.sandbox_effective IS NOT NULL OR app.dispatch_is_over(OLD.status)
       OR NOT app.dispatch_is_over(NEW.status)) THEN
    RAISE EXCEPTION 'the sandbox_effective of dispatch % is written once, with its end', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: egress_asks_end(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.egress_asks_end() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  UPDATE app.human_gates g SET state = 'canceled', decided_at = clock_timestamp()
    FROM app.egress_asks a
   WHERE a.task_key = NEW.task_key AND g.run_id = a.run_id AND g.gate_key = a.gate_key AND g.state = 'open';
  IF FOUND THEN
    PERFORM pg_notify('cofferdam', 'g:' || NEW.run_id);
  END IF;
  RETURN NULL;
END $$;


--
-- Name: enqueue(text, text, text, text, text, integer, text, text, text, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.enqueue(p_id text, p_name text, p_inputs text, p_queue text, p_partition text, p_priority integer, p_dedup text, p_version text, p_parent text, p_delay_ms bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: evidence_digest(jsonb); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.evidence_digest(p_evidence jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT encode(sha256(convert_to(p_evidence::text, 'UTF8')), 'hex')
$$;


--
-- Name: executor_end(text, text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.executor_end(p_executor text, p_state text) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
BEGIN
  UPDATE app.executors SET state = p_state, ended_at = clock_timestamp()
   WHERE id = p_executor AND state = 'live';
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  RETURN app.give_back(p_executor);
END $$;


--
-- Name: gate_audit(text, text, text, text, text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.gate_audit(p_workflow text, p_gate text, p_event text, p_actor text, p_reason text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_key text := 'ui:' || p_gate || ':audit';
  v_value text := jsonb_strip_nulls(jsonb_build_object('schemaVersion', 1, 'event', p_event, 'actor', p_actor,
                    'reason', p_reason, 'at', app.ms(clock_timestamp())))::text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM dbos.workflow_status w WHERE w.workflow_uuid = p_workflow) THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('cofferdam.gate_audit.' || p_workflow || '/' || p_gate, 0));
  INSERT INTO dbos.workflow_events_history (workflow_uuid, function_id, key, value, serialization)
  SELECT p_workflow, 1000000 + count(*)::int, v_key, v_value, 'rust_serde'
    FROM dbos.workflow_events_history h WHERE h.workflow_uuid = p_workflow AND h.key = v_key;
  INSERT INTO dbos.workflow_events AS e (workflow_uuid, key, value, serialization)
  VALUES (p_workflow, v_key, v_value, 'rust_serde')
  ON CONFLICT (workflow_uuid, key) DO UPDATE SET value = excluded.value;
END $$;


--
-- Name: gate_audit_journal(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.gate_audit_journal() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM app.gate_audit(g.workflow_id, g.gate_key, NEW.event, NULL,
                         CASE NEW.event WHEN 'escalated' THEN 'timeout' END)
     FROM app.human_gates g WHERE g.run_id = NEW.run_id AND g.gate_key = NEW.gate_key;
  RETURN NULL;
END $$;


--
-- Name: gate_audit_state(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.gate_audit_state() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_actor text;
BEGIN
  CASE NEW.state
    WHEN 'received' THEN
      SELECT i.key_id INTO v_actor FROM app.human_interactions i
       WHERE i.workflow_id = NEW.workflow_id AND i.gate_key = NEW.gate_key AND i.topic = NEW.topic
         AND i.outcome = 'accepted';
      PERFORM app.gate_audit(NEW.workflow_id, NEW.gate_key, 'received', v_actor, NULL);
    WHEN 'timed_out' THEN PERFORM app.gate_audit(NEW.workflow_id, NEW.gate_key, 'timed_out', NULL, 'timeout');
    WHEN 'canceled' THEN PERFORM app.gate_audit(NEW.workflow_id, NEW.gate_key, 'canceled', NULL, NULL);
    WHEN 'open' THEN PERFORM app.gate_audit(NEW.workflow_id, NEW.gate_key, 'reopened', NULL, NULL);
    ELSE NULL;
  END CASE;
  RETURN NULL;
END $$;


--
-- Name: give_back(text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.give_back(p_executor text) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: has_hosts_reach(text, text, text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.has_hosts_reach(p_run_id text, p_run_key text, p_intent_key text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  IF NOT (app.is_host_admin(p_run_key) AND app.is_host_admin(p_intent_key)) THEN
    RETURN false;
  END IF;
  RETURN NOT EXISTS (
    WITH RECURSIVE line AS (
      SELECT r.id, r.workflow_id, 0 AS back FROM app.runs r WHERE r.id = p_run_id
      UNION ALL
      SELECT r.id, r.workflow_id, l.back + 1 FROM line l
        JOIN dbos.workflow_status w ON w.workflow_uuid = l.workflow_id
        JOIN app.runs r ON r.workflow_id = w.forked_from),
    asked AS (
      SELECT DISTINCT ON (g.gate_key) g.run_id, g.gate_key FROM line l
        JOIN app.human_gates g ON g.run_id = l.id
       WHERE l.back = 0 OR EXISTS (
               SELECT 1 FROM app.plan_approvals p WHERE p.run_id = p_run_id AND p.gate_key = g.gate_key)
       ORDER BY g.gate_key, l.back)
    SELECT 1 FROM asked a
      JOIN app.gate_edits e ON e.run_id = a.run_id AND e.gate_key = a.gate_key
      JOIN app.human_interactions i ON i.id = e.interaction_id
     WHERE NOT app.is_host_admin(i.key_id))
  AND NOT EXISTS (
    SELECT 1 FROM app.runs r
      JOIN app.recipe_versions v
        ON v.tenant_id = r.tenant_id AND v.id = r.recipe_id AND v.hash = r.recipe_hash
     WHERE r.id = p_run_id AND NOT v.is_host_admins)
  AND NOT EXISTS (
    SELECT 1 FROM app.runs r
     WHERE r.id = p_run_id AND (r.retry_of IS NOT NULL OR r.asked_by IS NOT NULL)
       AND NOT app.is_host_admin(r.asked_by))
  AND NOT EXISTS (
    SELECT 1 FROM app.run_retries t
     WHERE t.run_id = p_run_id AND NOT app.is_host_admin(t.key_id)
       AND t.n = (SELECT max(n) FROM app.run_retries WHERE run_id = p_run_id));
END $$;


--
-- Name: intent_used(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.intent_used() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM app.bytes_used(NEW.tenant_id, octet_length(NEW.inputs::text) + octet_length(NEW.goal));
  RETURN NULL;
END $$;


--
-- Name: is_host_admin(text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.is_host_admin(p_key_id text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  RETURN EXISTS (
    SELECT 1 FROM app.api_keys k
     WHERE k.key_id = p_key_id AND k.tenant_id = 'default' AND 'admin' = ANY (k.roles));
END $$;


--
-- Name: is_over(text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.is_over(p_status text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT p_status IN ('succeeded','failed','canceled','retries_exceeded')
$$;


--
-- Name: lead(text, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.lead(p_executor text, p_lease_ms bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: leads(text, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.leads(p_executor text, p_term bigint) RETURNS boolean
    LANGUAGE sql
    AS $$
  SELECT EXISTS (SELECT 1 FROM app.leader
                  WHERE executor_id = p_executor AND term = p_term AND until > clock_timestamp())
$$;


--
-- Name: ms(timestamp with time zone); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.ms(at timestamp with time zone) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT floor(extract(epoch FROM at) * 1000)::bigint $$;


--
-- Name: partition_tenant(text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.partition_tenant(p_key text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT split_part(p_key, '/', 1)
$$;


--
-- Name: policy_digest(jsonb); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.policy_digest(p_policy jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT encode(sha256(convert_to(p_policy::text, 'UTF8')), 'hex')
$$;


--
-- Name: policy_needs_consent(text, jsonb); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.policy_needs_consent(p_phase text, p_policy jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
  SELECT CASE p_phase WHEN 'exec' THEN p_policy @? '$[*][*] ? (@ != "none")'
                      ELSE p_policy @? '$[*][*] ? (@ != "none" && !(@ starts with "@"))' END
$_$;


--
-- Name: recipe_used(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.recipe_used() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM app.bytes_used(NEW.tenant_id, octet_length(NEW.json::text));
  RETURN NULL;
END $$;


--
-- Name: recipe_versions_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.recipe_versions_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF EXISTS (SELECT 1 FROM app.recipe_versions s WHERE s.tenant_id = NEW.tenant_id AND s.id = NEW.id
                  AND s.v = NEW.v AND s.status = 'stable' AND s.hash <> NEW.hash) THEN
      RAISE EXCEPTION 'recipe %@% is stable', NEW.id, NEW.v USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.status = 'stable' AND (TG_OP = 'DELETE'
       OR (NEW.tenant_id, NEW.id, NEW.v, NEW.hash, NEW.status, NEW.json, NEW.imported_at)
          IS DISTINCT FROM (OLD.tenant_id, OLD.id, OLD.v, OLD.hash, OLD.status, OLD.json, OLD.imported_at)) THEN
    RAISE EXCEPTION 'recipe %@% is stable', OLD.id, OLD.v USING ERRCODE = 'restrict_violation';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF (NEW.tenant_id, NEW.id, NEW.v, NEW.hash, NEW.json) IS DISTINCT FROM (OLD.tenant_id, OLD.id, OLD.v, OLD.hash, OLD.json) THEN
    RAISE EXCEPTION 'a recipe version keeps its content' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: refuse_change(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION 'app.% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;


--
-- Name: reply_link_consume(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.reply_link_consume() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  UPDATE app.reply_links l SET used_at = clock_timestamp(), interaction_id = NEW.id
    FROM app.human_gates g JOIN app.runs r ON r.id = g.run_id
   WHERE l.id = substr(NEW.dedupe_key, 6) AND NEW.dedupe_key = 'link:' || l.id AND NEW.key_id = 'link:' || l.name
     AND l.run_id = NEW.run_id AND l.gate_key = NEW.gate_key AND l.topic = NEW.topic AND l.tenant_id = r.tenant_id
     AND l.used_at IS NULL AND l.expires_at > clock_timestamp()
     AND g.run_id = l.run_id AND g.gate_key = l.gate_key AND g.topic = l.topic
     AND l.plan_digest IS NOT DISTINCT FROM g.plan_digest
     AND (g.plan_digest IS NULL OR r.plan_digest = g.plan_digest)
     AND NOT EXISTS (SELECT 1 FROM app.api_keys k WHERE k.key_id = l.key_id AND k.revoked_at IS NOT NULL);
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the reply link cannot be used' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NULL;
END $$;


--
-- Name: reply_links_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.reply_links_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.used_at IS NOT NULL OR NEW.used_at IS NULL
     OR to_jsonb(NEW) - 'used_at' - 'interaction_id' IS DISTINCT FROM to_jsonb(OLD) - 'used_at' - 'interaction_id' THEN
    RAISE EXCEPTION 'a reply link is used once and changes otherwise never' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: round_enqueue(text, text, text, integer, text, text, bigint, jsonb, jsonb, jsonb, jsonb); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.round_enqueue(p_run text, p_parent text, p_partition text, p_priority integer, p_version text, p_executor text, p_quota_mb bigint, p_tasks jsonb, p_snapshots jsonb, p_values jsonb, p_artifacts jsonb) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
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
  -- One that is over has its workflow already.
  PERFORM app.enqueue(x.task_key, 'task', 'null', 'sbxQ', p_partition, p_priority, NULL, p_version, p_parent, 0)
     FROM jsonb_to_recordset(p_tasks) AS x(task_key text) WHERE NOT x.task_key = ANY (v_kept);
  RETURN v_kept;
END $$;


--
-- Name: runs_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.runs_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF app.is_over(OLD.status) AND NEW.status IS DISTINCT FROM OLD.status
     AND coalesce(current_setting('cofferdam.repair', true), '') <> 'on' THEN
    RAISE EXCEPTION 'run % is % and stays so', OLD.id, OLD.status USING ERRCODE = 'restrict_violation';
  END IF;
  IF NEW.id <> OLD.id OR NEW.intent_id <> OLD.intent_id OR NEW.workflow_id <> OLD.workflow_id
     OR NEW.tenant_id <> OLD.tenant_id OR NEW.recipe_hash <> OLD.recipe_hash THEN
    RAISE EXCEPTION 'run % keeps its identity', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;


--
-- Name: sbx_runs_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.sbx_runs_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.response IS NOT NULL OR NEW.task_key <> OLD.task_key
     OR NEW.request <> OLD.request OR NEW.attempt <> OLD.attempt THEN
    RAISE EXCEPTION 'sbx_runs % is append-only', OLD.task_key USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: session_is_over(text); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.session_is_over(p_state text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT p_state IN ('COMPLETED','FAILED','CANCELED','ORPHANED')
$$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: remote_execution_sessions; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.remote_execution_sessions (
    sandbox_id text NOT NULL,
    task_key text NOT NULL,
    execution_no integer NOT NULL,
    run_id text NOT NULL,
    tenant_id text NOT NULL,
    class text NOT NULL,
    runtime text,
    runtime_version text,
    attestation jsonb,
    host_id text NOT NULL,
    state_dir text NOT NULL,
    executor_id text NOT NULL,
    state text NOT NULL,
    wipe_looks integer DEFAULT 0 NOT NULL,
    wipe_next_at timestamp with time zone,
    last_heartbeat_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    remote jsonb,
    CONSTRAINT remote_execution_sessions_sandbox_id_check CHECK ((sandbox_id ~ '^sb[0-9a-f]{20}$'::text)),
    CONSTRAINT remote_execution_sessions_state_check CHECK ((state = ANY (ARRAY['PROVISIONING'::text, 'BUILDING'::text, 'EXECUTING'::text, 'COLLECTING'::text, 'REMOTE_WIPE_VERIFYING'::text, 'COMPLETED'::text, 'FAILED'::text, 'CANCELED'::text, 'ORPHANED'::text])))
);


--
-- Name: session_outlives(app.remote_execution_sessions); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.session_outlives(s app.remote_execution_sessions) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  SELECT s.remote IS NOT NULL AND s.ended_at IS NULL AND s.wipe_looks = 0
     AND EXISTS (SELECT 1 FROM app.executors e WHERE e.id = s.executor_id AND e.state <> 'live'
                    AND e.ended_at > clock_timestamp() - interval '150 seconds')
     AND EXISTS (SELECT 1 FROM app.sbx_runs t JOIN dbos.workflow_status w ON w.workflow_uuid = t.task_key
                  WHERE t.task_key = s.task_key AND t.response IS NULL
                    AND w.status IN ('PENDING','ENQUEUED','DELAYED'))
     AND NOT EXISTS (SELECT 1 FROM app.sbx_executions x WHERE x.task_key = s.task_key
                        AND x.sandbox_id IS NOT NULL AND x.execution_no > s.execution_no)
$$;


--
-- Name: sessions_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.sessions_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF app.session_is_over(OLD.state) AND NEW.state <> OLD.state THEN
    RAISE EXCEPTION 'session % is % and stays so', OLD.sandbox_id, OLD.state USING ERRCODE = 'restrict_violation';
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;


--
-- Name: sessions_need_evidence(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.sessions_need_evidence() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF app.session_is_over(NEW.state) AND NOT EXISTS (
       SELECT 1 FROM app.secure_wipe_evidence e
        WHERE e.sandbox_id = NEW.sandbox_id AND e.wipe_status = 'verified'
          AND e.terminal_state = NEW.state) AND NOT EXISTS (
       SELECT 1 FROM app.wipe_settlements d
        WHERE d.sandbox_id = NEW.sandbox_id AND d.terminal_state = NEW.state) THEN
    RAISE EXCEPTION 'session % has no verified wipe', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NULL;
END $$;


--
-- Name: settlements_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.settlements_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF NOT EXISTS (
       SELECT 1 FROM app.held_sessions s
         JOIN app.secure_wipe_evidence w ON w.sandbox_id = s.sandbox_id AND w.look = s.wipe_looks
        WHERE s.sandbox_id = NEW.sandbox_id AND s.ended_at IS NULL
          AND w.wipe_status = 'failed' AND w.look = NEW.evidence_look
          AND NEW.evidence_digest = app.evidence_digest(w.evidence)) THEN
    RAISE EXCEPTION 'session % is not held by this evidence', NEW.sandbox_id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: status_line(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.status_line() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  INSERT INTO app.run_streams (run_id, key, seq, chunk)
  SELECT NEW.id, 'status', count(*)::int, NEW.status
    FROM app.run_streams WHERE run_id = NEW.id AND key = 'status';
  RETURN NULL;
END $$;


--
-- Name: take_over(text, bigint, bigint); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.take_over(p_leader text, p_term bigint, p_dead_after_ms bigint) RETURNS TABLE(executor_id text, is_new boolean, workflows bigint)
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: webhook_deliveries_guard(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.webhook_deliveries_guard() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  -- Only how far it is moves.
  IF TG_OP = 'DELETE' OR to_jsonb(NEW) - ARRAY['state','attempts','round_start','next_at','last_status','last_error','ended_at']
     IS DISTINCT FROM to_jsonb(OLD) - ARRAY['state','attempts','round_start','next_at','last_status','last_error','ended_at'] THEN
    RAISE EXCEPTION 'a delivery keeps its event' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;


--
-- Name: human_gates; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.human_gates (
    run_id text NOT NULL,
    workflow_id text NOT NULL,
    gate_key text NOT NULL,
    topic text NOT NULL,
    tenant_id text NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    round integer DEFAULT 1 NOT NULL,
    form jsonb NOT NULL,
    spec jsonb,
    plan_digest text,
    bindings jsonb,
    parts jsonb,
    inputs jsonb,
    groups text[] DEFAULT '{}'::text[] NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    ttl_s integer NOT NULL,
    origin text DEFAULT 'engine-dbos'::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    decided_at timestamp with time zone,
    escalated_at timestamp with time zone,
    escalation_workflow_id text,
    CONSTRAINT human_gates_gate_key_check CHECK ((gate_key ~ '^[a-z0-9][a-z0-9:_-]{0,127}$'::text)),
    CONSTRAINT human_gates_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT human_gates_plan_digest_check CHECK ((plan_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT human_gates_round_check CHECK ((round >= 1)),
    CONSTRAINT human_gates_state_check CHECK ((state = ANY (ARRAY['open'::text, 'received'::text, 'timed_out'::text, 'resolved'::text, 'canceled'::text]))),
    CONSTRAINT human_gates_topic_check CHECK ((topic ~ '^(human|sys):'::text)),
    CONSTRAINT human_gates_ttl_s_check CHECK (((ttl_s >= 1) AND (ttl_s <= 86400)))
);


--
-- Name: webhook_emit(text, text, text, app.human_gates, timestamp with time zone); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.webhook_emit(p_tenant text, p_type text, p_run text, p_gate app.human_gates, p_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_event text := encode(sha256(convert_to(concat_ws('|', p_type, p_run, p_gate.gate_key, p_gate.topic,
                    extract(epoch FROM p_at)::text), 'UTF8')), 'hex');
  v_decision text;
  v_asked text;
BEGIN
  -- The decision is the vote after which the gate waits no longer.
  IF p_type = 'gate.decided' THEN
    SELECT v.choice INTO v_decision FROM app.gate_votes v
     WHERE v.run_id = p_run AND v.gate_key = p_gate.gate_key ORDER BY v.interaction_id DESC LIMIT 1;
  END IF;
  -- A task's question names a host that was checked before it was asked for: the only text of a task's making that
  -- leaves the host. The gate is there before its question's own row, and its form has the name.
  IF p_gate.plan_digest IS NULL THEN
    v_asked := p_gate.form #>> '{properties,grant,properties,name,const}';
  END IF;
  INSERT INTO app.webhook_deliveries (id, webhook_id, event_type, event_id, run_id, gate_key, topic, occurred_at,
         workflow_id, plan_digest, gate_created_at, deadline_at, escalation_workflow_id, decision, asked_name,
         intent_id, run_status, recipe_id, recipe_v, finished_at)
  SELECT 'msg_' || left(encode(sha256(convert_to(w.id || v_event, 'UTF8')), 'hex'), 32), w.id, p_type, v_event,
         p_run, p_gate.gate_key, p_gate.topic, p_at,
         coalesce(p_gate.workflow_id, r.workflow_id), p_gate.plan_digest, p_gate.created_at, p_gate.deadline_at, p_gate.escalation_workflow_id,
         v_decision, v_asked, e.intent_id, e.status, e.recipe_id, e.recipe_v,
         CASE WHEN e.id IS NOT NULL THEN coalesce(e.finished_at, p_at) END
    FROM app.webhooks w
    JOIN app.runs r ON r.id = p_run
    LEFT JOIN app.runs e ON e.id = p_run AND p_type = 'run.terminal'
   WHERE w.tenant_id = p_tenant AND w.removed_at IS NULL AND p_type = ANY (w.events)
  ON CONFLICT DO NOTHING;
  IF FOUND THEN
    PERFORM pg_notify('cofferdam', 'd:deliveries');
  END IF;
END $$;


--
-- Name: webhook_gate_emit(app.human_gates, text, timestamp with time zone); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.webhook_gate_emit(p_gate app.human_gates, p_type text, p_at timestamp with time zone) RETURNS void
    LANGUAGE sql
    AS $$
  SELECT app.webhook_emit(p_gate.tenant_id, p_type, p_gate.run_id, p_gate, p_at)
$$;


--
-- Name: webhook_on_gate(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.webhook_on_gate() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM app.webhook_gate_emit(NEW, 'gate.opened', NEW.created_at);
    RETURN NULL;
  END IF;
  IF NEW.state IS DISTINCT FROM OLD.state THEN
    CASE NEW.state
      WHEN 'open' THEN PERFORM app.webhook_gate_emit(NEW, 'gate.opened', clock_timestamp());
      WHEN 'received' THEN PERFORM app.webhook_gate_emit(NEW, 'gate.decided', coalesce(NEW.decided_at, clock_timestamp()));
      WHEN 'timed_out' THEN PERFORM app.webhook_gate_emit(NEW, 'gate.timed_out', coalesce(NEW.decided_at, clock_timestamp()));
      WHEN 'canceled' THEN PERFORM app.webhook_gate_emit(NEW, 'gate.canceled', coalesce(NEW.decided_at, clock_timestamp()));
      ELSE NULL;
    END CASE;
  END IF;
  IF NEW.escalation_workflow_id IS NOT NULL AND OLD.escalation_workflow_id IS NULL THEN
    PERFORM app.webhook_gate_emit(NEW, 'gate.escalated', clock_timestamp());
  END IF;
  RETURN NULL;
END $$;


--
-- Name: webhook_on_reminder(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.webhook_on_reminder() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_gate app.human_gates;
BEGIN
  FOR v_gate IN SELECT * FROM app.human_gates WHERE run_id = NEW.run_id AND gate_key = NEW.gate_key LOOP
    PERFORM app.webhook_gate_emit(v_gate, 'gate.reminded', clock_timestamp());
  END LOOP;
  RETURN NULL;
END $$;


--
-- Name: webhook_on_run(); Type: FUNCTION; Schema: app; Owner: -
--

CREATE FUNCTION app.webhook_on_run() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM app.webhook_emit(NEW.tenant_id, 'run.terminal', NEW.id, NULL, coalesce(NEW.finished_at, clock_timestamp()));
  RETURN NULL;
END $$;


--
-- Name: enqueue_workflow(text, text, json[], json, text, text, text, text, bigint, bigint, text, integer, text, text, text, bigint, text); Type: FUNCTION; Schema: dbos; Owner: -
--

CREATE FUNCTION dbos.enqueue_workflow(workflow_name text, queue_name text, positional_args json[] DEFAULT ARRAY[]::json[], named_args json DEFAULT '{}'::json, class_name text DEFAULT NULL::text, config_name text DEFAULT NULL::text, workflow_id text DEFAULT NULL::text, app_version text DEFAULT NULL::text, timeout_ms bigint DEFAULT NULL::bigint, deadline_epoch_ms bigint DEFAULT NULL::bigint, deduplication_id text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, queue_partition_key text DEFAULT NULL::text, authenticated_user text DEFAULT NULL::text, authenticated_roles text DEFAULT NULL::text, delay_until_epoch_ms bigint DEFAULT NULL::bigint, application_name text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_workflow_id TEXT;
    v_serialized_inputs TEXT;
    v_owner_xid TEXT;
    v_now BIGINT;
    v_recovery_attempts INT4 := 0;
    v_priority INT4;
    v_status TEXT;
BEGIN

    -- Validate required parameters
    IF workflow_name IS NULL OR workflow_name = '' THEN
        RAISE EXCEPTION 'Workflow name cannot be null or empty';
    END IF;
    IF queue_name IS NULL OR queue_name = '' THEN
        RAISE EXCEPTION 'Queue name cannot be null or empty';
    END IF;
    IF named_args IS NOT NULL AND jsonb_typeof(named_args::jsonb) != 'object' THEN
        RAISE EXCEPTION 'Named args must be a JSON object';
    END IF;
    IF workflow_id IS NOT NULL AND workflow_id = '' THEN
        RAISE EXCEPTION 'Workflow ID cannot be an empty string if provided.';
    END IF;
    IF delay_until_epoch_ms IS NOT NULL AND delay_until_epoch_ms < 0 THEN
        RAISE EXCEPTION 'delay_until_epoch_ms must be >= 0';
    END IF;

    v_workflow_id := COALESCE(workflow_id, gen_random_uuid()::TEXT);
    v_owner_xid := gen_random_uuid()::TEXT;
    v_priority := COALESCE(priority, 0);
    v_serialized_inputs := json_build_object(
        'positionalArgs', positional_args,
        'namedArgs', named_args
    )::TEXT;
    v_now := EXTRACT(epoch FROM now()) * 1000;
    v_status := CASE WHEN delay_until_epoch_ms IS NULL THEN 'ENQUEUED' ELSE 'DELAYED' END;

    INSERT INTO "dbos".workflow_status (
        workflow_uuid, status, inputs,
        name, class_name, config_name,
        queue_name, deduplication_id, priority, queue_partition_key,
        application_version,
        created_at, updated_at, recovery_attempts,
        workflow_timeout_ms, workflow_deadline_epoch_ms,
        parent_workflow_id, owner_xid, serialization,
        authenticated_user, authenticated_roles,
        delay_until_epoch_ms, application_name
    ) VALUES (
        v_workflow_id, v_status, v_serialized_inputs,
        workflow_name, class_name, config_name,
        queue_name, deduplication_id, v_priority, queue_partition_key,
        app_version,
        v_now, v_now, v_recovery_attempts,
        timeout_ms, deadline_epoch_ms,
        NULL, v_owner_xid, 'portable_json',
        authenticated_user, authenticated_roles,
        delay_until_epoch_ms, application_name
    )
    ON CONFLICT (workflow_uuid)
    DO UPDATE SET
        updated_at = EXCLUDED.updated_at;

    RETURN v_workflow_id;

EXCEPTION
    WHEN unique_violation THEN
        RAISE EXCEPTION 'DBOS queue duplicated'
            USING DETAIL = format('Workflow %s with queue %s and deduplication ID %s already exists', v_workflow_id, queue_name, deduplication_id),
                ERRCODE = 'unique_violation';
END;
$$;


--
-- Name: notifications_function(); Type: FUNCTION; Schema: dbos; Owner: -
--

CREATE FUNCTION dbos.notifications_function() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    payload text := NEW.destination_uuid || '::' || NEW.topic;
BEGIN
    PERFORM pg_notify('dbos_notifications_channel', payload);
    RETURN NEW;
END;
$$;


--
-- Name: send_message(text, json, text, text); Type: FUNCTION; Schema: dbos; Owner: -
--

CREATE FUNCTION dbos.send_message(destination_id text, message json, topic text DEFAULT NULL::text, message_id text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_topic TEXT := COALESCE(topic, '__null__topic__');
    v_message_id TEXT := COALESCE(message_id, gen_random_uuid()::TEXT);
BEGIN
    INSERT INTO "dbos".notifications (
        destination_uuid, topic, message, message_uuid, serialization
    ) VALUES (
        destination_id, v_topic, message, v_message_id, 'portable_json'
    )
    ON CONFLICT (message_uuid) DO NOTHING;
EXCEPTION
    WHEN foreign_key_violation THEN
        RAISE EXCEPTION 'DBOS non-existent workflow'
            USING DETAIL = format('Destination workflow %s does not exist', destination_id),
                ERRCODE = 'foreign_key_violation';
END;
$$;


--
-- Name: api_keys; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.api_keys (
    key_id text NOT NULL,
    key_hash text NOT NULL,
    tenant_id text NOT NULL,
    roles text[] NOT NULL,
    groups text[] DEFAULT '{}'::text[] NOT NULL,
    label text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    revoked_at timestamp with time zone,
    CONSTRAINT api_keys_groups_check CHECK ((cardinality(groups) <= 32)),
    CONSTRAINT api_keys_key_hash_check CHECK ((key_hash ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT api_keys_roles_check CHECK (((cardinality(roles) >= 1) AND (cardinality(roles) <= 5) AND (roles <@ ARRAY['submitter'::text, 'approver'::text, 'operator'::text, 'auditor'::text, 'admin'::text]))),
    CONSTRAINT api_keys_tenant_id_check CHECK ((tenant_id <> ''::text))
);


--
-- Name: artifacts; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.artifacts (
    run_id text NOT NULL,
    step_id text NOT NULL,
    task_key text NOT NULL,
    attempt integer NOT NULL,
    idx integer NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    uri text NOT NULL,
    inline text,
    sha256 text NOT NULL,
    size bigint NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT artifacts_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT artifacts_idx_check CHECK ((idx >= 0)),
    CONSTRAINT artifacts_kind_check CHECK ((kind = ANY (ARRAY['artifact_index'::text, 'file'::text, 'timings'::text, 'raw'::text, 'stdout'::text, 'stderr'::text, 'plan_card'::text, 'patch'::text, 'json_diagnostic'::text]))),
    CONSTRAINT artifacts_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT artifacts_sha256_check CHECK ((sha256 ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT artifacts_size_check CHECK ((size >= 0))
);


--
-- Name: audit; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.audit (
    id bigint NOT NULL,
    tenant_id text NOT NULL,
    key_id text NOT NULL,
    actor text NOT NULL,
    op text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    detail jsonb,
    origin text DEFAULT 'api-shim'::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT audit_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text])))
);


--
-- Name: audit_id_seq; Type: SEQUENCE; Schema: app; Owner: -
--

ALTER TABLE app.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME app.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: blob_usage_parts; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.blob_usage_parts (
    tenant_id text NOT NULL,
    part integer NOT NULL,
    bytes bigint NOT NULL,
    CONSTRAINT blob_usage_parts_bytes_check CHECK ((bytes >= 0)),
    CONSTRAINT blob_usage_parts_part_check CHECK (((part >= 0) AND (part <= 15)))
)
WITH (fillfactor='50');


--
-- Name: blob_usage; Type: VIEW; Schema: app; Owner: -
--

CREATE VIEW app.blob_usage AS
 SELECT blob_usage_parts.tenant_id,
    (sum(blob_usage_parts.bytes))::bigint AS bytes
   FROM app.blob_usage_parts
  GROUP BY blob_usage_parts.tenant_id;


--
-- Name: blobs; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.blobs (
    sha256 text NOT NULL,
    bytes bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT blobs_sha256_check CHECK ((sha256 ~ '^[a-f0-9]{64}$'::text))
);
ALTER TABLE ONLY app.blobs ALTER COLUMN bytes SET STORAGE EXTERNAL;


--
-- Name: database_place; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.database_place (
    only_one boolean DEFAULT true NOT NULL,
    identity text NOT NULL,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT database_place_only_one_check CHECK (only_one)
);


--
-- Name: dependency_cache_index; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.dependency_cache_index (
    entry_id bigint NOT NULL,
    org_id text NOT NULL,
    repo_id text NOT NULL,
    lock_hash text NOT NULL,
    key text NOT NULL,
    host_id text NOT NULL,
    state_dir text NOT NULL,
    digest text NOT NULL,
    bytes bigint NOT NULL,
    files bigint NOT NULL,
    state text DEFAULT 'ready'::text NOT NULL,
    created_by text NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_used_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    evicted_at timestamp with time zone,
    evicted_why text,
    CONSTRAINT dependency_cache_index_bytes_check CHECK ((bytes >= 0)),
    CONSTRAINT dependency_cache_index_check CHECK ((key = encode(sha256(convert_to(((((org_id || '
'::text) || repo_id) || '
'::text) || lock_hash), 'UTF8'::name)), 'hex'::text))),
    CONSTRAINT dependency_cache_index_check1 CHECK (((state = 'evicted'::text) = (evicted_at IS NOT NULL))),
    CONSTRAINT dependency_cache_index_check2 CHECK (((evicted_at IS NULL) = (evicted_why IS NULL))),
    CONSTRAINT dependency_cache_index_digest_check CHECK ((digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT dependency_cache_index_evicted_why_check CHECK ((evicted_why = ANY (ARRAY['asked'::text, 'age'::text, 'size'::text, 'missing'::text, 'damaged'::text]))),
    CONSTRAINT dependency_cache_index_files_check CHECK ((files >= 0)),
    CONSTRAINT dependency_cache_index_lock_hash_check CHECK ((lock_hash ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT dependency_cache_index_org_id_check CHECK ((org_id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text)),
    CONSTRAINT dependency_cache_index_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT dependency_cache_index_repo_id_check CHECK (((octet_length(repo_id) >= 1) AND (octet_length(repo_id) <= 256))),
    CONSTRAINT dependency_cache_index_state_check CHECK ((state = ANY (ARRAY['ready'::text, 'doomed'::text, 'evicted'::text])))
);


--
-- Name: dependency_cache_index_entry_id_seq; Type: SEQUENCE; Schema: app; Owner: -
--

ALTER TABLE app.dependency_cache_index ALTER COLUMN entry_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME app.dependency_cache_index_entry_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: dependency_cache_uses; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.dependency_cache_uses (
    task_key text NOT NULL,
    execution_no integer NOT NULL,
    entry_id bigint NOT NULL,
    origin text NOT NULL,
    used_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT dependency_cache_uses_execution_no_check CHECK ((execution_no >= 1)),
    CONSTRAINT dependency_cache_uses_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text])))
);


--
-- Name: dispatch_runs; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.dispatch_runs (
    dispatch_id text NOT NULL,
    tenant_id text NOT NULL,
    run_id text,
    key_id text NOT NULL,
    origin text NOT NULL,
    spec_canonical text,
    spec_hash text,
    request jsonb,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT dispatch_runs_check CHECK (((spec_canonical IS NULL) = (spec_hash IS NULL))),
    CONSTRAINT dispatch_runs_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT dispatch_runs_spec_hash_check CHECK ((spec_hash ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: dispatches; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.dispatches (
    id text NOT NULL,
    agent_type text DEFAULT 'codex'::text NOT NULL,
    status text DEFAULT 'spawned'::text NOT NULL,
    project_dir text NOT NULL,
    prompt_file text,
    prompt_hash text,
    output_file text,
    verdict_file text,
    pid bigint,
    exit_code bigint,
    name text,
    model text,
    sandbox text DEFAULT 'workspace-write'::text,
    timeout_sec bigint,
    turns bigint DEFAULT 0 NOT NULL,
    commands bigint DEFAULT 0 NOT NULL,
    messages bigint DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    cache_hits bigint DEFAULT 0 NOT NULL,
    created_at bigint DEFAULT (floor(EXTRACT(epoch FROM clock_timestamp())))::bigint NOT NULL,
    started_at bigint,
    completed_at bigint,
    verdict_status text,
    verdict_summary text,
    error_message text,
    scope_id text,
    parent_id text,
    base_repo_commit text,
    retry_count bigint DEFAULT 0 NOT NULL,
    conflict_type text,
    quarantine_reason text,
    spawn_depth bigint DEFAULT 0 NOT NULL,
    parent_dispatch_id text,
    sandbox_spec jsonb,
    sandbox_effective jsonb,
    CONSTRAINT dispatches_id_check CHECK ((id ~ '^[a-z0-9]{8}$'::text)),
    CONSTRAINT dispatches_retry_count_check CHECK ((retry_count >= 0)),
    CONSTRAINT dispatches_spawn_depth_check CHECK ((spawn_depth >= 0)),
    CONSTRAINT dispatches_status_check CHECK ((status = ANY (ARRAY['spawned'::text, 'running'::text, 'completed'::text, 'failed'::text, 'timeout'::text, 'cancelled'::text]))),
    CONSTRAINT dispatches_timeout_sec_check CHECK ((timeout_sec > 0))
);


--
-- Name: dynamic_config; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.dynamic_config (
    tenant_id text DEFAULT '*'::text NOT NULL,
    key text NOT NULL,
    version integer NOT NULL,
    value jsonb NOT NULL,
    actor text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT dynamic_config_version_check CHECK ((version >= 1))
);


--
-- Name: egress_asks; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.egress_asks (
    run_id text NOT NULL,
    task_key text NOT NULL,
    phase text NOT NULL,
    name text NOT NULL,
    gate_key text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT egress_asks_name_check CHECK (((length(name) >= 3) AND (length(name) <= 253) AND (name = lower(name)))),
    CONSTRAINT egress_asks_phase_check CHECK ((phase = ANY (ARRAY['build'::text, 'exec'::text]))),
    CONSTRAINT egress_asks_task_key_check CHECK ((task_key ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: egress_grants; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.egress_grants (
    run_id text NOT NULL,
    task_key text NOT NULL,
    phase text NOT NULL,
    name text NOT NULL,
    gate_key text NOT NULL,
    interaction_id bigint NOT NULL,
    granted_by text NOT NULL,
    until timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: egress_policy_snapshots; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.egress_policy_snapshots (
    run_id text NOT NULL,
    phase text NOT NULL,
    policy jsonb NOT NULL,
    policy_digest text NOT NULL,
    source text NOT NULL,
    policy_key text,
    policy_version integer,
    approver text,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT egress_policy_snapshots_check CHECK (((source = 'org-policy'::text) = ((policy_key IS NOT NULL) AND (policy_version IS NOT NULL)))),
    CONSTRAINT egress_policy_snapshots_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT egress_policy_snapshots_phase_check CHECK ((phase = ANY (ARRAY['build'::text, 'exec'::text]))),
    CONSTRAINT egress_policy_snapshots_policy_check CHECK (((jsonb_typeof(policy) = 'array'::text) AND (policy <> '[]'::jsonb))),
    CONSTRAINT egress_policy_snapshots_policy_digest_check CHECK ((policy_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT egress_policy_snapshots_source_check CHECK ((source = ANY (ARRAY['recipe'::text, 'gate'::text, 'host-admin'::text, 'org-policy'::text, 'unrecorded'::text]))),
    CONSTRAINT names_need_consent CHECK (((source <> 'recipe'::text) OR (NOT app.policy_needs_consent(phase, policy))))
);


--
-- Name: executors; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.executors (
    id text NOT NULL,
    host_id text NOT NULL,
    pid integer NOT NULL,
    app_version text NOT NULL,
    state text DEFAULT 'live'::text NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT executors_state_check CHECK ((state = ANY (ARRAY['live'::text, 'dead'::text, 'left'::text])))
);


--
-- Name: gate_delegation_ends; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.gate_delegation_ends (
    delegation_id bigint NOT NULL,
    key_id text NOT NULL,
    ended_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: gate_delegations; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.gate_delegations (
    id bigint NOT NULL,
    tenant_id text NOT NULL,
    from_key text NOT NULL,
    to_key text NOT NULL,
    group_name text,
    reason text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT gate_delegations_check CHECK ((from_key <> to_key)),
    CONSTRAINT gate_delegations_check1 CHECK ((expires_at > created_at))
);


--
-- Name: gate_delegations_id_seq; Type: SEQUENCE; Schema: app; Owner: -
--

ALTER TABLE app.gate_delegations ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME app.gate_delegations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: gate_edits; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.gate_edits (
    interaction_id bigint NOT NULL,
    n integer NOT NULL,
    run_id text NOT NULL,
    gate_key text NOT NULL,
    op text NOT NULL,
    path text NOT NULL,
    from_value jsonb,
    value jsonb NOT NULL,
    CONSTRAINT gate_edits_check CHECK (((op = 'replace'::text) = (from_value IS NOT NULL))),
    CONSTRAINT gate_edits_n_check CHECK ((n >= 0)),
    CONSTRAINT gate_edits_op_check CHECK ((op = ANY (ARRAY['add'::text, 'replace'::text]))),
    CONSTRAINT gate_edits_path_check CHECK ((path ~~ '/%'::text))
);


--
-- Name: gate_journal; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.gate_journal (
    run_id text NOT NULL,
    gate_key text NOT NULL,
    event text NOT NULL,
    n integer NOT NULL,
    detail jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT gate_journal_event_check CHECK ((event = ANY (ARRAY['reminded'::text, 'escalated'::text]))),
    CONSTRAINT gate_journal_n_check CHECK ((n >= 1))
);


--
-- Name: gate_votes; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.gate_votes (
    interaction_id bigint NOT NULL,
    run_id text NOT NULL,
    gate_key text NOT NULL,
    voter text NOT NULL,
    authority text NOT NULL,
    delegation_id bigint,
    choice text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT gate_votes_check CHECK ((((voter <> authority) AND (voter !~~ 'link:%'::text)) = (delegation_id IS NOT NULL))),
    CONSTRAINT gate_votes_choice_check CHECK ((choice = ANY (ARRAY['yes'::text, 'no'::text])))
);


--
-- Name: held_sessions; Type: VIEW; Schema: app; Owner: -
--

CREATE VIEW app.held_sessions AS
 SELECT remote_execution_sessions.sandbox_id,
    remote_execution_sessions.task_key,
    remote_execution_sessions.execution_no,
    remote_execution_sessions.run_id,
    remote_execution_sessions.tenant_id,
    remote_execution_sessions.class,
    remote_execution_sessions.runtime,
    remote_execution_sessions.runtime_version,
    remote_execution_sessions.attestation,
    remote_execution_sessions.host_id,
    remote_execution_sessions.state_dir,
    remote_execution_sessions.executor_id,
    remote_execution_sessions.state,
    remote_execution_sessions.wipe_looks,
    remote_execution_sessions.wipe_next_at,
    remote_execution_sessions.last_heartbeat_at,
    remote_execution_sessions.created_at,
    remote_execution_sessions.updated_at,
    remote_execution_sessions.ended_at,
    remote_execution_sessions.remote
   FROM app.remote_execution_sessions
  WHERE ((remote_execution_sessions.state = 'REMOTE_WIPE_VERIFYING'::text) AND (remote_execution_sessions.wipe_looks > 0));


--
-- Name: human_interactions; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.human_interactions (
    id bigint NOT NULL,
    workflow_id text NOT NULL,
    run_id text NOT NULL,
    gate_key text NOT NULL,
    topic text NOT NULL,
    dedupe_key text NOT NULL,
    payload_hash text NOT NULL,
    payload jsonb NOT NULL,
    origin text NOT NULL,
    outcome text NOT NULL,
    key_id text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT human_interactions_dedupe_key_check CHECK (((length(dedupe_key) >= 1) AND (length(dedupe_key) <= 256))),
    CONSTRAINT human_interactions_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT human_interactions_outcome_check CHECK ((outcome = ANY (ARRAY['accepted'::text, 'voted'::text, 'already_voted'::text, 'late'::text, 'already_decided'::text]))),
    CONSTRAINT human_interactions_payload_hash_check CHECK ((payload_hash ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: human_interactions_id_seq; Type: SEQUENCE; Schema: app; Owner: -
--

ALTER TABLE app.human_interactions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME app.human_interactions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: intents; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.intents (
    id text NOT NULL,
    tenant_id text NOT NULL,
    goal text NOT NULL,
    inputs jsonb NOT NULL,
    constraints jsonb NOT NULL,
    connectors jsonb,
    intent_hash text,
    key_id text NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT intents_id_check CHECK ((id ~ '^(it_[0-9a-f]{32}|ih_[0-9a-f]{64})$'::text)),
    CONSTRAINT intents_intent_hash_check CHECK ((intent_hash ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT intents_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text])))
);


--
-- Name: latest_artifacts; Type: VIEW; Schema: app; Owner: -
--

CREATE VIEW app.latest_artifacts AS
 SELECT a.run_id,
    a.step_id,
    a.task_key,
    a.attempt,
    a.idx,
    a.kind,
    a.name,
    a.uri,
    a.inline,
    a.sha256,
    a.size,
    a.origin,
    a.created_at
   FROM (app.artifacts a
     JOIN ( SELECT artifacts.run_id,
            artifacts.step_id,
            max(artifacts.attempt) AS attempt
           FROM app.artifacts
          GROUP BY artifacts.run_id, artifacts.step_id) l USING (run_id, step_id, attempt));


--
-- Name: run_steps; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.run_steps (
    run_id text NOT NULL,
    step_id text NOT NULL,
    attempt integer NOT NULL,
    status text NOT NULL,
    output jsonb,
    error text,
    origin text NOT NULL,
    finished_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT run_steps_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT run_steps_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT run_steps_status_check CHECK ((status = ANY (ARRAY['ok'::text, 'failed'::text, 'canceled'::text])))
);


--
-- Name: latest_run_steps; Type: VIEW; Schema: app; Owner: -
--

CREATE VIEW app.latest_run_steps AS
 SELECT DISTINCT ON (run_steps.run_id, run_steps.step_id) run_steps.run_id,
    run_steps.step_id,
    run_steps.attempt,
    run_steps.status,
    run_steps.output,
    run_steps.error,
    run_steps.origin,
    run_steps.finished_at
   FROM app.run_steps
  ORDER BY run_steps.run_id, run_steps.step_id, run_steps.attempt DESC;


--
-- Name: sbx_runs; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.sbx_runs (
    run_id text NOT NULL,
    step_id text NOT NULL,
    task_key text NOT NULL,
    attempt integer NOT NULL,
    task_name text NOT NULL,
    provider text NOT NULL,
    request jsonb NOT NULL,
    response jsonb,
    err_code text,
    metrics jsonb,
    effective jsonb,
    canceled boolean DEFAULT false NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT sbx_runs_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT sbx_runs_check CHECK (((response IS NULL) = (err_code IS NULL))),
    CONSTRAINT sbx_runs_err_code_check CHECK ((err_code = ANY (ARRAY['NONE'::text, 'BOOT_FAIL'::text, 'CMD_NONZERO'::text, 'TIMEOUT'::text, 'OOM'::text, 'NET_FAIL'::text, 'UPLOAD_FAIL'::text, 'DOWNLOAD_FAIL'::text]))),
    CONSTRAINT sbx_runs_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT sbx_runs_provider_check CHECK ((provider = ANY (ARRAY['container'::text, 'gvisor'::text, 'microvm'::text, 'remote'::text, 'docker'::text, 'engine'::text]))),
    CONSTRAINT sbx_runs_task_key_check CHECK ((task_key ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: latest_sbx_runs; Type: VIEW; Schema: app; Owner: -
--

CREATE VIEW app.latest_sbx_runs AS
 SELECT DISTINCT ON (sbx_runs.run_id, sbx_runs.step_id) sbx_runs.run_id,
    sbx_runs.step_id,
    sbx_runs.task_key,
    sbx_runs.attempt,
    sbx_runs.task_name,
    sbx_runs.provider,
    sbx_runs.request,
    sbx_runs.response,
    sbx_runs.err_code,
    sbx_runs.metrics,
    sbx_runs.effective,
    sbx_runs.canceled,
    sbx_runs.origin,
    sbx_runs.created_at,
    sbx_runs.finished_at
   FROM app.sbx_runs
  ORDER BY sbx_runs.run_id, sbx_runs.step_id, sbx_runs.attempt DESC;


--
-- Name: leader; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.leader (
    only_one boolean DEFAULT true NOT NULL,
    executor_id text NOT NULL,
    term bigint NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT leader_only_one_check CHECK (only_one),
    CONSTRAINT leader_term_check CHECK ((term >= 1))
);


--
-- Name: opencode_calls; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.opencode_calls (
    op_key text NOT NULL,
    run_id text NOT NULL,
    step_id text NOT NULL,
    attempt integer NOT NULL,
    session_id text NOT NULL,
    request jsonb NOT NULL,
    response jsonb,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT opencode_calls_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT opencode_calls_op_key_check CHECK ((op_key ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT opencode_calls_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text])))
);


--
-- Name: plan_approvals; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.plan_approvals (
    run_id text NOT NULL,
    round integer DEFAULT 1 NOT NULL,
    intent_id text NOT NULL,
    gate_key text,
    plan_digest text NOT NULL,
    sandbox_digest text,
    egress_digest text,
    image_digest text,
    budget_digest text,
    parts jsonb,
    approved_by text NOT NULL,
    key_id text NOT NULL,
    notes text,
    origin text NOT NULL,
    approved_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT plan_approvals_budget_digest_check CHECK ((budget_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT plan_approvals_egress_digest_check CHECK ((egress_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT plan_approvals_image_digest_check CHECK ((image_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT plan_approvals_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT plan_approvals_plan_digest_check CHECK ((plan_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT plan_approvals_round_check CHECK ((round >= 1)),
    CONSTRAINT plan_approvals_sandbox_digest_check CHECK ((sandbox_digest ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: plan_consents_void; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.plan_consents_void (
    run_id text NOT NULL,
    round integer NOT NULL,
    bindings jsonb NOT NULL,
    difference jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: recipe_versions; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.recipe_versions (
    tenant_id text NOT NULL,
    id text NOT NULL,
    v text NOT NULL,
    hash text NOT NULL,
    status text NOT NULL,
    json jsonb NOT NULL,
    is_host_admins boolean DEFAULT false NOT NULL,
    imported_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT recipe_versions_hash_check CHECK ((hash ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT recipe_versions_status_check CHECK ((status = ANY (ARRAY['draft'::text, 'candidate'::text, 'stable'::text])))
);


--
-- Name: recipes; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.recipes (
    tenant_id text NOT NULL,
    id text NOT NULL,
    title text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: reply_links; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.reply_links (
    id text NOT NULL,
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    gate_key text NOT NULL,
    topic text NOT NULL,
    plan_digest text,
    digest text NOT NULL,
    choice text,
    name text NOT NULL,
    key_id text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    interaction_id bigint,
    CONSTRAINT reply_links_check CHECK (((used_at IS NULL) = (interaction_id IS NULL))),
    CONSTRAINT reply_links_check1 CHECK ((expires_at > created_at)),
    CONSTRAINT reply_links_choice_check CHECK ((choice = ANY (ARRAY['yes'::text, 'no'::text]))),
    CONSTRAINT reply_links_digest_check CHECK ((digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT reply_links_id_check CHECK ((id ~ '^[0-9a-f]{32}$'::text)),
    CONSTRAINT reply_links_name_check CHECK (((length(name) >= 1) AND (length(name) <= 128))),
    CONSTRAINT reply_links_plan_digest_check CHECK ((plan_digest ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: run_retries; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.run_retries (
    run_id text NOT NULL,
    n integer NOT NULL,
    from_step text NOT NULL,
    key_id text NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT run_retries_from_step_check CHECK ((from_step = ANY (ARRAY['CompileST'::text, 'DecideST'::text, 'ExecuteST'::text]))),
    CONSTRAINT run_retries_n_check CHECK ((n >= 1)),
    CONSTRAINT run_retries_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text])))
);


--
-- Name: run_streams; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.run_streams (
    run_id text NOT NULL,
    key text NOT NULL,
    seq integer NOT NULL,
    chunk text NOT NULL,
    upto bigint,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT run_streams_key_check CHECK ((key = ANY (ARRAY['status'::text, 'stdout'::text, 'stderr'::text]))),
    CONSTRAINT run_streams_seq_check CHECK ((seq >= 0)),
    CONSTRAINT run_streams_upto_check CHECK ((upto >= 0))
);


--
-- Name: runs; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.runs (
    id text NOT NULL,
    intent_id text NOT NULL,
    workflow_id text NOT NULL,
    tenant_id text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    next_action text DEFAULT 'NONE'::text NOT NULL,
    execution_mode text NOT NULL,
    mode_wanted text,
    recipe_id text NOT NULL,
    recipe_v text NOT NULL,
    recipe_hash text NOT NULL,
    intent_hash text,
    plan_digest text,
    trace_id text,
    budget jsonb,
    timeout_ms bigint,
    partition_key text NOT NULL,
    priority integer NOT NULL,
    last_step text,
    error text,
    retry_count integer DEFAULT 0 NOT NULL,
    retry_of text,
    asked_by text,
    app_version text NOT NULL,
    key_id text NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT runs_execution_mode_check CHECK ((execution_mode = ANY (ARRAY['LOCAL_DOCKER'::text, 'LOCAL_NATIVE'::text, 'REMOTE_SANDBOX'::text]))),
    CONSTRAINT runs_id_check CHECK ((id ~ '^rn_[0-9a-f]{32}$'::text)),
    CONSTRAINT runs_intent_hash_check CHECK ((intent_hash ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT runs_mode_wanted_check CHECK ((mode_wanted = ANY (ARRAY['LOCAL_DOCKER'::text, 'LOCAL_NATIVE'::text, 'REMOTE_SANDBOX'::text]))),
    CONSTRAINT runs_next_action_check CHECK ((next_action = ANY (ARRAY['APPROVE_PLAN'::text, 'REPAIR'::text, 'NONE'::text]))),
    CONSTRAINT runs_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT runs_partition_key_check CHECK ((btrim(partition_key) <> ''::text)),
    CONSTRAINT runs_plan_digest_check CHECK ((plan_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT runs_recipe_hash_check CHECK ((recipe_hash ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT runs_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'waiting_input'::text, 'succeeded'::text, 'failed'::text, 'canceled'::text, 'retries_exceeded'::text, 'repairing'::text])))
);


--
-- Name: sbx_executions; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.sbx_executions (
    task_key text NOT NULL,
    execution_no integer NOT NULL,
    worker text NOT NULL,
    sandbox_id text,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT sbx_executions_execution_no_check CHECK ((execution_no >= 1))
);


--
-- Name: schema_migrations; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.schema_migrations (
    version bigint NOT NULL,
    description text NOT NULL,
    installed_on timestamp with time zone DEFAULT now() NOT NULL,
    success boolean NOT NULL,
    checksum bytea NOT NULL,
    execution_time bigint NOT NULL
);


--
-- Name: secure_wipe_evidence; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.secure_wipe_evidence (
    sandbox_id text NOT NULL,
    look integer DEFAULT 1 NOT NULL,
    run_id text NOT NULL,
    task_key text NOT NULL,
    terminal_state text NOT NULL,
    wipe_timestamp timestamp with time zone NOT NULL,
    wipe_status text NOT NULL,
    reason text NOT NULL,
    method text NOT NULL,
    evidence jsonb NOT NULL,
    origin text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT secure_wipe_evidence_look_check CHECK ((look >= 1)),
    CONSTRAINT secure_wipe_evidence_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT secure_wipe_evidence_terminal_state_check CHECK ((terminal_state = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELED'::text, 'ORPHANED'::text]))),
    CONSTRAINT secure_wipe_evidence_wipe_status_check CHECK ((wipe_status = ANY (ARRAY['verified'::text, 'failed'::text])))
);


--
-- Name: signing_keys; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.signing_keys (
    fingerprint text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    retired_at timestamp with time zone,
    CONSTRAINT signing_keys_fingerprint_check CHECK ((fingerprint ~ '^[a-f0-9]{64}$'::text))
);


--
-- Name: webhook_attempts; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.webhook_attempts (
    delivery_id text NOT NULL,
    attempt integer NOT NULL,
    ok boolean NOT NULL,
    status integer,
    error text,
    wall_ms bigint NOT NULL,
    worker text NOT NULL,
    ended_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT webhook_attempts_error_check CHECK ((length(error) <= 200))
);


--
-- Name: webhook_deliveries; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.webhook_deliveries (
    id text NOT NULL,
    webhook_id text NOT NULL,
    event_type text NOT NULL,
    event_id text NOT NULL,
    run_id text NOT NULL,
    gate_key text,
    topic text,
    occurred_at timestamp with time zone NOT NULL,
    workflow_id text NOT NULL,
    plan_digest text,
    gate_created_at timestamp with time zone,
    deadline_at timestamp with time zone,
    escalation_workflow_id text,
    decision text,
    asked_name text,
    intent_id text,
    run_status text,
    recipe_id text,
    recipe_v text,
    finished_at timestamp with time zone,
    state text DEFAULT 'pending'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    round_start integer DEFAULT 0 NOT NULL,
    next_at timestamp with time zone DEFAULT clock_timestamp(),
    last_status integer,
    last_error text,
    ended_at timestamp with time zone,
    CONSTRAINT webhook_deliveries_asked_name_check CHECK ((length(asked_name) <= 256)),
    CONSTRAINT webhook_deliveries_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT webhook_deliveries_check CHECK (((round_start >= 0) AND (round_start <= attempts))),
    CONSTRAINT webhook_deliveries_check1 CHECK (
CASE event_type
    WHEN 'run.terminal'::text THEN (num_nulls(intent_id, run_status, recipe_id, recipe_v, finished_at) = 0)
    ELSE (num_nulls(gate_key, topic, gate_created_at, deadline_at) = 0)
END),
    CONSTRAINT webhook_deliveries_check2 CHECK (((state = 'pending'::text) = (next_at IS NOT NULL))),
    CONSTRAINT webhook_deliveries_decision_check CHECK ((length(decision) <= 64)),
    CONSTRAINT webhook_deliveries_event_id_check CHECK ((event_id ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT webhook_deliveries_id_check CHECK ((id ~ '^msg_[0-9a-f]{32}$'::text)),
    CONSTRAINT webhook_deliveries_last_error_check CHECK ((length(last_error) <= 200)),
    CONSTRAINT webhook_deliveries_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'dead'::text])))
);


--
-- Name: webhooks; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.webhooks (
    id text NOT NULL,
    tenant_id text NOT NULL,
    url text NOT NULL,
    events text[] NOT NULL,
    label text,
    key_id text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    removed_at timestamp with time zone,
    CONSTRAINT webhooks_events_check CHECK (((cardinality(events) >= 1) AND (cardinality(events) <= 7) AND (events <@ ARRAY['gate.opened'::text, 'gate.reminded'::text, 'gate.decided'::text, 'gate.timed_out'::text, 'gate.escalated'::text, 'gate.canceled'::text, 'run.terminal'::text]))),
    CONSTRAINT webhooks_id_check CHECK ((id ~ '^wh_[0-9a-f]{32}$'::text)),
    CONSTRAINT webhooks_tenant_id_check CHECK ((tenant_id <> ''::text)),
    CONSTRAINT webhooks_url_check CHECK (((url ~ '^https?://'::text) AND (length(url) <= 2048)))
);


--
-- Name: webhook_dead_letters; Type: VIEW; Schema: app; Owner: -
--

CREATE VIEW app.webhook_dead_letters AS
 SELECT d.id,
    d.webhook_id,
    w.tenant_id,
    d.event_type,
    d.run_id,
    d.gate_key,
    d.occurred_at,
    d.attempts,
    d.last_status,
    d.last_error,
    d.ended_at
   FROM (app.webhook_deliveries d
     JOIN app.webhooks w ON ((w.id = d.webhook_id)))
  WHERE (d.state = 'dead'::text);


--
-- Name: wipe_settlements; Type: TABLE; Schema: app; Owner: -
--

CREATE TABLE app.wipe_settlements (
    sandbox_id text NOT NULL,
    run_id text NOT NULL,
    tenant_id text NOT NULL,
    terminal_state text NOT NULL,
    evidence_look integer NOT NULL,
    evidence_digest text NOT NULL,
    actor text NOT NULL,
    key_id text NOT NULL,
    reason text NOT NULL,
    origin text NOT NULL,
    settled_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT wipe_settlements_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT wipe_settlements_evidence_digest_check CHECK ((evidence_digest ~ '^[a-f0-9]{64}$'::text)),
    CONSTRAINT wipe_settlements_origin_check CHECK ((origin = ANY (ARRAY['manual'::text, 'engine-dbos'::text, 'api-shim'::text, 'webhook'::text, 'webhook-ci'::text, 'external'::text, 'unknown'::text]))),
    CONSTRAINT wipe_settlements_reason_check CHECK ((reason <> ''::text)),
    CONSTRAINT wipe_settlements_terminal_state_check CHECK ((terminal_state = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELED'::text, 'ORPHANED'::text])))
);


--
-- Name: application_versions; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.application_versions (
    version_id text NOT NULL,
    version_name text NOT NULL,
    version_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint NOT NULL,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint NOT NULL,
    application_name text
);


--
-- Name: dbos_migrations; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.dbos_migrations (
    version bigint NOT NULL
);


--
-- Name: event_dispatch_kv; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.event_dispatch_kv (
    service_name text NOT NULL,
    workflow_fn_name text NOT NULL,
    key text NOT NULL,
    value text,
    update_seq numeric(38,0),
    update_time numeric(38,15)
);


--
-- Name: notifications; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.notifications (
    destination_uuid text NOT NULL,
    topic text,
    message text NOT NULL,
    created_at_epoch_ms bigint DEFAULT ((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint NOT NULL,
    message_uuid text DEFAULT gen_random_uuid() NOT NULL,
    serialization text,
    consumed boolean DEFAULT false NOT NULL
);


--
-- Name: operation_outputs; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.operation_outputs (
    workflow_uuid text NOT NULL,
    function_id integer NOT NULL,
    function_name text DEFAULT ''::text NOT NULL,
    output text,
    error text,
    child_workflow_id text,
    started_at_epoch_ms bigint,
    completed_at_epoch_ms bigint,
    serialization text,
    application_name text
);


--
-- Name: queues; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.queues (
    queue_id text DEFAULT (gen_random_uuid())::text NOT NULL,
    name text NOT NULL,
    concurrency integer,
    worker_concurrency integer,
    rate_limit_max integer,
    rate_limit_period_sec double precision,
    priority_enabled boolean DEFAULT false NOT NULL,
    partition_queue boolean DEFAULT false NOT NULL,
    polling_interval_sec double precision DEFAULT 1.0 NOT NULL,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    updated_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_name text,
    partition_concurrency integer,
    partition_worker_concurrency integer,
    partition_rate_limit_max integer,
    partition_rate_limit_period_sec double precision
);


--
-- Name: streams; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.streams (
    workflow_uuid text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    "offset" integer NOT NULL,
    function_id integer DEFAULT 0 NOT NULL,
    serialization text
);


--
-- Name: workflow_events; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.workflow_events (
    workflow_uuid text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    serialization text
);


--
-- Name: workflow_events_history; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.workflow_events_history (
    workflow_uuid text NOT NULL,
    function_id integer NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    serialization text
);


--
-- Name: workflow_schedules; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.workflow_schedules (
    schedule_id text NOT NULL,
    schedule_name text NOT NULL,
    workflow_name text NOT NULL,
    workflow_class_name text,
    schedule text NOT NULL,
    status text DEFAULT 'ACTIVE'::text NOT NULL,
    context text NOT NULL,
    last_fired_at text,
    automatic_backfill boolean DEFAULT false NOT NULL,
    cron_timezone text,
    queue_name text,
    application_name text
);


--
-- Name: workflow_status; Type: TABLE; Schema: dbos; Owner: -
--

CREATE TABLE dbos.workflow_status (
    workflow_uuid text NOT NULL,
    status text,
    name text,
    authenticated_user text,
    assumed_role text,
    authenticated_roles text,
    request text,
    output text,
    error text,
    executor_id text,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint NOT NULL,
    updated_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint NOT NULL,
    application_version text,
    application_id text,
    class_name character varying(255) DEFAULT NULL::character varying,
    config_name character varying(255) DEFAULT NULL::character varying,
    recovery_attempts bigint DEFAULT 0,
    queue_name text,
    workflow_timeout_ms bigint,
    workflow_deadline_epoch_ms bigint,
    inputs text,
    started_at_epoch_ms bigint,
    deduplication_id text,
    priority integer DEFAULT 0 NOT NULL,
    queue_partition_key text,
    forked_from text,
    owner_xid text,
    parent_workflow_id text,
    serialization text,
    delay_until_epoch_ms bigint,
    was_forked_from boolean DEFAULT false NOT NULL,
    rate_limited boolean DEFAULT false NOT NULL,
    completed_at bigint,
    attributes jsonb,
    schedule_name text,
    debounce_deadline_epoch_ms bigint,
    is_debounced boolean DEFAULT false NOT NULL,
    application_name text
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');


--
-- Data for Name: api_keys; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.api_keys VALUES ('k_admin', '0000000000000000000000000000000000000000000000000000000000000000', 'default', '{admin}', '{}', 'the host''s own', '2026-11-23 20:41:06.463864+00', NULL);
INSERT INTO app.api_keys VALUES ('k_ann', '1111111111111111111111111111111111111111111111111111111111111111', 'acme', '{submitter}', '{}', NULL, '2026-11-23 20:41:06.464431+00', NULL);
INSERT INTO app.api_keys VALUES ('k_ben', '2222222222222222222222222222222222222222222222222222222222222222', 'acme', '{approver}', '{reviewers}', 'Ben', '2026-11-23 20:41:06.464451+00', NULL);
INSERT INTO app.api_keys VALUES ('k_cleo', '3333333333333333333333333333333333333333333333333333333333333333', 'acme', '{approver}', '{reviewers}', 'Cleo', '2026-11-23 20:41:06.46446+00', NULL);


--
-- Data for Name: artifacts; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000001', 'ExecuteST:000', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 1, 0, 'artifact_index', 'index.json', 'cofferdam:dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89/0', '{"items": [{"uri": "cofferdam:dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89/1", "kind": "stdout", "sha256": "0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed"}]}', '03511d5d48b3d260cca2af98aa8bc565a6e755ea0d674e556e629d12e30e2331', 196, 'engine-dbos', '2026-11-23 20:41:06.514735+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000002', 'ExecuteST:000', '0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 1, 0, 'artifact_index', 'index.json', 'cofferdam:0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83/0', '{"items": [{"uri": "cofferdam:0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83/1", "kind": "stdout", "sha256": "0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed"}]}', 'f925b98ac97e220fb65cdb22f820a8e443b728cd18ee88ae47f779836d35c302', 196, 'engine-dbos', '2026-11-23 20:41:06.514939+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000004', 'ExecuteST:000', '3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 1, 0, 'artifact_index', 'index.json', 'cofferdam:3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a/0', '{"items": [{"uri": "cofferdam:3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a/1", "kind": "stdout", "sha256": "0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed"}]}', 'ff83fa406fda6daed3dbe90949f8f01d34fd41c14e5b9372e031fa28e56adb1b', 196, 'engine-dbos', '2026-11-23 20:41:06.514954+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000001', 'ExecuteST:000', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 1, 1, 'stdout', 'stdout', 'cofferdam:dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89/1', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515144+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000002', 'ExecuteST:000', '0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 1, 1, 'stdout', 'stdout', 'cofferdam:0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83/1', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515185+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000004', 'ExecuteST:000', '3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 1, 1, 'stdout', 'stdout', 'cofferdam:3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a/1', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515196+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000001', 'CompileST', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 2, 0, 'plan_card', 'plan.json', 'cofferdam:plan/rn_00000000000000000000000000000001', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515328+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000002', 'CompileST', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 2, 0, 'plan_card', 'plan.json', 'cofferdam:plan/rn_00000000000000000000000000000002', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515328+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000003', 'CompileST', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 2, 0, 'plan_card', 'plan.json', 'cofferdam:plan/rn_00000000000000000000000000000003', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515328+00');
INSERT INTO app.artifacts VALUES ('rn_00000000000000000000000000000004', 'CompileST', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 2, 0, 'plan_card', 'plan.json', 'cofferdam:plan/rn_00000000000000000000000000000004', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 10000, 'engine-dbos', '2026-11-23 20:41:06.515328+00');


--
-- Data for Name: audit; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.audit OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 'k_admin', 'Ada', 'session.settle', 'sb00000000000000000004', 'the host burned', NULL, 'api-shim', '2026-11-23 20:41:06.464931+00');


--
-- Data for Name: blob_usage_parts; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.blob_usage_parts VALUES ('acme', 9, 40192);


--
-- Data for Name: blobs; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.blobs VALUES ('0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', '\x68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f68656c6c6f', '2026-11-23 20:41:06.481804+00');


--
-- Data for Name: database_place; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.database_place VALUES (true, '7711469745243261590/13573', '2026-11-23 20:41:06.194596+00');


--
-- Data for Name: dependency_cache_index; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.dependency_cache_index OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 'r', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'd024d771b8c6ec8acc7accba26a8420eb37e3e7eaf2af147ed44d3866400679b', 'h', '/state', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 1, 1, 'ready', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 'engine-dbos', '2026-11-23 20:41:06.515524+00', '2026-11-23 20:41:06.515524+00', NULL, NULL);


--
-- Data for Name: dependency_cache_uses; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.dependency_cache_uses VALUES ('dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 1, 1, 'engine-dbos', '2026-11-23 20:41:06.52058+00');


--
-- Data for Name: dispatch_runs; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.dispatch_runs VALUES ('disp0001', 'acme', 'rn_00000000000000000000000000000002', 'k_ann', 'manual', '{"access_mode":"read-only"}', '0ba73b8c4db19826862f897e4ed66f02a9bd4ac1082ca3d0c88019e504ee3c29', '{}', '2026-11-23 20:41:06.505258+00');
INSERT INTO app.dispatch_runs VALUES ('disp0002', 'acme', NULL, 'k_ann', 'external', NULL, NULL, NULL, '2026-11-23 20:41:06.50689+00');


--
-- Data for Name: dispatches; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.dispatches VALUES ('disp0002', 'codex', 'completed', '/elsewhere', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'workspace-write', NULL, 0, 0, 0, 0, 0, 0, 1795466466, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL, NULL, NULL);
INSERT INTO app.dispatches VALUES ('disp0001', 'codex', 'completed', '/work', NULL, NULL, NULL, NULL, NULL, 0, 'reviewer', NULL, 'workspace-write', NULL, 0, 0, 0, 0, 0, 0, 1795466466, NULL, 1795466466, NULL, NULL, NULL, 's', NULL, NULL, 0, NULL, NULL, 0, NULL, '{"access_mode": "read-only"}', '{"peaks": {"cpu_ms": 0, "mem_mb": 0, "wall_ms": 0}, "enforce": false, "started": false, "violations": [], "access_mode": "read-only", "working_dir": "/work", "schema_version": 1, "egress_observed": {"allowed": "none", "refused": 0}, "violations_unlisted": 0}');


--
-- Data for Name: dynamic_config; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.dynamic_config VALUES ('*', 'dispatch.max_spawn_depth', 1, '3', 'k_admin', '2026-11-23 20:41:06.464731+00');
INSERT INTO app.dynamic_config VALUES ('acme', 'quota.blobs_mb', 1, '100', 'k_admin', '2026-11-23 20:41:06.464813+00');


--
-- Data for Name: egress_asks; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.egress_asks VALUES ('rn_00000000000000000000000000000001', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 'exec', 'example.org', 'egress-1', '2026-11-23 20:41:06.50372+00');


--
-- Data for Name: egress_grants; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.egress_grants VALUES ('rn_00000000000000000000000000000001', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 'exec', 'example.org', 'egress-1', 2, 'k_ben', '2100-01-01 00:00:00+00', '2026-11-23 20:41:06.504331+00');


--
-- Data for Name: egress_policy_snapshots; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.egress_policy_snapshots VALUES ('rn_00000000000000000000000000000001', 'build', '["none"]', '5acef923ee71bc5e25db9887343298cd16c035a802923db872c03dbf8a417caf', 'recipe', NULL, NULL, NULL, 'engine-dbos', '2026-11-23 20:41:06.481193+00');
INSERT INTO app.egress_policy_snapshots VALUES ('rn_00000000000000000000000000000002', 'build', '["none"]', '5acef923ee71bc5e25db9887343298cd16c035a802923db872c03dbf8a417caf', 'recipe', NULL, NULL, NULL, 'engine-dbos', '2026-11-23 20:41:06.481457+00');
INSERT INTO app.egress_policy_snapshots VALUES ('rn_00000000000000000000000000000004', 'build', '["none"]', '5acef923ee71bc5e25db9887343298cd16c035a802923db872c03dbf8a417caf', 'recipe', NULL, NULL, NULL, 'engine-dbos', '2026-11-23 20:41:06.481469+00');
INSERT INTO app.egress_policy_snapshots VALUES ('rn_00000000000000000000000000000001', 'exec', '["none"]', '5acef923ee71bc5e25db9887343298cd16c035a802923db872c03dbf8a417caf', 'recipe', NULL, NULL, NULL, 'engine-dbos', '2026-11-23 20:41:06.481478+00');
INSERT INTO app.egress_policy_snapshots VALUES ('rn_00000000000000000000000000000002', 'exec', '["none"]', '5acef923ee71bc5e25db9887343298cd16c035a802923db872c03dbf8a417caf', 'recipe', NULL, NULL, NULL, 'engine-dbos', '2026-11-23 20:41:06.481486+00');
INSERT INTO app.egress_policy_snapshots VALUES ('rn_00000000000000000000000000000004', 'exec', '["none"]', '5acef923ee71bc5e25db9887343298cd16c035a802923db872c03dbf8a417caf', 'recipe', NULL, NULL, NULL, 'engine-dbos', '2026-11-23 20:41:06.481496+00');


--
-- Data for Name: executors; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.executors VALUES ('ex-0000000000000001', 'h', 1, 'v', 'left', '2026-11-23 20:41:06.467075+00', '2026-11-23 20:41:06.467075+00', '2026-11-23 20:41:06.467075+00');


--
-- Data for Name: gate_delegation_ends; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.gate_delegation_ends VALUES (2, 'k_ben', '2026-11-23 20:41:06.489666+00');


--
-- Data for Name: gate_delegations; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.gate_delegations OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 'k_cleo', 'k_ben', 'reviewers', 'on leave', '2026-11-23 20:41:06.489199+00', '2026-11-24 20:41:06.489199+00');
INSERT INTO app.gate_delegations OVERRIDING SYSTEM VALUE VALUES (2, 'acme', 'k_ben', 'k_cleo', NULL, 'one afternoon', '2026-11-23 20:41:06.489586+00', '2026-11-23 21:41:06.489586+00');


--
-- Data for Name: gate_edits; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.gate_edits VALUES (1, 0, 'rn_00000000000000000000000000000001', 'approve-plan', 'replace', '/form~1name', '"Ann"', '"Ben"');


--
-- Data for Name: gate_journal; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.gate_journal VALUES ('rn_00000000000000000000000000000001', 'approve-plan', 'reminded', 1, '{}', '2026-11-23 20:41:06.491532+00');


--
-- Data for Name: gate_votes; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.gate_votes VALUES (1, 'rn_00000000000000000000000000000001', 'approve-plan', 'k_ben', 'k_cleo', 1, 'yes', '2026-11-23 20:41:06.490848+00');
INSERT INTO app.gate_votes VALUES (2, 'rn_00000000000000000000000000000001', 'egress-1', 'k_ben', 'k_ben', NULL, 'yes', '2026-11-23 20:41:06.491009+00');


--
-- Data for Name: human_gates; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.human_gates VALUES ('rn_00000000000000000000000000000001', 'it_00000000000000000000000000000001', 'approve-plan', 'human:approve-plan', 'acme', 'resolved', 1, '{}', '{"quorum": 1}', '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', '{"plan": "0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed", "image": "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "budget": "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "egress": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd", "sandbox": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"}', NULL, NULL, '{reviewers}', 0, 3600, 'engine-dbos', '2026-11-23 20:41:06.482316+00', '2026-11-23 21:41:06.482314+00', '2026-11-23 20:41:06.482315+00', NULL, NULL);
INSERT INTO app.human_gates VALUES ('rn_00000000000000000000000000000001', 'it_00000000000000000000000000000001', 'egress-1', 'human:egress-1', 'acme', 'received', 1, '{}', NULL, NULL, NULL, NULL, NULL, '{}', 0, 3600, 'engine-dbos', '2026-11-23 20:41:06.488623+00', '2026-11-23 21:41:06.488622+00', '2026-11-23 20:41:06.488623+00', NULL, NULL);


--
-- Data for Name: human_interactions; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.human_interactions OVERRIDING SYSTEM VALUE VALUES (1, 'it_00000000000000000000000000000001', 'rn_00000000000000000000000000000001', 'approve-plan', 'human:approve-plan', 'd1', '7777777777777777777777777777777777777777777777777777777777777777', '{"edits": {"form/name": "Ben"}, "choice": "yes"}', 'api-shim', 'accepted', 'k_ben', '2026-11-23 20:41:06.490497+00');
INSERT INTO app.human_interactions OVERRIDING SYSTEM VALUE VALUES (2, 'it_00000000000000000000000000000001', 'rn_00000000000000000000000000000001', 'egress-1', 'human:egress-1', 'd1', '7777777777777777777777777777777777777777777777777777777777777777', '{"grant": {"name": "example.org", "until": 4102444800000}, "choice": "yes"}', 'api-shim', 'accepted', 'k_ben', '2026-11-23 20:41:06.490653+00');


--
-- Data for Name: intents; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.intents VALUES ('it_00000000000000000000000000000001', 'acme', 'say hello', '{}', '{}', NULL, NULL, 'k_ann', 'manual', '2026-11-23 20:41:06.467493+00');
INSERT INTO app.intents VALUES ('it_00000000000000000000000000000002', 'acme', 'say hello', '{}', '{}', NULL, NULL, 'k_ann', 'manual', '2026-11-23 20:41:06.471852+00');
INSERT INTO app.intents VALUES ('it_00000000000000000000000000000003', 'acme', 'say hello', '{}', '{}', NULL, NULL, 'k_ann', 'manual', '2026-11-23 20:41:06.471863+00');
INSERT INTO app.intents VALUES ('it_00000000000000000000000000000004', 'acme', 'say hello', '{}', '{}', NULL, NULL, 'k_ann', 'manual', '2026-11-23 20:41:06.471869+00');


--
-- Data for Name: leader; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.leader VALUES (true, 'ex-0000000000000001', 7, '2026-11-23 20:41:06.467226+00');


--
-- Data for Name: opencode_calls; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.opencode_calls VALUES ('1111111111111111111111111111111111111111111111111111111111111111', 'rn_00000000000000000000000000000002', 'ExecuteST:000', 1, 's', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.521013+00');


--
-- Data for Name: plan_approvals; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.plan_approvals VALUES ('rn_00000000000000000000000000000001', 1, 'it_00000000000000000000000000000001', 'approve-plan', '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 'eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee', 'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff', NULL, 'Ben', 'k_ben', NULL, 'api-shim', '2026-11-23 20:41:06.498645+00');
INSERT INTO app.plan_approvals VALUES ('rn_00000000000000000000000000000001', 2, 'it_00000000000000000000000000000001', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 'eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee', 'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff', NULL, 'Ben', 'k_ben', NULL, 'api-shim', '2026-11-23 20:41:06.498828+00');


--
-- Data for Name: plan_consents_void; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.plan_consents_void VALUES ('rn_00000000000000000000000000000001', 1, '{"plan": "8888888888888888888888888888888888888888888888888888888888888888"}', '{"plan": "changed"}', '2026-11-23 20:41:06.499152+00');


--
-- Data for Name: recipe_versions; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.recipe_versions VALUES ('acme', 'hello', '1', 'c09a6d221bfa0ce95fcced46362d85e84ec833faa196707db4432d6c27b7c5b7', 'stable', '{"v": "1", "id": "hello"}', true, '2026-11-23 20:41:06.465228+00');


--
-- Data for Name: recipes; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.recipes VALUES ('acme', 'hello', 'Hello', '2026-11-23 20:41:06.465092+00');


--
-- Data for Name: remote_execution_sessions; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.remote_execution_sessions VALUES ('sb00000000000000000001', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 1, 'rn_00000000000000000000000000000001', 'acme', 'container', NULL, NULL, NULL, 'h', '/state', 'ex-0000000000000001', 'COMPLETED', 1, NULL, NULL, '2026-11-23 20:41:06.511725+00', '2026-11-23 20:41:06.524208+00', '2026-11-23 20:41:06.524036+00', NULL);
INSERT INTO app.remote_execution_sessions VALUES ('sb00000000000000000002', '0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 1, 'rn_00000000000000000000000000000002', 'acme', 'container', NULL, NULL, NULL, 'h', '/state', 'ex-0000000000000001', 'COMPLETED', 1, NULL, NULL, '2026-11-23 20:41:06.512212+00', '2026-11-23 20:41:06.524263+00', '2026-11-23 20:41:06.524259+00', NULL);
INSERT INTO app.remote_execution_sessions VALUES ('sb00000000000000000004', '3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 1, 'rn_00000000000000000000000000000004', 'acme', 'container', NULL, NULL, NULL, 'h', '/state', 'ex-0000000000000001', 'FAILED', 1, NULL, NULL, '2026-11-23 20:41:06.512227+00', '2026-11-23 20:41:06.524275+00', '2026-11-23 20:41:06.524273+00', NULL);


--
-- Data for Name: reply_links; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.reply_links VALUES ('55555555555555555555555555555555', 'acme', 'rn_00000000000000000000000000000001', 'egress-1', 'human:egress-1', NULL, '6666666666666666666666666666666666666666666666666666666666666666', NULL, 'mail', 'k_ben', '2026-11-23 20:41:06.489918+00', '2026-11-23 21:41:06.489918+00', NULL, NULL);


--
-- Data for Name: run_retries; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.run_retries VALUES ('rn_00000000000000000000000000000004', 1, 'ExecuteST', 'k_ann', 'api-shim', '2026-11-23 20:41:06.524448+00');


--
-- Data for Name: run_steps; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.run_steps VALUES ('rn_00000000000000000000000000000001', 'CompileST', 1, 'ok', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.475292+00');
INSERT INTO app.run_steps VALUES ('rn_00000000000000000000000000000002', 'CompileST', 1, 'ok', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.475397+00');
INSERT INTO app.run_steps VALUES ('rn_00000000000000000000000000000004', 'CompileST', 1, 'ok', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.475401+00');
INSERT INTO app.run_steps VALUES ('rn_00000000000000000000000000000001', 'ExecuteST', 1, 'ok', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.475403+00');
INSERT INTO app.run_steps VALUES ('rn_00000000000000000000000000000002', 'ExecuteST', 1, 'ok', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.475405+00');
INSERT INTO app.run_steps VALUES ('rn_00000000000000000000000000000004', 'ExecuteST', 1, 'ok', '{}', NULL, 'engine-dbos', '2026-11-23 20:41:06.475407+00');


--
-- Data for Name: run_streams; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000001', 'status', 0, 'queued', NULL, '2026-11-23 20:41:06.473235+00');
INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000002', 'status', 0, 'queued', NULL, '2026-11-23 20:41:06.473456+00');
INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000003', 'status', 0, 'queued', NULL, '2026-11-23 20:41:06.473536+00');
INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000004', 'status', 0, 'queued', NULL, '2026-11-23 20:41:06.473592+00');
INSERT INTO app.run_streams VALUES ('dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 'stdout', 0, 'hello', NULL, '2026-11-23 20:41:06.521236+00');
INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000001', 'status', 1, 'succeeded', NULL, '2026-11-23 20:41:06.525388+00');
INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000002', 'status', 1, 'succeeded', NULL, '2026-11-23 20:41:06.526657+00');
INSERT INTO app.run_streams VALUES ('rn_00000000000000000000000000000004', 'status', 1, 'succeeded', NULL, '2026-11-23 20:41:06.5272+00');


--
-- Data for Name: runs; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.runs VALUES ('rn_00000000000000000000000000000003', 'it_00000000000000000000000000000003', 'it_00000000000000000000000000000003', 'acme', 'queued', 'NONE', 'LOCAL_NATIVE', NULL, 'hello', '1', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', NULL, NULL, NULL, 'acme', 50, NULL, NULL, 0, NULL, NULL, 'v', 'k_ann', 'manual', '2026-11-23 20:41:06.472662+00', '2026-11-23 20:41:06.472662+00', NULL);
INSERT INTO app.runs VALUES ('rn_00000000000000000000000000000001', 'it_00000000000000000000000000000001', 'it_00000000000000000000000000000001', 'acme', 'succeeded', 'NONE', 'LOCAL_NATIVE', NULL, 'hello', '1', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', NULL, NULL, NULL, 'acme', 50, 'ExecuteST', NULL, 0, NULL, NULL, 'v', 'k_ann', 'manual', '2026-11-23 20:41:06.472194+00', '2026-11-23 20:41:06.524942+00', '2026-11-23 20:41:06.524745+00');
INSERT INTO app.runs VALUES ('rn_00000000000000000000000000000002', 'it_00000000000000000000000000000002', 'it_00000000000000000000000000000002', 'acme', 'succeeded', 'NONE', 'LOCAL_NATIVE', NULL, 'dispatch', '1', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', NULL, NULL, NULL, 'acme', 50, 'ExecuteST', NULL, 0, NULL, NULL, 'v', 'k_ann', 'manual', '2026-11-23 20:41:06.472639+00', '2026-11-23 20:41:06.525084+00', '2026-11-23 20:41:06.525078+00');
INSERT INTO app.runs VALUES ('rn_00000000000000000000000000000004', 'it_00000000000000000000000000000004', 'it_00000000000000000000000000000004', 'acme', 'succeeded', 'NONE', 'LOCAL_NATIVE', NULL, 'hello', '1', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', NULL, '0e28c82d49d8ea4bb9d82a23fc90ff9b246eeb7a51d375b8b477af9d5f772bed', NULL, NULL, NULL, 'acme', 50, 'ExecuteST', NULL, 0, NULL, NULL, 'v', 'k_ann', 'manual', '2026-11-23 20:41:06.472681+00', '2026-11-23 20:41:06.525141+00', '2026-11-23 20:41:06.525138+00');


--
-- Data for Name: sbx_executions; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.sbx_executions VALUES ('dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 1, 'ex-0000000000000001', 'sb00000000000000000001', '2026-11-23 20:41:06.507211+00');
INSERT INTO app.sbx_executions VALUES ('0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 1, 'ex-0000000000000001', 'sb00000000000000000002', '2026-11-23 20:41:06.507296+00');
INSERT INTO app.sbx_executions VALUES ('3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 1, 'ex-0000000000000001', 'sb00000000000000000004', '2026-11-23 20:41:06.507299+00');


--
-- Data for Name: sbx_runs; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.sbx_runs VALUES ('rn_00000000000000000000000000000001', 'ExecuteST:000', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 1, 'hello', 'container', '{"sandbox": {"cmd": ["true"], "net": "none", "envRef": "host"}}', '{"exit": 0, "stdout": "hello", "errCode": "NONE", "taskKey": "dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89", "sandboxRef": "sb00000000000000000001"}', 'NONE', NULL, '{"net": "none", "buildNet": "none"}', false, 'engine-dbos', '2026-11-23 20:41:06.47995+00', '2026-11-23 20:41:06.521389+00');
INSERT INTO app.sbx_runs VALUES ('rn_00000000000000000000000000000002', 'ExecuteST:000', '0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 1, 'hello', 'container', '{"sandbox": {"cmd": ["true"], "net": "none", "envRef": "host"}}', '{"exit": 0, "stdout": "hello", "errCode": "NONE", "taskKey": "0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83", "sandboxRef": "sb00000000000000000002"}', 'NONE', NULL, '{"net": "none", "buildNet": "none"}', false, 'engine-dbos', '2026-11-23 20:41:06.480184+00', '2026-11-23 20:41:06.523636+00');
INSERT INTO app.sbx_runs VALUES ('rn_00000000000000000000000000000004', 'ExecuteST:000', '3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 1, 'hello', 'container', '{"sandbox": {"cmd": ["true"], "net": "none", "envRef": "host"}}', '{"exit": 0, "stdout": "hello", "errCode": "NONE", "taskKey": "3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a", "sandboxRef": "sb00000000000000000004"}', 'NONE', NULL, '{"net": "none", "buildNet": "none"}', false, 'engine-dbos', '2026-11-23 20:41:06.480197+00', '2026-11-23 20:41:06.523709+00');


--
-- Data for Name: schema_migrations; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.schema_migrations VALUES (1, '0001_law', '2026-11-23 20:41:06.19288+00', true, '\x6abc5ae43043b26178d8034734d6850be127911446c28c65917e1218d493cb2c727c8a4f4cdce50a053af803066d9b08', 11012141);
INSERT INTO app.schema_migrations VALUES (2, '0002_keys', '2026-11-23 20:41:06.207877+00', true, '\xda0c35d88a72088d3534ec9bf654279e60cd2151c4faf870488989d666b4dbc5e97b4a1e215714537a115acac0885364', 7029191);
INSERT INTO app.schema_migrations VALUES (3, '0003_config', '2026-11-23 20:41:06.219806+00', true, '\x8d292ec57ad549705ceb4da0c7e011f2ddf8afca6a07452d78db593d7301d54e4f91b87a72c402da43a08b12140c0648', 8093390);
INSERT INTO app.schema_migrations VALUES (4, '0004_recipes', '2026-11-23 20:41:06.231894+00', true, '\x0b069b04c4f33e756569a1b46e12d72a5583816e629166185a9da5e9e42061ac7aab5a1350a5e7685bf5081ceed8c63b', 12033587);
INSERT INTO app.schema_migrations VALUES (5, '0005_runs', '2026-11-23 20:41:06.247867+00', true, '\x1e76c68944c1ddab3418b417b5f11172202adf9d2945b485c29c03f4fadc112e0ce0718e85c93381829b8bcf9128c23e', 16063047);
INSERT INTO app.schema_migrations VALUES (6, '0006_tasks', '2026-11-23 20:41:06.267804+00', true, '\x3946829e19d15bfaf4bb64fec611c22a5c0735509567ce0dd6f0de6a541a94269427cf6b22812e17297df11e380f313a', 12040226);
INSERT INTO app.schema_migrations VALUES (7, '0007_artifacts', '2026-11-23 20:41:06.287885+00', true, '\xe9aa0b0fd0ff46c0424a6fc5a1d2891eb6be0565c874b7af66c7387acdf86528c995ebb20435171b5f5a026fe653a3bb', 7935045);
INSERT INTO app.schema_migrations VALUES (8, '0008_sessions', '2026-11-23 20:41:06.299771+00', true, '\x4c326ba043729fe5f824f426c33f13125317ca36e61761b6b8e4aeebf87d5bbbaaca503fd4f015ab739edc5936c6fba3', 12107025);
INSERT INTO app.schema_migrations VALUES (9, '0009_gates', '2026-11-23 20:41:06.315837+00', true, '\x4da59deadd92ac4433be315f2bd98bc9c410dc0a69d3f9499363b5ac654a6b2ab414d3328a3ca23ef4b1ef2b5225c447', 28261448);
INSERT INTO app.schema_migrations VALUES (10, '0010_reach', '2026-11-23 20:41:06.347825+00', true, '\x8c06d6e06feaa12b07aa304c7941cfccf922bb76fea6b78f9c7701ff584815b78b22c00ea6eb6d080662b65206dcaef3', 16022576);
INSERT INTO app.schema_migrations VALUES (11, '0011_cache', '2026-11-23 20:41:06.366333+00', true, '\x131e131a0af15f12a4deda4423a3c1493fcfb7c16d370ef9f4d6fc4eb76f945333663cda51337af3e653dc1a9e31034f', 17568530);
INSERT INTO app.schema_migrations VALUES (12, '0012_queues', '2026-11-23 20:41:06.387879+00', true, '\xf7dfa2fefa41e05773daf3876ff49a7f9c7f4d7c3404a7a87579ec69febb473f970ad50507874ec452a3486cba7486cf', 7993682);
INSERT INTO app.schema_migrations VALUES (13, '0013_dispatches', '2026-11-23 20:41:06.399824+00', true, '\x42b57bfc33b6ef5612d1e1f2b3a1a74271a5e78a52093c45e985798298a1bdc020b456890221a902c44d1d88bf78055b', 7999911);
INSERT INTO app.schema_migrations VALUES (14, '0014_webhooks', '2026-11-23 20:41:06.411788+00', true, '\xa871a51fdf791cc4b6a92ba471ad5f360de3238b72e5de69a31b854e0bbb491444666fafaec2d2f5ace256ebb01a0e8c', 12124221);
INSERT INTO app.schema_migrations VALUES (15, '0015_dispatch_ends', '2026-11-23 20:41:06.427809+00', true, '\x536f482ea31e04f3a23529f9dfa3ffe51d2571059f3831de6b8b9ee819c874336b399042c5d3bcbe921806d6397f4161', 3950002);
INSERT INTO app.schema_migrations VALUES (16, '0016_webhook_events', '2026-11-23 20:41:06.435783+00', true, '\x3cff5d60fe2e84585556d6dbb2fd54c6b24d22aa4240fdaa0d4eb33cbd2a18a9f6c958f81fad38e3e1f5a0074d9055b4', 3929070);
INSERT INTO app.schema_migrations VALUES (17, '0017_gate_audit', '2026-11-23 20:41:06.443877+00', true, '\xf79948f124239a2fc0264b53bda82ff07e04cb200bd1674629ca59da58855cadc5d54c11dcb56b8e68c745888750d01b', 3906067);


--
-- Data for Name: secure_wipe_evidence; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.secure_wipe_evidence VALUES ('sb00000000000000000001', 1, 'rn_00000000000000000000000000000001', 'dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 'COMPLETED', '2026-11-23 20:41:06.512806+00', 'verified', 'finished', 'overlay', '{"checks": [{"ok": true, "kind": "mount"}, {"ok": true, "kind": "sentinel"}, {"ok": true, "kind": "runtime-state"}, {"ok": true, "kind": "directory"}], "sandboxId": "sb00000000000000000001", "wipedAtMs": 1795466466512}', 'engine-dbos', '2026-11-23 20:41:06.512815+00');
INSERT INTO app.secure_wipe_evidence VALUES ('sb00000000000000000002', 1, 'rn_00000000000000000000000000000002', '0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 'COMPLETED', '2026-11-23 20:41:06.513012+00', 'verified', 'finished', 'overlay', '{"checks": [{"ok": true, "kind": "mount"}, {"ok": true, "kind": "sentinel"}, {"ok": true, "kind": "runtime-state"}, {"ok": true, "kind": "directory"}], "sandboxId": "sb00000000000000000002", "wipedAtMs": 1795466466513}', 'engine-dbos', '2026-11-23 20:41:06.513016+00');
INSERT INTO app.secure_wipe_evidence VALUES ('sb00000000000000000004', 1, 'rn_00000000000000000000000000000004', '3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 'FAILED', '2026-11-23 20:41:06.513021+00', 'failed', 'finished', 'overlay', '{"checks": [{"ok": false, "kind": "mount"}], "sandboxId": "sb00000000000000000004"}', 'engine-dbos', '2026-11-23 20:41:06.513024+00');


--
-- Data for Name: signing_keys; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.signing_keys VALUES ('4444444444444444444444444444444444444444444444444444444444444444', '2026-11-23 20:41:06.46453+00', NULL);


--
-- Data for Name: webhook_attempts; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.webhook_attempts VALUES ('msg_73c931049c16f01c6dc80ff4936f548d', 1, true, 200, NULL, 12, 'ex-0000000000000001', '2026-11-23 20:41:06.532544+00');
INSERT INTO app.webhook_attempts VALUES ('msg_39f25d795bd33e903ef213b1f15de990', 1, true, 200, NULL, 12, 'ex-0000000000000001', '2026-11-23 20:41:06.532682+00');
INSERT INTO app.webhook_attempts VALUES ('msg_0f04bedf992fcde2869d5958e6eeeff9', 1, true, 200, NULL, 12, 'ex-0000000000000001', '2026-11-23 20:41:06.532685+00');


--
-- Data for Name: webhook_deliveries; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.webhook_deliveries VALUES ('msg_73c931049c16f01c6dc80ff4936f548d', 'wh_00000000000000000000000000000000', 'run.terminal', '402e5ad274b5a9e46880c801e40a7e39797af94c37376894c314ff1b309e4e44', 'rn_00000000000000000000000000000001', NULL, NULL, '2026-11-23 20:41:06.524745+00', 'it_00000000000000000000000000000001', NULL, NULL, NULL, NULL, NULL, NULL, 'it_00000000000000000000000000000001', 'succeeded', 'hello', '1', '2026-11-23 20:41:06.524745+00', 'delivered', 1, 0, NULL, NULL, NULL, '2026-11-23 20:41:06.532846+00');
INSERT INTO app.webhook_deliveries VALUES ('msg_39f25d795bd33e903ef213b1f15de990', 'wh_00000000000000000000000000000000', 'run.terminal', 'caab75614c97e59c305d725a6cc80ecfbd8632bd4b480d286717e5a6a9a45103', 'rn_00000000000000000000000000000002', NULL, NULL, '2026-11-23 20:41:06.525078+00', 'it_00000000000000000000000000000002', NULL, NULL, NULL, NULL, NULL, NULL, 'it_00000000000000000000000000000002', 'succeeded', 'dispatch', '1', '2026-11-23 20:41:06.525078+00', 'delivered', 1, 0, NULL, NULL, NULL, '2026-11-23 20:41:06.533095+00');
INSERT INTO app.webhook_deliveries VALUES ('msg_0f04bedf992fcde2869d5958e6eeeff9', 'wh_00000000000000000000000000000000', 'run.terminal', '0bab4f0489c26c3d2aa3545d4b542d7c10032ae1209ee12c03b8041300802268', 'rn_00000000000000000000000000000004', NULL, NULL, '2026-11-23 20:41:06.525138+00', 'it_00000000000000000000000000000004', NULL, NULL, NULL, NULL, NULL, NULL, 'it_00000000000000000000000000000004', 'succeeded', 'hello', '1', '2026-11-23 20:41:06.525138+00', 'delivered', 1, 0, NULL, NULL, NULL, '2026-11-23 20:41:06.53314+00');


--
-- Data for Name: webhooks; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.webhooks VALUES ('wh_00000000000000000000000000000000', 'acme', 'https://hooks.example.org/', '{gate.opened,run.terminal}', NULL, 'k_ann', '2026-11-23 20:41:06.506958+00', NULL);


--
-- Data for Name: wipe_settlements; Type: TABLE DATA; Schema: app; Owner: -
--

INSERT INTO app.wipe_settlements VALUES ('sb00000000000000000004', 'rn_00000000000000000000000000000004', 'acme', 'FAILED', 1, '3c9394d5daf86b55ae8af76477d122b77b2c0614f4058e507bf4fd52e6ea2dcb', 'Ada', 'k_admin', 'the host burned', 'api-shim', '2026-11-23 20:41:06.513659+00');


--
-- Data for Name: application_versions; Type: TABLE DATA; Schema: dbos; Owner: -
--



--
-- Data for Name: dbos_migrations; Type: TABLE DATA; Schema: dbos; Owner: -
--

INSERT INTO dbos.dbos_migrations VALUES (108);


--
-- Data for Name: event_dispatch_kv; Type: TABLE DATA; Schema: dbos; Owner: -
--



--
-- Data for Name: notifications; Type: TABLE DATA; Schema: dbos; Owner: -
--



--
-- Data for Name: operation_outputs; Type: TABLE DATA; Schema: dbos; Owner: -
--



--
-- Data for Name: queues; Type: TABLE DATA; Schema: dbos; Owner: -
--

INSERT INTO dbos.queues VALUES ('128ba1cf-bad4-4414-8be0-e5181571f94e', 'intentQ', NULL, NULL, NULL, NULL, true, false, 1, 1795466466453, 1795466466453, 'cofferdam', 128, NULL, NULL, NULL);
INSERT INTO dbos.queues VALUES ('15de5df7-300d-4129-9840-6cfa5a1d8d0b', 'controlQ', NULL, NULL, NULL, NULL, true, false, 1, 1795466466453, 1795466466453, 'cofferdam', NULL, NULL, NULL, NULL);
INSERT INTO dbos.queues VALUES ('056dc6fc-c7b7-40db-8f86-5d39664d6489', 'sbxQ', NULL, 32, NULL, NULL, true, true, 1, 1795466466453, 1795466466453, 'cofferdam', 24, NULL, NULL, NULL);


--
-- Data for Name: streams; Type: TABLE DATA; Schema: dbos; Owner: -
--



--
-- Data for Name: workflow_events; Type: TABLE DATA; Schema: dbos; Owner: -
--

INSERT INTO dbos.workflow_events VALUES ('it_00000000000000000000000000000001', 'ui:approve-plan:audit', '{"at": 1795466466496, "event": "reminded", "schemaVersion": 1}', 'rust_serde');


--
-- Data for Name: workflow_events_history; Type: TABLE DATA; Schema: dbos; Owner: -
--

INSERT INTO dbos.workflow_events_history VALUES ('it_00000000000000000000000000000001', 1000000, 'ui:approve-plan:audit', '{"at": 1795466466496, "event": "reminded", "schemaVersion": 1}', 'rust_serde');


--
-- Data for Name: workflow_schedules; Type: TABLE DATA; Schema: dbos; Owner: -
--



--
-- Data for Name: workflow_status; Type: TABLE DATA; Schema: dbos; Owner: -
--

INSERT INTO dbos.workflow_status VALUES ('it_00000000000000000000000000000003', 'ENQUEUED', 'intent', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1795466466474, 1795466466474, 'v', NULL, NULL, NULL, 0, 'intentQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');
INSERT INTO dbos.workflow_status VALUES ('it_00000000000000000000000000000001', 'SUCCESS', 'intent', NULL, NULL, NULL, NULL, 'null', NULL, NULL, 1795466466473, 1795466466473, 'v', NULL, NULL, NULL, 0, 'intentQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');
INSERT INTO dbos.workflow_status VALUES ('it_00000000000000000000000000000002', 'SUCCESS', 'intent', NULL, NULL, NULL, NULL, 'null', NULL, NULL, 1795466466474, 1795466466474, 'v', NULL, NULL, NULL, 0, 'intentQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');
INSERT INTO dbos.workflow_status VALUES ('it_00000000000000000000000000000004', 'SUCCESS', 'intent', NULL, NULL, NULL, NULL, 'null', NULL, NULL, 1795466466475, 1795466466475, 'v', NULL, NULL, NULL, 0, 'intentQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');
INSERT INTO dbos.workflow_status VALUES ('dfd5bf5b5c50ecd17eef703bf0a6533d80906f74018b407c9f68fd839d5b9e89', 'SUCCESS', 'task', NULL, NULL, NULL, NULL, 'null', NULL, NULL, 1795466466480, 1795466466480, 'v', NULL, NULL, NULL, 0, 'sbxQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');
INSERT INTO dbos.workflow_status VALUES ('0110e912c327e0b0f1dc74d23d7a6ec62c2e8bbf70157c0b81dc9651144b4d83', 'SUCCESS', 'task', NULL, NULL, NULL, NULL, 'null', NULL, NULL, 1795466466480, 1795466466480, 'v', NULL, NULL, NULL, 0, 'sbxQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');
INSERT INTO dbos.workflow_status VALUES ('3daa245eb6678511ac1d015a484e1ea81b9a407685a026dde3c4a5da3de7fa5a', 'SUCCESS', 'task', NULL, NULL, NULL, NULL, 'null', NULL, NULL, 1795466466480, 1795466466480, 'v', NULL, NULL, NULL, 0, 'sbxQ', NULL, NULL, 'null', NULL, NULL, 50, 'acme', NULL, NULL, NULL, 'rust_serde', NULL, false, false, NULL, NULL, NULL, NULL, false, 'cofferdam');


--
-- Name: audit_id_seq; Type: SEQUENCE SET; Schema: app; Owner: -
--

SELECT pg_catalog.setval('app.audit_id_seq', 1, true);


--
-- Name: dependency_cache_index_entry_id_seq; Type: SEQUENCE SET; Schema: app; Owner: -
--

SELECT pg_catalog.setval('app.dependency_cache_index_entry_id_seq', 1, true);


--
-- Name: gate_delegations_id_seq; Type: SEQUENCE SET; Schema: app; Owner: -
--

SELECT pg_catalog.setval('app.gate_delegations_id_seq', 2, true);


--
-- Name: human_interactions_id_seq; Type: SEQUENCE SET; Schema: app; Owner: -
--

SELECT pg_catalog.setval('app.human_interactions_id_seq', 2, true);


--
-- Name: api_keys api_keys_key_hash_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.api_keys
    ADD CONSTRAINT api_keys_key_hash_key UNIQUE (key_hash);


--
-- Name: api_keys api_keys_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (key_id);


--
-- Name: artifacts artifacts_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.artifacts
    ADD CONSTRAINT artifacts_pkey PRIMARY KEY (run_id, step_id, task_key, attempt, idx);


--
-- Name: audit audit_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);


--
-- Name: blob_usage_parts blob_usage_parts_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.blob_usage_parts
    ADD CONSTRAINT blob_usage_parts_pkey PRIMARY KEY (tenant_id, part);


--
-- Name: blobs blobs_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.blobs
    ADD CONSTRAINT blobs_pkey PRIMARY KEY (sha256);


--
-- Name: database_place database_place_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.database_place
    ADD CONSTRAINT database_place_pkey PRIMARY KEY (only_one);


--
-- Name: dependency_cache_index dependency_cache_index_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dependency_cache_index
    ADD CONSTRAINT dependency_cache_index_pkey PRIMARY KEY (entry_id);


--
-- Name: dependency_cache_uses dependency_cache_uses_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dependency_cache_uses
    ADD CONSTRAINT dependency_cache_uses_pkey PRIMARY KEY (task_key, execution_no);


--
-- Name: dispatch_runs dispatch_runs_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dispatch_runs
    ADD CONSTRAINT dispatch_runs_pkey PRIMARY KEY (dispatch_id);


--
-- Name: dispatch_runs dispatch_runs_run_id_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dispatch_runs
    ADD CONSTRAINT dispatch_runs_run_id_key UNIQUE (run_id);


--
-- Name: dispatches dispatches_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dispatches
    ADD CONSTRAINT dispatches_pkey PRIMARY KEY (id);


--
-- Name: dynamic_config dynamic_config_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dynamic_config
    ADD CONSTRAINT dynamic_config_pkey PRIMARY KEY (tenant_id, key, version);


--
-- Name: egress_asks egress_asks_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_asks
    ADD CONSTRAINT egress_asks_pkey PRIMARY KEY (task_key, phase, name);


--
-- Name: egress_asks egress_asks_run_id_gate_key_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_asks
    ADD CONSTRAINT egress_asks_run_id_gate_key_key UNIQUE (run_id, gate_key);


--
-- Name: egress_grants egress_grants_interaction_id_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_grants
    ADD CONSTRAINT egress_grants_interaction_id_key UNIQUE (interaction_id);


--
-- Name: egress_grants egress_grants_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_grants
    ADD CONSTRAINT egress_grants_pkey PRIMARY KEY (task_key, phase, name);


--
-- Name: egress_policy_snapshots egress_policy_snapshots_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_policy_snapshots
    ADD CONSTRAINT egress_policy_snapshots_pkey PRIMARY KEY (run_id, phase);


--
-- Name: executors executors_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.executors
    ADD CONSTRAINT executors_pkey PRIMARY KEY (id);


--
-- Name: gate_delegation_ends gate_delegation_ends_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_delegation_ends
    ADD CONSTRAINT gate_delegation_ends_pkey PRIMARY KEY (delegation_id);


--
-- Name: gate_delegations gate_delegations_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_delegations
    ADD CONSTRAINT gate_delegations_pkey PRIMARY KEY (id);


--
-- Name: gate_edits gate_edits_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_edits
    ADD CONSTRAINT gate_edits_pkey PRIMARY KEY (interaction_id, n);


--
-- Name: gate_journal gate_journal_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_journal
    ADD CONSTRAINT gate_journal_pkey PRIMARY KEY (run_id, gate_key, event, n);


--
-- Name: gate_votes gate_votes_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_votes
    ADD CONSTRAINT gate_votes_pkey PRIMARY KEY (interaction_id);


--
-- Name: gate_votes gate_votes_run_id_gate_key_authority_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_votes
    ADD CONSTRAINT gate_votes_run_id_gate_key_authority_key UNIQUE (run_id, gate_key, authority);


--
-- Name: gate_votes gate_votes_run_id_gate_key_voter_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_votes
    ADD CONSTRAINT gate_votes_run_id_gate_key_voter_key UNIQUE (run_id, gate_key, voter);


--
-- Name: human_gates human_gates_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.human_gates
    ADD CONSTRAINT human_gates_pkey PRIMARY KEY (run_id, gate_key, topic);


--
-- Name: human_interactions human_interactions_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.human_interactions
    ADD CONSTRAINT human_interactions_pkey PRIMARY KEY (id);


--
-- Name: human_interactions human_interactions_workflow_id_gate_key_topic_dedupe_key_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.human_interactions
    ADD CONSTRAINT human_interactions_workflow_id_gate_key_topic_dedupe_key_key UNIQUE (workflow_id, gate_key, topic, dedupe_key);


--
-- Name: intents intents_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.intents
    ADD CONSTRAINT intents_pkey PRIMARY KEY (id);


--
-- Name: leader leader_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.leader
    ADD CONSTRAINT leader_pkey PRIMARY KEY (only_one);


--
-- Name: opencode_calls opencode_calls_op_key_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.opencode_calls
    ADD CONSTRAINT opencode_calls_op_key_key UNIQUE (op_key);


--
-- Name: plan_approvals plan_approvals_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.plan_approvals
    ADD CONSTRAINT plan_approvals_pkey PRIMARY KEY (run_id, round);


--
-- Name: plan_consents_void plan_consents_void_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.plan_consents_void
    ADD CONSTRAINT plan_consents_void_pkey PRIMARY KEY (run_id, round);


--
-- Name: recipe_versions recipe_versions_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.recipe_versions
    ADD CONSTRAINT recipe_versions_pkey PRIMARY KEY (tenant_id, id, v, hash);


--
-- Name: recipes recipes_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.recipes
    ADD CONSTRAINT recipes_pkey PRIMARY KEY (tenant_id, id);


--
-- Name: remote_execution_sessions remote_execution_sessions_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.remote_execution_sessions
    ADD CONSTRAINT remote_execution_sessions_pkey PRIMARY KEY (sandbox_id);


--
-- Name: reply_links reply_links_interaction_id_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.reply_links
    ADD CONSTRAINT reply_links_interaction_id_key UNIQUE (interaction_id);


--
-- Name: reply_links reply_links_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.reply_links
    ADD CONSTRAINT reply_links_pkey PRIMARY KEY (id);


--
-- Name: run_retries run_retries_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.run_retries
    ADD CONSTRAINT run_retries_pkey PRIMARY KEY (run_id, n);


--
-- Name: run_steps run_steps_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.run_steps
    ADD CONSTRAINT run_steps_pkey PRIMARY KEY (run_id, step_id, attempt);


--
-- Name: run_streams run_streams_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.run_streams
    ADD CONSTRAINT run_streams_pkey PRIMARY KEY (run_id, key, seq);


--
-- Name: runs runs_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);


--
-- Name: runs runs_workflow_id_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.runs
    ADD CONSTRAINT runs_workflow_id_key UNIQUE (workflow_id);


--
-- Name: sbx_executions sbx_executions_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.sbx_executions
    ADD CONSTRAINT sbx_executions_pkey PRIMARY KEY (task_key, execution_no);


--
-- Name: sbx_runs sbx_runs_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.sbx_runs
    ADD CONSTRAINT sbx_runs_pkey PRIMARY KEY (run_id, step_id, attempt);


--
-- Name: sbx_runs sbx_runs_task_key_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.sbx_runs
    ADD CONSTRAINT sbx_runs_task_key_key UNIQUE (task_key);


--
-- Name: schema_migrations schema_migrations_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);


--
-- Name: secure_wipe_evidence secure_wipe_evidence_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.secure_wipe_evidence
    ADD CONSTRAINT secure_wipe_evidence_pkey PRIMARY KEY (sandbox_id, look);


--
-- Name: signing_keys signing_keys_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.signing_keys
    ADD CONSTRAINT signing_keys_pkey PRIMARY KEY (fingerprint);


--
-- Name: webhook_attempts webhook_attempts_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhook_attempts
    ADD CONSTRAINT webhook_attempts_pkey PRIMARY KEY (delivery_id, attempt);


--
-- Name: webhook_deliveries webhook_deliveries_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id);


--
-- Name: webhook_deliveries webhook_deliveries_webhook_id_event_id_key; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_webhook_id_event_id_key UNIQUE (webhook_id, event_id);


--
-- Name: webhooks webhooks_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhooks
    ADD CONSTRAINT webhooks_pkey PRIMARY KEY (id);


--
-- Name: wipe_settlements wipe_settlements_pkey; Type: CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.wipe_settlements
    ADD CONSTRAINT wipe_settlements_pkey PRIMARY KEY (sandbox_id);


--
-- Name: application_versions application_versions_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.application_versions
    ADD CONSTRAINT application_versions_pkey PRIMARY KEY (version_id);


--
-- Name: application_versions application_versions_version_name_key; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.application_versions
    ADD CONSTRAINT application_versions_version_name_key UNIQUE (version_name);


--
-- Name: dbos_migrations dbos_migrations_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.dbos_migrations
    ADD CONSTRAINT dbos_migrations_pkey PRIMARY KEY (version);


--
-- Name: event_dispatch_kv event_dispatch_kv_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.event_dispatch_kv
    ADD CONSTRAINT event_dispatch_kv_pkey PRIMARY KEY (service_name, workflow_fn_name, key);


--
-- Name: notifications notifications_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (message_uuid);


--
-- Name: operation_outputs operation_outputs_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.operation_outputs
    ADD CONSTRAINT operation_outputs_pkey PRIMARY KEY (workflow_uuid, function_id);


--
-- Name: queues queues_name_key; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.queues
    ADD CONSTRAINT queues_name_key UNIQUE (name);


--
-- Name: queues queues_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue_id);


--
-- Name: streams streams_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (workflow_uuid, key, "offset");


--
-- Name: workflow_events_history workflow_events_history_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_events_history
    ADD CONSTRAINT workflow_events_history_pkey PRIMARY KEY (workflow_uuid, function_id, key);


--
-- Name: workflow_events workflow_events_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_events
    ADD CONSTRAINT workflow_events_pkey PRIMARY KEY (workflow_uuid, key);


--
-- Name: workflow_schedules workflow_schedules_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_schedules
    ADD CONSTRAINT workflow_schedules_pkey PRIMARY KEY (schedule_id);


--
-- Name: workflow_schedules workflow_schedules_schedule_name_key; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_schedules
    ADD CONSTRAINT workflow_schedules_schedule_name_key UNIQUE (schedule_name);


--
-- Name: workflow_status workflow_status_pkey; Type: CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_status
    ADD CONSTRAINT workflow_status_pkey PRIMARY KEY (workflow_uuid);


--
-- Name: artifacts_by_task; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX artifacts_by_task ON app.artifacts USING btree (task_key, idx);


--
-- Name: artifacts_by_uri; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX artifacts_by_uri ON app.artifacts USING hash (uri);


--
-- Name: audit_by_target; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX audit_by_target ON app.audit USING btree (target);


--
-- Name: delegations_by_holder; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX delegations_by_holder ON app.gate_delegations USING btree (to_key, expires_at);


--
-- Name: dependency_cache_by_maker; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX dependency_cache_by_maker ON app.dependency_cache_index USING btree (created_by);


--
-- Name: dependency_cache_by_org; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX dependency_cache_by_org ON app.dependency_cache_index USING btree (org_id, last_used_at);


--
-- Name: dependency_cache_one_base; Type: INDEX; Schema: app; Owner: -
--

CREATE UNIQUE INDEX dependency_cache_one_base ON app.dependency_cache_index USING btree (host_id, state_dir, key) WHERE (state <> 'evicted'::text);


--
-- Name: dependency_cache_uses_by_entry; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX dependency_cache_uses_by_entry ON app.dependency_cache_uses USING btree (entry_id);


--
-- Name: dispatch_runs_by_tenant; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX dispatch_runs_by_tenant ON app.dispatch_runs USING btree (tenant_id, created_at DESC);


--
-- Name: dispatches_by_scope; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX dispatches_by_scope ON app.dispatches USING btree (scope_id, status) WHERE (scope_id IS NOT NULL);


--
-- Name: edits_by_run; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX edits_by_run ON app.gate_edits USING btree (run_id, gate_key);


--
-- Name: executors_live; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX executors_live ON app.executors USING btree (heartbeat_at) WHERE (state = 'live'::text);


--
-- Name: gates_by_workflow; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX gates_by_workflow ON app.human_gates USING btree (workflow_id, gate_key);


--
-- Name: gates_open; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX gates_open ON app.human_gates USING btree (tenant_id, deadline_at) WHERE (state = 'open'::text);


--
-- Name: recipe_versions_newest; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX recipe_versions_newest ON app.recipe_versions USING btree (tenant_id, id, imported_at DESC);


--
-- Name: recipe_versions_one_stable; Type: INDEX; Schema: app; Owner: -
--

CREATE UNIQUE INDEX recipe_versions_one_stable ON app.recipe_versions USING btree (tenant_id, id, v) WHERE (status = 'stable'::text);


--
-- Name: reply_links_by_gate; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX reply_links_by_gate ON app.reply_links USING btree (run_id, gate_key);


--
-- Name: runs_by_intent; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX runs_by_intent ON app.runs USING btree (intent_id, retry_count);


--
-- Name: runs_by_tenant; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX runs_by_tenant ON app.runs USING btree (tenant_id, created_at DESC);


--
-- Name: runs_open; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX runs_open ON app.runs USING btree (workflow_id) WHERE (NOT app.is_over(status));


--
-- Name: sessions_by_run; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX sessions_by_run ON app.remote_execution_sessions USING btree (run_id);


--
-- Name: sessions_elsewhere; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX sessions_elsewhere ON app.remote_execution_sessions USING btree (task_key) WHERE ((remote IS NOT NULL) AND (ended_at IS NULL));


--
-- Name: sessions_held; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX sessions_held ON app.remote_execution_sessions USING btree (run_id) WHERE ((state = 'REMOTE_WIPE_VERIFYING'::text) AND (wipe_looks > 0));


--
-- Name: sessions_live; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX sessions_live ON app.remote_execution_sessions USING btree (host_id, executor_id) WHERE (NOT app.session_is_over(state));


--
-- Name: sessions_unended; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX sessions_unended ON app.remote_execution_sessions USING btree (task_key) WHERE (ended_at IS NULL);


--
-- Name: settlements_by_run; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX settlements_by_run ON app.wipe_settlements USING btree (run_id);


--
-- Name: signing_keys_one_in_force; Type: INDEX; Schema: app; Owner: -
--

CREATE UNIQUE INDEX signing_keys_one_in_force ON app.signing_keys USING btree ((true)) WHERE (retired_at IS NULL);


--
-- Name: webhook_deliveries_by_run; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX webhook_deliveries_by_run ON app.webhook_deliveries USING btree (run_id);


--
-- Name: webhook_deliveries_by_webhook; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX webhook_deliveries_by_webhook ON app.webhook_deliveries USING btree (webhook_id, occurred_at DESC);


--
-- Name: webhook_deliveries_due; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX webhook_deliveries_due ON app.webhook_deliveries USING btree (next_at) WHERE (state = 'pending'::text);


--
-- Name: webhooks_by_tenant; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX webhooks_by_tenant ON app.webhooks USING btree (tenant_id) WHERE (removed_at IS NULL);


--
-- Name: wipe_by_run; Type: INDEX; Schema: app; Owner: -
--

CREATE INDEX wipe_by_run ON app.secure_wipe_evidence USING btree (run_id);


--
-- Name: wipe_verified_once; Type: INDEX; Schema: app; Owner: -
--

CREATE UNIQUE INDEX wipe_verified_once ON app.secure_wipe_evidence USING btree (sandbox_id) WHERE (wipe_status = 'verified'::text);


--
-- Name: idx_notifications; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_notifications ON dbos.notifications USING btree (destination_uuid, topic);


--
-- Name: idx_operation_outputs_completed_at_function_name; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_operation_outputs_completed_at_function_name ON dbos.operation_outputs USING btree (completed_at_epoch_ms, function_name);


--
-- Name: idx_workflow_status_attributes; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_attributes ON dbos.workflow_status USING gin (attributes) WHERE (attributes IS NOT NULL);


--
-- Name: idx_workflow_status_completed_at; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_completed_at ON dbos.workflow_status USING btree (completed_at) WHERE (completed_at IS NOT NULL);


--
-- Name: idx_workflow_status_delayed; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_delayed ON dbos.workflow_status USING btree (delay_until_epoch_ms) WHERE (status = 'DELAYED'::text);


--
-- Name: idx_workflow_status_failed; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_failed ON dbos.workflow_status USING btree (status, created_at) WHERE (status = ANY (ARRAY['ERROR'::text, 'CANCELLED'::text, 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'::text]));


--
-- Name: idx_workflow_status_forked_from; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_forked_from ON dbos.workflow_status USING btree (forked_from) WHERE (forked_from IS NOT NULL);


--
-- Name: idx_workflow_status_in_flight; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_in_flight ON dbos.workflow_status USING btree (queue_name, status, priority, created_at) WHERE (status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text]));


--
-- Name: idx_workflow_status_parent_workflow_id; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_parent_workflow_id ON dbos.workflow_status USING btree (parent_workflow_id) WHERE (parent_workflow_id IS NOT NULL);


--
-- Name: idx_workflow_status_partition_dequeue_v2; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_partition_dequeue_v2 ON dbos.workflow_status USING btree (queue_name, status, queue_partition_key, priority, created_at, workflow_uuid) WHERE ((status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text])) AND (queue_partition_key IS NOT NULL));


--
-- Name: idx_workflow_status_pending; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_pending ON dbos.workflow_status USING btree (created_at) WHERE (status = 'PENDING'::text);


--
-- Name: idx_workflow_status_rate_limited; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_rate_limited ON dbos.workflow_status USING btree (queue_name, started_at_epoch_ms) WHERE (rate_limited = true);


--
-- Name: idx_workflow_status_schedule_name; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_schedule_name ON dbos.workflow_status USING btree (schedule_name) WHERE (schedule_name IS NOT NULL);


--
-- Name: idx_workflow_status_started_at; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_status_started_at ON dbos.workflow_status USING btree (started_at_epoch_ms) WHERE (started_at_epoch_ms IS NOT NULL);


--
-- Name: idx_workflow_topic; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX idx_workflow_topic ON dbos.notifications USING btree (destination_uuid, topic);


--
-- Name: in_flight_by_tenant; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX in_flight_by_tenant ON dbos.workflow_status USING btree (queue_name, status, app.partition_tenant(queue_partition_key), priority, created_at, workflow_uuid) WHERE ((status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text])) AND (queue_partition_key IS NOT NULL));


--
-- Name: in_flight_without_partition; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX in_flight_without_partition ON dbos.workflow_status USING btree (queue_name, priority, created_at, workflow_uuid) WHERE ((status = 'ENQUEUED'::text) AND (queue_partition_key IS NULL));


--
-- Name: uq_application_versions_owner_version; Type: INDEX; Schema: dbos; Owner: -
--

CREATE UNIQUE INDEX uq_application_versions_owner_version ON dbos.application_versions USING btree (application_name, version_name) WHERE (application_name IS NOT NULL);


--
-- Name: uq_application_versions_unclaimed_version; Type: INDEX; Schema: dbos; Owner: -
--

CREATE UNIQUE INDEX uq_application_versions_unclaimed_version ON dbos.application_versions USING btree (version_name) WHERE (application_name IS NULL);


--
-- Name: uq_workflow_status_dedup_id; Type: INDEX; Schema: dbos; Owner: -
--

CREATE UNIQUE INDEX uq_workflow_status_dedup_id ON dbos.workflow_status USING btree (queue_name, deduplication_id) WHERE (deduplication_id IS NOT NULL);


--
-- Name: workflow_status_created_at_index; Type: INDEX; Schema: dbos; Owner: -
--

CREATE INDEX workflow_status_created_at_index ON dbos.workflow_status USING btree (created_at);


--
-- Name: human_interactions answers_use_quota; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER answers_use_quota AFTER INSERT ON app.human_interactions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.answer_used();


--
-- Name: plan_approvals approvals_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER approvals_append_only BEFORE DELETE OR UPDATE ON app.plan_approvals FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: artifacts artifacts_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER artifacts_append_only BEFORE DELETE OR UPDATE ON app.artifacts FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: artifacts artifacts_use_blobs; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER artifacts_use_blobs AFTER INSERT ON app.artifacts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.inline IS NULL)) EXECUTE FUNCTION app.blob_used();


--
-- Name: audit audit_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER audit_append_only BEFORE DELETE OR UPDATE ON app.audit FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: dynamic_config config_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER config_append_only BEFORE DELETE OR UPDATE ON app.dynamic_config FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: plan_consents_void consents_void_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER consents_void_append_only BEFORE DELETE OR UPDATE ON app.plan_consents_void FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: gate_delegation_ends delegation_ends_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER delegation_ends_append_only BEFORE DELETE OR UPDATE ON app.gate_delegation_ends FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: gate_delegations delegations_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER delegations_append_only BEFORE DELETE OR UPDATE ON app.gate_delegations FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: dependency_cache_index dependency_cache_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER dependency_cache_guard BEFORE DELETE OR UPDATE ON app.dependency_cache_index FOR EACH ROW EXECUTE FUNCTION app.dependency_cache_guard();


--
-- Name: dependency_cache_uses dependency_cache_uses_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER dependency_cache_uses_append_only BEFORE DELETE OR UPDATE ON app.dependency_cache_uses FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: runs dispatch_ends_with_its_run; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER dispatch_ends_with_its_run AFTER UPDATE OF status ON app.runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((new.recipe_id = 'dispatch'::text) AND app.is_over(new.status))) EXECUTE FUNCTION app.dispatch_ends_with_its_run('id');


--
-- Name: sbx_runs dispatch_ends_with_its_task; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER dispatch_ends_with_its_task AFTER UPDATE OF response ON app.sbx_runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((new.request ? 'agent'::text) AND (new.response IS NOT NULL))) EXECUTE FUNCTION app.dispatch_ends_with_its_run('run_id');


--
-- Name: runs dispatch_follow_run; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER dispatch_follow_run AFTER UPDATE OF status ON app.runs FOR EACH ROW WHEN (((new.recipe_id = 'dispatch'::text) AND (new.status = 'running'::text) AND (old.status IS DISTINCT FROM new.status))) EXECUTE FUNCTION app.dispatch_follow_run();


--
-- Name: dispatch_runs dispatch_limits; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER dispatch_limits BEFORE INSERT ON app.dispatch_runs FOR EACH ROW EXECUTE FUNCTION app.dispatch_limits();


--
-- Name: dispatch_runs dispatch_runs_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER dispatch_runs_guard BEFORE UPDATE ON app.dispatch_runs FOR EACH ROW EXECUTE FUNCTION app.dispatch_runs_guard();


--
-- Name: dispatches dispatches_are_owned; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER dispatches_are_owned AFTER INSERT ON app.dispatches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.dispatches_are_owned();


--
-- Name: dispatches dispatches_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER dispatches_guard BEFORE INSERT OR DELETE OR UPDATE ON app.dispatches FOR EACH ROW EXECUTE FUNCTION app.dispatches_guard();


--
-- Name: gate_edits edits_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER edits_append_only BEFORE DELETE OR UPDATE ON app.gate_edits FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: egress_asks egress_asks_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER egress_asks_append_only BEFORE DELETE OR UPDATE ON app.egress_asks FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: egress_grants egress_grants_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER egress_grants_append_only BEFORE DELETE OR UPDATE ON app.egress_grants FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: egress_policy_snapshots egress_snapshots_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER egress_snapshots_append_only BEFORE DELETE OR UPDATE ON app.egress_policy_snapshots FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: gate_journal gate_audit_journal; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER gate_audit_journal AFTER INSERT ON app.gate_journal FOR EACH ROW EXECUTE FUNCTION app.gate_audit_journal();


--
-- Name: human_gates gate_audit_state; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER gate_audit_state AFTER UPDATE OF state ON app.human_gates FOR EACH ROW WHEN ((new.state IS DISTINCT FROM old.state)) EXECUTE FUNCTION app.gate_audit_state();


--
-- Name: intents intents_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER intents_append_only BEFORE DELETE OR UPDATE ON app.intents FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: intents intents_use_quota; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER intents_use_quota AFTER INSERT ON app.intents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.intent_used();


--
-- Name: human_interactions interactions_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER interactions_append_only BEFORE DELETE OR UPDATE ON app.human_interactions FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: gate_journal journal_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER journal_append_only BEFORE DELETE OR UPDATE ON app.gate_journal FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: recipe_versions recipe_versions_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER recipe_versions_guard BEFORE INSERT OR DELETE OR UPDATE ON app.recipe_versions FOR EACH ROW EXECUTE FUNCTION app.recipe_versions_guard();


--
-- Name: recipe_versions recipes_use_quota; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER recipes_use_quota AFTER INSERT ON app.recipe_versions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.recipe_used();


--
-- Name: human_interactions reply_link_consume; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER reply_link_consume AFTER INSERT ON app.human_interactions FOR EACH ROW WHEN ((new.key_id ~~ 'link:%'::text)) EXECUTE FUNCTION app.reply_link_consume();


--
-- Name: reply_links reply_links_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER reply_links_guard BEFORE DELETE OR UPDATE ON app.reply_links FOR EACH ROW EXECUTE FUNCTION app.reply_links_guard();


--
-- Name: run_retries run_retries_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER run_retries_append_only BEFORE DELETE OR UPDATE ON app.run_retries FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: run_steps run_steps_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER run_steps_append_only BEFORE DELETE OR UPDATE ON app.run_steps FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: runs runs_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER runs_guard BEFORE UPDATE ON app.runs FOR EACH ROW EXECUTE FUNCTION app.runs_guard();


--
-- Name: sbx_executions sbx_executions_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER sbx_executions_append_only BEFORE DELETE OR UPDATE ON app.sbx_executions FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: sbx_runs sbx_runs_end_asks; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER sbx_runs_end_asks AFTER UPDATE OF response ON app.sbx_runs FOR EACH ROW WHEN (((old.response IS NULL) AND (new.response IS NOT NULL) AND (new.request @? '$."sandbox"?(@."netAsk" == true || @."build"."ask" == true)'::jsonpath))) EXECUTE FUNCTION app.egress_asks_end();


--
-- Name: sbx_runs sbx_runs_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER sbx_runs_guard BEFORE DELETE OR UPDATE ON app.sbx_runs FOR EACH ROW EXECUTE FUNCTION app.sbx_runs_guard();


--
-- Name: remote_execution_sessions sessions_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER sessions_guard BEFORE UPDATE OF state ON app.remote_execution_sessions FOR EACH ROW EXECUTE FUNCTION app.sessions_guard();


--
-- Name: remote_execution_sessions sessions_need_evidence; Type: TRIGGER; Schema: app; Owner: -
--

CREATE CONSTRAINT TRIGGER sessions_need_evidence AFTER INSERT OR UPDATE OF state ON app.remote_execution_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.sessions_need_evidence();


--
-- Name: wipe_settlements settlements_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER settlements_append_only BEFORE DELETE OR UPDATE ON app.wipe_settlements FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: wipe_settlements settlements_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER settlements_guard BEFORE INSERT ON app.wipe_settlements FOR EACH ROW EXECUTE FUNCTION app.settlements_guard();


--
-- Name: runs status_line_first; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER status_line_first AFTER INSERT ON app.runs FOR EACH ROW EXECUTE FUNCTION app.status_line();


--
-- Name: runs status_line_next; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER status_line_next AFTER UPDATE OF status ON app.runs FOR EACH ROW WHEN ((new.status IS DISTINCT FROM old.status)) EXECUTE FUNCTION app.status_line();


--
-- Name: gate_votes votes_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER votes_append_only BEFORE DELETE OR UPDATE ON app.gate_votes FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: webhook_attempts webhook_attempts_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER webhook_attempts_append_only BEFORE DELETE OR UPDATE ON app.webhook_attempts FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: webhook_deliveries webhook_deliveries_guard; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER webhook_deliveries_guard BEFORE DELETE OR UPDATE ON app.webhook_deliveries FOR EACH ROW EXECUTE FUNCTION app.webhook_deliveries_guard();


--
-- Name: human_gates webhook_on_gate; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER webhook_on_gate AFTER INSERT OR UPDATE ON app.human_gates FOR EACH ROW EXECUTE FUNCTION app.webhook_on_gate();


--
-- Name: gate_journal webhook_on_reminder; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER webhook_on_reminder AFTER INSERT ON app.gate_journal FOR EACH ROW WHEN ((new.event = 'reminded'::text)) EXECUTE FUNCTION app.webhook_on_reminder();


--
-- Name: runs webhook_on_run; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER webhook_on_run AFTER UPDATE OF status ON app.runs FOR EACH ROW WHEN ((app.is_over(new.status) AND (new.status IS DISTINCT FROM old.status))) EXECUTE FUNCTION app.webhook_on_run();


--
-- Name: secure_wipe_evidence wipe_append_only; Type: TRIGGER; Schema: app; Owner: -
--

CREATE TRIGGER wipe_append_only BEFORE DELETE OR UPDATE ON app.secure_wipe_evidence FOR EACH ROW EXECUTE FUNCTION app.refuse_change();


--
-- Name: notifications dbos_notifications_trigger; Type: TRIGGER; Schema: dbos; Owner: -
--

CREATE TRIGGER dbos_notifications_trigger AFTER INSERT ON dbos.notifications FOR EACH ROW EXECUTE FUNCTION dbos.notifications_function();


--
-- Name: artifacts artifacts_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.artifacts
    ADD CONSTRAINT artifacts_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: dependency_cache_index dependency_cache_index_created_by_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dependency_cache_index
    ADD CONSTRAINT dependency_cache_index_created_by_fkey FOREIGN KEY (created_by) REFERENCES app.sbx_runs(task_key);


--
-- Name: dependency_cache_uses dependency_cache_uses_entry_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dependency_cache_uses
    ADD CONSTRAINT dependency_cache_uses_entry_id_fkey FOREIGN KEY (entry_id) REFERENCES app.dependency_cache_index(entry_id);


--
-- Name: dependency_cache_uses dependency_cache_uses_task_key_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dependency_cache_uses
    ADD CONSTRAINT dependency_cache_uses_task_key_fkey FOREIGN KEY (task_key) REFERENCES app.sbx_runs(task_key);


--
-- Name: dispatch_runs dispatch_runs_dispatch_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dispatch_runs
    ADD CONSTRAINT dispatch_runs_dispatch_id_fkey FOREIGN KEY (dispatch_id) REFERENCES app.dispatches(id) ON DELETE CASCADE;


--
-- Name: dispatch_runs dispatch_runs_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.dispatch_runs
    ADD CONSTRAINT dispatch_runs_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: egress_asks egress_asks_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_asks
    ADD CONSTRAINT egress_asks_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: egress_grants egress_grants_interaction_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_grants
    ADD CONSTRAINT egress_grants_interaction_id_fkey FOREIGN KEY (interaction_id) REFERENCES app.human_interactions(id);


--
-- Name: egress_grants egress_grants_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_grants
    ADD CONSTRAINT egress_grants_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: egress_grants egress_grants_task_key_phase_name_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_grants
    ADD CONSTRAINT egress_grants_task_key_phase_name_fkey FOREIGN KEY (task_key, phase, name) REFERENCES app.egress_asks(task_key, phase, name);


--
-- Name: egress_policy_snapshots egress_policy_snapshots_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.egress_policy_snapshots
    ADD CONSTRAINT egress_policy_snapshots_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: gate_delegation_ends gate_delegation_ends_delegation_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_delegation_ends
    ADD CONSTRAINT gate_delegation_ends_delegation_id_fkey FOREIGN KEY (delegation_id) REFERENCES app.gate_delegations(id);


--
-- Name: gate_delegations gate_delegations_from_key_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_delegations
    ADD CONSTRAINT gate_delegations_from_key_fkey FOREIGN KEY (from_key) REFERENCES app.api_keys(key_id);


--
-- Name: gate_delegations gate_delegations_to_key_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_delegations
    ADD CONSTRAINT gate_delegations_to_key_fkey FOREIGN KEY (to_key) REFERENCES app.api_keys(key_id);


--
-- Name: gate_edits gate_edits_interaction_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_edits
    ADD CONSTRAINT gate_edits_interaction_id_fkey FOREIGN KEY (interaction_id) REFERENCES app.human_interactions(id);


--
-- Name: gate_edits gate_edits_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_edits
    ADD CONSTRAINT gate_edits_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: gate_journal gate_journal_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_journal
    ADD CONSTRAINT gate_journal_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: gate_votes gate_votes_delegation_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_votes
    ADD CONSTRAINT gate_votes_delegation_id_fkey FOREIGN KEY (delegation_id) REFERENCES app.gate_delegations(id);


--
-- Name: gate_votes gate_votes_interaction_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_votes
    ADD CONSTRAINT gate_votes_interaction_id_fkey FOREIGN KEY (interaction_id) REFERENCES app.human_interactions(id);


--
-- Name: gate_votes gate_votes_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.gate_votes
    ADD CONSTRAINT gate_votes_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: human_gates human_gates_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.human_gates
    ADD CONSTRAINT human_gates_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: human_interactions human_interactions_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.human_interactions
    ADD CONSTRAINT human_interactions_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: opencode_calls opencode_calls_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.opencode_calls
    ADD CONSTRAINT opencode_calls_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: plan_approvals plan_approvals_intent_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.plan_approvals
    ADD CONSTRAINT plan_approvals_intent_id_fkey FOREIGN KEY (intent_id) REFERENCES app.intents(id);


--
-- Name: plan_approvals plan_approvals_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.plan_approvals
    ADD CONSTRAINT plan_approvals_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: plan_consents_void plan_consents_void_run_id_round_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.plan_consents_void
    ADD CONSTRAINT plan_consents_void_run_id_round_fkey FOREIGN KEY (run_id, round) REFERENCES app.plan_approvals(run_id, round);


--
-- Name: recipe_versions recipe_versions_tenant_id_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.recipe_versions
    ADD CONSTRAINT recipe_versions_tenant_id_id_fkey FOREIGN KEY (tenant_id, id) REFERENCES app.recipes(tenant_id, id);


--
-- Name: remote_execution_sessions remote_execution_sessions_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.remote_execution_sessions
    ADD CONSTRAINT remote_execution_sessions_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: remote_execution_sessions remote_execution_sessions_task_key_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.remote_execution_sessions
    ADD CONSTRAINT remote_execution_sessions_task_key_fkey FOREIGN KEY (task_key) REFERENCES app.sbx_runs(task_key);


--
-- Name: reply_links reply_links_interaction_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.reply_links
    ADD CONSTRAINT reply_links_interaction_id_fkey FOREIGN KEY (interaction_id) REFERENCES app.human_interactions(id);


--
-- Name: reply_links reply_links_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.reply_links
    ADD CONSTRAINT reply_links_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: run_retries run_retries_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.run_retries
    ADD CONSTRAINT run_retries_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: run_steps run_steps_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.run_steps
    ADD CONSTRAINT run_steps_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: runs runs_intent_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.runs
    ADD CONSTRAINT runs_intent_id_fkey FOREIGN KEY (intent_id) REFERENCES app.intents(id);


--
-- Name: runs runs_retry_of_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.runs
    ADD CONSTRAINT runs_retry_of_fkey FOREIGN KEY (retry_of) REFERENCES app.runs(id);


--
-- Name: sbx_executions sbx_executions_task_key_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.sbx_executions
    ADD CONSTRAINT sbx_executions_task_key_fkey FOREIGN KEY (task_key) REFERENCES app.sbx_runs(task_key);


--
-- Name: sbx_runs sbx_runs_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.sbx_runs
    ADD CONSTRAINT sbx_runs_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: secure_wipe_evidence secure_wipe_evidence_sandbox_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.secure_wipe_evidence
    ADD CONSTRAINT secure_wipe_evidence_sandbox_id_fkey FOREIGN KEY (sandbox_id) REFERENCES app.remote_execution_sessions(sandbox_id);


--
-- Name: webhook_attempts webhook_attempts_delivery_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhook_attempts
    ADD CONSTRAINT webhook_attempts_delivery_id_fkey FOREIGN KEY (delivery_id) REFERENCES app.webhook_deliveries(id);


--
-- Name: webhook_deliveries webhook_deliveries_run_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_run_id_fkey FOREIGN KEY (run_id) REFERENCES app.runs(id);


--
-- Name: webhook_deliveries webhook_deliveries_webhook_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_webhook_id_fkey FOREIGN KEY (webhook_id) REFERENCES app.webhooks(id);


--
-- Name: wipe_settlements wipe_settlements_sandbox_id_evidence_look_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.wipe_settlements
    ADD CONSTRAINT wipe_settlements_sandbox_id_evidence_look_fkey FOREIGN KEY (sandbox_id, evidence_look) REFERENCES app.secure_wipe_evidence(sandbox_id, look);


--
-- Name: wipe_settlements wipe_settlements_sandbox_id_fkey; Type: FK CONSTRAINT; Schema: app; Owner: -
--

ALTER TABLE ONLY app.wipe_settlements
    ADD CONSTRAINT wipe_settlements_sandbox_id_fkey FOREIGN KEY (sandbox_id) REFERENCES app.remote_execution_sessions(sandbox_id);


--
-- Name: notifications notifications_destination_uuid_fkey; Type: FK CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.notifications
    ADD CONSTRAINT notifications_destination_uuid_fkey FOREIGN KEY (destination_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;


--
-- Name: operation_outputs operation_outputs_workflow_uuid_fkey; Type: FK CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.operation_outputs
    ADD CONSTRAINT operation_outputs_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;


--
-- Name: streams streams_workflow_uuid_fkey; Type: FK CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.streams
    ADD CONSTRAINT streams_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;


--
-- Name: workflow_events_history workflow_events_history_workflow_uuid_fkey; Type: FK CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_events_history
    ADD CONSTRAINT workflow_events_history_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;


--
-- Name: workflow_events workflow_events_workflow_uuid_fkey; Type: FK CONSTRAINT; Schema: dbos; Owner: -
--

ALTER TABLE ONLY dbos.workflow_events
    ADD CONSTRAINT workflow_events_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;


--
-- PostgreSQL database dump complete
--


