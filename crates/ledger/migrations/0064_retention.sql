-- Content that goes while its record stays: who took it, when, why, how many bytes, and the hash of what was there.
--
-- A run has two contents: its prompt (what it was asked: inputs, plan, requests, replies of gates) and its output (what it made:
-- results, artifacts, streams). A content goes whole, once, in one transaction, and what stands in its place says its hash and size.

CREATE TABLE app.erasures (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id    text NOT NULL CHECK (tenant_id <> ''),
  content      text NOT NULL CHECK (content IN ('prompt','output','secret')),
  run_id       text REFERENCES app.runs,
  secret       text,
  cause        text NOT NULL CHECK (cause IN ('asked','age','count','bytes')),
  key_id       text NOT NULL,
  reason       text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
  bytes        bigint NOT NULL CHECK (bytes >= 0),
  -- Rows that are deleted since they are copies: {streams, engine, recipe}; of the first two rows, bytes and sha256: of the rows' own
  -- digests one behind the other, since all bytes of a run may be more than one value holds. Of a secret: its version, bytes and sha256.
  removed      jsonb NOT NULL,
  -- Of a prompt: the groups and tasks of the run's graph, which its plan does not say any more.
  graph_digest text CHECK (graph_digest ~ '^[a-f0-9]{64}$'),
  -- Only the transaction that writes this row may take the content.
  xact         xid8 NOT NULL DEFAULT pg_current_xact_id(),
  origin       text NOT NULL
    CHECK (origin IN ('manual','engine-dbos','api-shim','webhook','webhook-ci','external','unknown')),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((content = 'secret') = (secret IS NOT NULL) AND (content = 'secret') = (run_id IS NULL))
);
CREATE UNIQUE INDEX erasures_once ON app.erasures (run_id, content) WHERE run_id IS NOT NULL;
CREATE INDEX erasures_by_secret ON app.erasures (tenant_id, secret) WHERE secret IS NOT NULL;
CREATE TRIGGER erasures_append_only BEFORE UPDATE OR DELETE ON app.erasures
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- (plpgsql keeps its plan; an SQL function with a subquery is planned again at every call.)
CREATE FUNCTION app.is_erased(p_run text, p_content text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT FROM app.erasures e WHERE e.run_id = p_run AND e.content = p_content);
END $$;

