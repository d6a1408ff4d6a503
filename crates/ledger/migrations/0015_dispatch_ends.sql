-- A dispatch runs when its run does.
CREATE FUNCTION app.dispatch_follow_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.dispatches d SET status = 'running',
         started_at = floor(extract(epoch FROM clock_timestamp()))::bigint
    FROM app.dispatch_runs m WHERE m.run_id = NEW.id AND d.id = m.dispatch_id AND d.status = 'spawned';
  RETURN NULL;
END $$;
CREATE TRIGGER dispatch_follow_run AFTER UPDATE OF status ON app.runs FOR EACH ROW
  WHEN (NEW.recipe_id = 'dispatch' AND NEW.status = 'running' AND OLD.status IS DISTINCT FROM NEW.status)
  EXECUTE FUNCTION app.dispatch_follow_run();

-- A dispatch is over when its run is and every attempt has answered, since only then is known what was
-- enforced. What it ends as is written by the transaction that makes it so; no commit leaves it behind.
CREATE FUNCTION app.dispatch_ends_with_its_run() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE CONSTRAINT TRIGGER dispatch_ends_with_its_run AFTER UPDATE OF status ON app.runs
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.recipe_id = 'dispatch' AND app.is_over(NEW.status))
  EXECUTE FUNCTION app.dispatch_ends_with_its_run('id');
CREATE CONSTRAINT TRIGGER dispatch_ends_with_its_task AFTER UPDATE OF response ON app.sbx_runs
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.request ? 'agent' AND NEW.response IS NOT NULL)
  EXECUTE FUNCTION app.dispatch_ends_with_its_run('run_id');
