-- Events come from triggers: whichever statement moves a gate or ends a run, today or in a later
-- version, the delivery commits with it or not at all. A row has the values of that moment; `contracts::webhook` has
-- the body's form. Ids and states, and no text that a person or a task wrote, since they leave the host.
CREATE FUNCTION app.webhook_emit(p_tenant text, p_type text, p_run text, p_gate app.human_gates, p_at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
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

CREATE FUNCTION app.webhook_gate_emit(p_gate app.human_gates, p_type text, p_at timestamptz)
RETURNS void LANGUAGE sql AS $$
  SELECT app.webhook_emit(p_gate.tenant_id, p_type, p_gate.run_id, p_gate, p_at)
$$;

CREATE FUNCTION app.webhook_on_gate() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER webhook_on_gate AFTER INSERT OR UPDATE ON app.human_gates
  FOR EACH ROW EXECUTE FUNCTION app.webhook_on_gate();

-- A reminder is told with the line of the journal that records it.
CREATE FUNCTION app.webhook_on_reminder() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_gate app.human_gates;
BEGIN
  FOR v_gate IN SELECT * FROM app.human_gates WHERE run_id = NEW.run_id AND gate_key = NEW.gate_key LOOP
    PERFORM app.webhook_gate_emit(v_gate, 'gate.reminded', clock_timestamp());
  END LOOP;
  RETURN NULL;
END $$;
CREATE TRIGGER webhook_on_reminder AFTER INSERT ON app.gate_journal
  FOR EACH ROW WHEN (NEW.event = 'reminded') EXECUTE FUNCTION app.webhook_on_reminder();

CREATE FUNCTION app.webhook_on_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.webhook_emit(NEW.tenant_id, 'run.terminal', NEW.id, NULL, coalesce(NEW.finished_at, clock_timestamp()));
  RETURN NULL;
END $$;
CREATE TRIGGER webhook_on_run AFTER UPDATE OF status ON app.runs FOR EACH ROW
  WHEN (app.is_over(NEW.status) AND NEW.status IS DISTINCT FROM OLD.status)
  EXECUTE FUNCTION app.webhook_on_run();
