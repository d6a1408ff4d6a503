-- A name may be granted as long as its task runs. Whoever ends the task (its worker, a takeover, a
-- cancel) ends what it asked and nobody answered, in the same transaction; one who lost the task's end
-- to another ends nothing.
CREATE FUNCTION app.egress_asks_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE app.human_gates g SET state = 'canceled', decided_at = clock_timestamp()
    FROM app.egress_asks a
   WHERE a.task_key = NEW.task_key AND g.run_id = a.run_id AND g.gate_key = a.gate_key AND g.state = 'open';
  IF FOUND THEN
    PERFORM pg_notify('cofferdam', 'g:' || NEW.run_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER sbx_runs_end_asks AFTER UPDATE OF response ON app.sbx_runs
  FOR EACH ROW WHEN (OLD.response IS NULL AND NEW.response IS NOT NULL
    AND NEW.request @? '$.sandbox ? (@.netAsk == true || @.build.ask == true)')
  EXECUTE FUNCTION app.egress_asks_end();
