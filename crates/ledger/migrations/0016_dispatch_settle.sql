-- A dispatch follows its run, in the run's own transactions: it runs when the run does, and it is over
-- when the run is and every attempt has answered, since only then is known what was enforced. The two
-- may happen at once; the one that takes the dispatch's row second sees what the first has committed.
CREATE FUNCTION app.dispatch_settle(p_run text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_id text;
  r app.runs;
  s app.sbx_runs;
  v_report jsonb;
  v_status text;
  v_exit bigint;
  v_cause text;
BEGIN
  SELECT d.id INTO v_id FROM app.dispatches d JOIN app.dispatch_runs m ON m.dispatch_id = d.id
   WHERE m.run_id = p_run AND d.status IN ('spawned','running') FOR UPDATE OF d;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  SELECT * INTO r FROM app.runs WHERE id = p_run;
  IF NOT app.is_over(r.status)
     OR EXISTS (SELECT 1 FROM app.sbx_runs x WHERE x.run_id = p_run AND x.response IS NULL) THEN
    RETURN;
  END IF;
  SELECT * INTO s FROM app.sbx_runs x WHERE x.run_id = p_run ORDER BY attempt DESC LIMIT 1;
  v_report := s.response -> 'agent';
  v_exit := (s.response ->> 'exit')::bigint;
  v_cause := coalesce(s.response ->> 'cause', r.error);
  v_status := CASE
    WHEN r.status = 'succeeded' THEN 'completed'
    WHEN r.status = 'canceled' THEN 'cancelled'
    WHEN s.err_code = 'TIMEOUT' THEN 'timeout'
    ELSE 'failed' END;
  UPDATE app.dispatches d SET status = v_status,
         completed_at = floor(extract(epoch FROM clock_timestamp()))::bigint,
         exit_code = CASE WHEN v_exit >= 0 THEN v_exit END,
         error_message = CASE WHEN v_status <> 'completed' THEN v_cause END,
         turns = coalesce((v_report #>> '{tally,turns}')::bigint, 0),
         commands = coalesce((v_report #>> '{tally,commands}')::bigint, 0),
         messages = coalesce((v_report #>> '{tally,messages}')::bigint, 0),
         input_tokens = coalesce((v_report #>> '{tally,input_tokens}')::bigint, 0),
         output_tokens = coalesce((v_report #>> '{tally,output_tokens}')::bigint, 0),
         cache_hits = coalesce((v_report #>> '{tally,cache_hits}')::bigint, 0),
         sandbox_effective = CASE WHEN d.sandbox_spec IS NOT NULL THEN coalesce(v_report -> 'effective',
           jsonb_build_object('schema_version', 1, 'started', false, 'working_dir', d.project_dir,
             'access_mode', coalesce(d.sandbox_spec ->> 'access_mode', d.sandbox, 'workspace-write'), 'enforce', false,
             'egress_observed', '{"allowed":"none","refused":0}'::jsonb,
             'peaks', '{"mem_mb":0,"wall_ms":0,"cpu_ms":0}'::jsonb, 'violations', '[]'::jsonb,
             'violations_unlisted', 0, 'cause', coalesce(v_cause, 'it never started'))) END
   WHERE d.id = v_id;
  PERFORM pg_notify('cofferdam', 'r:' || p_run);
END $$;

CREATE FUNCTION app.dispatch_follow_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status = 'running' THEN
    UPDATE app.dispatches d SET status = 'running',
           started_at = floor(extract(epoch FROM clock_timestamp()))::bigint
      FROM app.dispatch_runs m WHERE m.run_id = NEW.id AND d.id = m.dispatch_id AND d.status = 'spawned';
  ELSE
    PERFORM app.dispatch_settle(NEW.id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER dispatch_follow_run AFTER UPDATE OF status ON app.runs FOR EACH ROW
  WHEN (NEW.recipe_id = 'dispatch' AND NEW.status IS DISTINCT FROM OLD.status)
  EXECUTE FUNCTION app.dispatch_follow_run();

CREATE FUNCTION app.dispatch_follow_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.dispatch_settle(NEW.run_id);
  RETURN NULL;
END $$;
CREATE TRIGGER dispatch_follow_task AFTER UPDATE OF response ON app.sbx_runs FOR EACH ROW
  WHEN (NEW.request ? 'agent' AND NEW.response IS NOT NULL AND OLD.response IS NULL)
  EXECUTE FUNCTION app.dispatch_follow_task();
