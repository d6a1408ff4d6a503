-- An event of a decided gate carries the decision, and one of a task's question the name that is asked for: whoever
-- is told can act on both. The decision is that of the vote after which the gate waits no longer. A name is a host name
-- that was checked before it was asked for, and the only text of a task's making that leaves the host.
CREATE OR REPLACE FUNCTION app.webhook_gate_emit(p_gate app.human_gates, p_type text, p_at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_data jsonb := jsonb_build_object('runId', p_gate.run_id, 'workflowID', p_gate.workflow_id, 'gateKey', p_gate.gate_key,
      'topic', p_gate.topic, 'planDigest', p_gate.plan_digest, 'createdAt', app.ms(p_gate.created_at),
      'deadlineAt', app.ms(p_gate.deadline_at), 'escalationWorkflowID', p_gate.escalation_workflow_id);
BEGIN
  IF p_type = 'gate.decided' THEN
    v_data := v_data || jsonb_build_object('decision', (SELECT v.choice FROM app.gate_votes v
      WHERE v.run_id = p_gate.run_id AND v.gate_key = p_gate.gate_key ORDER BY v.interaction_id DESC LIMIT 1));
  END IF;
  -- The gate is there before its question's own row, and its form names what is asked for.
  IF p_gate.plan_digest IS NULL AND p_gate.form #>> '{properties,grant,properties,name,const}' IS NOT NULL THEN
    v_data := v_data || jsonb_build_object('askedName', p_gate.form #>> '{properties,grant,properties,name,const}');
  END IF;
  PERFORM app.webhook_emit(p_gate.tenant_id, p_type, p_gate.run_id, p_gate.gate_key, p_gate.topic, p_at, v_data);
END $$;
