-- The life of a sandbox is recorded by one statement, with all that its run begins with: its plan, its task in the queue and,
-- where the queue would give it to that worker anyway, the claim. What follows finds what a crash behind these steps would have
-- left.

-- The row of `app.enqueue`, of which nobody is told. Who calls it tells, or nobody waits for it: every worker looks at its queues
-- once a second. With `p_executor` it is claimed already.
CREATE FUNCTION app.enqueue_quietly(p_id text, p_name text, p_inputs text, p_queue text, p_partition text, p_priority integer,
                                    p_dedup text, p_version text, p_parent text, p_delay_ms bigint, p_executor text)
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
  VALUES (p_id, CASE WHEN p_executor IS NOT NULL THEN 'PENDING' WHEN p_delay_ms > 0 THEN 'DELAYED' ELSE 'ENQUEUED' END,
    p_name, p_inputs, p_queue, p_partition, p_priority, p_dedup, p_version, 'cofferdam', 'rust_serde', v_now, v_now,
    CASE WHEN p_executor IS NOT NULL THEN 1 ELSE 0 END, p_parent, NULL,
    CASE WHEN p_delay_ms > 0 THEN v_now + p_delay_ms END, p_executor, CASE WHEN p_executor IS NOT NULL THEN v_now END)
  ON CONFLICT (workflow_uuid) DO NOTHING;
  RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION app.enqueue(p_id text, p_name text, p_inputs text, p_queue text, p_partition text,
                                       p_priority integer, p_dedup text, p_version text, p_parent text, p_delay_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT app.enqueue_quietly(p_id, p_name, p_inputs, p_queue, p_partition, p_priority, p_dedup, p_version, p_parent,
                             p_delay_ms, NULL) THEN
    RETURN false;
  END IF;
  PERFORM pg_notify('cofferdam', 'q:' || p_queue);
  RETURN true;
END $$;

-- Whether a claim would give this worker a task that its tenant is about to queue in this transaction: nothing waits before it, no
-- limit is reached, and the worker lives. Where another claim is being made, that one decides. As with every claim, the
-- executor's row is locked until the transaction ends, so call it in no transaction that waits for anything after it.
CREATE FUNCTION app.may_take_own(p_tenant text, p_executor text) RETURNS boolean
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
       SELECT 1 FROM dbos.workflow_status s WHERE s.queue_name = 'sbxQ' AND s.status = 'ENQUEUED') THEN
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

-- Writes the intent and the run of a life, and queues it. With `p_opening`, its plan and its first task too: then its workflow
-- has nothing to do that anybody waits for. Whether the task is `p_executor`'s at once.
CREATE FUNCTION app.life_begin(p_intent jsonb, p_run jsonb, p_opening jsonb, p_executor text) RETURNS boolean
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
    PERFORM app.enqueue(r.workflow_id, 'run', 'null', 'intentQ', r.tenant_id, r.priority, NULL, r.app_version, NULL, 0);
    RETURN false;
  END IF;
  -- It only waits for its task's end: beside all limits, when nothing else is to be done.
  PERFORM app.enqueue_quietly(r.workflow_id, 'run', 'null', 'liveQ', r.tenant_id, r.priority, NULL, r.app_version, NULL, 0, NULL);
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
  taken := app.may_take_own(r.tenant_id, p_executor);
  PERFORM app.enqueue_quietly(t.task_key, 'task', 'null', 'sbxQ', r.partition_key, r.priority, NULL, r.app_version,
                              r.workflow_id, 0, CASE WHEN taken THEN p_executor END);
  IF NOT taken THEN
    PERFORM pg_notify('cofferdam', 'q:sbxQ');
  END IF;
  RETURN taken;
END $$;

-- Both that follow plan their statements once for each connection, and not five times: each has some twenty, and every row is
-- found by its key.

-- A new sandbox with its first life. `over`: its tenant has as many as it may; then nothing is written.
CREATE FUNCTION app.live_create(p_live jsonb, p_intent jsonb, p_run jsonb, p_opening jsonb, p_executor text,
                                p_default bigint, OUT over bigint[], OUT claimed boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  l app.live_sandboxes := jsonb_populate_record(NULL::app.live_sandboxes, p_live);
BEGIN
  over := app.live_over_quota(l.tenant_id, p_default);
  IF over IS NOT NULL THEN
    RETURN;
  END IF;
  claimed := app.life_begin(p_intent, p_run, p_opening, p_executor);
  INSERT INTO app.live_sandboxes (id, tenant_id, run_id, key_id, template, metadata, egress, timeout_ms, dedup, origin, pauses, resumes)
  VALUES (l.id, l.tenant_id, l.run_id, l.key_id, l.template, l.metadata, l.egress, l.timeout_ms, l.dedup, l.origin, l.pauses, l.resumes);
END $$;

-- The next life of a paused sandbox. `rests` false: it is not paused into these files, or its last life is still being wiped;
-- `over`: its tenant has as many as it may. Then nothing is written.
CREATE FUNCTION app.live_resume(p_live jsonb, p_intent jsonb, p_run jsonb, p_opening jsonb, p_executor text,
                                p_default bigint, p_audit jsonb, OUT over bigint[], OUT rests boolean, OUT claimed boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  n app.live_sandboxes := jsonb_populate_record(NULL::app.live_sandboxes, p_live);
BEGIN
  over := app.live_over_quota(n.tenant_id, p_default);
  IF over IS NOT NULL THEN
    RETURN;
  END IF;
  PERFORM 1 FROM app.live_sandboxes l
    WHERE l.id = n.id AND l.tenant_id = n.tenant_id AND l.snapshot_id = n.snapshot_id AND l.paused_at IS NOT NULL
      AND l.ended_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM app.sbx_runs s WHERE s.run_id = l.run_id AND s.response IS NULL)
      FOR UPDATE;
  rests := FOUND;
  IF NOT rests THEN
    RETURN;
  END IF;
  claimed := app.life_begin(p_intent, p_run, p_opening, p_executor);
  UPDATE app.live_sandboxes l
     SET run_id = n.run_id, timeout_ms = n.timeout_ms, pauses = coalesce(n.pauses, l.pauses), paused_at = NULL,
         started_at = NULL, ends_at = NULL, token_hash = NULL, executor_id = NULL, sandbox_id = NULL, limits = NULL,
         program_failed_at = NULL, program_failed = NULL
   WHERE l.id = n.id;
  INSERT INTO app.audit (tenant_id, key_id, actor, op, target, reason, detail)
  SELECT a.tenant_id, a.key_id, a.actor, a.op, a.target, a.reason, a.detail
    FROM jsonb_populate_record(NULL::app.audit, p_audit) a;
END $$;