-- What stands in the place of a content.
CREATE FUNCTION app.erased_text(p_text text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  RETURN 'erased sha256:' || encode(sha256(convert_to(p_text, 'UTF8')), 'hex') || ' bytes:' || octet_length(p_text);
END $$;
CREATE FUNCTION app.erased_bytes(p_bytes bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  RETURN convert_to('erased sha256:' || encode(sha256(p_bytes), 'hex') || ' bytes:' || octet_length(p_bytes), 'UTF8');
END $$;
-- `p_keep`: fields that proofs read: ends, digests, roles, choices.
CREATE FUNCTION app.erased_json(p_value jsonb, p_keep text[]) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_left jsonb := jsonb_build_object('erased', app.erased_text(p_value::text));
  v_key  text;
BEGIN
  IF jsonb_typeof(p_value) = 'object' THEN
    FOREACH v_key IN ARRAY p_keep LOOP
      IF p_value ? v_key AND v_key <> 'erased' THEN
        v_left := v_left || jsonb_build_object(v_key, p_value -> v_key);
      END IF;
    END LOOP;
  END IF;
  RETURN v_left;
END $$;
CREATE FUNCTION app.is_tombstone(p_value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN p_value IS NOT NULL
              THEN coalesce(CASE jsonb_typeof(p_value) WHEN 'object' THEN p_value ->> 'erased' WHEN 'string' THEN p_value #>> '{}' END
                            ~ '^erased sha256:[a-f0-9]{64} bytes:[0-9]+$', false) END
$$;

-- Which content of its run a step holds.
CREATE FUNCTION app.content_of_step(p_step text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN p_step IN ('CompileST','DecideST') THEN 'prompt' ELSE 'output' END
$$;

-- Whether a run does nothing any more and is not gone on from.
CREATE FUNCTION app.is_at_rest(p_run text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM app.runs r
     WHERE r.id = p_run AND app.is_over(r.status) AND r.finished_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM app.sbx_runs s WHERE s.run_id = r.id AND s.response IS NULL)
       AND NOT EXISTS (SELECT FROM app.remote_execution_sessions x WHERE x.run_id = r.id AND x.ended_at IS NULL)
       AND NOT EXISTS (SELECT FROM app.live_sandboxes l WHERE l.run_id = r.id AND l.ended_at IS NULL)
       AND NOT EXISTS (SELECT FROM app.webhook_deliveries d WHERE d.run_id = r.id AND d.state = 'pending')
       AND NOT EXISTS (SELECT FROM dbos.workflow_status w
                        WHERE w.workflow_uuid = r.workflow_id AND w.status IN ('PENDING','ENQUEUED','DELAYED'))
       AND NOT EXISTS (SELECT FROM dbos.workflow_status w
                        WHERE w.parent_workflow_id = r.workflow_id AND w.status IN ('PENDING','ENQUEUED','DELAYED')));
END $$;

-- The groups, their needs and their tasks as they are on record; NULL without a graph.
CREATE FUNCTION app.graph_digest(p_run text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(jsonb_build_array(g.groups, t.tasks)::text, 'UTF8')), 'hex')
    FROM (SELECT jsonb_agg(jsonb_build_array(name, to_jsonb(needs), is_late) ORDER BY name COLLATE "C") AS groups
            FROM app.graph_groups WHERE run_id = p_run) g,
         (SELECT jsonb_agg(jsonb_build_array(step_id, group_name, name) ORDER BY step_id COLLATE "C") AS tasks
            FROM app.graph_tasks WHERE run_id = p_run) t
   WHERE g.groups IS NOT NULL
$$;

-- An artifact whose bytes went says by which erasure; name, digest and size stay. Only the trigger below writes it, from the erasure's
-- row, so no key has to look again for each of thousands of artifacts.
ALTER TABLE app.artifacts
  ADD COLUMN erased_in bigint,
  ADD CHECK (erased_in IS NULL OR inline IS NULL);
-- Who still needs a blob.
CREATE INDEX artifacts_by_digest ON app.artifacts (sha256) WHERE inline IS NULL AND object_id IS NULL AND erased_in IS NULL;

-- An object's key is destroyed with its last artifact; its file goes after that was committed, and `file_gone_at` says that it did.
-- `wanted_at`: when a task was last promised that it may refer to it instead of storing the same bytes again.
ALTER TABLE app.stored_objects
  ADD COLUMN wanted_at timestamptz,
  ADD COLUMN file_gone_at timestamptz,
  ADD CHECK (file_gone_at IS NULL OR erased_at IS NOT NULL);
CREATE INDEX stored_objects_leaving ON app.stored_objects (store, id) WHERE erased_at IS NOT NULL AND file_gone_at IS NULL;

-- A promise is over with the next artifact, or with the task that had it.
CREATE FUNCTION app.object_is_wanted(o app.stored_objects) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(o.wanted_at > clock_timestamp() - interval '10 minutes', false)
     AND NOT EXISTS (SELECT FROM app.artifacts a WHERE a.object_id = o.id AND a.created_at >= o.wanted_at);
END $$;

-- What may change of an object: it is promised, then its key is destroyed, then its file is gone.
CREATE OR REPLACE FUNCTION app.stored_objects_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_is_kept boolean := TG_OP = 'UPDATE'
    AND (NEW.id, NEW.tenant_id, NEW.store, NEW.sha256, NEW.size, NEW.sealed_by, NEW.created_at)
        IS NOT DISTINCT FROM
        (OLD.id, OLD.tenant_id, OLD.store, OLD.sha256, OLD.size, OLD.sealed_by, OLD.created_at);
BEGIN
  IF NOT v_is_kept OR NOT (CASE
       WHEN OLD.erased_at IS NOT NULL
       THEN (NEW.erased_at, NEW.wanted_at) IS NOT DISTINCT FROM (OLD.erased_at, OLD.wanted_at)
            AND OLD.file_gone_at IS NULL AND NEW.file_gone_at IS NOT NULL
       WHEN NEW.erased_at IS NOT NULL THEN NEW.file_gone_at IS NULL
       ELSE NEW.sealed_key = OLD.sealed_key AND NEW.wanted_at IS DISTINCT FROM OLD.wanted_at END) THEN
    RAISE EXCEPTION 'stored object % is append-only', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

-- Destroys the keys of those of these objects that no artifact has any more; how many.
CREATE FUNCTION app.objects_erase(p_objects text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_count bigint;
BEGIN
  IF p_objects = '{}' THEN
    RETURN 0;
  END IF;
  PERFORM FROM app.stored_objects o WHERE o.id = ANY (p_objects) AND o.erased_at IS NULL ORDER BY o.id FOR UPDATE;
  -- A statement of its own, which sees what was committed before the lock was had.
  UPDATE app.stored_objects o SET sealed_key = NULL, erased_at = clock_timestamp()
   WHERE o.id = ANY (p_objects) AND o.erased_at IS NULL
     AND NOT EXISTS (SELECT FROM app.artifacts a WHERE a.object_id = o.id AND a.erased_in IS NULL)
     AND NOT app.object_is_wanted(o);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- The same for objects that are older than ten minutes, so many at most: the last artifacts of one may have gone with a promise open.
CREATE FUNCTION app.objects_unreferenced() RETURNS SETOF app.stored_objects LANGUAGE sql STABLE AS $$
  SELECT o.* FROM app.stored_objects o
   WHERE o.erased_at IS NULL AND o.created_at < clock_timestamp() - interval '10 minutes'
     AND NOT EXISTS (SELECT FROM app.artifacts a WHERE a.object_id = o.id AND a.erased_in IS NULL)
     AND NOT app.object_is_wanted(o)
$$;
CREATE FUNCTION app.objects_sweep(p_limit integer) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN app.objects_erase(ARRAY(SELECT o.id FROM app.objects_unreferenced() o LIMIT p_limit));
END $$;

-- When both contents of a run were gone. Retention finds the oldest of those that still have theirs, however many have not.
ALTER TABLE app.runs ADD COLUMN erased_at timestamptz;
CREATE INDEX runs_unerased ON app.runs (tenant_id, finished_at) WHERE erased_at IS NULL AND finished_at IS NOT NULL;

-- A run whose content went does not go on: an erasure and a retry or resumption each lock the run, and the second sees the first.
CREATE FUNCTION app.erased_run_is_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM app.erasures e WHERE e.run_id = OLD.id) THEN
    RAISE EXCEPTION 'run % is erased and does not go on', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER erased_runs_are_over BEFORE UPDATE OF status ON app.runs FOR EACH ROW
  WHEN (app.is_over(OLD.status) AND NOT app.is_over(NEW.status)) EXECUTE FUNCTION app.erased_run_is_over();

-- The triggers that refuse change let exactly this through: the transaction that put a run's erasure on record touches the row (any
-- other change is refused), and the trigger itself writes what is left of the content.

CREATE FUNCTION app.no_erasure(p_table text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RAISE EXCEPTION 'app.% is append-only: only the transaction of an erasure on record takes its content, and nothing else', p_table
    USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION app.erase_artifact() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_by bigint;
BEGIN
  SELECT e.id INTO v_by FROM app.erasures e
   WHERE e.run_id = OLD.run_id AND e.content = app.content_of_step(OLD.step_id) AND e.xact = pg_current_xact_id();
  IF OLD.erased_in IS NOT NULL OR NEW IS DISTINCT FROM OLD
     OR v_by IS NULL AND NOT EXISTS (SELECT FROM app.erasures e WHERE e.run_id = OLD.run_id AND e.xact = pg_current_xact_id()) THEN
    PERFORM app.no_erasure('artifacts');
  END IF;
  -- Of the run's other content.
  IF v_by IS NULL THEN
    RETURN NULL;
  END IF;
  NEW.erased_in := v_by;
  NEW.inline := NULL;
  RETURN NEW;
END $$;

CREATE FUNCTION app.erase_step() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_is_going boolean;
  v_is_this  boolean;
BEGIN
  SELECT count(*) > 0, coalesce(bool_or(e.content = app.content_of_step(OLD.step_id)), false) INTO v_is_going, v_is_this
    FROM app.erasures e WHERE e.run_id = OLD.run_id AND e.xact = pg_current_xact_id();
  IF NOT v_is_going OR NEW IS DISTINCT FROM OLD THEN
    PERFORM app.no_erasure('run_steps');
  END IF;
  IF NOT v_is_this THEN
    RETURN NULL;
  END IF;
  IF OLD.output IS NOT NULL THEN
    NEW.output := app.erased_json(OLD.output, '{patch,entries,gate,ok,failed,attempts}');
  END IF;
  NEW.error := app.erased_text(OLD.error);
  RETURN NEW;
END $$;

-- Of a task's files the host directories that are bound by content: path and digest.
CREATE FUNCTION app.bound_files(p_files jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT jsonb_agg(jsonb_build_object('uri', f -> 'uri', 'tree', f -> 'tree'))
    FROM jsonb_array_elements(CASE jsonb_typeof(p_files) WHEN 'array' THEN p_files ELSE '[]' END) f
   WHERE f ->> 'uri' LIKE 'host://%' AND f ? 'tree'
$$;

-- The name of a planner's role without its text.
CREATE FUNCTION app.role_left(p_role jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(p_role) WHEN 'object' THEN (SELECT jsonb_object_agg(k, true) FROM jsonb_object_keys(p_role) k)
                                   ELSE p_role END
$$;

-- A task's request without what was asked. Kept for proofs, each where it was: its limits, the host directories that it was bound to,
-- the patch that it was to write, and that an agent only planned.
CREATE FUNCTION app.request_left(p_request jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_left jsonb := app.erased_json(p_request, '{}');
  v_key  text;
  v_work jsonb;
BEGIN
  FOREACH v_key IN ARRAY ARRAY['sandbox', 'live', 'agent', 'opencode', 'patched'] LOOP
    v_work := p_request -> v_key;
    CONTINUE WHEN v_work IS NULL OR jsonb_typeof(v_work) <> 'object';
    v_left := v_left || jsonb_build_object(v_key, jsonb_strip_nulls(jsonb_build_object(
      'limits', v_work -> 'limits',
      'filesIn', app.bound_files(v_work -> 'filesIn'),
      'request', nullif(jsonb_strip_nulls(jsonb_build_object(
         'limits', v_work #> '{request,limits}', 'filesIn', app.bound_files(v_work #> '{request,filesIn}'))), '{}'),
      'patch', CASE v_key WHEN 'patched' THEN v_work -> 'patch' END,
      'role', CASE v_key WHEN 'opencode' THEN app.role_left(v_work -> 'role') END)));
  END LOOP;
  RETURN v_left;
END $$;

CREATE FUNCTION app.erase_task() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_prompt boolean;
  v_output boolean;
BEGIN
  SELECT bool_or(e.content = 'prompt'), bool_or(e.content = 'output') INTO v_prompt, v_output
    FROM app.erasures e WHERE e.run_id = OLD.run_id AND e.xact = pg_current_xact_id();
  IF v_prompt IS NULL OR NEW IS DISTINCT FROM OLD THEN
    PERFORM app.no_erasure('sbx_runs');
  END IF;
  IF v_prompt THEN
    -- One that was killed has a base without having said so.
    NEW.request := app.request_left(OLD.request)
      || CASE WHEN EXISTS (SELECT FROM app.dependency_cache_uses u WHERE u.task_key = OLD.task_key)
                OR EXISTS (SELECT FROM app.dependency_cache_index c WHERE c.created_by = OLD.task_key)
              THEN jsonb_build_object('cacheSource', app.cache_source(OLD.request)) ELSE '{}' END;
  END IF;
  IF v_output AND OLD.response IS NOT NULL THEN
    NEW.response := app.erased_json(OLD.response,
        '{exit,errCode,sandboxRef,taskKey,metrics,cache,limitsReached,violations,permanent}')
      || CASE WHEN OLD.response #> '{agent,effective}' IS NOT NULL
              THEN jsonb_build_object('agent', jsonb_build_object('effective', OLD.response #> '{agent,effective}')) ELSE '{}' END;
  END IF;
  RETURN NEW;
END $$;

-- What several runs were asked for goes with the last of them.
CREATE FUNCTION app.erase_intent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_going bigint;
  v_left  bigint;
BEGIN
  SELECT count(*) FILTER (WHERE e.xact = pg_current_xact_id()), count(*) FILTER (WHERE e.id IS NULL) INTO v_going, v_left
    FROM app.runs r LEFT JOIN app.erasures e ON e.run_id = r.id AND e.content = 'prompt' WHERE r.intent_id = OLD.id;
  IF v_going = 0 OR NEW IS DISTINCT FROM OLD THEN
    PERFORM app.no_erasure('intents');
  END IF;
  IF v_left > 0 THEN
    RETURN NULL;
  END IF;
  NEW.goal := app.erased_text(OLD.goal);
  NEW.inputs := to_jsonb(app.erased_text(OLD.inputs::text));
  NEW.constraints := to_jsonb(app.erased_text(OLD.constraints::text));
  NEW.connectors := to_jsonb(app.erased_text(OLD.connectors::text));
  RETURN NEW;
END $$;

-- For every other table, by its arguments: the column of the run (`call:C`: the call of a model that C names; `live:C`: the life), then
-- `content:column:form[:kept fields]` each, where `side` says which content the row holds.
CREATE FUNCTION app.erase_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_row      jsonb := to_jsonb(OLD);
  v_contents text[];
  v_left     jsonb := '{}';
  v_part     text[];
  v_is_null  boolean;
BEGIN
  v_contents := ARRAY(
    SELECT e.content FROM app.erasures e
     WHERE e.run_id = CASE split_part(TG_ARGV[0], ':', 1)
                           WHEN 'call' THEN (SELECT c.run_id FROM app.model_calls c WHERE c.op_key = v_row ->> substr(TG_ARGV[0], 6))
                           WHEN 'live' THEN (SELECT l.run_id FROM app.live_sandboxes l WHERE l.id = v_row ->> substr(TG_ARGV[0], 6))
                           ELSE v_row ->> TG_ARGV[0] END
       AND e.xact = pg_current_xact_id());
  IF v_contents = '{}' OR NEW IS DISTINCT FROM OLD THEN
    PERFORM app.no_erasure(TG_TABLE_NAME);
  END IF;
  FOR i IN 1 .. TG_NARGS - 1 LOOP
    v_part := string_to_array(TG_ARGV[i], ':');
    CONTINUE WHEN NOT CASE v_part[1] WHEN 'side' THEN CASE v_row ->> 'side' WHEN 'request' THEN 'prompt' ELSE 'output' END
                                     ELSE v_part[1] END = ANY (v_contents);
    -- In the row as JSON a null of SQL and one of JSON are alike.
    IF jsonb_typeof(v_row -> v_part[2]) = 'null' THEN
      EXECUTE format('SELECT ($1).%I IS NULL', v_part[2]) INTO v_is_null USING OLD;
      CONTINUE WHEN v_is_null;
    END IF;
    v_left := v_left || jsonb_build_object(v_part[2], CASE v_part[3]
      WHEN 'json' THEN app.erased_json(v_row -> v_part[2], string_to_array(coalesce(v_part[4], ''), ','))
      WHEN 'string' THEN to_jsonb(app.erased_text((v_row -> v_part[2])::text))
      WHEN 'bytes' THEN to_jsonb(app.erased_bytes((v_row ->> v_part[2])::bytea))
      ELSE to_jsonb(app.erased_text(v_row ->> v_part[2])) END);
  END LOOP;
  RETURN CASE WHEN v_left <> '{}' THEN jsonb_populate_record(NEW, v_left) END;
END $$;

DO $$
DECLARE
  c_erasing constant text := 'coalesce(current_setting(''cofferdam.erasure'', true), '''')';
  t record;
BEGIN
  FOR t IN SELECT * FROM (VALUES
    ('intents', 'intents_append_only', 'refuse_change', 'erase_intent()', NULL),
    ('artifacts', 'artifacts_append_only', 'refuse_change', 'erase_artifact()', NULL),
    ('sbx_runs', 'sbx_runs_guard', 'sbx_runs_guard', 'erase_task()', NULL),
    ('run_steps', 'run_steps_append_only', 'refuse_change', 'erase_step()', NULL),
    ('human_interactions', 'interactions_append_only', 'refuse_change', NULL, ARRAY['run_id',
       'prompt:payload:json:choice,approved,decision,grant']),
    ('gate_edits', 'edits_append_only', 'refuse_change', NULL, ARRAY['run_id', 'prompt:from_value:string', 'prompt:value:string']),
    ('plan_approvals', 'approvals_append_only', 'refuse_change', NULL, ARRAY['run_id', 'prompt:parts:string']),
    ('plan_consents_void', 'consents_void_append_only', 'refuse_change', NULL, ARRAY['run_id', 'prompt:difference:string']),
    ('opencode_calls', 'opencode_calls_guard', 'opencode_calls_guard', NULL, ARRAY['run_id', 'prompt:request:json', 'prompt:prompt:text',
       'output:response:json', 'output:structured:string', 'output:raw:text', 'output:tool_calls:string', 'output:error:text']),
    ('prompt_answers', 'prompt_answers_append_only', 'refuse_change', NULL, ARRAY['call:call_key', 'output:body:bytes']),
    ('model_bodies', 'model_bodies_append_only', 'refuse_change', NULL, ARRAY['call:op_key', 'side:body:text']),
    ('dispatch_runs', 'dispatch_runs_guard', 'dispatch_runs_guard', NULL, ARRAY['run_id', 'prompt:request:json']),
    ('live_sandboxes', 'live_sandboxes_guard', 'live_sandboxes_guard', NULL, ARRAY['run_id', 'prompt:metadata:json',
       'output:program_failed:text', 'output:end_reason:text']),
    ('template_builds', 'template_builds_guard', 'template_builds_guard', NULL, ARRAY['live:live_id', 'output:reason:text']),
    ('model_calls', 'model_calls_guard', 'model_calls_guard', NULL, ARRAY['run_id', 'output:why:text']),
    ('test_reports', 'test_reports_append_only', 'refuse_change', NULL, ARRAY['run_id', 'output:report:json:fault']),
    ('graph_events', 'graph_events_append_only', 'refuse_change', NULL, ARRAY['run_id', 'output:event:string']),
    ('graph_skips', 'graph_skips_append_only', 'refuse_change', NULL, ARRAY['run_id', 'output:detail:text']),
    ('graph_ends', 'graph_ends_append_only', 'refuse_change', NULL, ARRAY['run_id', 'output:detail:text'])) AS x(name, guard, law, own, arguments)
  LOOP
    EXECUTE format('DROP TRIGGER %I ON app.%I', t.guard, t.name);
    EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE ON app.%I FOR EACH ROW WHEN (%s = '''') EXECUTE FUNCTION app.%I()',
                   t.guard, t.name, c_erasing, t.law);
    -- Rows of ended dispatches are pruned; no other row is deleted.
    IF t.name <> 'dispatch_runs' THEN
      EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON app.%I FOR EACH ROW EXECUTE FUNCTION app.%I()',
                     t.name || '_stay', t.name, t.law);
    END IF;
    EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE ON app.%I FOR EACH ROW WHEN (%s <> '''') EXECUTE FUNCTION app.%s',
                   t.name || '_erase', t.name, c_erasing,
                   coalesce(t.own, 'erase_row(' || (SELECT string_agg(quote_literal(a), ', ' ORDER BY n)
                                                      FROM unnest(t.arguments) WITH ORDINALITY u(a, n)) || ')'));
  END LOOP;
END $$;

-- A schedule or hook that is removed keeps the hash of its inputs: no run begins with them, and no run's erasure would reach them.
CREATE FUNCTION app.removed_trigger_inputs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.spec := jsonb_set(NEW.spec, '{inputs}', app.erased_json(NEW.spec -> 'inputs', '{}'));
  RETURN NEW;
END $$;
-- (Behind `triggers_are_their_consent`, by name: no statement changes what was consented to.)
CREATE TRIGGER triggers_removed BEFORE UPDATE OF state ON app.triggers FOR EACH ROW
  WHEN (NEW.state = 'removed' AND OLD.state <> 'removed' AND NEW.spec ? 'inputs') EXECUTE FUNCTION app.removed_trigger_inputs();

-- A blob that is referred to stays until the reference is written; one that goes at this moment is written again by who retries.
CREATE OR REPLACE FUNCTION app.blob_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM app.blobs b WHERE b.sha256 = NEW.sha256 FOR KEY SHARE;
  -- Bytes that lie elsewhere have an object.
  IF NOT FOUND AND NEW.object_id IS NULL THEN
    RAISE EXCEPTION 'the blob of an artifact went meanwhile' USING ERRCODE = 'serialization_failure';
  END IF;
  PERFORM app.bytes_used(r.tenant_id, NEW.size) FROM app.runs r WHERE r.id = NEW.run_id;
  RETURN NULL;
END $$;

-- Of these digests those whose last reference to a blob is gone.
CREATE FUNCTION app.digests_unreferenced(p_digests text[]) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  SELECT DISTINCT d FROM unnest(p_digests) d
   WHERE NOT EXISTS (SELECT FROM app.artifacts a WHERE a.sha256 = d AND a.inline IS NULL AND a.object_id IS NULL AND a.erased_in IS NULL)
$$;

-- Removes those of these blobs that nothing refers to; how many. One that is written about at this moment stays for the next look.
CREATE FUNCTION app.blobs_remove(p_digests text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_locked text[];
  v_count  bigint;
BEGIN
  v_locked := ARRAY(SELECT b.sha256 FROM app.blobs b WHERE b.sha256 = ANY (p_digests)
                     ORDER BY b.sha256 FOR UPDATE SKIP LOCKED);
  IF v_locked = '{}' THEN
    RETURN 0;
  END IF;
  -- A statement of its own, which sees the references that were committed before the lock was had.
  DELETE FROM app.blobs b WHERE b.sha256 = ANY (v_locked) AND b.sha256 IN (SELECT app.digests_unreferenced(v_locked));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Whether a run that is not among `p_going` goes on behind recorded steps of this one: its engine has copies of what they made.
CREATE FUNCTION app.is_copied(p_run text, p_going text[]) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (
    WITH RECURSIVE f AS (
      SELECT f.id, f.intent_id, f.workflow_id FROM app.runs r JOIN app.runs f ON f.intent_id = r.intent_id AND f.retry_of = r.id
       WHERE r.id = p_run
       UNION
      SELECT n.id, n.intent_id, n.workflow_id FROM f JOIN app.runs n ON n.intent_id = f.intent_id AND n.retry_of = f.id)
    SELECT FROM f
      JOIN app.runs r ON r.id = p_run
      JOIN dbos.operation_outputs o ON o.workflow_uuid = r.workflow_id
      JOIN dbos.operation_outputs c ON c.workflow_uuid = f.workflow_id AND c.function_id = o.function_id
     WHERE NOT f.id = ANY (p_going)
       AND (c.started_at_epoch_ms, c.completed_at_epoch_ms, c.output) IS NOT DISTINCT FROM
           (o.started_at_epoch_ms, o.completed_at_epoch_ms, o.output));
END $$;

-- Who else has a draft.
CREATE INDEX runs_by_recipe ON app.runs (tenant_id, recipe_id, recipe_hash);

-- Takes the prompts and outputs of these runs, of those that still have one and are at rest, and puts it on record: in one transaction,
-- in which everything goes or nothing. How many runs, bytes and blobs.
--
-- The engine's checkpoints of a run are copies of both contents, and go with the first: such a run is not repeated or gone on from.
-- A run whose checkpoints a fork has is passed over, unless that goes along. A draft recipe that no other run names, and no schedule or
-- hook has, goes with the prompt of a run that somebody erases; retention keeps recipes.
--
-- Every erasure locks in this order: intents, runs, recipes, rows, objects, blobs, the quota.
CREATE FUNCTION app.erase_runs(p_prompts text[], p_outputs text[], p_cause text, p_key text, p_reason text, p_origin text)
RETURNS TABLE (runs bigint, bytes bigint, blobs bigint) LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off AS $$
DECLARE
  v_resting text[];
  v_prompts text[];
  v_outputs text[];
  v_runs    text[];
  v_flows   text[];
  v_digests text[];
  v_objects text[];
  v_recipes text[] := '{}';
  v_freed   jsonb;
BEGIN
  -- A statement each: the next one sees what who held the lock has written.
  PERFORM FROM app.intents i WHERE i.id IN (SELECT r.intent_id FROM app.runs r WHERE r.id = ANY (p_prompts || p_outputs))
    ORDER BY i.id FOR NO KEY UPDATE;
  PERFORM FROM app.runs r WHERE r.id = ANY (p_prompts || p_outputs) ORDER BY r.id FOR UPDATE;
  v_resting := ARRAY(SELECT r.id FROM app.runs r WHERE r.id = ANY (p_prompts || p_outputs) AND app.is_at_rest(r.id));
  v_resting := ARRAY(
    SELECT r.id FROM app.runs r
     WHERE r.id = ANY (v_resting)
       AND NOT (r.id = ANY (p_outputs)
                AND EXISTS (SELECT FROM app.runs f WHERE f.intent_id = r.intent_id AND f.retry_of = r.id)
                AND app.is_copied(r.id, v_resting)));
  v_prompts := ARRAY(SELECT r.id FROM app.runs r
                      WHERE r.id = ANY (v_resting) AND r.id = ANY (p_prompts) AND NOT app.is_erased(r.id, 'prompt'));
  v_outputs := ARRAY(SELECT r.id FROM app.runs r
                      WHERE r.id = ANY (v_resting) AND r.id = ANY (p_outputs) AND NOT app.is_erased(r.id, 'output'));
  v_runs := ARRAY(SELECT unnest(v_prompts) UNION SELECT unnest(v_outputs));
  IF v_runs = '{}' THEN
    RETURN QUERY SELECT 0::bigint, 0::bigint, 0::bigint;
    RETURN;
  END IF;
  IF v_prompts <> '{}' AND p_cause = 'asked' THEN
    -- Imports and promotions of a recipe take turns at its row.
    PERFORM FROM app.recipes p
      WHERE (p.tenant_id, p.id) IN (SELECT r.tenant_id, r.recipe_id FROM app.runs r WHERE r.id = ANY (v_prompts))
      ORDER BY p.tenant_id, p.id FOR UPDATE;
    v_recipes := ARRAY(SELECT DISTINCT v.hash FROM app.runs r
                         JOIN app.recipe_versions v ON v.tenant_id = r.tenant_id AND v.id = r.recipe_id AND v.hash = r.recipe_hash
                        WHERE r.id = ANY (v_prompts) AND v.status = 'draft'
                          AND NOT EXISTS (SELECT FROM app.runs o
                                           WHERE o.tenant_id = r.tenant_id AND o.recipe_id = r.recipe_id
                                             AND o.recipe_hash = r.recipe_hash AND NOT o.id = ANY (v_prompts)
                                             AND NOT app.is_erased(o.id, 'prompt'))
                          AND NOT EXISTS (SELECT FROM app.triggers t
                                           WHERE t.tenant_id = r.tenant_id AND t.recipe_id = r.recipe_id
                                             AND t.recipe_hash = r.recipe_hash AND t.state <> 'removed'));
  END IF;
  v_flows := ARRAY(
    SELECT r.workflow_id FROM app.runs r WHERE r.id = ANY (v_runs)
    UNION ALL SELECT s.task_key FROM app.sbx_runs s WHERE s.run_id = ANY (v_runs)
    UNION ALL SELECT g.escalation_workflow_id FROM app.human_gates g
               WHERE g.run_id = ANY (v_runs) AND g.escalation_workflow_id IS NOT NULL);

  INSERT INTO app.erasures (tenant_id, content, run_id, cause, key_id, reason, bytes, removed, graph_digest, origin)
  WITH going AS MATERIALIZED (
    SELECT r.id, r.tenant_id, r.intent_id, r.recipe_hash, c.content,
           c.content = 'prompt' OR NOT r.id = ANY (v_prompts) AS is_first
      FROM (SELECT unnest(v_prompts) AS id, 'prompt' AS content UNION ALL SELECT unnest(v_outputs), 'output') c
      JOIN app.runs r ON r.id = c.id),
  files AS (
    SELECT a.run_id, app.content_of_step(a.step_id) AS content, sum(a.size) AS bytes FROM app.artifacts a
     WHERE a.run_id = ANY (v_runs) AND a.erased_in IS NULL GROUP BY 1, 2),
  tasks AS (
    SELECT s.run_id, sum(octet_length(s.request::text)) AS prompt, sum(octet_length(s.response::text)) AS output
      FROM app.sbx_runs s WHERE s.run_id = ANY (v_runs) GROUP BY 1),
  streams AS (
    SELECT s.run_id, count(*) AS rows, sum(octet_length(c.chunk)) AS bytes,
           encode(sha256(string_agg(sha256(convert_to(c.chunk, 'UTF8')), ''::bytea ORDER BY c.run_id, c.key, c.seq)), 'hex') AS sha256
      FROM app.sbx_runs s JOIN app.run_streams c ON c.run_id = s.task_key WHERE s.run_id = ANY (v_outputs) GROUP BY 1),
  engine AS (
    SELECT r.id AS run_id, count(*) AS rows, sum(octet_length(concat(o.output, o.error))) AS bytes,
           encode(sha256(string_agg(sha256(convert_to(concat(o.output, o.error), 'UTF8')), ''::bytea
                                    ORDER BY o.workflow_uuid, o.function_id)), 'hex') AS sha256
      FROM app.runs r JOIN dbos.operation_outputs o ON o.workflow_uuid = r.workflow_id WHERE r.id = ANY (v_runs) GROUP BY 1)
  SELECT g.tenant_id, g.content, g.id, p_cause, p_key, p_reason,
         coalesce(f.bytes, 0) + CASE g.content WHEN 'prompt' THEN coalesce(t.prompt, 0) + octet_length(i.inputs::text) + octet_length(i.goal)
                                               ELSE coalesce(t.output, 0) + coalesce(s.bytes, 0) END,
         jsonb_strip_nulls(jsonb_build_object(
           'streams', CASE WHEN s.rows > 0 THEN jsonb_build_object('rows', s.rows, 'bytes', s.bytes, 'sha256', s.sha256) END,
           'engine', CASE WHEN e.rows > 0 THEN jsonb_build_object('rows', e.rows, 'bytes', e.bytes, 'sha256', e.sha256) END,
           'recipe', CASE WHEN g.content = 'prompt' AND g.recipe_hash = ANY (v_recipes) THEN g.recipe_hash END)),
         CASE WHEN g.content = 'prompt' AND EXISTS (SELECT FROM app.graph_groups y WHERE y.run_id = g.id)
              THEN app.graph_digest(g.id) END, p_origin
    FROM going g
    JOIN app.intents i ON i.id = g.intent_id
    LEFT JOIN files f ON f.run_id = g.id AND f.content = g.content
    LEFT JOIN tasks t ON t.run_id = g.id
    LEFT JOIN streams s ON s.run_id = g.id AND g.content = 'output'
    LEFT JOIN engine e ON e.run_id = g.id AND g.is_first;

  -- What the quota counted: given back below, as the last lock.
  WITH e AS MATERIALIZED (
    SELECT x.tenant_id, x.run_id, x.content FROM app.erasures x WHERE x.run_id = ANY (v_runs) AND x.xact = pg_current_xact_id()),
  f AS MATERIALIZED (
    SELECT a.run_id, app.content_of_step(a.step_id) AS content, a.size AS bytes FROM app.artifacts a
     WHERE a.run_id = ANY (v_runs) AND a.inline IS NULL AND a.erased_in IS NULL
    UNION ALL SELECT i.run_id, 'prompt', octet_length(i.payload::text) FROM app.human_interactions i WHERE i.workflow_id = ANY (v_flows)
    -- With the last run of it, of which one stands for all here.
    UNION ALL SELECT min(r.id), 'prompt', octet_length(i.inputs::text) + octet_length(i.goal)
                FROM app.runs r JOIN app.intents i ON i.id = r.intent_id
               WHERE r.id = ANY (v_prompts)
                 AND NOT EXISTS (SELECT FROM app.runs o WHERE o.intent_id = i.id AND NOT app.is_erased(o.id, 'prompt')) GROUP BY i.id
    UNION ALL SELECT min(r.id), 'prompt', octet_length(v.json::text)
                FROM app.runs r
                JOIN app.recipe_versions v ON v.tenant_id = r.tenant_id AND v.id = r.recipe_id AND v.hash = r.recipe_hash
               WHERE r.id = ANY (v_prompts) AND v.hash = ANY (v_recipes) AND v.status = 'draft'
               GROUP BY v.tenant_id, v.id, v.v, v.hash
    UNION ALL SELECT t.run_id, 'output', octet_length(t.report::text) FROM app.test_reports t WHERE t.run_id = ANY (v_runs)
    UNION ALL SELECT c.run_id, CASE b.side WHEN 'request' THEN 'prompt' ELSE 'output' END, octet_length(b.body)
                FROM app.model_calls c JOIN app.model_bodies b USING (op_key) WHERE c.run_id = ANY (v_runs)
    UNION ALL SELECT c.run_id, 'output', octet_length(b.body)
                FROM app.model_calls c JOIN app.prompt_answers b ON b.call_key = c.op_key WHERE c.run_id = ANY (v_runs)),
  x AS (SELECT e.tenant_id, sum(f.bytes)::bigint AS bytes FROM e JOIN f ON f.run_id = e.run_id AND f.content = e.content GROUP BY 1)
  SELECT coalesce(jsonb_object_agg(x.tenant_id, x.bytes), '{}') INTO v_freed FROM x;
  -- (OFFSET: by run, never by the index of digests, which has those of every run.)
  SELECT coalesce(array_agg(DISTINCT a.sha256) FILTER (WHERE a.object_id IS NULL), '{}'),
         coalesce(array_agg(DISTINCT a.object_id) FILTER (WHERE a.object_id IS NOT NULL), '{}') INTO v_digests, v_objects
    FROM (SELECT x.sha256, x.object_id, x.inline IS NULL AS is_elsewhere FROM app.artifacts x
           WHERE x.run_id = ANY (v_runs) AND x.erased_in IS NULL OFFSET 0) a
   WHERE a.is_elsewhere;

  PERFORM set_config('cofferdam.erasure', 'on', true);
  UPDATE app.artifacts SET idx = idx WHERE run_id = ANY (v_runs) AND erased_in IS NULL;
  UPDATE app.run_steps SET attempt = attempt WHERE run_id = ANY (v_runs);
  UPDATE app.sbx_runs SET attempt = attempt WHERE run_id = ANY (v_runs);
  UPDATE app.opencode_calls SET attempt = attempt WHERE run_id = ANY (v_runs);
  UPDATE app.model_bodies b SET side = side FROM app.model_calls c WHERE c.op_key = b.op_key AND c.run_id = ANY (v_runs);
  IF v_prompts <> '{}' THEN
    UPDATE app.human_interactions SET run_id = run_id WHERE workflow_id = ANY (v_flows);
    UPDATE app.gate_edits SET n = n WHERE run_id = ANY (v_prompts);
    UPDATE app.plan_consents_void SET round = round WHERE run_id = ANY (v_prompts);
    UPDATE app.plan_approvals SET round = round WHERE run_id = ANY (v_prompts);
    UPDATE app.dispatch_runs SET run_id = run_id WHERE run_id = ANY (v_prompts);
    UPDATE app.intents i SET goal = goal
     WHERE i.id = ANY (ARRAY(SELECT r.intent_id FROM app.runs r WHERE r.id = ANY (v_prompts)));
  END IF;
  UPDATE app.live_sandboxes SET template = template WHERE run_id = ANY (v_runs);
  IF v_outputs <> '{}' THEN
    UPDATE app.template_builds SET tags = tags
     WHERE reason IS NOT NULL AND live_id = ANY (ARRAY(SELECT l.id FROM app.live_sandboxes l WHERE l.run_id = ANY (v_outputs)));
    UPDATE app.model_calls SET n = n WHERE run_id = ANY (v_outputs) AND why IS NOT NULL;
    UPDATE app.prompt_answers a SET status = a.status FROM app.model_calls c WHERE c.op_key = a.call_key AND c.run_id = ANY (v_outputs);
    UPDATE app.test_reports SET idx = idx WHERE run_id = ANY (v_outputs);
    UPDATE app.graph_events SET seq = seq WHERE run_id = ANY (v_outputs);
    UPDATE app.graph_skips SET life = life WHERE run_id = ANY (v_outputs) AND detail IS NOT NULL;
    UPDATE app.graph_ends SET life = life WHERE run_id = ANY (v_outputs) AND detail IS NOT NULL;
  END IF;
  PERFORM set_config('cofferdam.erasure', '', true);

  IF v_prompts <> '{}' THEN
    UPDATE app.human_gates g
       SET form = app.erased_json(g.form, '{}'),
           parts = to_jsonb(app.erased_text(g.parts::text)), inputs = to_jsonb(app.erased_text(g.inputs::text))
     WHERE g.run_id = ANY (v_prompts) AND NOT g.form ? 'erased';
    UPDATE dbos.workflow_events e
       SET value = app.erased_event(e.value) WHERE e.workflow_uuid = ANY (v_flows) AND e.key NOT LIKE 'ui:%:audit';
    UPDATE dbos.workflow_events_history e
       SET value = app.erased_event(e.value) WHERE e.workflow_uuid = ANY (v_flows) AND e.key NOT LIKE 'ui:%:audit';
    DELETE FROM app.recipe_versions v USING app.runs r
     WHERE r.id = ANY (v_prompts) AND v.tenant_id = r.tenant_id AND v.id = r.recipe_id AND v.hash = ANY (v_recipes)
       AND v.hash = r.recipe_hash AND v.status = 'draft';
    DELETE FROM app.recipes p USING app.runs r
     WHERE v_recipes <> '{}' AND r.id = ANY (v_prompts) AND p.tenant_id = r.tenant_id AND p.id = r.recipe_id
       AND NOT EXISTS (SELECT FROM app.recipe_versions v WHERE v.tenant_id = p.tenant_id AND v.id = p.id);
  END IF;
  IF v_outputs <> '{}' THEN
    DELETE FROM app.run_streams c USING app.sbx_runs s WHERE s.run_id = ANY (v_outputs) AND c.run_id = s.task_key;
    UPDATE app.dispatches d
       SET verdict_summary = app.erased_text(d.verdict_summary), error_message = app.erased_text(d.error_message)
      FROM app.dispatch_runs m
     WHERE m.dispatch_id = d.id AND m.run_id = ANY (v_outputs) AND num_nonnulls(d.verdict_summary, d.error_message) > 0;
    UPDATE app.template_logs t SET message = app.erased_text(t.message)
      FROM app.template_builds b JOIN app.live_sandboxes l ON l.id = b.live_id
     WHERE t.build_id = b.id AND l.run_id = ANY (v_outputs);
  END IF;
  UPDATE dbos.workflow_status w SET inputs = NULL, output = NULL, error = NULL
   WHERE w.workflow_uuid = ANY (v_flows) AND (w.inputs <> 'null' OR w.output <> 'null' OR w.error <> 'null');
  DELETE FROM dbos.operation_outputs o WHERE o.workflow_uuid = ANY (v_flows);
  DELETE FROM dbos.notifications o WHERE o.destination_uuid = ANY (v_flows);
  DELETE FROM dbos.streams o WHERE o.workflow_uuid = ANY (v_flows);
  UPDATE app.runs r
     SET error = CASE WHEN r.error LIKE 'erased sha256:%' THEN r.error ELSE app.erased_text(r.error) END,
         erased_at = CASE WHEN app.is_erased(r.id, 'prompt') AND app.is_erased(r.id, 'output') THEN clock_timestamp() END
   WHERE r.id = ANY (v_runs);
  RETURN QUERY
    SELECT cardinality(v_runs)::bigint,
           (SELECT coalesce(sum(e.bytes), 0)::bigint FROM app.erasures e WHERE e.run_id = ANY (v_runs) AND e.xact = pg_current_xact_id()),
           -- Objects are waited for, so they come before blobs, which are not.
           app.objects_erase(v_objects) + app.blobs_remove(v_digests);
  PERFORM app.bytes_freed(f.key, f.value::bigint) FROM jsonb_each_text(v_freed) f ORDER BY f.key;
END $$;

-- An event of a gate without what a person or a task wrote: state, decision, times and the payload's hash stay.
CREATE FUNCTION app.erased_event(p_value text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  RETURN app.erased_json(p_value::jsonb, '{schemaVersion,state,decision,payloadHash,at,ttlS,createdAt,deadlineAt}')::text;
END $$;

-- Until when runs of a tenant are due, and by which rule, NULL where none is: those that ended `p_age` ago, those behind the newest
-- `p_runs`, and those behind the newest that have `p_bytes` of artifacts together. The widest rule holds.
CREATE FUNCTION app.retention_due(p_tenant text, p_age interval, p_runs bigint, p_bytes bigint)
RETURNS TABLE (until timestamptz, cause text) LANGUAGE sql STABLE AS $$
  SELECT d.until, d.cause FROM (
    SELECT clock_timestamp() - p_age AS until, 'age' AS cause WHERE p_age IS NOT NULL
    UNION ALL
    (SELECT r.finished_at, 'count' FROM app.runs r
      WHERE p_runs IS NOT NULL AND r.tenant_id = p_tenant AND r.erased_at IS NULL AND r.finished_at IS NOT NULL
      ORDER BY r.finished_at DESC OFFSET coalesce(p_runs, 0) LIMIT 1)
    UNION ALL
    (SELECT s.finished_at, 'bytes'
       FROM (SELECT r.finished_at, sum(a.bytes) OVER (ORDER BY r.finished_at DESC, r.id DESC) AS total
               FROM app.runs r
              CROSS JOIN LATERAL (SELECT coalesce(sum(x.size), 0) AS bytes FROM app.artifacts x
                                   WHERE x.run_id = r.id AND x.erased_in IS NULL) a
              WHERE p_bytes IS NOT NULL AND r.tenant_id = p_tenant AND r.erased_at IS NULL AND r.finished_at IS NOT NULL) s
      WHERE s.total > p_bytes ORDER BY s.finished_at DESC LIMIT 1)) d
   ORDER BY d.until DESC NULLS LAST LIMIT 1
$$;

-- Runs of a tenant that are due, oldest first behind `p_after`.
CREATE FUNCTION app.retention_page(p_tenant text, p_until timestamptz, p_after text, p_limit integer) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_after record;
BEGIN
  SELECT r.finished_at, r.id INTO v_after FROM app.runs r WHERE r.id = p_after;
  RETURN ARRAY(SELECT r.id FROM app.runs r
                WHERE r.tenant_id = p_tenant AND r.erased_at IS NULL AND r.finished_at IS NOT NULL AND r.finished_at <= p_until
                  AND r.finished_at >= coalesce(v_after.finished_at, '-infinity')
                  AND (v_after.id IS NULL OR (r.finished_at, r.id) > (v_after.finished_at, v_after.id))
                ORDER BY r.finished_at, r.id LIMIT p_limit);
END $$;

-- Both contents of these runs, by a rule: in one transaction. Runs that another transaction has locked, that are not at rest, or whose
-- steps a fork has copied that does not go along, are passed over.
CREATE FUNCTION app.retention_batch(p_runs text[], p_cause text, p_key text, p_reason text)
RETURNS TABLE (runs bigint, bytes bigint, blobs bigint) LANGUAGE plpgsql AS $$
DECLARE
  v_locked text[];
BEGIN
  PERFORM FROM app.intents i WHERE i.id IN (SELECT r.intent_id FROM app.runs r WHERE r.id = ANY (p_runs))
    ORDER BY i.id FOR NO KEY UPDATE;
  v_locked := ARRAY(SELECT r.id FROM app.runs r WHERE r.id = ANY (p_runs) AND r.erased_at IS NULL FOR UPDATE SKIP LOCKED);
  RETURN QUERY SELECT e.runs, e.bytes, e.blobs FROM app.erase_runs(v_locked, v_locked, p_cause, p_key, p_reason, 'api-shim') e;
END $$;

-- Blobs that nothing refers to, in the order of their digests behind `p_after`: the last that was looked at, and how many went. One
-- that is younger than ten minutes may belong to what is being written.
CREATE FUNCTION app.blobs_sweep(p_after text, p_limit integer) RETURNS TABLE (last text, blobs bigint) LANGUAGE plpgsql AS $$
DECLARE
  v_page text[] := ARRAY(SELECT b.sha256 FROM app.blobs b WHERE b.sha256 > p_after ORDER BY b.sha256 LIMIT p_limit);
BEGIN
  RETURN QUERY SELECT v_page[cardinality(v_page)], app.blobs_remove(ARRAY(
    SELECT b.sha256 FROM app.blobs b
     WHERE b.sha256 = ANY (v_page) AND b.created_at < clock_timestamp() - interval '10 minutes'
       AND b.sha256 IN (SELECT app.digests_unreferenced(v_page))));
END $$;

-- Rows that are erased leave dead ones behind in tables that otherwise only grow: vacuum gives their room back before a fifth of all
-- rows has changed.
ALTER TABLE app.artifacts SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE app.run_streams SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE app.sbx_runs SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE dbos.operation_outputs SET (autovacuum_vacuum_scale_factor = 0.05);
