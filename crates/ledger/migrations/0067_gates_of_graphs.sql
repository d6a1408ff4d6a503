-- Gates between the tasks of a graph: what a group's start waits for, what a yes to it binds, and what came of it.

ALTER TABLE app.graph_groups ADD COLUMN is_gated boolean NOT NULL DEFAULT false;

-- What a life of a run waits for before a group starts. A later life has the gate of an earlier one where a yes to that binds equal content.
CREATE TABLE app.graph_gates (
  run_id     text NOT NULL,
  life       integer NOT NULL CHECK (life >= 0),
  group_name text NOT NULL,
  gate_key   text NOT NULL,
  -- The last attempts of the tasks that the group needs.
  task_keys  text[] NOT NULL,
  digest     text NOT NULL CHECK (digest ~ '^[a-f0-9]{64}$'),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, life, group_name),
  FOREIGN KEY (run_id, group_name) REFERENCES app.graph_groups
);
CREATE INDEX graph_gates_by_gate ON app.graph_gates (run_id, gate_key);
CREATE TRIGGER graph_gates_append_only BEFORE UPDATE OR DELETE ON app.graph_gates
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What a life of a run took for the answer; `withdrawn`: the graph stopped first.
CREATE TABLE app.graph_answers (
  run_id     text NOT NULL,
  life       integer NOT NULL,
  group_name text NOT NULL,
  choice     text NOT NULL CHECK (choice IN ('yes','no','withdrawn')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, life, group_name),
  FOREIGN KEY (run_id, life, group_name) REFERENCES app.graph_gates
);
CREATE TRIGGER graph_answers_append_only BEFORE UPDATE OR DELETE ON app.graph_answers
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What a yes binds, so that an auditor can compute it again, erased or not: the plan, the group, and of each attempt its end and its
-- artifacts, of which the raw result holds the outputs. Two levels, since the files of many tasks are more than one text can be.
CREATE FUNCTION app.graph_bound_digest(p_run text, p_group text, p_keys text[]) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(concat_ws(E'\n', r.plan_digest, p_group, (
           SELECT string_agg(concat_ws(' ', s.step_id, s.task_key, s.err_code, (
                    SELECT encode(sha256(convert_to(string_agg(
                             concat_ws(' ', a.idx, a.kind, coalesce(a.mode, '-'), a.size, a.sha256, a.name), E'\n' ORDER BY a.idx),
                           'UTF8')), 'hex')
                      FROM app.artifacts a WHERE a.task_key = s.task_key AND a.run_id = s.run_id)), E'\n' ORDER BY s.task_key)
             FROM app.sbx_runs s WHERE s.run_id = p_run AND s.task_key = ANY (p_keys))), 'UTF8')), 'hex')
    FROM app.runs r WHERE r.id = p_run
$$;

