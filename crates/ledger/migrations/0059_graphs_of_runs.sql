-- Graphs of runs: which tasks are in which group, what groups wait for, and what happened in which order.

-- A group of a plan's graph, as the plan says it.
CREATE TABLE app.graph_groups (
  run_id     text NOT NULL REFERENCES app.runs,
  name       text NOT NULL,
  needs      text[] NOT NULL,
  -- Its tasks are made from an output: that none of them is on record does not say that none will be.
  is_late    boolean NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, name)
);
CREATE TRIGGER graph_groups_append_only BEFORE UPDATE OR DELETE ON app.graph_groups
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE TABLE app.graph_tasks (
  run_id     text NOT NULL,
  step_id    text NOT NULL,
  group_name text NOT NULL,
  name       text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, step_id),
  FOREIGN KEY (run_id, group_name) REFERENCES app.graph_groups
);
CREATE INDEX graph_tasks_by_group ON app.graph_tasks (run_id, group_name);
CREATE TRIGGER graph_tasks_append_only BEFORE UPDATE OR DELETE ON app.graph_tasks
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- What happened to a run's graph, in the order in which its executor took it: who replays it takes it in the same.
-- A life is the run itself or one of its retries.
CREATE TABLE app.graph_events (
  run_id     text NOT NULL REFERENCES app.runs,
  life       integer NOT NULL CHECK (life >= 0),
  seq        integer NOT NULL CHECK (seq >= 0),
  event      jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, life, seq)
);
CREATE TRIGGER graph_events_append_only BEFORE UPDATE OR DELETE ON app.graph_events
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- A task that a life of its run does not start.
CREATE TABLE app.graph_skips (
  run_id     text NOT NULL,
  life       integer NOT NULL CHECK (life >= 0),
  step_id    text NOT NULL,
  reason     text NOT NULL CHECK (reason IN ('condition','fail_fast','budget','late')),
  detail     text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, life, step_id),
  FOREIGN KEY (run_id, step_id) REFERENCES app.graph_tasks
);
CREATE TRIGGER graph_skips_append_only BEFORE UPDATE OR DELETE ON app.graph_skips
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

-- A group whose tasks have all ended or are skipped.
CREATE TABLE app.graph_ends (
  run_id   text NOT NULL,
  life     integer NOT NULL CHECK (life >= 0),
  name     text NOT NULL,
  outcome  text NOT NULL CHECK (outcome IN ('succeeded','failed','skipped')),
  -- Why it has no tasks, or none were made.
  detail   text,
  ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, life, name),
  FOREIGN KEY (run_id, name) REFERENCES app.graph_groups
);
CREATE TRIGGER graph_ends_append_only BEFORE UPDATE OR DELETE ON app.graph_ends
  FOR EACH ROW EXECUTE FUNCTION app.refuse_change();

CREATE FUNCTION app.graph_life(p_run text) RETURNS integer LANGUAGE sql STABLE AS $$
  SELECT count(*)::integer FROM app.run_retries WHERE run_id = p_run
$$;

-- A group ends once each of its tasks did, or is skipped in this life.
CREATE FUNCTION app.group_is_over() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_open text;
BEGIN
  SELECT t.step_id INTO v_open FROM app.graph_tasks t
   WHERE t.run_id = NEW.run_id AND t.group_name = NEW.name
     AND CASE WHEN EXISTS (SELECT FROM app.sbx_runs s WHERE s.run_id = t.run_id AND s.step_id = t.step_id)
              THEN EXISTS (SELECT FROM app.sbx_runs s
                            WHERE s.run_id = t.run_id AND s.step_id = t.step_id AND s.response IS NULL)
              -- One whose backoff a stop ended has attempts; one that was never queued has a skip.
              ELSE NOT EXISTS (SELECT FROM app.graph_skips k
                                WHERE k.run_id = t.run_id AND k.step_id = t.step_id AND k.life = NEW.life)
         END
   LIMIT 1;
  IF v_open IS NOT NULL THEN
    RAISE EXCEPTION 'task group % of run % ends before its task %', NEW.name, NEW.run_id, v_open
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER graph_ends_are_ends BEFORE INSERT ON app.graph_ends
  FOR EACH ROW EXECUTE FUNCTION app.group_is_over();

-- A task starts once every group that its own needs has ended.
CREATE FUNCTION app.needs_are_over() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_open text;
BEGIN
  SELECT n.name INTO v_open
    FROM app.sbx_runs s
    JOIN app.graph_tasks t ON t.run_id = s.run_id AND t.step_id = s.step_id
    JOIN app.graph_groups g ON g.run_id = t.run_id AND g.name = t.group_name
   CROSS JOIN unnest(g.needs) AS n(name)
   WHERE s.task_key = NEW.task_key
     AND NOT EXISTS (SELECT FROM app.graph_ends e
                      WHERE e.run_id = g.run_id AND e.name = n.name AND e.life = app.graph_life(g.run_id))
   LIMIT 1;
  IF v_open IS NOT NULL THEN
    RAISE EXCEPTION 'task % starts before the task group % ended', NEW.task_key, v_open
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER sbx_executions_follow_needs BEFORE INSERT ON app.sbx_executions
  FOR EACH ROW EXECUTE FUNCTION app.needs_are_over();

-- Takes down what happened and what follows from it. What is on record already stays as it is: who says it again after a crash says
-- the same. Yields `down`, or `lost` where another execution of the run took another event in the place of one of these: then nothing
-- is written. The caller holds the run's row.
CREATE FUNCTION app.graph_advance(p_run text, p_life integer, p_groups jsonb, p_tasks jsonb, p_events jsonb, p_skips jsonb,
                                  p_ends jsonb)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM jsonb_to_recordset(p_events) AS e(seq integer, event jsonb)
               JOIN app.graph_events g ON g.run_id = p_run AND g.life = p_life AND g.seq = e.seq
              WHERE g.event <> e.event) THEN
    RETURN 'lost';
  END IF;
  INSERT INTO app.graph_groups (run_id, name, needs, is_late)
  SELECT p_run, g.name, ARRAY(SELECT jsonb_array_elements_text(g.needs)), g.is_late
    FROM jsonb_to_recordset(p_groups) AS g(name text, needs jsonb, is_late boolean)
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

-- Tasks of a run's graph that have no attempt in its present life, as readers of its steps see them: skipped, or waiting.
CREATE FUNCTION app.graph_tasks_left(p_run text)
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
   CROSS JOIN LATERAL (SELECT CASE k.reason WHEN 'late' THEN 'failed' ELSE
                                CASE WHEN k.reason IS NULL THEN 'queued' ELSE 'skipped' END END AS status) w
   WHERE k.reason IS NOT NULL OR NOT (coalesce(s.is_known, false) OR app.is_over(r.status))
$$;
