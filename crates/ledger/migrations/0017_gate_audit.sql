-- `ui:<gate>:audit`: what happened to a gate, each event kept in the history, the newest as the event. Its
-- writers are no steps of the waiting workflow, so their places stand beyond every step's: a fork, which copies
-- what lies before a step, starts with none.
CREATE FUNCTION app.gate_audit(p_workflow text, p_gate text, p_event text, p_actor text, p_reason text)
RETURNS void LANGUAGE plpgsql AS $$
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

CREATE FUNCTION app.gate_audit_state() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER gate_audit_state AFTER UPDATE OF state ON app.human_gates FOR EACH ROW
  WHEN (NEW.state IS DISTINCT FROM OLD.state) EXECUTE FUNCTION app.gate_audit_state();

CREATE FUNCTION app.gate_audit_journal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.gate_audit(g.workflow_id, g.gate_key, NEW.event, NULL,
                         CASE NEW.event WHEN 'escalated' THEN 'timeout' END)
     FROM app.human_gates g WHERE g.run_id = NEW.run_id AND g.gate_key = NEW.gate_key;
  RETURN NULL;
END $$;
CREATE TRIGGER gate_audit_journal AFTER INSERT ON app.gate_journal FOR EACH ROW
  EXECUTE FUNCTION app.gate_audit_journal();