-- For a person: how much it is, and the first files and outputs.
CREATE FUNCTION app.graph_bound_shown(p_run text, p_keys text[], p_limit integer, p_chars integer) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_object(
    'tasks', cardinality(p_keys), 'files', f.files, 'bytes', f.bytes,
    'listed', coalesce((
      SELECT jsonb_agg(jsonb_build_object('task', x.task_name, 'path', x.path, 'sha256', x.sha256, 'size', x.size) ORDER BY x.step_id, x.idx)
        FROM (SELECT s.task_name, s.step_id, a.idx, regexp_replace(a.name, '^files/', '') AS path, a.sha256, a.size
                FROM app.sbx_runs s JOIN app.artifacts a ON a.task_key = s.task_key AND a.run_id = s.run_id
               WHERE s.run_id = p_run AND s.task_key = ANY (p_keys) AND a.kind = 'file'
               ORDER BY s.step_id, a.idx LIMIT p_limit) x), '[]'),
    'outputs', coalesce((
      SELECT jsonb_agg(jsonb_build_object('task', x.task_name, 'name', x.key, 'value', x.value) ORDER BY x.step_id, x.key)
        FROM (SELECT s.task_name, s.step_id, o.key, left(o.value #>> '{}', p_chars) AS value
                FROM app.sbx_runs s
               CROSS JOIN LATERAL jsonb_each(CASE jsonb_typeof(s.response -> 'outputs') WHEN 'object' THEN s.response -> 'outputs'
                                                                                        ELSE '{}' END) o
               WHERE s.run_id = p_run AND s.task_key = ANY (p_keys)
               ORDER BY s.step_id, o.key LIMIT p_limit) x), '[]'))
    FROM (SELECT count(*) AS files, coalesce(sum(a.size), 0) AS bytes
            FROM app.artifacts a WHERE a.run_id = p_run AND a.task_key = ANY (p_keys) AND a.kind = 'file') f
$$;

-- The task group that a gate stands before; NULL: it is another gate.
CREATE FUNCTION app.graph_start_asked(p_run text, p_gate text, p_limit integer, p_chars integer) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT app.graph_bound_shown(p_run, e.task_keys, p_limit, p_chars) || jsonb_build_object('group', e.group_name, 'digest', e.digest)
    FROM app.graph_gates e WHERE e.run_id = p_run AND e.gate_key = p_gate ORDER BY e.life LIMIT 1
$$;

-- Whether a gate was decided yes: by votes, or by the silence that its law calls one.
CREATE FUNCTION app.is_agreed(g app.human_gates) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE g.state
    WHEN 'timed_out' THEN coalesce(CASE jsonb_typeof(g.spec) WHEN 'object' THEN g.spec #>> '{on_timeout,then}' END, 'deny') = 'approve'
    WHEN 'canceled' THEN false
    WHEN 'open' THEN false
    ELSE EXISTS (SELECT FROM app.human_interactions i JOIN app.gate_votes v ON v.interaction_id = i.id
                  WHERE i.workflow_id = g.workflow_id AND i.gate_key = g.gate_key AND i.topic = g.topic
                    AND i.outcome = 'accepted' AND v.choice = 'yes') END;
END $$;

-- A yes is taken down only where the gate says it.
CREATE FUNCTION app.answer_is_the_gates() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.choice = 'yes' AND NOT EXISTS (
       SELECT FROM app.graph_gates e JOIN app.human_gates g ON g.run_id = e.run_id AND g.gate_key = e.gate_key
        WHERE (e.run_id, e.life, e.group_name) = (NEW.run_id, NEW.life, NEW.group_name) AND app.is_agreed(g)) THEN
    RAISE EXCEPTION 'the gate of task group % of run % did not say yes', NEW.group_name, NEW.run_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER graph_answers_are_the_gates BEFORE INSERT ON app.graph_answers
  FOR EACH ROW EXECUTE FUNCTION app.answer_is_the_gates();

-- A task starts once every group that its own needs has ended, and after the yes at its group's gate.
CREATE OR REPLACE FUNCTION app.needs_are_over() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_open text;
  v_gate text;
BEGIN
  SELECT n.name, CASE WHEN n.name IS NULL THEN g.name END INTO v_open, v_gate
    FROM app.sbx_runs s
    JOIN app.graph_tasks t ON t.run_id = s.run_id AND t.step_id = s.step_id
    JOIN app.graph_groups g ON g.run_id = t.run_id AND g.name = t.group_name
   CROSS JOIN unnest(g.needs || CASE WHEN g.is_gated THEN '{NULL}' ELSE '{}' END::text[]) AS n(name)
   WHERE s.task_key = NEW.task_key
     AND CASE WHEN n.name IS NULL
              THEN NOT EXISTS (SELECT FROM app.graph_answers a
                                WHERE a.run_id = g.run_id AND a.group_name = g.name AND a.choice = 'yes'
                                  AND a.life = app.graph_life(g.run_id))
              ELSE NOT EXISTS (SELECT FROM app.graph_ends e
                                WHERE e.run_id = g.run_id AND e.name = n.name AND e.life = app.graph_life(g.run_id)) END
   LIMIT 1;
  IF v_open IS NOT NULL THEN
    RAISE EXCEPTION 'task % starts before the task group % ended', NEW.task_key, v_open
      USING ERRCODE = 'restrict_violation';
  END IF;
  IF v_gate IS NOT NULL THEN
    RAISE EXCEPTION 'task % starts without a yes at the gate of its task group %', NEW.task_key, v_gate
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;

ALTER TABLE app.graph_skips DROP CONSTRAINT graph_skips_reason_check;
ALTER TABLE app.graph_skips ADD CONSTRAINT graph_skips_reason_check
  CHECK (reason IN ('condition','fail_fast','budget','late','gate'));

-- Opens gates, each with its prompt, where no earlier life has a yes to the same.
CREATE FUNCTION app.graph_gates_open(p_run text, p_life integer, p_gates jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  x        record;
  v_keys   text[];
  v_digest text;
  v_key    text;
  v_gate   app.human_gates;
BEGIN
  FOR x IN
    SELECT n.* FROM jsonb_to_recordset(p_gates) AS n(group_name text, key text, spec jsonb, form jsonb, groups jsonb, task_keys jsonb, ttl_s integer)
     WHERE NOT EXISTS (SELECT FROM app.graph_gates e WHERE (e.run_id, e.life, e.group_name) = (p_run, p_life, n.group_name))
  LOOP
    v_keys := ARRAY(SELECT jsonb_array_elements_text(x.task_keys));
    v_digest := app.graph_bound_digest(p_run, x.group_name, v_keys);
    SELECT e.gate_key INTO v_key
      FROM app.graph_gates e JOIN app.graph_answers a USING (run_id, life, group_name)
     WHERE e.run_id = p_run AND e.group_name = x.group_name AND e.digest = v_digest AND a.choice = 'yes' LIMIT 1;
    IF v_key IS NULL THEN
      SELECT x.key || CASE count(DISTINCT e.gate_key) WHEN 0 THEN '' ELSE '-r' || 1 + count(DISTINCT e.gate_key) END INTO v_key
        FROM app.graph_gates e WHERE e.run_id = p_run AND e.group_name = x.group_name;
      -- (`round` is that of a consent to a plan, and this gate is none.)
      INSERT INTO app.human_gates (run_id, workflow_id, gate_key, topic, tenant_id, form, spec, groups, ttl_s, deadline_at)
      SELECT r.id, r.workflow_id, v_key, 'human:' || v_key, r.tenant_id, x.form, x.spec,
             ARRAY(SELECT jsonb_array_elements_text(x.groups)), x.ttl_s, clock_timestamp() + make_interval(secs => x.ttl_s)
        FROM app.runs r WHERE r.id = p_run
      RETURNING * INTO v_gate;
      INSERT INTO dbos.workflow_events (workflow_uuid, key, value, serialization)
      SELECT v_gate.workflow_id, 'ui:' || v_key, jsonb_build_object(
               'schemaVersion', 1, 'formSchema', x.form, 'ttlS', x.ttl_s, 'createdAt', app.ms(v_gate.created_at),
               'deadlineAt', app.ms(v_gate.deadline_at), 'uiHints', jsonb_build_object(
                 'kind', 'start-tasks', 'group', x.group_name, 'digest', v_digest, 'planDigest', r.plan_digest, 'law', x.spec))::text,
             'rust_serde'
        FROM app.runs r WHERE r.id = p_run
      ON CONFLICT (workflow_uuid, key) DO NOTHING;
      PERFORM pg_notify('cofferdam', 'g:' || p_run);
    END IF;
    INSERT INTO app.graph_gates (run_id, life, group_name, gate_key, task_keys, digest)
    VALUES (p_run, p_life, x.group_name, v_key, v_keys, v_digest);
  END LOOP;
END $$;

-- Takes answers: what was decided is published and the gate resolved, or nobody is asked any more.
CREATE FUNCTION app.graph_gates_close(p_run text, p_life integer, p_answers jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  x          record;
  v_gate     app.human_gates;
  v_reply    app.human_interactions;
  v_decision text;
BEGIN
  FOR x IN
    SELECT n.group_name, n.choice, e.gate_key
      FROM jsonb_to_recordset(p_answers) AS n(group_name text, choice text)
      JOIN app.graph_gates e ON (e.run_id, e.life, e.group_name) = (p_run, p_life, n.group_name)
     WHERE NOT EXISTS (SELECT FROM app.graph_answers a WHERE (a.run_id, a.life, a.group_name) = (p_run, p_life, n.group_name))
     ORDER BY e.gate_key
  LOOP
    -- A reply is in flight until its gate is locked.
    SELECT g.* INTO v_gate FROM app.human_gates g WHERE g.run_id = p_run AND g.gate_key = x.gate_key FOR UPDATE;
    INSERT INTO app.graph_answers (run_id, life, group_name, choice) VALUES (p_run, p_life, x.group_name, x.choice);
    IF v_gate.state = 'open' THEN
      UPDATE app.human_gates g SET state = 'canceled', decided_at = clock_timestamp() WHERE g.run_id = p_run AND g.gate_key = x.gate_key;
    ELSIF v_gate.state IN ('received', 'timed_out') THEN
      v_reply := NULL;
      SELECT i.* INTO v_reply FROM app.human_interactions i
       WHERE i.workflow_id = v_gate.workflow_id AND i.gate_key = v_gate.gate_key AND i.topic = v_gate.topic AND i.outcome = 'accepted';
      v_decision := CASE WHEN x.choice <> 'withdrawn' THEN x.choice WHEN app.is_agreed(v_gate) THEN 'yes' ELSE 'no' END;
      INSERT INTO dbos.workflow_events (workflow_uuid, key, value, serialization)
      SELECT v_gate.workflow_id, e.key, e.value::text, 'rust_serde'
        FROM (VALUES
          ('ui:' || v_gate.gate_key || ':result', CASE v_gate.state
             WHEN 'received' THEN jsonb_build_object('schemaVersion', 1, 'state', 'RECEIVED', 'payload', v_reply.payload,
                                    'payloadHash', v_reply.payload_hash, 'at', app.ms(v_reply.created_at))
             ELSE jsonb_build_object('schemaVersion', 1, 'state', 'TIMED_OUT', 'at', app.ms(v_gate.deadline_at)) END),
          ('decision:' || v_gate.gate_key, jsonb_build_object('schemaVersion', 1, 'decision', v_decision,
             'payload', jsonb_strip_nulls(jsonb_build_object('rationale', CASE v_gate.state
                WHEN 'received' THEN coalesce(v_reply.payload ->> 'rationale', v_reply.payload ->> 'notes', v_reply.payload ->> 'note')
                ELSE 'timeout' END)),
             'at', app.ms(coalesce(v_reply.created_at, v_gate.deadline_at))))) AS e(key, value)
      ON CONFLICT (workflow_uuid, key) DO NOTHING;
      UPDATE app.human_gates g SET state = 'resolved' WHERE g.run_id = p_run AND g.gate_key = x.gate_key AND g.state = 'received';
    END IF;
    PERFORM pg_notify('cofferdam', 'g:' || p_run);
  END LOOP;
END $$;

-- A run waits for people only while nothing else of it is queued or runs.
CREATE FUNCTION app.graph_park(p_run text, p_waits boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.runs SET status = CASE WHEN p_waits THEN 'waiting_input' ELSE 'running' END,
                      next_action = CASE WHEN p_waits THEN 'APPROVE_PLAN' ELSE 'NONE' END
   WHERE id = p_run AND CASE WHEN p_waits THEN status IN ('queued','running','repairing') ELSE status = 'waiting_input' END;
  IF FOUND THEN
    PERFORM pg_notify('cofferdam', 'r:' || p_run);
  END IF;
END $$;

-- As before, and a group says whether it has a gate. A worker of an earlier version calls it with groups that say nothing of that.
CREATE OR REPLACE FUNCTION app.graph_advance(p_run text, p_life integer, p_groups jsonb, p_tasks jsonb, p_events jsonb, p_skips jsonb,
                                             p_ends jsonb)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM jsonb_to_recordset(p_events) AS e(seq integer, event jsonb)
               JOIN app.graph_events g ON g.run_id = p_run AND g.life = p_life AND g.seq = e.seq
              WHERE g.event <> e.event) THEN
    RETURN 'lost';
  END IF;
  INSERT INTO app.graph_groups (run_id, name, needs, is_late, is_gated)
  SELECT p_run, g.name, ARRAY(SELECT jsonb_array_elements_text(g.needs)), g.is_late, coalesce(g.is_gated, false)
    FROM jsonb_to_recordset(p_groups) AS g(name text, needs jsonb, is_late boolean, is_gated boolean)
  ON CONFLICT DO NOTHING;
  INSERT INTO app.graph_tasks (run_id, step_id, group_name, name)
  SELECT p_run, t.step_id, t.group_name, t.name
    FROM jsonb_to_recordset(p_tasks) AS t(step_id text, group_name text, name text)
  ON CONFLICT DO NOTHING;
  INSERT INTO app.graph_events (run_id, life, seq, event)
  SELECT p_run, p_life, e.seq, e.event FROM jsonb_to_recordset(p_events) AS e(seq integer, event jsonb)
  ON CONFLICT DO NOTHING;
  INSERT INTO app.graph_skips (run_id, life, step_id, reason, detail)
  SELECT p_run, p_life, k.step_id, k.reason, k.detail
    FROM jsonb_to_recordset(p_skips) AS k(step_id text, reason text, detail text)
  ON CONFLICT DO NOTHING;
  -- A fan-out whose tasks an earlier life made, and that this one does not start.
  INSERT INTO app.graph_skips (run_id, life, step_id, reason, detail)
  SELECT p_run, p_life, t.step_id, CASE WHEN e.detail IS NULL THEN 'condition' ELSE 'late' END, e.detail
    FROM jsonb_to_recordset(p_ends) AS e(name text, outcome text, detail text)
    JOIN app.graph_tasks t ON t.run_id = p_run AND t.group_name = e.name
   WHERE e.outcome = 'skipped' OR e.detail IS NOT NULL
  ON CONFLICT DO NOTHING;
  INSERT INTO app.graph_ends (run_id, life, name, outcome, detail)
  SELECT p_run, p_life, e.name, e.outcome, e.detail
    FROM jsonb_to_recordset(p_ends) AS e(name text, outcome text, detail text)
  ON CONFLICT DO NOTHING;
  RETURN 'down';
END $$;

-- With gates. `p_waits`: whether the run waits for people alone; NULL where its plan has no such gate.
CREATE FUNCTION app.graph_advance(p_run text, p_life integer, p_groups jsonb, p_tasks jsonb, p_events jsonb, p_skips jsonb,
                                  p_ends jsonb, p_gates jsonb, p_answers jsonb, p_waits boolean)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text := app.graph_advance(p_run, p_life, p_groups, p_tasks, p_events, p_skips, p_ends);
BEGIN
  IF v_state <> 'down' THEN
    RETURN v_state;
  END IF;
  IF p_answers <> '[]' THEN
    PERFORM app.graph_gates_close(p_run, p_life, p_answers);
  END IF;
  IF p_gates <> '[]' THEN
    PERFORM app.graph_gates_open(p_run, p_life, p_gates);
  END IF;
  IF p_waits IS NOT NULL THEN
    PERFORM app.graph_park(p_run, p_waits);
  END IF;
  RETURN v_state;
END $$;

-- A run that ends in whatever way asks nobody any more.
CREATE FUNCTION app.graph_gates_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.human_gates g SET state = 'canceled', decided_at = clock_timestamp()
    FROM app.graph_gates e
   WHERE e.run_id = NEW.id AND g.run_id = e.run_id AND g.gate_key = e.gate_key AND g.state = 'open';
  RETURN NULL;
END $$;
CREATE TRIGGER graph_gates_end AFTER UPDATE OF status ON app.runs
  FOR EACH ROW WHEN (app.is_over(NEW.status) AND NOT app.is_over(OLD.status))
  EXECUTE FUNCTION app.graph_gates_end();

-- An erasure takes down which groups have gates, too; a run without any has the digest that it had.
CREATE OR REPLACE FUNCTION app.graph_digest(p_run text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(jsonb_build_array(g.groups, t.tasks)::text, 'UTF8')), 'hex')
    FROM (SELECT jsonb_agg(jsonb_build_array(name, to_jsonb(needs), is_late) || CASE WHEN is_gated THEN '[true]' ELSE '[]' END::jsonb
                           ORDER BY name COLLATE "C") AS groups
            FROM app.graph_groups WHERE run_id = p_run) g,
         (SELECT jsonb_agg(jsonb_build_array(step_id, group_name, name) ORDER BY step_id COLLATE "C") AS tasks
            FROM app.graph_tasks WHERE run_id = p_run) t
   WHERE g.groups IS NOT NULL
$$;

-- Gates of a run's present life that wait for an answer, for readers.
CREATE FUNCTION app.graph_gates_waiting(p_run text) RETURNS TABLE (group_name text, gate_key text) LANGUAGE sql STABLE AS $$
  SELECT e.group_name, e.gate_key
    FROM app.graph_gates e
   WHERE e.run_id = p_run AND e.life = app.graph_life(p_run)
     AND NOT EXISTS (SELECT FROM app.graph_answers a WHERE (a.run_id, a.life, a.group_name) = (e.run_id, e.life, e.group_name))
$$;

-- As before, and what waits for a yes says at which gate.
CREATE OR REPLACE FUNCTION app.graph_tasks_left(p_run text)
RETURNS TABLE (step_id text, attempt integer, status text, output jsonb, error text, at bigint, task_key text, name text,
               waits_for text, session text, started bigint) LANGUAGE sql STABLE AS $$
  SELECT t.step_id, 1 + coalesce(s.attempt, 0), w.status, NULL::jsonb,
         CASE k.reason WHEN 'condition' THEN 'its condition does not hold'
                       WHEN 'fail_fast' THEN 'another task failed, and the recipe says fail_fast'
                       WHEN 'budget' THEN 'the budget of the run is reached'
                       ELSE k.detail END,
         app.ms(coalesce(k.created_at, t.created_at)), NULL::text, t.name,
         CASE WHEN k.reason IS NULL THEN
           coalesce('needs ' || (SELECT string_agg(n.name, ', ') FROM unnest(g.needs) AS n(name)
                                  WHERE NOT EXISTS (SELECT FROM app.graph_ends e
                                                     WHERE e.run_id = p_run AND e.life = l.life AND e.name = n.name)),
                    'a yes: ' || (SELECT e.gate_key FROM app.graph_gates_waiting(p_run) e WHERE e.group_name = g.name),
                    'its turn: caps.concurrency') END,
         NULL::text, NULL::bigint
    FROM (SELECT app.graph_life(p_run) AS life,
                 (SELECT max(y.created_at) FROM app.run_retries y WHERE y.run_id = p_run) AS since) l
    JOIN app.runs r ON r.id = p_run
    JOIN app.graph_tasks t ON t.run_id = p_run
    JOIN app.graph_groups g ON g.run_id = p_run AND g.name = t.group_name
    LEFT JOIN app.graph_skips k ON k.run_id = p_run AND k.life = l.life AND k.step_id = t.step_id
    LEFT JOIN LATERAL (SELECT max(x.attempt) AS attempt,
                              bool_or(x.err_code = 'NONE' OR x.created_at >= coalesce(l.since, '-infinity')) AS is_known
                         FROM app.sbx_runs x WHERE x.run_id = p_run AND x.step_id = t.step_id) s ON true
   CROSS JOIN LATERAL (SELECT CASE WHEN k.reason IN ('late', 'gate') THEN 'failed' WHEN k.reason IS NULL THEN 'queued'
                                   ELSE 'skipped' END AS status) w
   WHERE k.reason IS NOT NULL OR NOT (coalesce(s.is_known, false) OR app.is_over(r.status))
$$;

-- As before; a run that waits for people says at which gates of its graph.
CREATE OR REPLACE FUNCTION app.run_waits_for(p_run text, p_workflow text, p_status text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_task text;
  v_why text;
BEGIN
  IF p_status = 'queued' THEN
    RETURN app.place_before(p_workflow);
  END IF;
  IF p_status = 'waiting_input' THEN
    RETURN (SELECT 'a yes: ' || string_agg(e.gate_key, ', ' ORDER BY e.gate_key) FROM app.graph_gates_waiting(p_run) e);
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
