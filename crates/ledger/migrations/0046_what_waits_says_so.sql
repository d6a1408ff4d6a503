-- What waits is said to wait. An attempt that is queued waits for a place; one that a worker took may wait there for memory, and the
-- worker writes what for: NULL where nothing is waited for, the last word where it was canceled meanwhile.
ALTER TABLE app.remote_execution_sessions ADD COLUMN waits_for text;

-- What an attempt waits for, in words; NULL where it does not wait, and where it has ended.
CREATE FUNCTION app.task_waits_for(p_task text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE w.status WHEN 'ENQUEUED' THEN 'a place' ELSE (
           SELECT x.waits_for FROM app.remote_execution_sessions x
            WHERE x.task_key = p_task AND x.ended_at IS NULL ORDER BY x.execution_no DESC LIMIT 1) END
    FROM dbos.workflow_status w WHERE w.workflow_uuid = p_task AND w.status IN ('ENQUEUED', 'PENDING')
$$;

-- What a queued workflow waits for: a worker, or its turn among its tenant's own. Counted to a thousand.
CREATE FUNCTION app.place_before(p_workflow text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v dbos.workflow_status;
  v_before bigint;
BEGIN
  SELECT * INTO v FROM dbos.workflow_status w WHERE w.workflow_uuid = p_workflow AND w.status = 'ENQUEUED';
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF NOT EXISTS (SELECT 1 FROM app.executors e WHERE e.state = 'live') THEN
    RETURN 'a worker: none is live';
  END IF;
  SELECT count(*) INTO v_before FROM (
    SELECT 1 FROM dbos.workflow_status o
     WHERE o.queue_name = v.queue_name AND o.status = 'ENQUEUED'
       AND app.partition_tenant(o.queue_partition_key) IS NOT DISTINCT FROM app.partition_tenant(v.queue_partition_key)
       AND (v.queue_partition_key IS NOT NULL
            OR (SELECT r.tenant_id FROM app.runs r WHERE r.workflow_id = o.workflow_uuid)
               = (SELECT r.tenant_id FROM app.runs r WHERE r.workflow_id = p_workflow))
       AND (o.priority, o.created_at, o.workflow_uuid) < (v.priority, v.created_at, v.workflow_uuid)
     LIMIT 1000) b;
  RETURN CASE v_before WHEN 0 THEN 'a place' ELSE format('a place: %s before you', v_before) END;
END $$;

-- Whether anything of a run's tasks was ever more than queued.
CREATE FUNCTION app.run_has_begun(p_run text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT 1 FROM app.sbx_runs s JOIN app.sbx_executions e ON e.task_key = s.task_key
      LEFT JOIN app.remote_execution_sessions x ON x.sandbox_id = e.sandbox_id
     WHERE s.run_id = p_run AND x.waits_for IS NULL)
$$;

-- What a run waits for: its turn, or of its tasks the first that waits while none runs. NULL where it does not wait.
CREATE FUNCTION app.run_waits_for(p_run text, p_workflow text, p_status text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_task text;
  v_why text;
BEGIN
  IF p_status = 'queued' THEN
    RETURN app.place_before(p_workflow);
  END IF;
  IF p_status <> 'running' OR EXISTS (
       SELECT 1 FROM app.sbx_runs s JOIN dbos.workflow_status w ON w.workflow_uuid = s.task_key
        WHERE s.run_id = p_run AND s.response IS NULL AND w.status = 'PENDING'
          AND app.task_waits_for(s.task_key) IS NULL) THEN
    RETURN NULL;
  END IF;
  SELECT s.task_key, t.why INTO v_task, v_why
    FROM app.sbx_runs s CROSS JOIN LATERAL (SELECT app.task_waits_for(s.task_key) AS why) t
   WHERE s.run_id = p_run AND s.response IS NULL AND t.why IS NOT NULL ORDER BY s.created_at, s.step_id LIMIT 1;
  -- Claimed a moment ago: what it said while it was queued.
  RETURN CASE v_why WHEN 'a place' THEN coalesce(app.place_before(v_task), v_why) ELSE v_why END;
END $$;

-- SHA-1, by which git names what lies in most repositories: the proof of what was written computes the names of commits again.
CREATE FUNCTION app.sha1(p_bytes bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  c_mask constant bigint := 4294967295;
  v_text bytea := p_bytes || '\x80'::bytea || decode(repeat('00', (119 - length(p_bytes) % 64) % 64), 'hex')
                  || int8send(length(p_bytes)::bigint * 8);
  w bigint[] := array_fill(0::bigint, ARRAY[80], ARRAY[0]);
  h0 bigint := 1732584193; h1 bigint := 4023233417; h2 bigint := 2562383102; h3 bigint := 271733878; h4 bigint := 3285377520;
  a bigint; b bigint; c bigint; d bigint; e bigint; f bigint; k bigint; t bigint;
  v_at integer;
BEGIN
  FOR v_block IN 0 .. length(v_text) / 64 - 1 LOOP
    FOR i IN 0 .. 15 LOOP
      v_at := v_block * 64 + i * 4;
      w[i] := (get_byte(v_text, v_at)::bigint << 24) | (get_byte(v_text, v_at + 1) << 16)
              | (get_byte(v_text, v_at + 2) << 8) | get_byte(v_text, v_at + 3);
    END LOOP;
    FOR i IN 16 .. 79 LOOP
      t := w[i - 3] # w[i - 8] # w[i - 14] # w[i - 16];
      w[i] := ((t << 1) | (t >> 31)) & c_mask;
    END LOOP;
    a := h0; b := h1; c := h2; d := h3; e := h4;
    FOR i IN 0 .. 79 LOOP
      IF i < 20 THEN
        f := (b & c) | ((~b & c_mask) & d); k := 1518500249;
      ELSIF i < 40 THEN
        f := b # c # d; k := 1859775393;
      ELSIF i < 60 THEN
        f := (b & c) | (b & d) | (c & d); k := 2400959708;
      ELSE
        f := b # c # d; k := 3395469782;
      END IF;
      t := ((((a << 5) | (a >> 27)) & c_mask) + f + e + k + w[i]) & c_mask;
      e := d; d := c; c := ((b << 30) | (b >> 2)) & c_mask; b := a; a := t;
    END LOOP;
    h0 := (h0 + a) & c_mask; h1 := (h1 + b) & c_mask; h2 := (h2 + c) & c_mask; h3 := (h3 + d) & c_mask; h4 := (h4 + e) & c_mask;
  END LOOP;
  RETURN lpad(to_hex(h0), 8, '0') || lpad(to_hex(h1), 8, '0') || lpad(to_hex(h2), 8, '0') || lpad(to_hex(h3), 8, '0')
         || lpad(to_hex(h4), 8, '0');
END $$;

-- The id of the commit that a patch became, as git computes it of what is on record; as contracts::patch::PatchCommit.
CREATE FUNCTION app.patch_commit_id(p_run text, p_task text, p_patch text, p_approved_in text, p_base text, p_at_s bigint, p_tree text)
RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  v_who text := 'Cofferdam <cofferdam@localhost> ' || p_at_s || ' +0000';
  v_text bytea := convert_to('tree ' || p_tree || E'\nparent ' || p_base || E'\nauthor ' || v_who || E'\ncommitter ' || v_who
    || E'\n\nResult of Cofferdam run ' || p_run || E'\n\nTask: ' || p_task || E'\nPatch: sha256:' || p_patch
    || E'\nApproved-In: ' || p_approved_in || E'\n', 'UTF8');
BEGIN
  v_text := convert_to('commit ' || length(v_text), 'UTF8') || '\x00'::bytea || v_text;
  RETURN CASE length(p_base) WHEN 64 THEN encode(sha256(v_text), 'hex') ELSE app.sha1(v_text) END;
END $$;
